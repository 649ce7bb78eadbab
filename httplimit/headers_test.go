package httplimit

import (
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dunglas/httpsfv"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/report"
	"github.com/ratelimit-go/ratelimit/internal/testkit"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// These tests are within the package, to report several limits without a limiter that
// keeps them.

func policy(name string, l ratelimit.Limit) ratelimit.Policy {
	return ratelimit.Policy{Name: name, Limit: l, Quota: l.Rate, Window: l.Period}
}

var (
	burst = policy("burst", ratelimit.PerMinute(100))
	daily = policy("daily", ratelimit.PerDay(1000))
)

// header returns what an answer that reports t has.
func header(styles HeaderStyle, t report.Values) http.Header {
	var f fields
	f.report(styles, &t, new(policyTexts))
	if !t.Result.Allowed {
		f.refusal(&t.Result)
	}
	h := make(http.Header)
	f.set(h, new(supply))
	return h
}

func TestTheStylesSayTheSameInTheirOwnWords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // which begins at 2000-01-01 00:00:00 UTC
		now := time.Now().Unix()
		admitted := report.Values{
			Result:   ratelimit.Result{Allowed: true, Limit: 100, Remaining: 42, ResetAfter: 29*time.Second + time.Microsecond},
			Policies: []ratelimit.Policy{burst},
		}
		for _, c := range []struct {
			styles HeaderStyle
			want   map[string]string
		}{
			{0, map[string]string{}},
			{Legacy, map[string]string{
				"X-RateLimit-Limit":     "100",
				"X-RateLimit-Remaining": "42",
				"X-RateLimit-Reset":     strconv.FormatInt(now+30, 10),
			}},
			{Draft10, map[string]string{
				"RateLimit-Policy": `"burst";q=100;w=60`,
				"RateLimit":        `"burst";r=42;t=30`,
			}},
			{Legacy | Draft10, map[string]string{
				"X-RateLimit-Limit":     "100",
				"X-RateLimit-Remaining": "42",
				"X-RateLimit-Reset":     strconv.FormatInt(now+30, 10),
				"RateLimit-Policy":      `"burst";q=100;w=60`,
				"RateLimit":             `"burst";r=42;t=30`,
			}},
		} {
			want := make(http.Header)
			for name, value := range c.want {
				want.Set(name, value)
			}
			require.Equal(t, want, header(c.styles, admitted))
		}
	})
}

func TestThePoliciesAreThoseOfTheLimiter(t *testing.T) {
	mem, err := memstore.New()
	require.NoError(t, err)
	lim, err := ratelimit.NewFixedWindow(mem, ratelimit.PerMinute(100))
	require.NoError(t, err)
	for style, want := range map[HeaderStyle]string{Draft10: `"100/m";q=100;w=60`, Legacy: ""} {
		w := httptest.NewRecorder()
		Middleware(lim, WithHeaders(style))(http.NotFoundHandler()).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		require.Equal(t, want, w.Header().Get("RateLimit-Policy"), style)
	}
}

func TestARefusalHasTheTimeToComeBackInEachStyle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := header(Legacy|Draft10, report.Values{
			Result:   ratelimit.Result{Limit: 100, RetryAfter: 1500 * time.Millisecond, ResetAfter: time.Minute},
			Policies: []ratelimit.Policy{burst},
		})
		require.Equal(t, "2", h.Get("Retry-After"))
		require.Equal(t, `"burst";r=0;t=2`, h.Get("RateLimit"))
		require.Equal(t, strconv.FormatInt(time.Now().Unix()+2, 10), h.Get("X-RateLimit-Reset"))
	})
}

func TestTheLegacyResetIsRoundedUpToAWholeSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for d, want := range map[time.Duration]int64{0: 0, 1: 1, time.Second - 1: 1, time.Second: 1, time.Second + 1: 2} {
			h := header(Legacy, report.Values{Result: ratelimit.Result{Allowed: true, Limit: 5, ResetAfter: d}})
			require.Equal(t, strconv.FormatInt(time.Now().Unix()+want, 10), h.Get("X-RateLimit-Reset"), d)
		}
	})
}

func TestTheLegacyLimitIsThatOfTheDecision(t *testing.T) {
	local := report.Values{Result: ratelimit.Result{Allowed: true, Limit: 25, Remaining: 24}, Policies: []ratelimit.Policy{burst}}
	require.Equal(t, "25", header(Legacy, local).Get("X-RateLimit-Limit"), "not that of the policy")
}

func TestNoStyleHasATimeWhereNoWaitingHelps(t *testing.T) {
	never := report.Values{Result: ratelimit.Result{Limit: 100, Remaining: 42, RetryAfter: ratelimit.Never}, Policies: []ratelimit.Policy{burst}}
	h := header(Legacy|Draft10, never)
	require.Equal(t, `"burst";r=42`, h.Get("RateLimit"))
	for _, field := range []string{xReset, retryAfter} {
		require.NotContains(t, h, field)
	}
}

func TestSeveralLimitsAreSeveralPolicies(t *testing.T) {
	policies := []ratelimit.Policy{burst, daily}
	admitted := []ratelimit.Result{
		{Allowed: true, Limit: 100, Remaining: 50, ResetAfter: 30 * time.Second},
		{Allowed: true, Limit: 1000, Remaining: 7, ResetAfter: 23 * time.Hour},
	}
	h := header(Draft10, report.Values{Result: admitted[1], Parts: testkit.Parts(admitted...), Policies: policies})
	require.Equal(t, `"burst";q=100;w=60,"daily";q=1000;w=86400`, h.Get("RateLimit-Policy"))
	require.Equal(t, `"burst";r=50;t=30,"daily";r=7;t=82800`, h.Get("RateLimit"))

	denied := []ratelimit.Result{{Limit: 100, RetryAfter: time.Second, ResetAfter: time.Minute}, admitted[1]}
	one := report.Values{Result: denied[0], Parts: testkit.Parts(denied...), DeniedBy: "burst", Policies: policies}
	h = header(Draft10, one)
	require.Equal(t, `"burst";r=0;t=1,"daily";r=7`, h.Get("RateLimit"), "no time is later than Retry-After")
	require.Equal(t, "1", h.Get("Retry-After"))
	require.Contains(t, problemOf(one), `"violated-policies":["burst"]`)

	denied[1] = ratelimit.Result{Limit: 1000, RetryAfter: time.Hour, ResetAfter: 23 * time.Hour}
	both := report.Values{Result: denied[1], Parts: testkit.Parts(denied...), DeniedBy: "daily", Policies: policies}
	h = header(Draft10, both)
	require.Equal(t, `"burst";r=0;t=1,"daily";r=0;t=3600`, h.Get("RateLimit"))
	require.Equal(t, "3600", h.Get("Retry-After"))
	require.Contains(t, problemOf(both), `"violated-policies":["burst","daily"]`)

	denied[1].RetryAfter = ratelimit.Never
	both.Result = denied[1]
	h = header(Draft10, both)
	require.Equal(t, `"burst";r=0,"daily";r=0`, h.Get("RateLimit"), "no waiting helps")
	require.NotContains(t, h, "Retry-After")
}

func TestOfADenialTheOneLimitIsThatWhichDeniedLongest(t *testing.T) {
	parts := []ratelimit.Result{ // of a cost of 5
		{Limit: 100, Remaining: 1, RetryAfter: time.Second, ResetAfter: time.Minute},
		{Limit: 1000, Remaining: 4, RetryAfter: time.Hour, ResetAfter: 23 * time.Hour},
		{Allowed: true, Limit: 10, Remaining: 0, ResetAfter: time.Hour}, // of a limiter that is not ours
	}
	whole := ratelimit.Result{Limit: 10, RetryAfter: time.Hour, ResetAfter: 23 * time.Hour}
	d := report.Values{Result: whole, Parts: testkit.Parts(parts...), DeniedBy: "daily", Policies: []ratelimit.Policy{burst, daily, burst}}
	h := header(Legacy, d)
	require.Equal(t, "1000", h.Get("X-RateLimit-Limit"))
	require.Equal(t, "4", h.Get("X-RateLimit-Remaining"))
	require.Equal(t, "3600", h.Get("Retry-After"))
}

func TestOfSeveralLimitsWithoutTheirPartsOnlyTheOneThatDeniedIsReported(t *testing.T) {
	policies := []ratelimit.Policy{burst, daily}
	one := report.Values{Result: ratelimit.Result{Limit: 1000, RetryAfter: time.Hour}, DeniedBy: "daily", Policies: policies}
	require.Equal(t, `"daily";r=0;t=3600`, header(Draft10, one).Get("RateLimit"))
	require.Contains(t, problemOf(one), `"violated-policies":["daily"]`)
	one.DeniedBy = ""
	require.NotContains(t, header(Draft10, one), "Ratelimit")
	require.NotContains(t, problemOf(one), "violated-policies")
	one = report.Values{Result: one.Result, DeniedBy: "local"}
	require.Contains(t, problemOf(one), `"violated-policies":["local"]`)
}

func problemOf(t report.Values) string {
	return string(appendProblem(nil, http.StatusTooManyRequests, &t, new(policyTexts)))
}

func TestUnlimitedLimitsAreNotReported(t *testing.T) {
	unlimited := ratelimit.Policy{Name: "unlimited", Limit: ratelimit.Unlimited(), Quota: 1<<31 - 1}
	h := header(Draft10, report.Values{
		Result:   ratelimit.Result{Allowed: true, Limit: 100, Remaining: 42},
		Parts:    testkit.Parts([]ratelimit.Result{{Allowed: true, Limit: 100, Remaining: 42}, {Allowed: true, Limit: 1<<31 - 1}}...),
		Policies: []ratelimit.Policy{burst, unlimited},
	})
	require.Equal(t, `"burst";q=100;w=60`, h.Get("RateLimit-Policy"))
	require.Equal(t, `"burst";r=42;t=0`, h.Get("RateLimit"))

	h = header(Draft10, report.Values{Result: ratelimit.Result{Allowed: true, Limit: 5, Remaining: 4}, Policies: []ratelimit.Policy{unlimited}})
	require.NotContains(t, h, rateLimitPolicy)
	require.NotContains(t, header(Draft10, report.Values{Result: ratelimit.Result{Allowed: true}, Policies: []ratelimit.Policy{unlimited}}), rateLimit)

	mem, err := memstore.New()
	require.NoError(t, err)
	lim, err := ratelimit.NewTokenBucket(mem, ratelimit.Unlimited())
	require.NoError(t, err)
	for _, free := range []ratelimit.Limiter{lim, ratelimittest.Static(ratelimit.Result{Allowed: true}, nil)} {
		w := httptest.NewRecorder()
		Middleware(free)(http.NotFoundHandler()).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		require.NotContains(t, w.Header(), xLimit)
		require.NotContains(t, w.Header(), rateLimit)
		require.NotContains(t, w.Header(), rateLimitPolicy)
	}
}

func TestALimiterThatDescribesNothingHasADefaultPolicy(t *testing.T) {
	h := header(Draft10, report.Values{Result: ratelimit.Result{Allowed: true, Limit: 10, Remaining: 9, ResetAfter: time.Second}})
	require.Equal(t, `"default";q=10`, h.Get("RateLimit-Policy"))
	require.Equal(t, `"default";r=9;t=1`, h.Get("RateLimit"))
}

func TestNumbersAreThoseOfRFC9651(t *testing.T) {
	h := header(Legacy|Draft10, report.Values{
		Result:   ratelimit.Result{Allowed: true, Limit: math.MaxInt, Remaining: -1, ResetAfter: ratelimit.Never},
		Policies: []ratelimit.Policy{{Name: "x", Quota: math.MaxInt, Window: time.Millisecond}},
	})
	most := fmt.Sprint(min(math.MaxInt, 999_999_999_999_999))
	require.Equal(t, most, h.Get("X-RateLimit-Limit"))
	require.Equal(t, `"x";q=`+most+`;w=1`, h.Get("RateLimit-Policy"))
	require.Equal(t, `"x";r=0`, h.Get("RateLimit"))
}

// names are those that operators and tenants may have thought of.
var names = []string{"a", `q"uote`, `back\slash`, "ü", "a,b;c=1", "line\r\nX-Evil: 1", "\x00\xff", strings.Repeat("n", 300), ""}

func TestFieldsParseAsStructuredFields(t *testing.T) {
	for _, one := range names {
		for _, two := range names {
			policies := []ratelimit.Policy{policy(one, ratelimit.PerMinute(100)), policy(two, ratelimit.PerDay(0))}
			parts := []ratelimit.Result{{Allowed: true, Limit: 100, Remaining: 4, ResetAfter: time.Hour}, {Limit: 1000, RetryAfter: time.Minute}}
			h := header(Draft10, report.Values{Result: parts[1], Parts: testkit.Parts(parts...), Policies: policies})
			checkList(t, h, rateLimitPolicy, []string{one, two}, map[string][2]any{"q": {int64(100), int64(0)}, "w": {int64(60), int64(86400)}})
			checkList(t, h, rateLimit, []string{one, two}, map[string][2]any{"r": {int64(4), int64(0)}, "t": {nil, int64(60)}})
		}
	}
}

// checkList parses the field with an independent parser.
func checkList(t *testing.T, h http.Header, field string, names []string, params map[string][2]any) {
	t.Helper()
	list, err := httpsfv.UnmarshalList(h[field])
	require.NoError(t, err, h[field])
	require.Len(t, list, len(names))
	for i, member := range list {
		item := member.(httpsfv.Item)
		require.Equal(t, strings.Trim(quotedPlain(names[i]), `"`), item.Value)
		for name, want := range params {
			value, _ := item.Params.Get(name)
			require.Equal(t, want[i], value)
		}
	}
}

// quotedPlain is quoted without the backslashes.
func quotedPlain(s string) string {
	return strings.NewReplacer(`\"`, `"`, `\\`, `\`).Replace(string(report.AppendString(nil, s)))
}

func FuzzPolicyNames(f *testing.F) {
	for _, name := range names {
		f.Add(name, 5, int64(time.Minute))
	}
	f.Fuzz(func(t *testing.T, name string, quota int, window int64) {
		p := ratelimit.Policy{Name: name, Quota: quota, Window: time.Duration(window)}
		list, err := httpsfv.UnmarshalList([]string{newPolicyText(p).draft10})
		require.NoError(t, err)
		require.Len(t, list, 1)
	})
}

func TestAPolicyTextIsThatOfThePolicyHoweverManyThereAre(t *testing.T) {
	var texts policyTexts
	for range 2 {
		for i := range 1000 {
			p := policy("p"+strconv.Itoa(i%7), ratelimit.PerMinute(i))
			require.Equal(t, newPolicyText(p), texts.of(&p))
		}
	}
}

func TestAHandlerCanChangeFieldsWithoutTouchingOthers(t *testing.T) {
	h := header(Legacy|Draft10, report.Values{Result: ratelimit.Result{Allowed: true, Limit: 100, Remaining: 42}, Policies: []ratelimit.Policy{burst}})
	before := h.Clone()
	h.Add(xLimit, "more")
	before.Add(xLimit, "more")
	h[rateLimitPolicy][0] = "changed"
	before[rateLimitPolicy][0] = "changed"
	require.Equal(t, before, h)
	again := header(Draft10, report.Values{Result: ratelimit.Result{Allowed: true, Limit: 100, Remaining: 42}, Policies: []ratelimit.Policy{burst}})
	require.Equal(t, `"burst";q=100;w=60`, again.Get(rateLimitPolicy))
}
