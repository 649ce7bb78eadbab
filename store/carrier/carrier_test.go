package carrier_test

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/carrier"
)

const (
	ms      = time.Millisecond
	timeout = 250 * ms
	late    = 8 * ms // a wait ends by then
)

var (
	errBusy = errors.New("all connections are taken")
	errNo   = errors.New("the server says no")
)

// call is a call by its number, and its reply, which is the number too.
type call struct{ number, reply int64 }

// server is a server in a bubble with its client: it makes calls one after the other, and has a pool of connections.
type server struct {
	mu        sync.Mutex
	way, cost time.Duration // the way there and back; the time of a call, of which others of its trip take a quarter
	size      int           // of the pool

	free   time.Time     // when it has done what was sent
	hangs  chan struct{} // until it is closed nothing is answered; nil if the server does not hang
	gone   bool          // it cannot be reached
	broken int           // connections that were made before the last break
	idle   int
	total  int
	waits  []chan struct{} // for a connection

	ran       map[int64]int // how often each call was made
	back      map[int64]int // and given back
	trips     int
	calls     int
	panics    atomic.Bool
	refuses   atomic.Bool // it answers each call with an error
	dialHangs atomic.Bool
}

func newServer() *server {
	return &server{way: 20 * ms, cost: 10 * time.Microsecond, size: 20, ran: map[int64]int{}, back: map[int64]int{}}
}

func (s *server) config() carrier.Config[call] {
	return carrier.Config[call]{
		Timeout: timeout, Conns: s.size, DialTimeout: time.Second, Send: s.send, Means: means,
		GiveBack: func(c call) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.back[c.number]++
		},
		Pool: func() (idle, total int) {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.idle, s.total
		},
	}
}

func means(err error) carrier.Meaning {
	switch {
	case errors.Is(err, errNo):
		return carrier.Answered
	case errors.Is(err, errBusy):
		return carrier.Busy
	}
	return carrier.Unknown
}

// connect takes a connection, or makes one.
func (s *server) connect(ctx context.Context) error {
	s.mu.Lock()
	if s.idle == 0 && s.total == s.size {
		free := make(chan struct{})
		s.waits = append(s.waits, free)
		s.mu.Unlock()
		select {
		case <-free:
			return nil
		case <-ctx.Done():
			s.mu.Lock()
			defer s.mu.Unlock()
			select {
			case <-free:
				s.release()
			default:
				s.waits = without(s.waits, free)
			}
			return errBusy
		}
	}
	if s.idle > 0 {
		s.idle--
		s.mu.Unlock()
		return nil
	}
	s.total++
	gone := s.gone
	s.mu.Unlock()
	var err error
	switch {
	case s.dialHangs.Load():
		<-ctx.Done()
		err = ctx.Err()
	case gone:
		err = &net.OpError{Op: "dial", Err: errors.New("refused")}
	default:
		time.Sleep(s.way) // a handshake
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total--
	return err
}

func without(list []chan struct{}, c chan struct{}) (rest []chan struct{}) {
	for _, other := range list {
		if other != c {
			rest = append(rest, other)
		}
	}
	return rest
}

// release gives a connection back. Call it with the lock held.
func (s *server) release() {
	if len(s.waits) > 0 {
		close(s.waits[0])
		s.waits = s.waits[1:]
		return
	}
	s.idle++
}

// make makes calls, unless end is before, and reports whether they were answered.
func (s *server) make(end time.Time, calls []*call) error {
	s.mu.Lock()
	s.trips++
	s.calls += len(calls)
	broken, hangs := s.broken, s.hangs
	takes := s.cost + time.Duration(max(0, len(calls)-1))*s.cost/4
	now := time.Now().Add(s.way / 2)
	if s.free = s.free.Add(takes); s.free.Before(now) {
		s.free = now.Add(takes)
	}
	done := s.free.Add(s.way / 2)
	s.mu.Unlock()
	timer := time.NewTimer(time.Until(end))
	defer timer.Stop()
	if hangs != nil {
		select {
		case <-hangs:
		case <-timer.C:
			return s.lost(calls)
		}
	}
	select {
	case <-time.After(time.Until(done)):
	case <-timer.C:
		return s.lost(calls) // and the server makes them all the same
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range calls {
		s.ran[c.number]++
		c.reply = c.number
	}
	if s.broken != broken {
		s.total--
		return io.EOF
	}
	s.release()
	return nil
}

// lost is the end of a connection whose calls are made later.
func (s *server) lost(calls []*call) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total--
	for _, c := range calls {
		s.ran[c.number]++
	}
	return context.DeadlineExceeded
}

func (s *server) send(ctx context.Context, t *carrier.Trip[call]) error {
	if s.panics.Load() {
		panic("planted")
	}
	if err := s.connect(ctx); err != nil {
		return err
	}
	if !t.Writing().Begin() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.release()
		return nil
	}
	var calls []*call
	for c := range t.Calls {
		calls = append(calls, &c.Call)
	}
	end, _ := ctx.Deadline()
	if err := s.make(end, calls); err != nil {
		return err
	}
	if s.refuses.Load() {
		return errNo
	}
	for c := range t.Calls {
		c.End(nil)
	}
	return nil
}

// alone makes a call on its caller's goroutine.
func (s *server) alone(b carrier.Budget, c call) (call, bool, error) {
	if err := s.connect(b); err != nil {
		return c, false, err
	}
	err := s.make(b.End, []*call{&c})
	return c, true, err
}

// suffer has the server suffer from what f does.
func (s *server) suffer(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// freeze has it hang, until it is called back.
func (s *server) freeze() (thaw func()) {
	hangs := make(chan struct{})
	s.suffer(func() { s.hangs = hangs })
	return func() {
		s.suffer(func() { s.hangs = nil })
		close(hangs)
	}
}

// users call a server as a store does.
type users struct {
	s       *server
	c       *carrier.Carrier[call]
	next    atomic.Int64
	all     sync.WaitGroup
	stop    atomic.Bool
	served  atomic.Int64
	slowest atomic.Int64 // ns beyond a deadline

	mu   sync.Mutex
	told map[int64]error // what each call was told
}

func newUsers(t *testing.T, s *server, config carrier.Config[call]) *users {
	c, err := carrier.New(config)
	require.NoError(t, err)
	return &users{s: s, c: c, told: map[int64]error{}}
}

// do makes a call.
func (u *users) do(ctx context.Context) error {
	c := call{number: u.next.Add(1)}
	end := time.Now().Add(timeout)
	if own, ok := ctx.Deadline(); ok && own.Before(end) {
		end = own
	}
	err := u.try(ctx, c)
	if over := int64(time.Since(end)); over > u.slowest.Load() {
		u.slowest.Store(over)
	}
	if err == nil {
		u.served.Add(1)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.told[c.number] = err
	return err
}

func (u *users) try(ctx context.Context, c call) error {
	b := u.c.Begin(ctx)
	if err := u.c.Admit(&b); err != nil {
		return err
	}
	defer b.Leave()
	for {
		after, err := u.c.Do(b, c)
		var f *carrier.Failure
		switch {
		case err == nil && after != call{c.number, c.number}:
			return errors.New("another one's reply")
		case !errors.As(err, &f):
			return err
		case !b.Again(f):
			return b.Fail(f)
		}
	}
}

// press has callers call without a pause.
func (u *users) press(callers int, ctx func(n int) (context.Context, context.CancelFunc)) {
	for i := range callers {
		u.all.Go(func() {
			for n := i; !u.stop.Load(); n++ {
				ctx, cancel := ctx(n)
				if u.do(ctx) != nil {
					time.Sleep(ms)
				}
				cancel()
			}
		})
	}
}

func patient(int) (context.Context, context.CancelFunc) { return context.Background(), func() {} }

// hurried has a deadline of its own for each fifth call, of up to 40 ms, and each seventh leaves by itself.
func hurried(n int) (context.Context, context.CancelFunc) {
	switch {
	case n%5 == 0:
		return context.WithTimeout(context.Background(), time.Duration(n%40)*ms)
	case n%7 == 0:
		ctx, leave := context.WithCancel(context.Background())
		time.AfterFunc(time.Duration(n%50)*ms, leave)
		return ctx, leave
	}
	return patient(n)
}

// servedIn is how many calls are served in the next d.
func (u *users) servedIn(d time.Duration) int64 {
	before := u.served.Load()
	time.Sleep(d)
	return u.served.Load() - before
}

// end stops the callers, and waits until nothing is left of them.
func (u *users) end() {
	u.stop.Store(true)
	u.all.Wait()
	time.Sleep(time.Minute)
	synctest.Wait()
}

// Past the capacity of a server, near or far, as many calls are served as at its peak.
func TestGoodputStaysPastCapacity(t *testing.T) {
	for name, way := range map[string]time.Duration{"near": 200 * time.Microsecond, "far": 40 * ms} {
		t.Run(name, func(t *testing.T) {
			served := func(callers int) (n int64) {
				synctest.Test(t, func(t *testing.T) {
					s := newServer()
					s.way, s.cost = way, 400*time.Microsecond // of a call of many 100 µs
					u := newUsers(t, s, s.config())
					u.press(callers, patient)
					u.servedIn(2 * time.Second)
					n = u.servedIn(2 * time.Second)
					u.end()
				})
				return n
			}
			few, many := served(256), served(effort.Of(2048, 4096))
			t.Logf("%d, and %d of more callers than it can serve", few, many)
			require.Greater(t, many, few*3/4)
		})
	}
}

// A call for three limits is refunded by a call for each of them. Past the capacity of a server, near or far, none of these is
// refused or late.
func TestCallsForSeveralLimitsAreRefundedPastCapacity(t *testing.T) {
	for name, way := range map[string]time.Duration{"near": 200 * time.Microsecond, "far": 20 * ms} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer()
				s.way, s.cost = way, 600*time.Microsecond // of a call of many 150 µs
				u := newUsers(t, s, s.config())
				var refunded, failed atomic.Int64
				for range 1024 {
					u.all.Go(func() {
						for !u.stop.Load() {
							if u.do(context.Background()) != nil {
								time.Sleep(ms)
								continue
							}
							for range 3 {
								b := u.c.Begin(context.Background())
								b.Ahead = true
								if err := u.c.Admit(&b); err != nil {
									failed.Add(1)
									continue
								}
								if _, err := u.c.Do(b, call{number: u.next.Add(1)}); err != nil {
									failed.Add(1)
								} else {
									refunded.Add(1)
								}
								b.Leave()
							}
						}
					})
				}
				served := u.servedIn(1500 * ms)
				u.end()
				t.Logf("%d were served, and %d refunds", served, refunded.Load())
				require.Zero(t, failed.Load())
				require.Equal(t, 3*u.served.Load(), refunded.Load())
			})
		})
	}
}

// A call returns by its deadline or the timeout, and at most 8 ms later, whatever happens to the server.
func TestNoCallIsLaterThanItsDeadline(t *testing.T) {
	effort.OthersRace(t)
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		u := newUsers(t, s, s.config())
		u.press(400, hurried)
		time.Sleep(time.Second)
		thaw := s.freeze()
		time.Sleep(2 * time.Second)
		thaw()
		for range 3 {
			time.Sleep(time.Second)
			s.suffer(func() { s.broken++; s.total -= s.idle; s.idle = 0 })
		}
		s.suffer(func() { s.cost = 20 * ms })
		time.Sleep(time.Second)
		s.dialHangs.Store(true)
		s.suffer(func() { s.broken++; s.total -= s.idle; s.idle = 0 })
		time.Sleep(2 * time.Second)
		u.end()
		require.Positive(t, u.served.Load())
		require.LessOrEqual(t, time.Duration(u.slowest.Load()), late)
	})
}

// A call that was refused was not made, and its error is ErrOverloaded. A busy server has no other errors.
func TestRefusedCallersGetErrOverloaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.cost = 2 * ms
		u := newUsers(t, s, s.config())
		require.NoError(t, u.do(t.Context()))
		u.press(2000, patient)
		time.Sleep(2 * time.Second)
		u.end()
		overloaded := int64(0)
		for number, err := range u.told {
			if errors.Is(err, store.ErrOverloaded) {
				overloaded++
				require.Zero(t, s.ran[number])
				continue
			}
			require.True(t, err == nil || errors.Is(err, store.ErrTimeout), "%v", err) // the first trips are too large
		}
		require.Positive(t, overloaded)
		require.Equal(t, overloaded, u.c.Stats().Overloaded)
		require.ErrorIs(t, store.ErrOverloaded, store.ErrStore)
	})
}

// Many callers share round trips, and a few do not wait for each other.
func TestCallsShareTrips(t *testing.T) {
	for callers, want := range map[int][2]int{2: {1, 2}, 512: {16, 128}} {
		synctest.Test(t, func(t *testing.T) {
			s := newServer()
			u := newUsers(t, s, s.config())
			u.press(callers, patient)
			u.servedIn(time.Second)
			s.suffer(func() { s.trips, s.calls = 0, 0 })
			u.servedIn(time.Second)
			s.mu.Lock()
			each := s.calls / s.trips
			s.mu.Unlock()
			u.end()
			require.GreaterOrEqual(t, each, want[0], "%d callers", callers)
			require.LessOrEqual(t, each, want[1], "%d callers", callers)
		})
	}
}

// Whatever happens, no call is made twice. One that was answered was made, and one of which nothing was sent was not.
func TestNothingRunsTwice(t *testing.T) {
	for seed := range effort.Of(4, 40) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(uint64(seed), 1))
			s := newServer()
			s.way, s.cost = time.Duration(rng.IntN(40))*ms, time.Duration(rng.IntN(300))*time.Microsecond
			u := newUsers(t, s, s.config())
			u.press(1+rng.IntN(300), hurried)
			for range 8 {
				time.Sleep(time.Duration(rng.IntN(600)) * ms)
				switch rng.IntN(4) {
				case 0:
					thaw := s.freeze()
					time.Sleep(time.Duration(rng.IntN(600)) * ms)
					thaw()
				case 1:
					s.suffer(func() { s.broken++; s.total -= s.idle; s.idle = 0 })
				case 2:
					s.suffer(func() { s.gone = !s.gone })
				case 3:
					s.dialHangs.Store(!s.dialHangs.Load())
				}
			}
			u.end()
			classes := map[string]int{}
			for number, err := range u.told {
				ran := s.ran[number]
				require.LessOrEqual(t, ran, 1)
				require.LessOrEqual(t, s.back[number], ran)
				switch {
				case err == nil:
					require.Equal(t, 1, ran)
					require.Zero(t, s.back[number])
					classes["ok"]++
				case errors.Is(err, store.ErrTimeout):
					classes["unknown"]++
				case errors.Is(err, store.ErrStore):
					require.Zero(t, ran, "%v", err)
					classes["not made"]++
				default:
					require.True(t, errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded), "%v", err)
					classes["left"]++
				}
			}
			t.Log(seed, classes)
			require.Equal(t, carrier.Stats{Overloaded: u.c.Stats().Overloaded, TooShort: u.c.Stats().TooShort, RoundTrip: u.c.Stats().RoundTrip}, u.c.Stats(), "nothing is left")
		})
	}
}

// What was made for a caller whose context had ended is given back, once, and nothing else is.
func TestCallsMadeForACallerThatLeftAreRefundedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		u := newUsers(t, s, s.config())
		require.NoError(t, u.do(t.Context()))
		require.NoError(t, u.do(t.Context()))
		for i := range 3 {
			ctx, leave := context.WithTimeout(t.Context(), 100*ms)
			thaw := s.freeze()
			require.Equal(t, context.DeadlineExceeded, u.do(ctx))
			time.Sleep(100 * ms)
			thaw()
			leave()
			time.Sleep(time.Second)
			synctest.Wait()
			require.Equal(t, 1, s.ran[int64(i+3)])
			require.Equal(t, 1, s.back[int64(i+3)])
		}
		thaw := s.freeze()
		require.ErrorIs(t, u.do(context.Background()), store.ErrTimeout, "the store's own timeout is no end of a context")
		thaw()
		time.Sleep(time.Second)
		thaw = s.freeze()
		s.refuses.Store(true)
		ctx, leave := context.WithTimeout(t.Context(), 100*ms)
		defer leave()
		require.Equal(t, context.DeadlineExceeded, u.do(ctx))
		thaw()
		u.end()
		require.Len(t, s.back, 3, "the server has refused it")
	})
}

// The same holds if calls go alone.
func TestACallThatWentAloneIsRefundedIfItsCallerLeft(t *testing.T) {
	for name, c := range map[string]struct {
		err          error
		sent, leaves bool
		back         int
		want         error
	}{
		"left":          {context.Canceled, true, true, 1, context.Canceled},
		"left before":   {context.Canceled, false, true, 0, context.Canceled},
		"answered":      {errNo, true, true, 0, errNo},
		"timed out":     {context.DeadlineExceeded, true, false, 0, store.ErrTimeout},
		"not connected": {context.DeadlineExceeded, false, false, 0, store.ErrUnavailable},
	} {
		for _, refunds := range []bool{true, false} {
			ctx, leave := context.WithCancel(t.Context())
			config, back := newServer().config(), 0
			config.Send = nil
			config.Alone = func(_ carrier.Budget, one call) (call, bool, error) {
				if c.leaves {
					leave()
				}
				return one, c.sent, c.err
			}
			if config.GiveBack = nil; refunds {
				config.GiveBack = func(call) { back++ }
			} else {
				c.back = 0
			}
			require.ErrorIs(t, newUsers(t, nil, config).do(ctx), c.want, name)
			require.Equal(t, c.back, back, name)
			leave()
		}
	}
}

// The call may have run, and nobody has refunded it.
func TestATimeoutStaysOneIfTheContextEndsThen(t *testing.T) {
	for name, change := range map[string]func(*server, *carrier.Config[call]){
		"shared": func(*server, *carrier.Config[call]) {},
		"alone":  func(s *server, c *carrier.Config[call]) { c.Send, c.Alone = nil, s.alone },
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newServer()
			config := s.config()
			change(s, &config)
			u := newUsers(t, s, config)
			require.NoError(t, u.do(t.Context()))
			thaw := s.freeze()
			ctx, leave := context.WithCancel(t.Context())
			b := u.c.Begin(ctx)
			require.NoError(t, u.c.Admit(&b))
			_, err := u.c.Do(b, call{number: 2})
			leave()
			var f *carrier.Failure
			require.ErrorAs(t, err, &f, name)
			require.ErrorIs(t, b.Fail(f), store.ErrTimeout, name)
			b.Leave()
			thaw()
			u.end()
			require.Empty(t, s.back)
		})
	}
}

// A call may begin with one carrier, and be admitted by another.
func TestACallLeavesTheCarrierThatAdmitsIt(t *testing.T) {
	s := newServer()
	one, other := newUsers(t, s, s.config()).c, newUsers(t, s, s.config()).c
	for _, ahead := range []bool{false, true} {
		b := one.Begin(t.Context())
		b.Ahead = ahead
		require.NoError(t, other.Admit(&b))
		require.Equal(t, []int64{0, 1}, []int64{one.Stats().UnderWay, other.Stats().UnderWay})
		b.Leave()
		require.Equal(t, []int64{0, 0}, []int64{one.Stats().UnderWay, other.Stats().UnderWay})
	}
}

func TestWhatACarrierKnowsOfItsCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.cost = 0
		u := newUsers(t, s, s.config())
		for range 2 {
			require.NoError(t, u.do(t.Context()))
			synctest.Wait()
		}
		require.Equal(t, carrier.Stats{RoundTrip: s.way}, u.c.Stats())
		thaw := s.freeze()
		ctx, leave := context.WithCancel(t.Context())
		for range 2 {
			u.all.Go(func() { _ = u.do(ctx) })
			synctest.Wait()
		}
		require.Equal(t, carrier.Stats{UnderWay: 2, Waiting: 1, Trips: 2, Busy: 1, RoundTrip: s.way}, u.c.Stats(), "a connection is made for the one that waits")
		leave()
		time.Sleep(timeout)
		synctest.Wait()
		require.Equal(t, 2, u.c.Stats().Late)
		thaw()
		u.end()
		require.Zero(t, u.c.Stats().Late)
	})
}

// A carrier is idle after an hour without a call, whether calls have worked or not.
func TestACarrierIsIdleAnHourAfterItsLastCall(t *testing.T) {
	rest := func(t *testing.T, c *carrier.Carrier[call]) {
		time.Sleep(time.Hour)
		require.False(t, c.Idle())
		time.Sleep(time.Nanosecond)
		require.True(t, c.Idle())
	}
	for name, change := range map[string]func(*server, *carrier.Config[call]){
		"shared":      func(*server, *carrier.Config[call]) {},
		"alone":       func(s *server, c *carrier.Config[call]) { c.Send, c.Alone = nil, s.alone },
		"unreachable": func(s *server, _ *carrier.Config[call]) { s.gone = true },
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newServer()
			config := s.config()
			change(s, &config)
			u := newUsers(t, s, config)
			rest(t, u.c)
			for range 2 {
				err := u.do(t.Context())
				require.Equal(t, s.gone, err != nil, name)
				time.Sleep(time.Hour - timeout)
				require.False(t, u.c.Idle(), name)
				time.Sleep(timeout + 1)
				require.True(t, u.c.Idle(), name)
			}
			u.c.Warmed(1, ms)
			rest(t, u.c)
			one, other := u.c.Begin(t.Context()), u.c.Begin(t.Context())
			other.Ahead = true
			for _, b := range []*carrier.Budget{&one, &other} {
				require.NoError(t, u.c.Admit(b))
				require.False(t, u.c.Idle(), name)
			}
			one.Leave()
			require.False(t, u.c.Idle(), name)
			other.Leave()
			require.True(t, u.c.Idle(), name)
		})
	}
}

// With OneFirst, no connection is made while the first is, and others once it has worked.
func TestTheFirstConnectionIsMadeAlone(t *testing.T) {
	for first, want := range map[bool]int{true: 1, false: 2} {
		synctest.Test(t, func(t *testing.T) {
			s := newServer()
			s.way = ms
			config := s.config()
			config.OneFirst = first
			u := newUsers(t, s, config)
			calls := func() {
				for range 2 {
					u.all.Go(func() { _ = u.do(t.Context()) })
					synctest.Wait()
				}
			}
			calls()
			require.Equal(t, want, s.total)
			u.all.Wait()
			synctest.Wait()
			calls()
			require.Greater(t, s.total, 1)
			u.end()
		})
	}
}

// Callers who leave take nothing from those who stay.
func TestACallerThatLeavesDoesNotCostOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		u := newUsers(t, s, s.config())
		for range 4 {
			require.NoError(t, u.do(t.Context()))
		}
		for range 50 {
			var stay, leave sync.WaitGroup
			for i := range 40 {
				ctx, cancel := context.WithCancel(context.Background())
				leave.Go(func() { _ = u.do(ctx) })
				time.AfterFunc(time.Duration(i)*ms, cancel)
				stay.Go(func() {
					if err := u.do(context.Background()); err != nil {
						t.Error(err)
					}
				})
			}
			stay.Wait()
			leave.Wait()
		}
		u.end()
		require.Equal(t, s.total, s.idle, "no connection is lost")
	})
}

// A Send that panics does so for each of its callers. The carrier goes on.
func TestAPanicOfSendReachesItsCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		u := newUsers(t, s, s.config())
		s.panics.Store(true)
		var all sync.WaitGroup
		var panicked atomic.Int64
		for range 40 {
			all.Go(func() {
				defer func() {
					if recover() == "planted" {
						panicked.Add(1)
					}
				}()
				_ = u.do(context.Background())
			})
		}
		all.Wait()
		require.Positive(t, panicked.Load())
		s.panics.Store(false)
		require.NoError(t, u.do(t.Context()))
		u.end()
		require.Zero(t, u.c.Stats().UnderWay)
		require.Zero(t, u.c.Stats().Trips)
	})
}

// A server that is gone, or hangs, is unavailable or times out. It is not called overloaded once it has been silent for a
// second, however many call.
func TestAServerThatDoesNotAnswerIsNotCalledOverloaded(t *testing.T) {
	effort.OthersRace(t)
	for name, fault := range map[string]func(s *server) (end func()){
		"gone": func(s *server) func() {
			s.suffer(func() { s.gone = true; s.broken++; s.total -= s.idle; s.idle = 0 })
			return func() { s.suffer(func() { s.gone = false }) }
		},
		"hangs": func(s *server) func() { return s.freeze() },
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newServer()
			u := newUsers(t, s, s.config())
			u.press(300, patient)
			u.servedIn(time.Second)
			end := fault(s)
			time.Sleep(2 * time.Second)
			overloaded := u.c.Stats().Overloaded
			require.Zero(t, u.servedIn(2*time.Second))
			require.Equal(t, overloaded, u.c.Stats().Overloaded, name)
			end()
			time.Sleep(2 * time.Second)
			require.Positive(t, u.servedIn(time.Second), "%s: it is found again", name)
			u.end()
		})
	}
}

// Nothing is answered while nobody calls. That is no sign of a server that hangs.
func TestTheFirstBurstAfterARestIsNotCalledAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		u := newUsers(t, s, s.config())
		u.press(100, patient)
		u.servedIn(time.Second)
		u.end()
		for range 3 {
			time.Sleep(40 * time.Second)
			thaw := s.freeze()
			var all sync.WaitGroup
			for range 300 {
				all.Go(func() {
					if err := u.do(context.Background()); !errors.Is(err, store.ErrOverloaded) && !errors.Is(err, store.ErrTimeout) {
						t.Error(err)
					}
				})
			}
			all.Wait()
			thaw()
			time.Sleep(time.Second)
			require.NoError(t, u.do(t.Context()))
		}
		u.end()
	})
}

// An error that the server answers is the call's, and says nothing of the connection.
func TestAnAnswerIsReturnedAsItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.refuses.Store(true)
		u := newUsers(t, s, s.config())
		for range 10 {
			require.Equal(t, errNo, u.do(t.Context()))
			time.Sleep(ms) // until its trip has ended
		}
		u.end()
		require.Equal(t, 1, s.total)
		require.Len(t, s.ran, 10)
	})
}

// Calls that could not be sent in time leave no memory behind, while nothing is answered for long.
func TestCallsThatHaveLeftFillNoMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.size = 1
		u := newUsers(t, s, s.config())
		require.NoError(t, u.do(t.Context()))
		thaw := s.freeze()
		u.press(300, patient)
		time.Sleep(time.Second)
		var before, after runtime.MemStats
		measure := func(m *runtime.MemStats) {
			u.mu.Lock()
			clear(u.told)
			u.mu.Unlock()
			runtime.GC()
			runtime.ReadMemStats(m)
		}
		measure(&before)
		time.Sleep(time.Minute)
		measure(&after)
		thaw()
		u.end()
		require.Less(t, int64(after.HeapAlloc)-int64(before.HeapAlloc), int64(4<<20))
	})
}

// No goroutine is left when the calls have ended, and none waits for the next call.
func TestNoGoroutineIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inside := func() int { // goroutines of this bubble
			stacks := make([]byte, 1<<20)
			return strings.Count(string(stacks[:runtime.Stack(stacks, true)]), "synctest bubble")
		}
		before := inside()
		require.Positive(t, before)
		s := newServer()
		u := newUsers(t, s, s.config())
		u.press(200, hurried)
		synctest.Wait()
		require.Greater(t, inside(), before)
		time.Sleep(time.Second)
		thaw := s.freeze()
		time.Sleep(time.Second)
		thaw()
		u.end()
		require.Equal(t, before, inside())
	})
}

// Without Send all calls go alone. More than the server can serve in time are refused, and goodput stays.
func TestCallsThatAllGoAloneAreRefusedInTime(t *testing.T) {
	served := func(callers int) (n, overloaded, timeouts int64) {
		synctest.Test(t, func(t *testing.T) {
			s := newServer()
			s.way, s.cost, s.size = ms, ms, 1<<20
			config := s.config()
			config.Send, config.Alone = nil, s.alone
			u := newUsers(t, s, config)
			u.press(callers, patient)
			u.servedIn(6 * time.Second) // at first nobody knows what it can do
			u.mu.Lock()
			clear(u.told)
			u.mu.Unlock()
			before := u.c.Stats().Overloaded
			n = u.servedIn(4 * time.Second)
			overloaded = u.c.Stats().Overloaded - before
			u.mu.Lock()
			for _, err := range u.told {
				if errors.Is(err, store.ErrTimeout) {
					timeouts++
				}
			}
			u.mu.Unlock()
			u.end()
			require.LessOrEqual(t, time.Duration(u.slowest.Load()), late)
			require.Zero(t, u.c.Stats().UnderWay)
		})
		return n, overloaded, timeouts
	}
	few, refused, _ := served(40)
	require.Zero(t, refused, "there is room")
	many, refused, timeouts := served(2000)
	t.Logf("%d, and %d of more callers, of whom %d were refused, and %d came too late", few, many, refused, timeouts)
	require.Positive(t, refused)
	require.Greater(t, many, few*3/4)
	require.Less(t, timeouts, many/10)
}

func TestACarrierChecksItsConfig(t *testing.T) {
	s := newServer()
	for what, change := range map[string]func(c *carrier.Config[call]){
		"no time":       func(c *carrier.Config[call]) { c.Timeout = 0 },
		"no connection": func(c *carrier.Config[call]) { c.Conns = 0 },
		"no Send":       func(c *carrier.Config[call]) { c.Send = nil },
		"no Means":      func(c *carrier.Config[call]) { c.Means = nil },
	} {
		config := s.config()
		change(&config)
		_, err := carrier.New(config)
		require.ErrorIs(t, err, store.ErrInvalidOption, what)
	}
	_, err := carrier.New(carrier.Config[call]{Timeout: 1, Conns: 1, Means: means, Alone: s.alone})
	require.NoError(t, err)
}
