package main

import (
	"bytes"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
)

// rawCodec sends a message as it is.
type rawCodec struct{}

func (rawCodec) Name() string                     { return "proto" }
func (rawCodec) Marshal(v any) ([]byte, error)    { return v.([]byte), nil }
func (rawCodec) Unmarshal(b []byte, to any) error { return proto.Unmarshal(b, to.(proto.Message)) }

// Envoy sends header bytes as they are. A value that is not UTF-8 is limited as each other one is, and so are the
// other descriptors of its request.
func TestBytesThatAreNotUTF8OverGRPC(t *testing.T) {
	t.Parallel()
	s := startServer(t, "-config", writeFile(t, "limits.yaml", limits), "-metadata")
	conn := dial(t, s.grpc, insecure.NewCredentials())
	for _, value := range []string{"a\xff", "a\xfe", "ab"} {
		req := user("aX")
		req.Descriptors = append(req.Descriptors, user("all").GetDescriptors()...)
		b, err := proto.Marshal(req)
		require.NoError(t, err)
		answer := new(pb.RateLimitResponse)
		err = conn.Invoke(t.Context(), pb.RateLimitService_ShouldRateLimit_FullMethodName, bytes.Replace(b, []byte("aX"), []byte(value), 1), answer, grpc.ForceCodec(rawCodec{}))
		require.NoError(t, err, "%q", value)
		require.EqualValues(t, 2, answer.GetStatuses()[0].GetLimitRemaining(), "%q has a count of its own", value)
	}
	req := user("all")
	answer, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), req)
	require.NoError(t, err)
	require.Equal(t, pb.RateLimitResponse_OVER_LIMIT, answer.GetOverallCode(), "of three requests the second descriptor was counted")
}
