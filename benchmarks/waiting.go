package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/time/rate"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// waitKey is the key that all wait for.
const waitKey = "key"

// waiting is a limiter that callers can wait for, with this many events a second and a
// burst of 1.
type waiting struct {
	name  string
	redis bool
	open  func(w *waitingRoom, perSecond int) (wait func(context.Context) error, err error)
}

// waitingRoom is where limiters keep their state.
type waitingRoom struct {
	client *redis.Client // nil if there is no redis-server
	store  store.Store   // on client
}

func waitings() []waiting {
	return []waiting{
		{name: "Wait, memory", open: func(_ *waitingRoom, perSecond int) (func(context.Context) error, error) {
			s, err := memstore.New()
			if err != nil {
				return nil, err
			}
			return waitFor(s, perSecond)
		}},
		{name: "x/time/rate, memory", open: func(_ *waitingRoom, perSecond int) (func(context.Context) error, error) {
			return rate.NewLimiter(rate.Limit(perSecond), 1).Wait, nil
		}},
		{name: "Wait, Redis", redis: true, open: func(w *waitingRoom, perSecond int) (func(context.Context) error, error) {
			return waitFor(w.store, perSecond)
		}},
	}
}

func waitFor(s store.Store, perSecond int) (func(context.Context) error, error) {
	lim, err := ratelimit.NewTokenBucket(s, ratelimit.Limit{Rate: perSecond, Period: time.Second, Burst: 1}, ratelimit.WithName(rand.Text()))
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		_, err := ratelimit.Wait(ctx, lim, waitKey, 1)
		return err
	}, nil
}

// measureWaiting writes what waiters get, and how many questions it takes.
func (b *bench) measureWaiting(ctx context.Context) error {
	room := &waitingRoom{}
	if _, err := exec.LookPath("redis-server"); err == nil {
		addr, stop, err := startRedis(ctx)
		if err != nil {
			return err
		}
		defer stop()
		options := redisOptions(addr, 0)
		options.PoolSize = 20
		room.client = redis.NewClient(options)
		defer func() { _ = room.client.Close() }()
		if room.store, err = redisstore.New(room.client); err != nil {
			return err
		}
		if err := room.warmUp(ctx); err != nil {
			return err
		}
	}
	for _, f := range []func(context.Context, *waitingRoom) error{b.waitingQueues, b.waitingCallers, b.waitingDeadlines} {
		if err := f(ctx, room); err != nil {
			return err
		}
	}
	return nil
}

// warmUp connects, and loads the script.
func (w *waitingRoom) warmUp(ctx context.Context) error {
	wait, err := waitFor(w.store, 1000)
	if err != nil {
		return err
	}
	for range 3 {
		err = wait(ctx)
	}
	return err
}

// scripts is how many scripts the server has run.
func (w *waitingRoom) scripts(ctx context.Context) (float64, error) {
	if w.client == nil {
		return 0, nil
	}
	stats, err := commandStats(ctx, w.client)
	return stats["evalsha"].calls + stats["eval"].calls, err
}

// queueCell is a number of waiters that come at once, each for one turn.
type queueCell struct{ waiters, perSecond int }

// waitingQueues measures queues in which each caller takes one turn.
func (b *bench) waitingQueues(ctx context.Context, room *waitingRoom) error {
	b.progress("waiting: queues")
	var rows []string
	var runs []func(g *grid, row int) error
	for _, c := range b.queues {
		for _, w := range waitings() {
			if w.redis && room.client == nil {
				continue
			}
			rows = append(rows, fmt.Sprintf("%s waiters at %d/s, %s", grouped(c.waiters), c.perSecond, w.name))
			runs = append(runs, func(g *grid, row int) error { return queueRun(ctx, room, w, c, g, row) })
		}
	}
	g := newGrid("Waiting: so many callers at once, a burst of 1", rows)
	g.printed = twoDecimals
	g.note = "The rate counts from the first turn to the last. Out of order are callers overtaken by more than 5 that had come at least 1 ms later."
	for row, run := range runs {
		if err := run(g, row); err != nil {
			return err
		}
	}
	b.report(g)
	return nil
}

func queueRun(ctx context.Context, room *waitingRoom, w waiting, c queueCell, g *grid, row int) error {
	wait, err := w.open(room, c.perSecond)
	if err != nil {
		return err
	}
	before, err := room.scripts(ctx)
	if err != nil {
		return err
	}
	var mu sync.Mutex // protects turns and failed
	var turns []turn
	failed := 0
	var all sync.WaitGroup
	begin := time.Now()
	for i := range c.waiters {
		all.Go(func() {
			came := time.Now()
			err := wait(ctx)
			now := time.Now()
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed++
				return
			}
			turns = append(turns, turn{came, now})
		})
		if i%10 == 0 {
			time.Sleep(100 * time.Microsecond) // so that some come before others
		}
	}
	all.Wait()
	after, err := room.scripts(ctx)
	if err != nil {
		return err
	}
	if len(turns) < 2 {
		return fmt.Errorf("%s: %d of %d waiters had a turn", w.name, len(turns), c.waiters)
	}
	ideal := float64(len(turns)-1) / float64(c.perSecond)
	g.set("% of the rate", row, 100*ideal/turns[len(turns)-1].at.Sub(begin).Seconds(), nil)
	g.set("commands per turn", row, perTurn(w, after-before, len(turns)), nil)
	g.set("errors", row, float64(failed), nil)
	g.set("out of order", row, float64(outOfOrder(turns)), nil)
	setWaits(g, row, waitsOf(turns))
	return nil
}

// turn is a caller's turn: when the caller came, and when it had the turn.
type turn struct{ came, at time.Time }

func waitsOf(turns []turn) (list []time.Duration) {
	for _, t := range turns {
		list = append(list, t.at.Sub(t.came))
	}
	return list
}

// outOfOrder is how many of turns, in their order, came after more than 5 callers that
// had arrived at least 1 ms later.
func outOfOrder(turns []turn) (n int) {
	for i, t := range turns {
		overtaken := 0
		for _, earlier := range turns[:i] {
			if earlier.came.Sub(t.came) >= time.Millisecond {
				overtaken++
			}
		}
		if overtaken > 5 {
			n++
		}
	}
	return n
}

func perTurn(w waiting, commands float64, turns int) float64 {
	if !w.redis {
		return math.NaN()
	}
	return commands / float64(turns)
}

// setWaits sets the waits, in ms.
func setWaits(g *grid, row int, waits []time.Duration) {
	slices.Sort(waits)
	at := func(p float64) float64 {
		return waits[min(len(waits)-1, int(p*float64(len(waits))))].Seconds() * 1e3
	}
	g.set("p50, ms", row, at(0.5), nil)
	g.set("p99, ms", row, at(0.99), nil)
	g.set("longest, ms", row, at(1), nil)
}

// waitingCallers measures callers that come back at once for the next turn.
func (b *bench) waitingCallers(ctx context.Context, room *waitingRoom) error {
	const callers, perSecond = 50, 100
	b.progress("waiting: callers that come back")
	var rows []string
	var list []waiting
	for _, w := range waitings() {
		if !w.redis || room.client != nil {
			rows, list = append(rows, w.name), append(list, w)
		}
	}
	g := newGrid(fmt.Sprintf("Waiting: %d callers that come back at once, at %d/s with a burst of 1", callers, perSecond), rows)
	g.printed = twoDecimals
	for row, w := range list {
		wait, err := w.open(room, perSecond)
		if err != nil {
			return err
		}
		before, err := room.scripts(ctx)
		if err != nil {
			return err
		}
		had := make([][]time.Duration, callers)
		var failed atomic.Int64
		var all sync.WaitGroup
		begin := time.Now()
		for i := range had {
			all.Go(func() {
				for time.Since(begin) < b.waitFor {
					came := time.Now()
					if err := wait(ctx); err != nil {
						failed.Add(1)
						return
					}
					had[i] = append(had[i], time.Since(came))
				}
			})
		}
		all.Wait()
		took := time.Since(begin)
		after, err := room.scripts(ctx)
		if err != nil {
			return err
		}
		turns, least, most := slices.Concat(had...), len(had[0]), 0
		for _, waits := range had {
			least, most = min(least, len(waits)), max(most, len(waits))
		}
		g.set("% of the rate", row, 100*float64(len(turns)-1)/perSecond/took.Seconds(), nil)
		g.set("commands per turn", row, perTurn(w, after-before, len(turns)), nil)
		g.set("errors", row, float64(failed.Load()), nil)
		g.set("least turns", row, float64(least), nil)
		g.set("most turns", row, float64(most), nil)
		setWaits(g, row, turns)
	}
	b.report(g)
	return nil
}

// waitingDeadlines measures a leaky bucket that is longer than its callers have patience.
func (b *bench) waitingDeadlines(ctx context.Context, room *waitingRoom) error {
	const patience, perSecond, pause = 100 * time.Millisecond, 100, 5 * time.Millisecond
	b.progress("waiting: a leaky bucket with deadlines")
	mem, err := memstore.New()
	if err != nil {
		return err
	}
	type cell struct {
		callers int
		store   store.Store
	}
	var rows []string
	var cells []cell
	for _, callers := range []int{16, 64} {
		rows, cells = append(rows, fmt.Sprintf("%d callers, memory", callers)), append(cells, cell{callers, mem})
		if room.client != nil {
			rows, cells = append(rows, fmt.Sprintf("%d callers, Redis", callers)), append(cells, cell{callers, room.store})
		}
	}
	g := newGrid(fmt.Sprintf("Waiting: a leaky bucket of %d/s, burst %d, whose callers have %v", perSecond, perSecond, patience), rows)
	g.printed = twoDecimals
	g.note = fmt.Sprintf("A caller whose turn would come too late comes back after %v. Late are callers whose deadline ended while they were in the queue.", pause)
	for row, c := range cells {
		lim, err := ratelimit.NewLeakyBucket(c.store, ratelimit.PerSecond(perSecond), ratelimit.WithName(rand.Text()))
		if err != nil {
			return err
		}
		before, err := room.scripts(ctx)
		if err != nil {
			return err
		}
		var served, told, late, failed atomic.Int64
		var all sync.WaitGroup
		begin := time.Now()
		for range c.callers {
			all.Go(func() {
				for time.Since(begin) < b.waitFor {
					ctx, cancel := context.WithTimeout(ctx, patience)
					_, err := ratelimit.Wait(ctx, lim, waitKey, 1)
					cancel()
					switch {
					case err == nil:
						served.Add(1)
						continue
					case errors.Is(err, ratelimit.ErrWouldExceedDeadline):
						told.Add(1)
					case errors.Is(err, context.DeadlineExceeded):
						late.Add(1)
					default:
						failed.Add(1)
					}
					time.Sleep(pause)
				}
			})
		}
		all.Wait()
		took := time.Since(begin)
		after, err := room.scripts(ctx)
		if err != nil {
			return err
		}
		g.set("% of the rate", row, 100*float64(served.Load()-1)/perSecond/took.Seconds(), nil)
		g.set("commands per turn", row, (after-before)/float64(served.Load()), nil)
		g.set("told too late", row, float64(told.Load()), nil)
		g.set("late", row, float64(late.Load()), nil)
		g.set("errors", row, float64(failed.Load()), nil)
		if c.store == mem {
			g.set("commands per turn", row, math.NaN(), nil)
		}
	}
	b.report(g)
	return nil
}
