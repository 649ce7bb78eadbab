package serve_test

import (
	"context"
	"log/slog"
	"math"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/serve"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

const edge = `domain: edge
descriptors:
	- key: user
	  rate_limit: {unit: minute, requests_per_unit: 3}
	- key: tokens
	  rate_limit: {unit: hour, requests_per_unit: 1000}
	- key: path
	  value: /login
	  descriptors:
	  	- key: user
	  	  rate_limit: {unit: day, requests_per_unit: 2}
	- key: trial
	  shadow_mode: true
	  rate_limit: {unit: minute, requests_per_unit: 1}
	- key: free
	  rate_limit: {unlimited: true}
	- key: never
	  rate_limit: {unit: minute, requests_per_unit: 0}
	- key: bucket
	  rate_limit: {limit: 10/5m burst 20, algorithm: token_bucket}
	- key: queue
	  rate_limit: {limit: 1/s, algorithm: leaky_bucket}
	- key: listed
`

// These are the answers to one request after the other.
func TestAnswers(t *testing.T) {
	s, c := inMemory(t, edge)
	c.sleep(1500 * time.Millisecond)
	for _, step := range []struct{ descriptors, want string }{
		{"user=ann", "OK, OK 2/3 59s"}, // 58.5 s, rounded up
		{"user=ann 2", "OK, OK 0/3 59s"},
		{"user=ann", "OVER, OVER 0/3 59s"},
		{"user=bob", "OK, OK 2/3 59s"},
		{"user=eve|tokens=eve 900", "OK, OK 2/3 59s, OK 100/1000 59m59s"},
		{"user=eve|tokens=eve 101", "OVER, OK 2/3 59s, OVER 100/1000 59m59s"}, // nothing is charged
		{"user=eve|tokens=eve 100", "OK, OK 1/3 59s, OK 0/1000 59m59s"},
		{"user=eve 0", "OK, OK 1/3 59s"},                                  // looks
		{"user=eve|tokens=eve 0", "OVER, OK 1/3 59s, OVER 0/1000 59m59s"}, // and charges nothing beside a look that denies
		{"user=eve 0", "OK, OK 1/3 59s"},
		{"user=eve -2", "OK, OK 3/3 59s"},                   // gives back
		{"user=eve -2", "OK, OK 3/3 0s"},                    // no more than was charged
		{"user=eve|user=eve", "OK, OK 2/3 59s, OK 1/3 59s"}, // the same value twice
		{"user=eve|user=eve", "OVER, OVER 1/3 59s, OVER 1/3 59s"},
		{"path=/login,user=ann", "OK, OK 1/2 23h59m59s"},
		{"path=/login", "OK, OK"}, // shallower than the rule
		{"path=/login,user=ann,more=1", "OK, OK"},
		{"path=/other,user=ann", "OK, OK"},
		{"trial=x", "OK, OK 0/1 59s"},
		{"trial=x", "OK, OK 0/1 59s"}, // decided, and told as OK
		{"user=kim|trial=x", "OK, OK 2/3 59s, OK 0/1 59s"},
		{"free=x", "OK, OK"},
		{"never=x", "OVER, OVER 0/0 1m0s"},
		{"never=x|user=joe", "OVER, OVER 0/0 1m0s, OK 3/3 0s"},
		{"bucket=x 20", "OK, OK 0/10 10m0s"},
		{"bucket=x 1", "OVER, OVER 0/10 30s"}, // until there is one
		{"bucket=x -1", "OK, OK 1/10 9m30s"},  // which is no denial
		{"listed=x", "OK, OK"},
		{"unknown=x", "OK, OK"},
	} {
		require.Equal(t, step.want, short(ask(t, s, strings.Split(step.descriptors, "|")...)), step.descriptors)
	}
}

// The limit of an answer is that of the file.
func TestLimitsAsTheyAreTold(t *testing.T) {
	s, _ := inMemory(t, `domain: edge
descriptors:
	- {key: a, rate_limit: {unit: Week, requests_per_unit: 5, name: weekly}}
	- {key: b, rate_limit: {limit: 10/5m burst 20, algorithm: token_bucket}}
	- {key: c, rate_limit: {limit: 7/month}}
	- {key: d, rate_limit: {limit: 7/100ms}}
	- {key: e, rate_limit: {unit: YEAR, requests_per_unit: 5}}
	- {key: f, rate_limit: {unit: second, requests_per_unit: 5}, metadata: {ratelimit: {limit: 9/2h, algorithm: sliding_window}}}
`)
	for entry, want := range map[string]*pb.RateLimitResponse_RateLimit{
		"a=1": {Name: "weekly", RequestsPerUnit: 5, Unit: pb.RateLimitResponse_RateLimit_WEEK},
		"b=1": {RequestsPerUnit: 10, Unit: pb.RateLimitResponse_RateLimit_MINUTE, UnitMultiplier: wrapperspb.UInt32(5)},
		"c=1": {RequestsPerUnit: 7, Unit: pb.RateLimitResponse_RateLimit_MONTH},
		"d=1": {RequestsPerUnit: 7},
		"e=1": {RequestsPerUnit: 5, Unit: pb.RateLimitResponse_RateLimit_YEAR},
		"f=1": {RequestsPerUnit: 9, Unit: pb.RateLimitResponse_RateLimit_HOUR, UnitMultiplier: wrapperspb.UInt32(2)},
	} {
		require.Equal(t, want.String(), ask(t, s, entry).GetStatuses()[0].GetCurrentLimit().String(), entry)
	}
	require.EqualValues(t, uint32(math.MaxUint32), ask(t, must(inMemory(t, edge)), "free=x").GetStatuses()[0].GetLimitRemaining())
}

func must(s *serve.Service, _ *clock) *serve.Service { return s }

// With all_or_none: false each descriptor is charged for itself.
func TestEachForItself(t *testing.T) {
	s, _ := inMemory(t, "all_or_none: false\n"+edge)
	require.Equal(t, "OVER, OK 2/3 1m0s, OVER 1000/1000 1h0m0s", short(ask(t, s, "user=ann", "tokens=ann 1001")))
	require.Equal(t, "OK, OK 2/3 1m0s", short(ask(t, s, "user=ann 0")))
}

func TestReplaces(t *testing.T) {
	s, _ := inMemory(t, `domain: edge
descriptors:
	- {key: home, rate_limit: {unit: minute, requests_per_unit: 1, name: home}}
	- {key: plan, value: gold, rate_limit: {unit: minute, requests_per_unit: 5, name: plan, replaces: [{name: home}, {name: none}]}}
	- {key: plan, value: free, rate_limit: {unlimited: true, replaces: [{name: home}]}}
`)
	require.Equal(t, "OK, OK, OK 4/5 1m0s", short(ask(t, s, "home=1", "plan=gold")))
	require.Equal(t, "OK, OK, OK", short(ask(t, s, "home=1", "plan=free")))
	require.Equal(t, "OK, OK 0/1 1m0s", short(ask(t, s, "home=1")))
	require.Equal(t, "OK, OK 3/5 1m0s, OK", short(ask(t, s, "plan=gold", "home=1")))
	require.Equal(t, "OVER, OVER 0/1 1m0s", short(ask(t, s, "home=1")))
}

// Quotas choose among backends: the whole is over if all of them are.
func TestQuotas(t *testing.T) {
	const file = `domain: edge
descriptors:
	- {key: b, value: one, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}, metadata: {backend: {name: one, zone: a}}}
	- {key: b, value: two, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 2}, metadata: {backend: {name: two, size: 2}}}
	- {key: user, rate_limit: {unit: minute, requests_per_unit: 4}}
`
	s, _ := inMemory(t, file, serve.WithMetadata())
	first := ask(t, s, "b=one", "b=two", "user=a")
	require.Equal(t, "OK, OK 0/1 1m0s, OK 1/2 1m0s, OK 3/4 1m0s", short(first))
	require.Equal(t, map[string]any{"backend": map[string]any{"name": "one", "zone": "a", "size": 2.0}}, first.GetDynamicMetadata().AsMap()["metadata"])
	second := ask(t, s, "b=one", "b=two", "user=a")
	require.Equal(t, "OK, OVER 0/1 1m0s, OK 0/2 1m0s, OK 2/4 1m0s", short(second))
	require.Equal(t, map[string]any{
		"domain":      "edge",
		"descriptors": []any{map[string]any{"entries": []any{"b=one"}}, map[string]any{"entries": []any{"b=two"}}, map[string]any{"entries": []any{"user=a"}}},
		"metadata":    map[string]any{"backend": map[string]any{"name": "two", "size": 2.0}},
	}, second.GetDynamicMetadata().AsMap())
	require.Equal(t, "OVER, OVER 0/1 1m0s, OVER 0/2 1m0s, OK 2/4 1m0s", short(ask(t, s, "b=one", "b=two", "user=a")), "the user is not charged")
	require.Equal(t, "OK, OK 2/4 1m0s", short(ask(t, s, "user=a 0")))
	require.Equal(t, "OK, OK 0/4 1m0s", short(ask(t, s, "user=a 2")))
	require.Equal(t, "OVER, OK 1/1 0s, OVER 0/4 1m0s", short(ask(t, fresh(t, s, file), "b=one", "user=a 5")), "another rule is over")
}

// fresh is a service with other counts.
func fresh(t *testing.T, _ *serve.Service, file string) *serve.Service {
	s, _ := inMemory(t, file)
	for range 4 {
		ask(t, s, "user=a")
	}
	return s
}

func TestTheShadowOfAService(t *testing.T) {
	s, _ := inMemory(t, edge, serve.WithShadow())
	require.Equal(t, "OK, OVER 3/3 1m0s", short(ask(t, s, "user=ann 4")))
}

// Fields tell of the limit with the least left, or of the one that denies longest.
func TestHeaders(t *testing.T) {
	s, _ := inMemory(t, edge, serve.WithHeaders(serve.Headers{Limit: "X-Limit"}))
	for _, step := range []struct{ descriptors, want string }{
		{"user=ann|tokens=ann|free=1", "X-Limit: 3, RateLimit-Remaining: 2, RateLimit-Reset: 60"},
		{"tokens=ann 1000|user=ann 3", "X-Limit: 1000, RateLimit-Remaining: 999, RateLimit-Reset: 3600"},
		{"tokens=ann 1000|user=ann 4", "X-Limit: 3, RateLimit-Remaining: 2, RateLimit-Reset: 60"}, // 4 of 3 never fit
		{"free=1|unknown=1", ""},
	} {
		var fields []string
		for _, h := range ask(t, s, strings.Split(step.descriptors, "|")...).GetResponseHeadersToAdd() {
			fields = append(fields, h.GetKey()+": "+h.GetValue())
		}
		require.Equal(t, step.want, strings.Join(fields, ", "), step.descriptors)
	}
	h := post(s, "/v1/decide", `{"domain": "edge", "asks": [{"entries": {"user": "ann"}}]}`).Header()
	require.Equal(t, "3", h.Get("RateLimit-Limit"), "configurations of proxies read it")
	require.Empty(t, h.Get("X-Limit"))
	for _, names := range []serve.Headers{{Limit: "a b"}, {Reset: "x:"}, {Remaining: "ü"}, {Limit: "x\n"}, {Limit: "X-A", Reset: "x-a"}, {Limit: "ratelimit-reset"}} {
		_, err := serve.New(memory(t), rules(t, edge), serve.WithHeaders(names))
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption, "%+v", names)
	}
}

func override(unit typev3.RateLimitUnit, n uint32) *common.RateLimitDescriptor_RateLimitOverride {
	return &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: n, Unit: unit}
}

// A limit that the request brings along takes the place of the file's.
func TestOverrides(t *testing.T) {
	s, _ := inMemory(t, edge)
	req := request("trial=x", "unknown=x")
	req.Descriptors[0].Limit = override(typev3.RateLimitUnit_HOUR, 2)
	req.Descriptors[1].Limit = override(typev3.RateLimitUnit_SECOND, 7)
	for _, want := range []string{"OK, OK 1/2 1h0m0s, OK 6/7 1s", "OK, OK 0/2 1h0m0s, OK 5/7 1s", "OVER, OVER 0/2 1h0m0s, OK 5/7 1s"} {
		answer, err := s.ShouldRateLimit(t.Context(), req)
		require.NoError(t, err)
		require.Equal(t, want, short(answer))
	}
	req.Descriptors[0].Limit.RequestsPerUnit = 3 // the count stays
	answer, err := s.ShouldRateLimit(t.Context(), req)
	require.NoError(t, err)
	require.Equal(t, "OK, OK 0/3 1h0m0s, OK 4/7 1s", short(answer))
	req.Domain = "unknown"
	answer, err = s.ShouldRateLimit(t.Context(), req)
	require.NoError(t, err)
	require.Equal(t, "OK, OK, OK", short(answer))
}

// Programs can read the limit of a request in its metadata.
func TestTheLimitInMetadata(t *testing.T) {
	t.Parallel()
	s, _ := inMemory(t, edge, serve.WithMetadata())
	req := request("user=ann")
	req.Descriptors[0].Limit = override(typev3.RateLimitUnit_HOUR, 5)
	answer, err := s.ShouldRateLimit(t.Context(), req)
	require.NoError(t, err)
	require.Equal(t, []any{map[string]any{"entries": []any{"user=ann"}, "limit": "5/HOUR"}}, answer.GetDynamicMetadata().AsMap()["descriptors"])
}

// Invalid requests are rejected, and nothing is counted.
func TestInvalidRequests(t *testing.T) {
	s, _ := inMemory(t, edge)
	for reason, change := range map[string]func(*pb.RateLimitRequest){
		"domain must not be empty":        func(r *pb.RateLimitRequest) { r.Domain = "" },
		"list must not be empty":          func(r *pb.RateLimitRequest) { r.Descriptors = nil },
		"10000 descriptors, more than 64": func(r *pb.RateLimitRequest) { r.Descriptors = make([]*common.RateLimitDescriptor, 10_000) },
		"17 of the descriptors have a limit": func(r *pb.RateLimitRequest) {
			for len(r.Descriptors) < 17 {
				r.Descriptors = append(r.Descriptors, descriptor("user=ann"))
			}
		},
		"hits_addend 9223372036854775808 is more than": func(r *pb.RateLimitRequest) {
			r.Descriptors = append(r.Descriptors, descriptor("user=b"))
			r.Descriptors[1].HitsAddend = wrapperspb.UInt64(1 << 63)
		},
		"hits_addend 4294967295 is more than": func(r *pb.RateLimitRequest) { r.HitsAddend = math.MaxUint32 },
		"the unit UNKNOWN of its limit": func(r *pb.RateLimitRequest) {
			r.Descriptors = append(r.Descriptors, descriptor("user=b"))
			r.Descriptors[1].Limit = override(typev3.RateLimitUnit_UNKNOWN, 1)
		},
		"the unit 99 of its limit": func(r *pb.RateLimitRequest) { r.Descriptors[0].Limit = override(99, 1) },
		"requests_per_unit 4294967295": func(r *pb.RateLimitRequest) {
			r.Descriptors[0].Limit = override(typev3.RateLimitUnit_DAY, math.MaxUint32)
		},
		"a limit needs entries": func(r *pb.RateLimitRequest) {
			r.Descriptors[0] = &common.RateLimitDescriptor{Limit: override(typev3.RateLimitUnit_DAY, 1)}
		},
		"33 entries, more than 32": func(r *pb.RateLimitRequest) {
			r.Descriptors = append(r.Descriptors, descriptor(strings.Repeat("a=b,", 32)+"a=b"))
		},
		"bytes of entries": func(r *pb.RateLimitRequest) {
			r.Descriptors = append(r.Descriptors, descriptor("user="+strings.Repeat("x", 66_000)))
		},
		"an entry has no key":        func(r *pb.RateLimitRequest) { r.Descriptors = append(r.Descriptors, descriptor("=x")) },
		"leaky_bucket cannot refund": func(r *pb.RateLimitRequest) { r.Descriptors = append(r.Descriptors, descriptor("queue=x -1")) },
	} {
		req := request("user=ann")
		change(req)
		_, err := s.ShouldRateLimit(t.Context(), req)
		require.Equal(t, codes.InvalidArgument, status.Code(err), reason)
		require.ErrorContains(t, err, reason)
	}
	require.Equal(t, "OK, OK 3/3 0s", short(ask(t, s, "user=ann 0")), "nothing was counted")
}

// Braces, separators and other signs in what a client sends make no two keys equal.
func TestKeysAreApart(t *testing.T) {
	s, _ := inMemory(t, `domain: "{edge}%"
descriptors:
	- key: a
	  rate_limit: {unit: minute, requests_per_unit: 1}
	  descriptors:
	  	- {key: b, rate_limit: {unit: minute, requests_per_unit: 1}}
	- {key: a_b, rate_limit: {unit: minute, requests_per_unit: 1}}
	- {key: a=b, rate_limit: {unit: minute, requests_per_unit: 1}}
	- {key: s, value: "x*", share_threshold: true, rate_limit: {unit: minute, requests_per_unit: 2}}
`)
	entry := func(key, value string) *common.RateLimitDescriptor_Entry {
		return &common.RateLimitDescriptor_Entry{Key: key, Value: value}
	}
	for _, entries := range [][]*common.RateLimitDescriptor_Entry{
		{entry("a", "b_c")}, {entry("a_b", "c")}, {entry("a", "1&b=2")}, {entry("a", "1"), entry("b", "2")}, {entry("a", "1%26b=2")},
		{entry("a", "{1}")}, {entry("a", "")}, {entry("a", "\x00\xff")}, {entry("a", "1=2")}, {entry("a=b", "c")}, {entry("a", "b=c")}, {entry("s", "x1")}, {entry("s", "x2")},
	} {
		answer, err := s.ShouldRateLimit(t.Context(), &pb.RateLimitRequest{Domain: "{edge}%", Descriptors: []*common.RateLimitDescriptor{{Entries: entries}}})
		require.NoError(t, err)
		require.Equal(t, pb.RateLimitResponse_OK, answer.GetOverallCode(), "%v", entries)
	}
	answer, err := s.ShouldRateLimit(t.Context(), &pb.RateLimitRequest{Domain: "{edge}%", Descriptors: []*common.RateLimitDescriptor{{Entries: []*common.RateLimitDescriptor_Entry{entry("s", "x3")}}}})
	require.NoError(t, err)
	require.Equal(t, pb.RateLimitResponse_OVER_LIMIT, answer.GetOverallCode(), "they share a count")
}

// Values that clients make long are counted too, because Envoy lets through what the service
// rejects.
func TestLongValuesAreCounted(t *testing.T) {
	t.Parallel()
	s, _ := inMemory(t, edge)
	long := strings.Repeat("x", 60<<10)
	for _, value := range []string{long[:8000], long[:8200], long[:9000], long, long[1:] + "y", strings.Repeat("&", 60<<10), strings.Repeat("%", 60<<10)} {
		require.Equal(t, "OK, OK 0/3 1m0s", short(ask(t, s, "user="+value+" 3")), len(value))
		require.Equal(t, "OVER, OVER 0/3 1m0s", short(ask(t, s, "user="+value)), len(value))
	}
	override := func(value string) *pb.RateLimitRequest {
		req := request("own=" + value)
		req.Descriptors[0].Limit = override(typev3.RateLimitUnit_DAY, 1)
		return req
	}
	for _, want := range []pb.RateLimitResponse_Code{pb.RateLimitResponse_OK, pb.RateLimitResponse_OVER_LIMIT} {
		for _, value := range []string{long, long[1:]} {
			answer, err := s.ShouldRateLimit(t.Context(), override(value))
			require.NoError(t, err)
			require.Equal(t, want, answer.GetOverallCode())
		}
	}
}

// Of 32 concurrent callers, as many are admitted as the limit allows.
func TestCallersAtOnce(t *testing.T) {
	s, _ := inMemory(t, `domain: edge
descriptors:
	- {key: user, rate_limit: {unit: day, requests_per_unit: 100}}
	- {key: all, rate_limit: {unit: day, requests_per_unit: 90}}
`)
	var admitted atomic.Int64
	var callers sync.WaitGroup
	for range 32 {
		callers.Go(func() {
			for range 10 {
				answer, err := s.ShouldRateLimit(t.Context(), request("user=a", "all=1"))
				if err == nil && answer.GetOverallCode() == pb.RateLimitResponse_OK {
					admitted.Add(1)
				}
			}
		})
	}
	callers.Wait()
	require.EqualValues(t, 90, admitted.Load())
	require.Equal(t, "OK, OK 10/100 24h0m0s", short(ask(t, s, "user=a 0")))
}

// elsewhere is a store that may have caches in front of it.
type elsewhere struct{ store.Store }

// So a service that reads new files for months keeps the caches of its present ones, and no others.
func TestUpdateReleasesTheLeasesOfAFormerStoreBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := ratelimit.Must(memstore.New(memstore.WithClock(newClock().now)))
		s, err := serve.New(elsewhere{mem}, rules(t, "store: {lease: 1h}\n"+leased))
		require.NoError(t, err)
		defer s.Close(t.Context())
		direct, err := serve.New(mem, rules(t, leased))
		require.NoError(t, err)
		for range 50 {
			ask(t, s, "user=ann")
		}
		require.NotContains(t, short(ask(t, direct, "user=ann 0")), "9950/10000", "some are leased ahead")
		require.Error(t, s.Update(nil))
		require.NoError(t, s.Update(rules(t, "store: {lease: 1h}\n"+strings.Replace(leased, "10000", "9999", 1))))
		synctest.Wait()
		require.NotContains(t, short(ask(t, direct, "user=ann 0")), "9950/10000", "and stay")
		require.NoError(t, s.Update(rules(t, "store: {lease: 50ms}\n"+leased)))
		synctest.Wait()
		require.Contains(t, short(ask(t, direct, "user=ann 0")), "9950/10000")
		require.Contains(t, short(ask(t, s, "user=ann")), "OK, OK 9949/10000")
	})
}

const leased = "domain: edge\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 10000}}]\n"

// deaf is a store whose Refunds last until their context ends.
type deaf struct{ store.Store }

func (*deaf) Refund(ctx context.Context, _ *store.Namespace, _ string, _ store.Limit, _ store.Receipt) error {
	<-ctx.Done()
	return ctx.Err()
}

// A store that hangs while leases of former rules are released delays no Update and no metrics, and
// Close no longer than its context.
func TestUpdatesOnAStoreThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := serve.New(&deaf{memory(t)}, rules(t, "store: {lease: 1h}\n"+leased), serve.WithLogger(slog.New(slog.DiscardHandler)))
		require.NoError(t, err)
		for range 50 {
			ask(t, s, "user=ann")
		}
		start := time.Now()
		require.NoError(t, s.Update(rules(t, leased)))
		require.NoError(t, s.Update(rules(t, leased)))
		get(t, s.Private(nil), "/metrics")
		require.Equal(t, time.Duration(0), time.Since(start))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.NoError(t, s.Close(ctx))
		require.Equal(t, time.Second, time.Since(start))
	})
}

// far is a store whose Refunds take a while.
type far struct{ store.Store }

func (f *far) Refund(ctx context.Context, ns *store.Namespace, key string, l store.Limit, r store.Receipt) error {
	if time.Sleep(250 * time.Millisecond); ctx.Err() != nil {
		return ctx.Err()
	}
	return f.Store.Refund(ctx, ns, key, l, r)
}

// The leases of former rules are released, even if they are many and the store is far away.
func TestAFarStoreGetsTheLeasesOfFormerRulesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memory(t)
		s, err := serve.New(&far{mem}, rules(t, "store: {lease: 1h}\n"+leased))
		require.NoError(t, err)
		direct, err := serve.New(mem, rules(t, leased))
		require.NoError(t, err)
		const keys = 1600
		for i := range keys {
			for range 3 {
				ask(t, s, "user="+strconv.Itoa(i))
			}
		}
		require.NoError(t, s.Update(rules(t, leased)))
		require.NoError(t, s.Close(t.Context()))
		for i := range keys {
			require.Contains(t, short(ask(t, direct, "user="+strconv.Itoa(i)+" 0")), "9997/10000")
		}
	})
}

// New files change the numbers, and keep the counts.
func TestUpdate(t *testing.T) {
	s, _ := inMemory(t, edge)
	ask(t, s, "user=ann 2")
	require.NoError(t, s.Update(rules(t, strings.Replace(edge, "requests_per_unit: 3", "requests_per_unit: 5", 1))))
	require.Equal(t, "OK, OK 2/5 1m0s", short(ask(t, s, "user=ann")))
	for _, wrong := range []*serve.Rules{nil, {}, rules(t, "store: {lease: 1s}\n"+edge)} {
		require.ErrorIs(t, s.Update(wrong), ratelimit.ErrInvalidOption)
	}
	require.Equal(t, "OK, OK 1/5 1m0s", short(ask(t, s, "user=ann")), "the rules stay")
	_, err := serve.New(ratelimit.Must(memstore.New()), rules(t, edge), serve.WithProxies())
	require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
}
