package grpclimit_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/proto"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/grpclimit"
)

// garbled is a client's codec that encodes garbage from the n-th message on.
type garbled struct{ n *int }

func (garbled) Name() string { return proto.Name }

func (g garbled) Marshal(any) (mem.BufferSlice, error) {
	if *g.n--; *g.n < 0 {
		return mem.BufferSlice{mem.SliceBuffer{0xff}}, nil
	}
	return mem.BufferSlice{}, nil
}

func (garbled) Unmarshal(mem.BufferSlice, any) error { return nil }

// requireFive makes 20 calls. Five of them have code, and those too many ResourceExhausted.
func requireFive(t *testing.T, code codes.Code, call func() error) {
	t.Helper()
	for i := range 20 {
		want := code
		if i >= 5 {
			want = codes.ResourceExhausted
		}
		require.Equal(t, want, status.Code(call()), "call %d", i)
	}
}

func TestCallsThatNoInterceptorSeesAreCountedByATap(t *testing.T) {
	lim, key := bucket(t, ratelimit.PerDay(5)), grpclimit.PeerIP()
	tapped := grpc.InTapHandle(func(ctx context.Context, info *tap.Info) (context.Context, error) {
		client, err := key.Of(ctx, info.FullMethodName)
		require.NoError(t, err)
		r, err := lim.Allow(ctx, client)
		require.NoError(t, err)
		if !r.Allowed {
			return nil, grpclimit.DeniedStatus(grpclimit.NewDecision(ctx, lim, client, r)).Err()
		}
		return ctx, nil
	})
	unknown := grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error { return status.Error(codes.Unimplemented, "unknown method") })
	interceptors := func(t *testing.T) []grpc.ServerOption {
		lim := bucket(t, ratelimit.PerDay(5))
		return []grpc.ServerOption{unaryServer(t, lim), streamServer(t, lim)}
	}
	garbledCall := func(t *testing.T, opts ...grpc.ServerOption) func() error {
		client := dial(t, listen(t, &service{}, opts...))
		return func() error {
			_, err := client.UnaryCall(t.Context(), &pb.SimpleRequest{}, grpc.ForceCodecV2(garbled{new(int)}))
			return err
		}
	}
	unknownCall := func(t *testing.T, opts ...grpc.ServerOption) func() error {
		addr := listen(t, &service{}, opts...)
		conn := dialConn(t, addr)
		return func() error {
			return conn.Invoke(t.Context(), "/none.Service/Call", &pb.SimpleRequest{}, &pb.SimpleResponse{})
		}
	}

	t.Run("as the documentation says", func(t *testing.T) {
		for code, call := range map[codes.Code]func() error{
			codes.Internal: garbledCall(t, interceptors(t)...), codes.Unimplemented: unknownCall(t, interceptors(t)...),
		} {
			for range 20 {
				require.Equal(t, code, status.Code(call()), "uncounted: if it is not, the documentation can be shorter")
			}
		}
	})
	t.Run("a tap, garbled", func(t *testing.T) { requireFive(t, codes.Internal, garbledCall(t, append(interceptors(t), tapped)...)) })
	require.NoError(t, lim.Reset(t.Context(), "127.0.0.1"))
	t.Run("a tap, unknown", func(t *testing.T) {
		requireFive(t, codes.Unimplemented, unknownCall(t, append(interceptors(t), tapped)...))
	})
	t.Run("a handler, unknown", func(t *testing.T) {
		requireFive(t, codes.Unimplemented, unknownCall(t, append(interceptors(t), unknown)...))
	})
}

func TestAMessageThatIsNoneIsNotRefunded(t *testing.T) {
	for name, good := range map[string]int{"the first": 0, "the third": 2} {
		t.Run(name, func(t *testing.T) {
			client := dial(t, listen(t, &service{}, streamServer(t, bucket(t, ratelimit.PerDay(5)), grpclimit.WithRefund(grpclimit.Failed))))
			requireFive(t, codes.Internal, func() error {
				left := good
				stream, err := client.FullDuplexCall(t.Context(), grpc.ForceCodecV2(garbled{&left}))
				require.NoError(t, err)
				for range good + 1 {
					_ = stream.Send(&pb.StreamingOutputCallRequest{}) // an error: the server has refused
				}
				for {
					if _, err := stream.Recv(); err != nil {
						return err
					}
				}
			})
		})
	}
}
