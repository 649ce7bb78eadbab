package serve_test

import (
	"bytes"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/stretchr/testify/require"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/ratelimit-go/ratelimit/serve"
)

func unmarshal(b []byte, m proto.Message) error {
	return serve.Codec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(b)}, m)
}

// A byte that is not UTF-8 is one of a value, and nothing else of the request changes: its limits all count.
func TestBytesThatAreNotUTF8(t *testing.T) {
	t.Parallel()
	s, _ := inMemory(t, edge, serve.WithMetadata())
	req := request("user=aX", "path=/login,user=annX 2", "trialX=x", "user=X -1")
	req.HitsAddend = 3
	req.Descriptors[2].Limit = override(typev3.RateLimitUnit_DAY, 7)
	b, err := proto.Marshal(req)
	require.NoError(t, err)
	got := new(pb.RateLimitRequest)
	require.NoError(t, unmarshal(bytes.ReplaceAll(b, []byte("X"), []byte{0xff}), got))
	for _, d := range got.GetDescriptors() {
		for _, e := range d.GetEntries() {
			e.Key, e.Value = strings.ReplaceAll(e.GetKey(), "\xff", "X"), strings.ReplaceAll(e.GetValue(), "\xff", "X")
		}
	}
	require.True(t, proto.Equal(req, got), got)

	for value, want := range map[string]string{"\xff": "OK, OK 2/3 1m0s", "\xfe": "OK, OK 2/3 1m0s", "\ufffd": "OK, OK 2/3 1m0s"} {
		answer := ask(t, s, "user="+value)
		require.Equal(t, want, short(answer), "each value has a count of its own: %q", value)
		_, err := proto.Marshal(answer)
		require.NoError(t, err, "the answer can be sent, with the metadata")
	}
	req = request("user=a")
	req.Domain = "\xff"
	answer, err := s.ShouldRateLimit(t.Context(), req)
	require.NoError(t, err)
	_, err = proto.Marshal(answer)
	require.NoError(t, err)
}

// The codec reads what package proto reads, to the same request, and refuses the rest.
func TestTheCodecReadsWhatProtoReads(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	good, err := proto.Marshal(request("user=ann,path=/login 2", "tokens=acme -1"))
	require.NoError(t, err)
	for range 20_000 {
		b := bytes.Clone(good)
		for range 1 + r.IntN(3) {
			b[r.IntN(len(b))] = byte(r.Uint32())
		}
		b = b[:len(b)-r.IntN(2)*r.IntN(len(b))]
		want, got := new(pb.RateLimitRequest), new(pb.RateLimitRequest)
		asProto := proto.Unmarshal(b, want)
		err := unmarshal(b, got)
		switch {
		case asProto == nil:
			require.NoError(t, err)
			require.True(t, proto.Equal(want, got), "%x", b)
		case !strings.Contains(asProto.Error(), "UTF-8"):
			require.Error(t, err, "%x", b)
		}
	}
	require.ErrorContains(t, unmarshal([]byte("\n\x01\xff"), new(healthpb.HealthCheckRequest)), "UTF-8", "other messages are read as ever")
}

// Over HTTP a text that is not Unicode is refused: package json would make one value of many.
func TestJSONThatIsNotUnicode(t *testing.T) {
	t.Parallel()
	s, _ := inMemory(t, edge)
	for _, value := range []string{"a\xff", "a\xfe", `a\ud800`, `a\ud801`, `\udc00\ud800`, `\ud800\\dc00`, `\ud800x`, `\ud800A`, `\\\ud800`, `\ud83d\ude0`} {
		const ask = `{"domain": "edge", "asks": [{"entries": {"user": "VALUE"}, "HITS": 1}]}`
		for path, body := range map[string]string{
			"/v1/decide": strings.Replace(ask, "HITS", "hits", 1), "/v1/refund": strings.Replace(ask, "HITS", "hits", 1), "/v1/settle": strings.Replace(ask, "HITS", "used", 1),
			"/json": `{"domain": "edge", "descriptors": [{"entries": [{"key": "user", "value": "VALUE"}]}]}`,
		} {
			w := post(s, path, strings.Replace(body, "VALUE", value, 1))
			require.Equal(t, http.StatusBadRequest, w.Code, "%s %q: %s", path, value, w.Body)
		}
	}
	for _, value := range []string{`\ud83d\ude00`, "\U0001F600", `\uD83D\uDE00`} { // one value, three times
		w := post(s, "/v1/decide", `{"domain": "edge", "asks": [{"entries": {"user": "`+value+`"}}]}`)
		require.Equal(t, http.StatusOK, w.Code, w.Body)
	}
	require.Equal(t, 0, left(t, s, "user=\U0001F600"))
	for _, value := range []string{"\ufffd", `\ufffd`, `\\ud800`, `\\`, `\"`} {
		w := post(s, "/v1/decide", `{"domain": "edge", "asks": [{"entries": {"user": "`+value+`"}}]}`)
		require.Equal(t, http.StatusOK, w.Code, w.Body)
	}
}
