package report_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/internal/report"
	"github.com/ratelimit-go/ratelimit/internal/testkit"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/throttle"
)

func policies(names ...string) (all []ratelimit.Policy) {
	for _, name := range names {
		all = append(all, ratelimit.Policy{Name: name, Limit: ratelimit.PerMinute(5), Quota: 5, Window: time.Minute})
	}
	return all
}

func TestAPartIsKnownIfItsLimitWasAskedAndItsStoreHasAnswered(t *testing.T) {
	denied := ratelimit.Result{Limit: 5, RetryAfter: time.Second}
	open := outage(t, fallback.FailOpen())
	for name, c := range map[string]struct {
		d     report.Values
		known []bool // of each policy
	}{
		"one limit":                        {report.Values{Result: denied, Policies: policies("a")}, []bool{true}},
		"one limit, and its store is down": {report.Values{Result: open, Policies: policies("a")}, []bool{false}},
		"two limits":                       {report.Values{Result: denied, Parts: testkit.Parts([]ratelimit.Result{denied, denied}...), Policies: policies("a", "b")}, []bool{true, true}},
		"the second was not asked":         {report.Values{Result: denied, Parts: testkit.Parts([]ratelimit.Result{denied, {}}...), Policies: policies("a", "b")}, []bool{true, false}},
		"the store of the first is down":   {report.Values{Result: denied, Parts: testkit.Parts([]ratelimit.Result{open, denied}...), Policies: policies("a", "b")}, []bool{false, true}},
		"only who denied is known":         {report.Values{Result: denied, DeniedBy: "b", Policies: policies("a", "b")}, []bool{false, true}},
		"nothing is known":                 {report.Values{Result: denied, Policies: policies("", "b")}, []bool{false, false}},
	} {
		for i, want := range c.known {
			_, known := c.d.Part(i)
			require.Equal(t, want, known, "%s, %d", name, i)
		}
	}
}

// Parts may be as many as the policies, and stand for others: here the first two of them for one and two policies,
// and the last for none.
func TestAPartHasThePolicyOfItsName(t *testing.T) {
	plan, a := named(t, "plan"), named(t, "a")
	both := ratelimittest.All(t, a, named(t, "b"))
	undescribed := struct{ ratelimit.Limiter }{named(t, "c")}
	admitted := ratelimit.Result{Allowed: true, Limit: 7}
	d := report.Values{Result: admitted, Policies: policies("plan", "a", "b"),
		Parts: []ratelimit.Part{{Result: admitted, Limiter: plan}, {Limiter: both}, {Result: admitted, Limiter: undescribed}}}
	for i, want := range []bool{true, false, false} {
		_, known := d.Part(i)
		require.Equal(t, want, known, d.Policies[i].Name)
	}
	d = report.Values{Result: admitted, Policies: policies("b", "a"),
		Parts: []ratelimit.Part{{Result: ratelimit.Result{Limit: 1}, Limiter: a}, {Result: admitted, Limiter: undescribed}}}
	part, _ := d.Part(1)
	require.Equal(t, 1, part.Limit)
}

func named(t *testing.T, name string) ratelimit.Limiter {
	t.Helper()
	return ratelimittest.New(t, "token_bucket", ratelimittest.NewClock(time.Unix(1e9, 0)).Memory(t), ratelimit.PerHour(5), ratelimit.WithName(name))
}

// outage is a decision by p.
func outage(t *testing.T, p fallback.Answer) ratelimit.Result {
	t.Helper()
	lim, err := fallback.New(ratelimittest.Static(ratelimit.Result{}, ratelimit.ErrStore), p)
	require.NoError(t, err)
	r, err := lim.Allow(t.Context(), "key")
	require.NoError(t, err)
	return r
}

func TestNothingOfAnOutageIsKnown(t *testing.T) {
	for _, p := range []fallback.Answer{fallback.FailOpen(), fallback.FailClosed()} {
		r := outage(t, p)
		require.False(t, r.Counted())
	}
	local := outage(t, fallback.FailTo(ratelimittest.Static(ratelimit.Result{Allowed: true, Limit: 5}, nil)))
	require.True(t, local.Counted())
}

func TestNoTimeIsLaterThanThatToComeBack(t *testing.T) {
	admitted := ratelimit.Result{Allowed: true, Limit: 5, ResetAfter: time.Hour}
	denied := ratelimit.Result{Limit: 5, RetryAfter: time.Second, ResetAfter: time.Hour}
	never := ratelimit.Result{Limit: 5, RetryAfter: ratelimit.Never}
	for _, c := range []struct {
		whole, part ratelimit.Result
		want        time.Duration
		ok          bool
	}{
		{admitted, admitted, time.Hour, true},
		{denied, denied, time.Second, true},
		{denied, admitted, 0, false},
		{never, denied, 0, false},
		{never, never, 0, false},
		{ratelimit.Result{}, ratelimit.Result{}, 1, true}, // which is 1 s
		{ratelimit.Result{Allowed: true, ResetAfter: ratelimit.Never}, admitted, time.Hour, true},
	} {
		d := report.Values{Result: c.whole}
		got, ok := d.Time(&c.part, nil)
		require.Equal(t, c.ok, ok)
		require.Equal(t, c.want, got)
	}
}

func TestOneIsTheLimitThatDecided(t *testing.T) {
	left := func(n int, reset time.Duration) ratelimit.Result {
		return ratelimit.Result{Allowed: true, Limit: 5, Remaining: n, ResetAfter: reset}
	}
	denied := func(after time.Duration) ratelimit.Result {
		return ratelimit.Result{Limit: 5, RetryAfter: after, ResetAfter: time.Hour}
	}
	open := outage(t, fallback.FailOpen())
	for name, c := range map[string]struct {
		whole ratelimit.Result
		parts []ratelimit.Result
		want  int // of parts; -1: the whole
	}{
		"no parts":                         {left(3, time.Second), nil, -1},
		"the least left":                   {left(1, time.Hour), []ratelimit.Result{left(3, time.Hour), left(1, time.Second), left(2, time.Minute)}, 1},
		"of equal ones the longest time":   {left(1, time.Hour), []ratelimit.Result{left(1, time.Second), left(1, time.Hour)}, 1},
		"not one whose store is down":      {left(3, time.Hour), []ratelimit.Result{open, left(3, time.Hour)}, 1},
		"the longest denial":               {denied(time.Hour), []ratelimit.Result{denied(time.Second), denied(time.Hour), left(0, time.Minute)}, 1},
		"of a First the shortest denial":   {denied(time.Second), []ratelimit.Result{denied(time.Hour), denied(time.Second), denied(ratelimit.Never)}, 1},
		"a denial for ever":                {denied(ratelimit.Never), []ratelimit.Result{denied(ratelimit.Never), denied(time.Hour)}, 0},
		"not one that was not asked":       {denied(time.Hour), []ratelimit.Result{{}, denied(time.Hour)}, 1},
		"the first of equal ones":          {left(1, time.Hour), []ratelimit.Result{left(1, time.Hour), left(1, time.Hour)}, 0},
		"the first of equal denials":       {denied(time.Hour), []ratelimit.Result{denied(time.Hour), denied(time.Hour)}, 0},
		"of a First the one that admitted": {left(3, time.Hour), []ratelimit.Result{left(1, time.Hour), left(3, time.Hour)}, 1},
		"not a trial that has denied":      {left(3, time.Hour), []ratelimit.Result{left(3, time.Hour), denied(time.Hour)}, 0},
		"nothing is known of any of these": {left(3, time.Hour), []ratelimit.Result{open, open}, -1},
	} {
		all := policies("a", "b", "c")[:len(c.parts)]
		for _, known := range [][]ratelimit.Policy{all, nil} {
			d := report.Values{Result: c.whole, Parts: testkit.Parts(c.parts...), Policies: known}
			one, p := d.One()
			if c.want < 0 {
				require.Same(t, &d.Result, one, name)
				require.Nil(t, p, name)
				continue
			}
			require.Same(t, &d.Parts[c.want].Result, one, name)
			if known == nil {
				require.Nil(t, p, name)
			} else {
				require.Same(t, &known[c.want], p, name)
			}
		}
	}
}

func TestInAnOutageThePoliciesHaveTheQuotasOfTheLocalLimits(t *testing.T) {
	local := outage(t, fallback.FailTo(ratelimittest.Static(ratelimit.Result{Allowed: true, Limit: 2}, nil)))
	two := []ratelimit.Result{{Allowed: true, Limit: 2}, {Allowed: true, Limit: 2}}
	shares := func(quota, n int) []ratelimit.Policy {
		return slices.Repeat([]ratelimit.Policy{{Quota: quota, Window: time.Hour}}, n)
	}
	for name, c := range map[string]struct {
		d     report.Values
		local []ratelimit.Policy
		want  string // of each policy
	}{
		"one limit":                 {report.Values{Result: local, Policies: policies("a")}, nil, "2"},
		"its share":                 {report.Values{Result: local, Policies: policies("a")}, shares(2, 1), "2;w=3600"},
		"another share":             {report.Values{Result: local, Policies: policies("a")}, shares(3, 1), "2"},
		"two":                       {report.Values{Result: local, Parts: testkit.Parts(two...), Policies: policies("a", "b")}, nil, "2"},
		"their shares":              {report.Values{Result: local, Parts: testkit.Parts(two...), Policies: policies("a", "b")}, shares(2, 2), "2;w=3600"},
		"one share":                 {report.Values{Result: local, Parts: testkit.Parts(two...), Policies: policies("a", "b")}, shares(2, 1), "2"},
		"the same quota":            {report.Values{Result: local, Parts: testkit.Parts([]ratelimit.Result{{Allowed: true, Limit: 5}}...), Policies: policies("a")}, nil, "5;w=60"},
		"a share of the same quota": {report.Values{Result: local, Parts: testkit.Parts([]ratelimit.Result{{Allowed: true, Limit: 5}}...), Policies: policies("a")}, shares(5, 1), "5;w=3600"},
		"the store has decided":     {report.Values{Result: ratelimit.Result{Allowed: true, Limit: 2}, Policies: policies("a")}, shares(2, 1), "5;w=60"},
		"nothing is known":          {report.Values{Result: local, Policies: policies("a", "b")}, nil, "5;w=60"},
	} {
		c.d.Follow(c.local)
		for i := range c.d.Policies {
			require.Equal(t, c.want, string(report.AppendQuota(nil, &c.d.Policies[i])), name)
		}
	}
}

func TestSecondsAreRoundedUp(t *testing.T) {
	for d, want := range map[time.Duration]int64{
		0: 0, 1: 1, time.Second - 1: 1, time.Second: 1, time.Second + 1: 2, math.MaxInt64: 9223372037,
	} {
		require.Equal(t, want, report.Seconds(d), d)
	}
}

func TestNumbersAreThoseOfRFC9651(t *testing.T) {
	var most int64 = min(math.MaxInt, 1e15-1)
	for n, want := range map[int]int64{-1: 0, 0: 0, 7: 7, int(most - 1): most - 1, int(most): most} {
		require.Equal(t, want, report.Count(n))
	}
	for _, n := range []int{min(1e15, math.MaxInt), math.MaxInt} {
		require.Equal(t, most, report.Count(n))
	}
	for want, p := range map[string]ratelimit.Policy{
		"7;w=2":          {Quota: 7, Window: time.Second + 1},
		"0":              {Quota: -1, Window: -1},
		`3;w=1;qu="a b"`: {Quota: 3, Window: 1, Unit: "a b"},
		fmt.Sprint(most): {Quota: math.MaxInt},
	} {
		require.Equal(t, want, string(report.AppendQuota(nil, &p)))
	}
}

func TestADenialByAListIsOneWhereverItIs(t *testing.T) {
	list := ratelimit.Result{RetryAfter: ratelimit.Never}.WithMark(ratelimit.NewMark(t, ratelimit.SourceList, nil))
	exempt := ratelimit.Result{Allowed: true, Limit: math.MaxInt32}.WithMark(ratelimit.NewMark(t, ratelimit.SourceList, nil))
	limit := ratelimit.Result{Limit: 5, RetryAfter: time.Second}
	admitted := ratelimit.Result{Allowed: true, Limit: 5, Remaining: 4}
	for name, c := range map[string]struct {
		d             report.Values
		list, counted bool
	}{
		"a list":                 {report.Values{Result: list}, true, false},
		"a limit":                {report.Values{Result: limit}, false, true},
		"nothing":                {report.Values{Result: admitted}, false, true},
		"a list that lets pass":  {report.Values{Result: exempt}, false, false},
		"one of several":         {report.Values{Result: limit, Parts: testkit.Parts([]ratelimit.Result{admitted, list}...)}, true, false},
		"besides a limit":        {report.Values{Result: limit, Parts: testkit.Parts([]ratelimit.Result{limit, list}...)}, true, false},
		"a limit besides a list": {report.Values{Result: limit, Parts: testkit.Parts([]ratelimit.Result{exempt, limit, {}}...)}, false, true},
	} {
		require.Equal(t, c.list, c.d.ByList(), name)
		require.Equal(t, c.counted, c.d.Counted(), name)
	}
}

func TestTextsAreStringsOfRFC9651(t *testing.T) {
	for s, want := range map[string]string{
		"":                 `""`,
		" a~":              `" a~"`,
		`say "\"`:          `"say \"\\\""`,
		"\x00\x1f\x7f\n":   `"%00%1F%7F%0A"`,
		"caf\u00e9\xff":    `"caf%C3%A9%FF"`,
		"per user, per IP": `"per user, per IP"`,
	} {
		require.Equal(t, "k="+want, string(report.AppendString([]byte("k="), s)))
	}
}

// A bucket's next place comes long before its full reset. That is told where it can be computed.
func TestAFullBucketTellsWhenItsNextPlaceComes(t *testing.T) {
	full := ratelimit.Result{Allowed: true, Limit: 10, ResetAfter: time.Minute}
	with := func(change func(r *ratelimit.Result)) ratelimit.Result {
		r := full
		change(&r)
		return r
	}
	policy := func(burst, quota int) *ratelimit.Policy {
		return &ratelimit.Policy{Limit: ratelimit.Limit{Rate: 10, Period: time.Minute, Burst: burst}, Quota: quota, Window: time.Minute}
	}
	local := ratelimit.NewMark(t, ratelimit.SourceLocal, nil)
	for name, c := range map[string]struct {
		part   ratelimit.Result
		policy *ratelimit.Policy
		bucket bool
		want   time.Duration
		ok     bool
	}{
		"a bucket":                {full, policy(0, 10), true, 6 * time.Second, true},
		"a Burst":                 {full, policy(10, 10), false, 6 * time.Second, true},
		"a part of an event less": {with(func(r *ratelimit.Result) { r.ResetAfter -= time.Second }), policy(10, 10), false, 5 * time.Second, true},
		"a moment ago":            {with(func(r *ratelimit.Result) { r.ResetAfter = time.Second }), policy(10, 10), false, 1, true},
		"of one":                  {with(func(r *ratelimit.Result) { r.Limit = 1; r.ResetAfter = time.Second }), policy(1, 1), false, time.Second, true},
		"room":                    {with(func(r *ratelimit.Result) { r.Remaining = 1 }), policy(0, 10), true, time.Minute, true},
		"a window":                {full, policy(0, 10), false, time.Minute, true},
		"no policy":               {full, nil, true, time.Minute, true},
		"no quota":                {with(func(r *ratelimit.Result) { r.Limit = 0 }), policy(0, 0), true, time.Minute, true},
		"another quota":           {full, policy(0, 9), true, time.Minute, true},
		"a local one":             {full.WithMark(local), policy(0, 10), true, time.Minute, true},
		"for ever":                {with(func(r *ratelimit.Result) { r.ResetAfter = ratelimit.Never }), policy(0, 10), true, ratelimit.Never, false},
		"as if never seen":        {with(func(r *ratelimit.Result) { r.ResetAfter = 0 }), nil, true, 0, true},
		"slots":                   {full, &ratelimit.Policy{Quota: 10, Unit: "concurrent-requests"}, false, 0, false},
	} {
		d := report.Values{Result: c.part}
		if c.bucket {
			d.Limiter = new(ratelimit.TokenBucket)
		}
		got, ok := d.Time(&d.Result, c.policy)
		require.Equal(t, c.want, got, name)
		require.Equal(t, c.ok, ok, name)
	}
}

func TestUntilThereIsMore(t *testing.T) {
	for _, c := range []struct {
		r    ratelimit.Result
		want time.Duration
		ok   bool
	}{
		{ratelimit.Result{Allowed: true, ResetAfter: time.Hour}, time.Hour, true},
		{ratelimit.Result{Allowed: true}, 0, true},
		{ratelimit.Result{Allowed: true, ResetAfter: -1}, 0, true},
		{ratelimit.Result{Allowed: true, ResetAfter: ratelimit.Never}, ratelimit.Never, false},
		{ratelimit.Result{RetryAfter: time.Second, ResetAfter: time.Hour}, time.Second, true},
		{ratelimit.Result{RetryAfter: ratelimit.Never}, 0, false},
	} {
		got, ok := report.Until(&c.r)
		require.Equal(t, c.want, got)
		require.Equal(t, c.ok, ok)
	}
}

// When a slot that nobody gives back ends says nothing of when one comes back: a client is told to
// come again soon, but never sooner than the other limits that have denied let it.
func TestTheRetryAfterOfSlotsIsShort(t *testing.T) {
	slots := ratelimit.Policy{Name: "slots", Limit: ratelimit.PerSecond(3), Quota: 3, Unit: "concurrent-requests"}
	rate := policies("rate")[0]
	denied := func(after time.Duration) ratelimit.Result { return ratelimit.Result{Limit: 3, RetryAfter: after} }
	admitted := ratelimit.Result{Allowed: true, Limit: 3, Remaining: 1}
	for name, c := range map[string]struct {
		d     report.Values
		want  time.Duration
		parts []time.Duration
	}{
		"slots":                   {report.Values{Result: denied(time.Hour), Policies: []ratelimit.Policy{slots}}, 5 * time.Second, nil},
		"no slots":                {report.Values{Result: denied(time.Hour), Policies: []ratelimit.Policy{rate}}, time.Hour, nil},
		"no slots at all":         {report.Values{Result: denied(ratelimit.Never), Policies: []ratelimit.Policy{slots}}, ratelimit.Never, nil},
		"an admission":            {report.Values{Result: admitted, Policies: []ratelimit.Policy{slots}}, 0, nil},
		"an outage":               {report.Values{Result: outage(t, fallback.FailClosed()), Policies: []ratelimit.Policy{slots}}, time.Second, nil},
		"which of two is unknown": {report.Values{Result: denied(time.Hour), Policies: []ratelimit.Policy{rate, slots}}, time.Hour, nil},
		"slots beside a rate": {report.Values{Result: denied(time.Hour), Policies: []ratelimit.Policy{rate, slots}, Parts: testkit.Parts([]ratelimit.Result{admitted, denied(time.Hour)}...)},
			5 * time.Second, []time.Duration{0, 5 * time.Second}},
		"both": {report.Values{Result: denied(time.Hour), Policies: []ratelimit.Policy{slots, rate}, Parts: testkit.Parts([]ratelimit.Result{denied(time.Hour), denied(time.Minute)}...)},
			time.Minute, []time.Duration{5 * time.Second, time.Minute}},
		"the rate alone": {report.Values{Result: denied(time.Minute), Policies: []ratelimit.Policy{rate, slots}, Parts: testkit.Parts([]ratelimit.Result{denied(time.Minute), {}}...)},
			time.Minute, []time.Duration{time.Minute, 0}},
		"a First beside slots": {report.Values{Result: denied(time.Minute), Policies: []ratelimit.Policy{rate, rate, slots}, Parts: testkit.Parts([]ratelimit.Result{denied(time.Hour), denied(time.Minute), admitted}...)},
			time.Minute, []time.Duration{time.Hour, time.Minute, 0}},
		"more than a local share": {report.Values{Result: denied(time.Second), Policies: []ratelimit.Policy{rate, slots}, Parts: testkit.Parts([]ratelimit.Result{denied(ratelimit.Never), admitted}...)},
			time.Second, []time.Duration{ratelimit.Never, 0}},
		"slots and more than a local share": {report.Values{Result: denied(time.Second), Policies: []ratelimit.Policy{rate, slots}, Parts: testkit.Parts([]ratelimit.Result{denied(ratelimit.Never), denied(time.Hour)}...)},
			time.Second, []time.Duration{ratelimit.Never, 5 * time.Second}},
		"slots beside a wrapper of two limits": {report.Values{Result: denied(time.Hour), Policies: []ratelimit.Policy{rate, rate, slots},
			Parts: []ratelimit.Part{{Result: outage(t, fallback.FailOpen())}, {Result: denied(time.Hour), Limiter: named(t, "slots")}}},
			5 * time.Second, []time.Duration{0, 5 * time.Second}},
		"a wrapper of slots that is closed": {report.Values{Result: denied(time.Minute), Policies: []ratelimit.Policy{slots, rate},
			Parts: []ratelimit.Part{{Result: outage(t, fallback.FailClosed())}, {Result: denied(time.Minute)}}},
			time.Minute, []time.Duration{time.Second, time.Minute}},
	} {
		before := slices.Clone(c.d.Parts)
		shared := c.d.Parts
		c.d.Shorten(5 * time.Second)
		require.Equal(t, c.want, c.d.Result.RetryAfter, name)
		for i, want := range c.parts {
			require.Equal(t, want, c.d.Parts[i].RetryAfter, name)
		}
		require.Equal(t, before, shared, "%s: the Parts of a Result are not changed", name)
	}
	d := report.Values{Result: denied(time.Hour), Policies: []ratelimit.Policy{slots}}
	d.Shorten(0)
	require.Equal(t, time.Second, d.Result.RetryAfter)
}

func TestTheNameOfThePolicyThatDecided(t *testing.T) {
	mem := ratelimittest.NewClock(time.Unix(1e9, 0)).Memory(t)
	hour := ratelimittest.New(t, "token_bucket", mem, ratelimit.PerHour(5), ratelimit.WithName("hourly"))
	day := ratelimittest.New(t, "token_bucket", mem, ratelimit.PerDay(9), ratelimit.WithName("daily"))
	both := ratelimittest.All(t, day, hour)
	known, err := ratelimit.AppendPolicies(t.Context(), nil, both, "key")
	require.NoError(t, err)
	for _, c := range []struct {
		n        int
		policies []ratelimit.Policy
		want     string
	}{{2, known, "hourly"}, {2, nil, ""}, {9, known, "hourly"}, {9, nil, "hourly"}} {
		r, err := both.AllowN(t.Context(), "key", c.n)
		require.NoError(t, err)
		require.Equal(t, c.want, report.Limiter(&r, c.policies))
		require.NoError(t, both.Reset(t.Context(), "key"))
	}
	r, err := hour.Allow(t.Context(), "key")
	require.NoError(t, err)
	require.Equal(t, "hourly", report.Limiter(&r, known[1:]))
	require.True(t, report.Limits(&ratelimit.Policy{Limit: ratelimit.PerHour(0)}), "it admits nothing")
	unlimited := ratelimit.Policy{Limit: ratelimit.Unlimited()}
	require.False(t, report.Limits(&unlimited))
}

// inside is a wrapper that says what it wraps.
type inside struct{ ratelimit.Limiter }

func (i inside) Unwrap() ratelimit.Limiter { return i.Limiter }

// localPolicies is one that has a local limiter.
type localPolicies struct {
	ratelimit.Limiter
	err error
}

func (l localPolicies) AppendLocalPolicies(_ context.Context, dst []ratelimit.Policy, _ string) ([]ratelimit.Policy, error) {
	return append(dst, policies("local")...), l.err
}

func TestLimitersInsideWrappersAreFound(t *testing.T) {
	mem := ratelimittest.NewClock(time.Unix(1e9, 0)).Memory(t)
	for algorithm, want := range map[string]time.Duration{"token_bucket": 12 * time.Minute, "leaky_bucket": 12 * time.Minute, "fixed_window": 800 * time.Second} {
		l := ratelimittest.New(t, algorithm, mem, ratelimit.PerHour(5))
		many := func() ratelimit.Limiter {
			return ratelimittest.New(t, algorithm, mem, ratelimit.PerHour(5000), ratelimit.WithName("many"))
		}
		waiter, err := throttle.NewWaiter(l, time.Second)
		require.NoError(t, err)
		for name, l := range map[string]ratelimit.Limiter{
			"alone": l, "Ban": ratelimit.Must(ratelimit.NewBan(l, mem, ratelimit.Penalty{Denials: 9, Within: time.Hour, For: time.Hour})), "All of one": ratelimittest.All(t, l), "All": ratelimittest.All(t, many(), l),
			"First": ratelimit.Must(ratelimit.NewFirst(l, many())), "First of an All": ratelimit.Must(ratelimit.NewFirst(ratelimittest.All(t, many(), l))),
			"Waiter": waiter,
		} {
			require.NoError(t, l.Reset(t.Context(), "key"))
			r, err := l.AllowN(t.Context(), "key", 5)
			require.NoError(t, err)
			d := report.Of(r)
			d.Limiter = l
			d.Describe(t.Context(), l, "key", nil)
			told, ok := d.Time(d.One())
			require.True(t, ok, name)
			require.Equal(t, want, told, name)
		}

		local, err := fallback.New(ratelimittest.Static(ratelimit.Result{}, ratelimit.ErrStore), fallback.FailTo(l))
		require.NoError(t, err)
		r, err := local.Allow(t.Context(), "key")
		require.NoError(t, err)
		found := func(l ratelimit.Limiter, r ratelimit.Result) []ratelimit.Policy {
			return report.Local(t.Context(), l, "key", &r)
		}
		require.Equal(t, policies("local"), found(localPolicies{l, nil}, r))
		require.Equal(t, policies("local"), found(inside{localPolicies{l, nil}}, r))
		require.Nil(t, found(localPolicies{l, context.Canceled}, r))
		require.Nil(t, found(l, r))
		require.Nil(t, found(localPolicies{l, nil}, ratelimit.Result{Allowed: true}), "the store has decided")
	}
}
