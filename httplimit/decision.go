package httplimit

import (
	"context"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/internal/guard"
	"github.com/ratelimit-go/ratelimit/internal/report"
)

// Decision is what the middleware knows of a request that the limiter has decided on.
type Decision struct {
	Result ratelimit.Result
	// Policies are those of Key, if the limiter is a [ratelimit.PolicyAppender]. While a local
	// limiter decides in an outage ([ratelimit.SourceLocal]) their quotas are that one's, and
	// so are their windows, or these are 0.
	Policies []ratelimit.Policy
	Key      string // see [Key]; API keys are hashed
	bucket   bool   // whether the limit is known to be a bucket
	charge   *charge

	slotRetry time.Duration // to say of slots; 0 for a second
}

// NewDecision returns the decision r that l has made of key, with the policies of l. It is for
// [SetHeaders], [WriteProblem] and [WritePlainText] without the middleware.
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

// Refund gives back what the request was charged, so far as it is still charged
// ([ratelimit.Limiter]). A handler calls it where it knows that the request is not to count:
// after a right password, say. Unlike [WithRefund], it does not depend on who writes the status.
//
// ctx is that of the request. The refund is made also if it has ended, within the store's own
// timeout. It is tried once. Later calls return what the first did, and WithRefund does not give
// the same charge back again. The answer's fields are those before the refund.
//
// It gives back the events and not the slot that the request holds: see [Decision.Slot].
//
// The error is the limiter's, [ratelimit.ErrInvalidN] if the request was denied, and
// [ratelimit.ErrInvalidOption] unless the Decision is of [FromContext].
func (d Decision) Refund(ctx context.Context) error {
	if d.charge == nil {
		return guard.Invalid("Refund: only a Decision of FromContext knows its charge")
	}
	return d.charge.refund(ctx, d.Key, &d.Result)
}

// Slot returns what the request holds of a limiter that counts slots (package inflight), such as to
// settle its tokens, or to see whether it is lost. It is nil if the request holds none, and unless
// the Decision is of [FromContext]. A handler may give it back before it returns.
func (d Decision) Slot() *inflight.Slot {
	if d.charge == nil {
		return nil
	}
	return d.charge.Slot
}

// FromContext returns the decision on the request whose context ctx is. It is false unless
// the middleware was made [WithContext]. Of several middlewares it is the innermost one's.
func FromContext(ctx context.Context) (Decision, bool) {
	d, ok := ctx.Value(decisionKey{}).(*Decision)
	if !ok {
		return Decision{}, false
	}
	return *d, true
}

type decisionKey struct{}

// decisionContext carries a Decision at the price of one allocation.
type decisionContext struct {
	context.Context
	decision Decision
	charge   charge
}

func (c *decisionContext) Value(key any) any {
	if key == (decisionKey{}) {
		return &c.decision
	}
	return c.Context.Value(key)
}
