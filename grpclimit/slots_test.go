package grpclimit_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/grpclimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// slots is a limiter of n slots, beside a rate.
func slots(t testing.TB, n int) (both ratelimit.Limiter, atOnce *ratelimit.Custom, rate ratelimit.Limiter) {
	t.Helper()
	s, err := memstore.New()
	require.NoError(t, err)
	atOnce, err = inflight.New(s, n, time.Minute, ratelimit.WithName("at_once"))
	require.NoError(t, err)
	rate = bucketOn(t, s, ratelimit.PerDay(1000), ratelimit.WithName("rate"))
	both, err = ratelimit.NewAll(rate, atOnce)
	require.NoError(t, err)
	return both, atOnce, rate
}

func held(t testing.TB, l ratelimit.Limiter) int {
	t.Helper()
	r, err := l.Peek(context.Background(), "global")
	require.NoError(t, err)
	return r.Limit - r.Remaining
}

func requireHeld(t testing.TB, l ratelimit.Limiter, n int) {
	t.Helper()
	require.Eventually(t, func() bool { return held(t, l) == n }, 20*time.Second, time.Millisecond)
}

var (
	global     = grpclimit.WithKey(grpclimit.Global())
	errTrouble = status.Error(codes.Internal, "trouble")
)

// With WaitUpTo a call waits for a slot, and those that find the queue full are refused at once.
func TestACallMayWaitForASlot(t *testing.T) {
	mem, err := memstore.New()
	require.NoError(t, err)
	redis, err := redisstore.New(redistest.Start(t).Client(t), redisstore.WithTimeout(10*time.Second))
	require.NoError(t, err)
	for name, s := range map[string]store.Store{"in memory": mem, "on Redis": redis} {
		t.Run(name, func(t *testing.T) {
			atOnce, err := inflight.New(s, 1, time.Minute)
			require.NoError(t, err)
			inside, leave := make(chan struct{}, 2), make(chan struct{})
			svc := &service{unary: func(context.Context) error {
				inside <- struct{}{}
				<-leave
				return nil
			}}
			client := dial(t, listen(t, svc, unaryServer(t, atOnce, global, grpclimit.WithSlots(inflight.WaitUpTo(time.Hour), inflight.MaxWaiting(1)))))
			ends := make(chan answer, 3)
			var calls sync.WaitGroup
			for range 3 {
				calls.Go(func() { ends <- call(t, client) })
			}
			<-inside
			refused := <-ends
			require.Equal(t, codes.ResourceExhausted, refused.code(), "of two, one finds the queue full")
			require.Equal(t, time.Second, refused.retryInfo())
			close(leave)
			calls.Wait()
			for range 2 {
				require.Equal(t, codes.OK, (<-ends).code())
			}
			requireHeld(t, atOnce, 0)
		})
	}
}

func TestACallHoldsASlotUntilItsHandlerIsDone(t *testing.T) {
	both, atOnce, rate := slots(t, 1)
	for name, end := range map[string]func(){"returns": func() {}, "panics": func() { panic("x") }} {
		for _, err := range []error{nil, errTrouble} {
			t.Run(name, func(t *testing.T) {
				before := held(t, rate)
				inside, leave := make(chan struct{}), make(chan struct{})
				svc := &service{unary: func(context.Context) error {
					inside <- struct{}{}
					<-leave
					end()
					return err
				}}
				recovers := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (_ any, err error) {
					defer func() {
						if recover() != nil {
							err = errTrouble
						}
					}()
					return handler(ctx, req)
				}
				client := dial(t, listen(t, svc, grpc.ChainUnaryInterceptor(recovers), unaryServer(t, both, global, grpclimit.WithRefund(grpclimit.Failed))))
				var calls sync.WaitGroup
				calls.Go(func() { call(t, client) })
				<-inside
				a := call(t, client)
				require.Equal(t, codes.ResourceExhausted, a.code())
				require.Equal(t, time.Second, a.retryInfo())
				require.Equal(t, []string{"at_once"}, a.quotas())
				require.Equal(t, []string{"1"}, a.header.Get("retry-after"))
				require.Contains(t, a.header.Get("ratelimit-policy")[0], `"at_once";q=1;qu="concurrent-requests"`)
				require.Equal(t, 1, held(t, atOnce))
				close(leave)
				calls.Wait()
				requireHeld(t, atOnce, 0)
				if failed := err != nil || name == "panics"; failed {
					require.Equal(t, before, held(t, rate), "the rate is given back")
				} else {
					require.Equal(t, before+1, held(t, rate))
				}
			})
		}
	}
}

func TestAStreamHoldsASlotUntilItEnds(t *testing.T) {
	both, atOnce, _ := slots(t, 1)
	client := dial(t, listen(t, &service{}, streamServer(t, both, global)))
	for _, hangsUp := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		stream, err := client.FullDuplexCall(ctx)
		require.NoError(t, err)
		require.NoError(t, stream.Send(&pb.StreamingOutputCallRequest{}))
		_, err = stream.Recv()
		require.NoError(t, err)
		require.Equal(t, 1, held(t, atOnce))
		if !hangsUp {
			require.NoError(t, stream.CloseSend())
			_, err = stream.Recv()
			require.ErrorIs(t, err, errEOF)
		}
		cancel()
		requireHeld(t, atOnce, 0)
	}
	_, err := grpclimit.StreamServerInterceptor(both, grpclimit.WithMessages())
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
}

// A call finds its slot, and may settle its tokens.
func TestACallFindsItsSlot(t *testing.T) {
	both, atOnce, rate := slots(t, 1)
	svc := &service{unary: func(ctx context.Context) error {
		d, _ := grpclimit.FromContext(ctx)
		if err := d.Slot().Settle(ctx, 7); err != nil {
			return err
		}
		d.Slot().Release()
		return nil
	}}
	client := dial(t, listen(t, svc, unaryServer(t, both, global, grpclimit.WithContext(), grpclimit.WithCancelLost(),
		grpclimit.WithSlots(inflight.Longest(time.Minute)), grpclimit.WithSlotRetryAfter(time.Minute))))
	require.Equal(t, codes.OK, call(t, client).code())
	require.Equal(t, 7, held(t, rate))
	requireHeld(t, atOnce, 0)
}

// A limit function may panic while the decision is described, when the slot is already held.
func TestAPanicBeforeTheHandlerKeepsNoSlot(t *testing.T) {
	_, atOnce, plan := slots(t, 1)
	mem, err := memstore.New()
	require.NoError(t, err)
	credits := bucketOn(t, mem, ratelimit.PerDay(1), ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) { panic("planted") }))
	first, err := ratelimit.NewFirst(plan, credits) // asks the second only for its policy
	require.NoError(t, err)
	both, err := ratelimit.NewAll(first, atOnce)
	require.NoError(t, err)
	limit, err := grpclimit.UnaryServerInterceptor(both, global)
	require.NoError(t, err)
	require.PanicsWithValue(t, "planted", func() { _, _ = limit(t.Context(), nil, &grpc.UnaryServerInfo{}, nil) })
	require.Zero(t, held(t, atOnce))
}

// Slots are not so many per time, and in memory they last for ten years.
func TestADenialTellsHowManySlotsThereAre(t *testing.T) {
	_, atOnce, _ := slots(t, 3)
	policies, err := ratelimit.AppendPolicies(t.Context(), nil, atOnce, "global")
	require.NoError(t, err)
	denied := grpclimit.DeniedStatus(grpclimit.Decision{Result: ratelimit.Result{Limit: 3, RetryAfter: time.Hour}, Policies: policies})
	require.Equal(t, "concurrency limit exceeded: 3", denied.Details()[0].(*errdetails.QuotaFailure).Violations[0].Description)
}

// Clients that wait for slots are never too many at once, and all have their turn.
func TestClientsHoldSlots(t *testing.T) {
	const n = 3
	both, atOnce, _ := slots(t, n)
	var inside, most atomic.Int64
	svc := &service{unary: func(context.Context) error {
		now := inside.Add(1)
		defer inside.Add(-1)
		for before := most.Load(); now > before && !most.CompareAndSwap(before, now); before = most.Load() {
		}
		time.Sleep(time.Millisecond)
		return nil
	}}
	unary, err := grpclimit.UnaryClientInterceptor(both)
	require.NoError(t, err)
	stream, err := grpclimit.StreamClientInterceptor(both, grpclimit.WithoutWaiting())
	require.NoError(t, err)
	client := dial(t, listen(t, svc), grpc.WithUnaryInterceptor(unary), grpc.WithStreamInterceptor(stream))
	var calls sync.WaitGroup
	for range 30 {
		calls.Go(func() { require.Equal(t, codes.OK, call(t, client).code()) })
	}
	calls.Wait()
	require.LessOrEqual(t, most.Load(), int64(n))
	requireHeld(t, atOnce, 0)

	ctx, cancel := context.WithCancel(t.Context())
	for range n {
		s, err := client.FullDuplexCall(ctx)
		require.NoError(t, err)
		require.NoError(t, s.Send(&pb.StreamingOutputCallRequest{}))
	}
	_, err = client.FullDuplexCall(ctx)
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	require.Equal(t, n, held(t, atOnce))
	cancel() // and nobody receives their ends
	requireHeld(t, atOnce, 0)
}

// The slice of options is the caller's, who may use it again.
func TestTheOptionsOfSlotsStayAsTheyWereGiven(t *testing.T) {
	both, _, _ := slots(t, 1)
	told := make(chan string, 1)
	tells := func(whom string) inflight.Option {
		return inflight.OnEnd(func(inflight.Ending) { told <- whom })
	}
	opts := []inflight.Option{tells("first")}
	svc := &service{unary: func(context.Context) error { return nil }}
	client := dial(t, listen(t, svc, unaryServer(t, both, global, grpclimit.WithSlots(opts...))))
	opts[0] = tells("second")
	require.Equal(t, codes.OK, call(t, client).code())
	require.Equal(t, "first", <-told)
}

func TestOptionsOfSlotsNeedSlots(t *testing.T) {
	both, _, _ := slots(t, 1)
	for _, opt := range []grpclimit.ServerOption{
		grpclimit.WithSlots(inflight.Longest(time.Second)), grpclimit.WithSlotRetryAfter(time.Second), grpclimit.WithCancelLost(),
	} {
		_, err := grpclimit.UnaryServerInterceptor(bucket(t, ratelimit.PerDay(1)), opt)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
		_, err = grpclimit.UnaryServerInterceptor(both, opt)
		require.NoError(t, err)
	}
	_, err := grpclimit.UnaryClientInterceptor(bucket(t, ratelimit.PerDay(1)), grpclimit.WithSlots(inflight.Longest(time.Second)))
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	_, err = grpclimit.StreamClientInterceptor(both, grpclimit.WithSlots(inflight.WaitUpTo(time.Second)), grpclimit.WithoutWaiting())
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	for _, opt := range []grpclimit.ServerOption{
		grpclimit.WithSlots(), grpclimit.WithSlots(nil), grpclimit.WithSlots(inflight.MaxWaiting(1)), grpclimit.WithSlotRetryAfter(0),
	} {
		_, err := grpclimit.UnaryServerInterceptor(both, opt)
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
	}
}

// turning becomes next at one of the moments at which it is asked for anything.
type turning struct {
	ratelimit.Limiter
	left    int // moments before that
	next    ratelimit.Limiter
	charged ratelimit.Limiter // the last
}

func (l *turning) moment() {
	if l.left--; l.left == 0 {
		l.Limiter = l.next
	}
}

func (l *turning) AllowN(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	l.moment()
	defer l.moment()
	l.charged = l.Limiter
	return l.Limiter.AllowN(ctx, key, n)
}

func (l *turning) Refund(ctx context.Context, key string, charged ratelimit.Result, n int) error {
	return l.charged.Refund(ctx, key, charged, n)
}

func (l *turning) Unwrap() ratelimit.Limiter {
	l.moment()
	return l.Limiter
}

// A limiter that changes while a call is decided on, as by a file, makes it no error, and takes no
// slot for ever.
func TestALimiterThatChangesWhileASlotIsTaken(t *testing.T) {
	_, atOnce, rate := slots(t, 2)
	for from, to := range map[ratelimit.Limiter]ratelimit.Limiter{atOnce: rate, rate: atOnce} {
		for moment, turned := 1, true; turned; moment++ {
			l := &turning{Limiter: from, next: to, left: moment}
			limited, err := grpclimit.UnaryServerInterceptor(l, global)
			require.NoError(t, err)
			_, err = limited(t.Context(), nil, &grpc.UnaryServerInfo{}, func(context.Context, any) (any, error) { return nil, nil })
			require.NoError(t, err, "at %d", moment)
			turned = l.left <= 0
			requireHeld(t, atOnce, 0)
		}
	}
}

// A stream that a server has not begun is sent again where the service's configuration says so.
func TestAStreamWithASlotIsSentAgainByItsRetryPolicy(t *testing.T) {
	_, atOnce, _ := slots(t, 1)
	svc := &service{}
	svc.duplex = func(grpc.BidiStreamingServer[pb.StreamingOutputCallRequest, pb.StreamingOutputCallResponse]) error {
		if svc.calls.Load() == 1 {
			return status.Error(codes.Unavailable, "not yet")
		}
		return nil
	}
	stream, err := grpclimit.StreamClientInterceptor(atOnce)
	require.NoError(t, err)
	client := dial(t, listen(t, svc), grpc.WithStreamInterceptor(stream), grpc.WithDefaultServiceConfig(`{"methodConfig": [{"name": [{}],
		"retryPolicy": {"maxAttempts": 3, "initialBackoff": "0.001s", "maxBackoff": "0.001s", "backoffMultiplier": 1,
		"retryableStatusCodes": ["UNAVAILABLE"]}}]}`))
	s, err := client.FullDuplexCall(t.Context())
	require.NoError(t, err)
	_, err = s.Recv()
	require.ErrorIs(t, err, errEOF)
	require.EqualValues(t, 2, svc.calls.Load())
	requireHeld(t, atOnce, 0)
}

func TestAStreamWhoseConnectionIsClosedGivesBackItsSlot(t *testing.T) {
	_, atOnce, _ := slots(t, 1)
	stream, err := grpclimit.StreamClientInterceptor(atOnce)
	require.NoError(t, err)
	conn := dialConn(t, listen(t, &service{}), grpc.WithStreamInterceptor(stream))
	_, err = pb.NewTestServiceClient(conn).FullDuplexCall(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, held(t, atOnce))
	require.NoError(t, conn.Close()) // and nobody receives its end
	requireHeld(t, atOnce, 0)
}

// Whatever panics at the end of a call, its slot is released.
func TestAPanicOfTheRefundFunctionLeavesNoSlotTaken(t *testing.T) {
	both, atOnce, _ := slots(t, 1)
	panics := grpclimit.WithRefund(func(codes.Code) bool { panic("boom") })
	server, err := grpclimit.UnaryServerInterceptor(both, global, panics)
	require.NoError(t, err)
	client, err := grpclimit.UnaryClientInterceptor(both, panics)
	require.NoError(t, err)
	streams, err := grpclimit.StreamClientInterceptor(both, panics)
	require.NoError(t, err)
	for name, call := range map[string]func(){
		"server": func() {
			_, _ = server(t.Context(), nil, &grpc.UnaryServerInfo{}, func(context.Context, any) (any, error) { return nil, nil })
		},
		"client": func() {
			_ = client(t.Context(), unaryCall, nil, nil, nil, func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error { return nil })
		},
		"stream": func() {
			_, _ = streams(t.Context(), &grpc.StreamDesc{}, nil, duplexCall, func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, ...grpc.CallOption) (grpc.ClientStream, error) {
				return nil, errTrouble
			})
		},
	} {
		require.PanicsWithValue(t, "boom", call, name)
		require.Zero(t, held(t, atOnce), name)
	}
}

// A call whose context ends with the slot of another interceptor fails by the server's fault, and not by its client.
func TestACallThatEndsWithASlotIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem, err := memstore.New()
		require.NoError(t, err)
		elsewhere := struct{ store.Store }{mem} // not known to be of this process, so that slots can be lost
		atOnce, err := inflight.New(elsewhere, 1, time.Minute)
		require.NoError(t, err)
		rate := bucketOn(t, elsewhere, ratelimit.PerDay(1000))
		outer, err := grpclimit.UnaryServerInterceptor(atOnce, global, grpclimit.WithCancelLost())
		require.NoError(t, err)
		inner, err := grpclimit.UnaryServerInterceptor(rate, global, grpclimit.WithRefund(grpclimit.Failed))
		require.NoError(t, err)
		_, err = outer(t.Context(), nil, &grpc.UnaryServerInfo{}, func(ctx context.Context, req any) (any, error) {
			return inner(ctx, req, &grpc.UnaryServerInfo{}, func(ctx context.Context, _ any) (any, error) {
				require.NoError(t, atOnce.Reset(ctx, "global"))
				time.Sleep(time.Microsecond)
				other, _, err := inflight.Hold(ctx, atOnce, "global", 1)
				require.NoError(t, err)
				<-ctx.Done()
				other.Release()
				return nil, errTrouble
			})
		})
		require.ErrorIs(t, err, errTrouble)
		r, err := rate.Peek(t.Context(), "global")
		require.NoError(t, err)
		require.Equal(t, r.Limit, r.Remaining)
		synctest.Wait()
	})
}
