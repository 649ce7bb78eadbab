package grpclimit

import (
	"context"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/internal/report"
)

// Decision is what an interceptor knows of a call that the limiter has decided on.
type Decision struct {
	Result ratelimit.Result
	// Policies are those of Key, if the limiter is a [ratelimit.PolicyAppender]. While a local
	// limiter decides in an outage ([ratelimit.SourceLocal]) their quotas are that one's, and
	// so are their windows, or these are 0.
	Policies []ratelimit.Policy
	Key      string // see [Key]; API keys are hashed
	bucket   bool   // whether the limit is known to be a bucket

	slot      *inflight.Slot
	slotRetry time.Duration // to say of slots; 0 for a second
}

// NewDecision returns the decision r that l has made of key, with the policies of l. It is for
// [Metadata] and [DeniedStatus] without an interceptor.
func NewDecision(ctx context.Context, l ratelimit.Limiter, key string, r ratelimit.Result) Decision {
	d := report.Of(r)
	d.Describe(ctx, l, key, nil)
	return Decision{Result: r, Policies: d.Policies, Key: key, bucket: report.IsBucket(l)}
}

// report returns what is to be reported of d.
func (d *Decision) report() report.Decision {
	return report.Known(d.Result, d.Policies, d.bucket, d.slotRetry)
}

// Limiter returns the name of the limit that decided (see [ratelimit.Policy]): the one that
// denied or, of an admission, the one with the least left. It is "" if that is not known.
func (d Decision) Limiter() string { return report.Limiter(&d.Result, d.Policies) }

// Slot returns what the call holds of a limiter that counts slots (package inflight), such as to
// settle its tokens, or to see whether it is lost. It is nil if the call holds none, and unless the
// Decision is of [FromContext]. A handler may give it back before it returns.
func (d Decision) Slot() *inflight.Slot { return d.slot }

// FromContext returns the decision on the call, or the opening of the stream, whose context
// ctx is. It is false unless the interceptor was made [WithContext]. Of several interceptors
// it is the innermost one's.
func FromContext(ctx context.Context) (Decision, bool) {
	d, ok := ctx.Value(decisionKey{}).(*Decision)
	if !ok {
		return Decision{}, false
	}
	return *d, true
}

type decisionKey struct{}
