package report_test

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/internal/report"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
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
		d     report.Decision
		known []bool // of each policy
	}{
		"one limit":                        {report.Decision{Result: denied, Policies: policies("a")}, []bool{true}},
		"one limit, and its store is down": {report.Decision{Result: open, Policies: policies("a")}, []bool{false}},
		"two limits":                       {report.Decision{Result: denied, Parts: []ratelimit.Result{denied, denied}, Policies: policies("a", "b")}, []bool{true, true}},
		"the second was not asked":         {report.Decision{Result: denied, Parts: []ratelimit.Result{denied, {}}, Policies: policies("a", "b")}, []bool{true, false}},
		"the store of the first is down":   {report.Decision{Result: denied, Parts: []ratelimit.Result{open, denied}, Policies: policies("a", "b")}, []bool{false, true}},
		"only who denied is known":         {report.Decision{Result: denied, DeniedBy: "b", Policies: policies("a", "b")}, []bool{false, true}},
		"nothing is known":                 {report.Decision{Result: denied, Policies: policies("", "b")}, []bool{false, false}},
	} {
		for i, want := range c.known {
			_, known := c.d.Part(i)
			require.Equal(t, want, known, "%s, %d", name, i)
		}
	}
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
		d := report.Decision{Result: c.whole}
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
		"a denial for ever":                {denied(ratelimit.Never), []ratelimit.Result{denied(ratelimit.Never), denied(time.Hour)}, 0},
		"not one that was not asked":       {denied(time.Hour), []ratelimit.Result{{}, denied(time.Hour)}, 1},
		"nothing is known of any of these": {left(3, time.Hour), []ratelimit.Result{open, open}, -1},
	} {
		all := policies("a", "b", "c")[:len(c.parts)]
		for _, known := range [][]ratelimit.Policy{all, nil} {
			d := report.Decision{Result: c.whole, Parts: c.parts, Policies: known}
			one, p := d.One()
			if c.want < 0 {
				require.Same(t, &d.Result, one, name)
				require.Nil(t, p, name)
				continue
			}
			require.Same(t, &d.Parts[c.want], one, name)
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
		d     report.Decision
		local []ratelimit.Policy
		want  string // of each policy
	}{
		"one limit":                 {report.Decision{Result: local, Policies: policies("a")}, nil, "2"},
		"its share":                 {report.Decision{Result: local, Policies: policies("a")}, shares(2, 1), "2;w=3600"},
		"another share":             {report.Decision{Result: local, Policies: policies("a")}, shares(3, 1), "2"},
		"two":                       {report.Decision{Result: local, Parts: two, Policies: policies("a", "b")}, nil, "2"},
		"their shares":              {report.Decision{Result: local, Parts: two, Policies: policies("a", "b")}, shares(2, 2), "2;w=3600"},
		"one share":                 {report.Decision{Result: local, Parts: two, Policies: policies("a", "b")}, shares(2, 1), "2"},
		"the same quota":            {report.Decision{Result: local, Parts: []ratelimit.Result{{Allowed: true, Limit: 5}}, Policies: policies("a")}, nil, "5;w=60"},
		"a share of the same quota": {report.Decision{Result: local, Parts: []ratelimit.Result{{Allowed: true, Limit: 5}}, Policies: policies("a")}, shares(5, 1), "5;w=3600"},
		"the store has decided":     {report.Decision{Result: ratelimit.Result{Allowed: true, Limit: 2}, Policies: policies("a")}, shares(2, 1), "5;w=60"},
		"nothing is known":          {report.Decision{Result: local, Policies: policies("a", "b")}, nil, "5;w=60"},
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
		d             report.Decision
		list, counted bool
	}{
		"a list":                 {report.Decision{Result: list}, true, false},
		"a limit":                {report.Decision{Result: limit}, false, true},
		"nothing":                {report.Decision{Result: admitted}, false, true},
		"a list that lets pass":  {report.Decision{Result: exempt}, false, false},
		"one of several":         {report.Decision{Result: limit, Parts: []ratelimit.Result{admitted, list}}, true, false},
		"besides a limit":        {report.Decision{Result: limit, Parts: []ratelimit.Result{limit, list}}, true, false},
		"a limit besides a list": {report.Decision{Result: limit, Parts: []ratelimit.Result{exempt, limit, {}}}, false, true},
	} {
		require.Equal(t, c.list, c.d.ByList(), name)
		require.Equal(t, c.counted, c.d.Counted(), name)
	}
}
