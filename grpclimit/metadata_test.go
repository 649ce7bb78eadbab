package grpclimit

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/report"
)

var (
	burst = ratelimit.Policy{Name: "burst", Limit: ratelimit.PerMinute(100), Quota: 100, Window: time.Minute}
	daily = ratelimit.Policy{Name: "daily", Limit: ratelimit.PerDay(1000), Quota: 1000, Window: 24 * time.Hour}
)

func TestSeveralLimitsAreToldOneByOne(t *testing.T) {
	policies := []ratelimit.Policy{burst, daily}
	const list = `"burst";q=100;w=60,"daily";q=1000;w=86400`

	r := about(report.Values{Policies: policies, Result: ratelimit.Result{Allowed: true, Limit: 100, Remaining: 50}, Parts: []ratelimit.Part{
		{Result: ratelimit.Result{Allowed: true, Limit: 100, Remaining: 50, ResetAfter: 29*time.Second + time.Microsecond}},
		{Result: ratelimit.Result{Allowed: true, Limit: 1000, Remaining: 900, ResetAfter: 40000 * time.Second}},
	}})
	require.Equal(t, metadata.MD{
		"ratelimit-policy": {list},
		"ratelimit":        {`"burst";r=50;t=30,"daily";r=900;t=40000`},
	}, r.metadata())

	r = about(report.Values{Policies: policies, DeniedBy: "burst", Result: ratelimit.Result{RetryAfter: 1500 * time.Millisecond}, Parts: []ratelimit.Part{
		{Result: ratelimit.Result{Limit: 100, RetryAfter: 1500 * time.Millisecond, ResetAfter: time.Minute}},
		{Result: ratelimit.Result{Allowed: true, Limit: 1000, Remaining: 900, ResetAfter: 40000 * time.Second}},
	}})
	require.Equal(t, metadata.MD{
		"ratelimit-policy": {list},
		"ratelimit":        {`"burst";r=0;t=2,"daily";r=900`}, // nothing later than retry-after
		"retry-after":      {"2"},
	}, r.metadata())
	require.Equal(t, []string{"burst"}, violated(t, denial(&r.Values).Err()))

	r.Parts[1].Result = ratelimit.Result{Limit: 1000, RetryAfter: ratelimit.Never}
	r.Result.RetryAfter = ratelimit.Never
	require.Equal(t, metadata.MD{
		"ratelimit-policy": {list},
		"ratelimit":        {`"burst";r=0,"daily";r=0`}, // no waiting helps
	}, r.metadata())
	require.Equal(t, []string{"burst", "daily"}, violated(t, denial(&r.Values).Err()))

	// One that was not asked, since the other had denied before.
	r.Result, r.Parts = r.Parts[0].Result, []ratelimit.Part{r.Parts[0], {}}
	require.Equal(t, metadata.MD{
		"ratelimit-policy": {list},
		"ratelimit":        {`"burst";r=0;t=2`},
		"retry-after":      {"2"},
	}, r.metadata())
	require.Equal(t, []string{"burst"}, violated(t, denial(&r.Values).Err()))

	// A denial by one of them, of which nothing else is known.
	r = about(report.Values{Policies: policies, DeniedBy: "daily", Result: ratelimit.Result{RetryAfter: time.Microsecond}})
	require.Equal(t, []string{`"daily";r=0;t=1`}, r.metadata()["ratelimit"])
	require.Equal(t, []string{"daily"}, violated(t, denial(&r.Values).Err()))
	r.DeniedBy = ""
	require.Empty(t, r.metadata()["ratelimit"])
	require.Equal(t, []string{"default"}, violated(t, denial(&r.Values).Err()))
}

func about(d report.Values) *answer { return &answer{Values: d} }

func violated(t *testing.T, err error) (ids []string) {
	t.Helper()
	s := status.Convert(err)
	require.Equal(t, codes.ResourceExhausted, s.Code())
	for _, detail := range s.Details() {
		if failure, ok := detail.(*errdetails.QuotaFailure); ok {
			for _, v := range failure.GetViolations() {
				require.Empty(t, v.GetSubject(), "that is the key")
				ids = append(ids, v.GetQuotaId())
			}
		}
	}
	return ids
}

func TestUnlimitedAndUndescribedLimitsAreReportedAsFarAsKnown(t *testing.T) {
	unlimited := ratelimit.Policy{Name: "all", Limit: ratelimit.Unlimited(), Quota: math.MaxInt32}
	r := about(report.Values{Policies: []ratelimit.Policy{unlimited}, Result: ratelimit.Result{Allowed: true, Limit: math.MaxInt32, Remaining: math.MaxInt32}})
	require.Nil(t, r.metadata())

	r = about(report.Values{Result: ratelimit.Result{Allowed: true, Limit: 10, Remaining: 4, ResetAfter: time.Second}})
	require.Equal(t, metadata.MD{"ratelimit-policy": {`"default";q=10`}, "ratelimit": {`"default";r=4;t=1`}}, r.metadata())

	r = about(report.Values{Result: ratelimit.Result{Allowed: true}})
	require.Nil(t, r.metadata())

	r = about(report.Values{Result: ratelimit.Result{RetryAfter: time.Minute}})
	require.Equal(t, metadata.MD{"retry-after": {"60"}}, r.metadata())
	require.Equal(t, []string{"default"}, violated(t, denial(&r.Values).Err()))

	none := ratelimit.Policy{Name: "0/d", Limit: ratelimit.PerDay(0)}
	r = about(report.Values{Policies: []ratelimit.Policy{none}, Result: ratelimit.Result{RetryAfter: ratelimit.Never}})
	require.Equal(t, metadata.MD{"ratelimit-policy": {`"0/d";q=0`}, "ratelimit": {`"0/d";r=0`}}, r.metadata())

	odd := ratelimit.Policy{Name: "own", Quota: -1, Window: -1} // of a limiter that is not of this module
	r = about(report.Values{Policies: []ratelimit.Policy{odd}, Result: ratelimit.Result{Allowed: true, Limit: 1, Remaining: -1, ResetAfter: -1}})
	require.Equal(t, metadata.MD{"ratelimit-policy": {`"own";q=0`}, "ratelimit": {`"own";r=0;t=0`}}, r.metadata())
}

func TestNamesBecomeStringsThatBothFormatsCanHold(t *testing.T) {
	for name, want := range map[string]string{
		"search":     `"search"`,
		`a"b\c`:      `"a\"b\\c"`,
		"größe":      `"gr%C3%B6%C3%9Fe"`,
		"a\r\nb\x00": `"a%0D%0Ab%00"`,
		"\xff~\x7f":  `"%FF~%7F"`,
	} {
		p := burst
		p.Name = name
		r := about(report.Values{Policies: []ratelimit.Policy{p}, Result: ratelimit.Result{RetryAfter: time.Second}})
		require.Equal(t, []string{want + ";q=100;w=60"}, r.metadata()["ratelimit-policy"])
		require.Equal(t, []string{want + ";r=0;t=1"}, r.metadata()["ratelimit"])
		require.Len(t, status.Convert(denial(&r.Values).Err()).Details(), 2, "%q", name)
	}
}
