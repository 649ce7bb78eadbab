package grpclimit

import (
	"context"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/internal/report"
)

// Decision describes a call that the limiter has decided on.
type Decision struct {
	Result ratelimit.Result
	// Policies are the policies for Key, if the limiter is a [ratelimit.PolicyAppender]. While a
	// local limiter decides in an outage ([ratelimit.SourceLocal]), they have its quotas, and its
	// windows or 0.
	Policies []ratelimit.Policy
	Key      string // see [Key]; API keys are hashed
	limiter  ratelimit.Limiter

	slot      *inflight.Slot
	slotRetry time.Duration // what to report if slots deny; 0 for 1 s
}

// NewDecision returns the decision r that l has made for key, with the policies of l. Use it with
// [Metadata] and [DeniedStatus] outside the interceptors.
func NewDecision(ctx context.Context, l ratelimit.Limiter, key string, r ratelimit.Result) Decision {
	d := report.Of(r)
	d.Describe(ctx, l, key, nil)
	return Decision{Result: r, Policies: d.Policies, Key: key, limiter: l}
}

// report returns the part of d that is reported to clients.
func (d *Decision) report() report.Values {
	return report.Known(d.Result, d.Policies, d.limiter, d.slotRetry)
}

// Limiter returns the name of the limit that decided (see [ratelimit.Policy]): the one that denied
// or, for an admission, the one with the fewest events left. It is "" if that is not known.
func (d Decision) Limiter() string { return report.Limiter(&d.Result, d.Policies) }

// Slot returns the slot that the call holds if the limiter counts slots (package inflight), for
// example to settle its tokens or to see whether it is lost. It is nil if the call holds no slot,
// and unless the Decision comes from [FromContext]. A handler may release the slot before it
// returns.
func (d Decision) Slot() *inflight.Slot { return d.slot }

// FromContext returns the decision on the call, or on the opening of the stream, that ctx belongs
// to. It returns false unless the interceptor was made with [WithContext]. With several
// interceptors, the decision is that of the innermost one.
func FromContext(ctx context.Context) (Decision, bool) {
	d, ok := ctx.Value(decisionKey{}).(*Decision)
	if !ok {
		return Decision{}, false
	}
	return *d, true
}

type decisionKey struct{}
