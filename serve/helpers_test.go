package serve_test

import (
	"context"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/serve"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// clock is moved by hand. It begins at the beginning of a day.
type clock struct{ µs atomic.Int64 }

func newClock() *clock {
	c := &clock{}
	c.µs.Store(time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC).UnixMicro())
	return c
}

func (c *clock) now() time.Time { return time.UnixMicro(c.µs.Load()) }

func (c *clock) sleep(d time.Duration) { c.µs.Add(d.Microseconds()) }

// text is one of YAML, which is indented by tabs in a test.
func text(s string) string { return strings.ReplaceAll(s, "\t", "  ") }

func rules(t testing.TB, texts ...string) *serve.Rules {
	t.Helper()
	var files []serve.File
	for i, s := range texts {
		files = append(files, serve.File{Name: "f" + strconv.Itoa(i) + ".yaml", Text: []byte(text(s))})
	}
	r, err := serve.Parse(files...)
	require.NoError(t, err)
	return r
}

// inMemory is a service with a clock of its own.
func inMemory(t testing.TB, file string, opts ...serve.Option) (*serve.Service, *clock) {
	t.Helper()
	c := newClock()
	mem := ratelimit.Must(memstore.New(memstore.WithClock(c.now)))
	s, err := serve.New(mem, rules(t, file), opts...)
	require.NoError(t, err)
	return s, c
}

// descriptor is that of a text such as "path=/a,user=ann", with " 5" for five hits, " -5" for as
// many to give back and " 0" for a look.
func descriptor(s string) *common.RateLimitDescriptor {
	d := &common.RateLimitDescriptor{}
	s, hits, counted := strings.Cut(s, " ")
	if counted {
		n, _ := strconv.ParseInt(hits, 10, 64)
		if n < 0 {
			n, d.IsNegativeHits = -n, true
		}
		d.HitsAddend = wrapperspb.UInt64(uint64(n))
	}
	if s == "" {
		return d
	}
	for entry := range strings.SplitSeq(s, ",") {
		key, value, _ := strings.Cut(entry, "=")
		d.Entries = append(d.Entries, &common.RateLimitDescriptor_Entry{Key: key, Value: value})
	}
	return d
}

func request(descriptors ...string) *pb.RateLimitRequest {
	req := &pb.RateLimitRequest{Domain: "edge"}
	for _, s := range descriptors {
		req.Descriptors = append(req.Descriptors, descriptor(s))
	}
	return req
}

func ask(t testing.TB, s *serve.Service, descriptors ...string) *pb.RateLimitResponse {
	t.Helper()
	answer, err := s.ShouldRateLimit(t.Context(), request(descriptors...))
	require.NoError(t, err)
	require.Len(t, answer.GetStatuses(), len(descriptors))
	return answer
}

// short is an answer in short: OK or OVER of the whole, and then of each descriptor with the limit,
// what is left and the seconds.
func short(r *pb.RateLimitResponse) string {
	words := []string{code(r.GetOverallCode())}
	for _, st := range r.GetStatuses() {
		word := code(st.GetCode())
		if l := st.GetCurrentLimit(); l != nil {
			word += " " + strconv.Itoa(int(st.GetLimitRemaining())) + "/" + strconv.Itoa(int(l.GetRequestsPerUnit())) + " " + st.GetDurationUntilReset().AsDuration().String()
		}
		words = append(words, word)
	}
	return strings.Join(words, ", ")
}

func code(c pb.RateLimitResponse_Code) string {
	if c == pb.RateLimitResponse_OVER_LIMIT {
		return "OVER"
	}
	return c.String()
}

// contextUntil is a context that ends when done is closed.
func contextUntil(done <-chan struct{}) context.Context { return endless{context.Background(), done} }

type endless struct {
	context.Context
	done <-chan struct{}
}

func (e endless) Done() <-chan struct{} { return e.done }
