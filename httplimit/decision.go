package httplimit

import (
	"context"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/internal/guard"
	"github.com/ratelimit-go/ratelimit/internal/report"
)

// Decision describes a request that the limiter has decided on.
type Decision struct {
	Result ratelimit.Result
	// Policies are the policies for Key, if the limiter is a [ratelimit.PolicyAppender]. While a
	// local limiter decides in an outage ([ratelimit.SourceLocal]), they have its quotas, and its
	// windows or 0.
	Policies []ratelimit.Policy
	Key      string // see [Key]; API keys are hashed
	limiter  ratelimit.Limiter
	charge   *charge

	slotRetry time.Duration // what to report if slots deny; 0 for 1 s
}

// NewDecision returns the decision r that l has made for key, with the policies of l. Use it with
// [SetHeaders] and [WriteProblem] outside the middleware.
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

// Refund refunds what the request was charged, as far as it is still charged ([ratelimit.Limiter]).
// A handler calls it when it finds that the request should not count, for example after a correct
// password. Unlike [WithRefund], it does not depend on who writes the status.
//
// ctx is the request's context. The refund is made even if ctx has ended, within the store's own
// timeout. It is tried once: later calls return the first result, and WithRefund does not refund
// the same charge again. The response's fields show the state before the refund.
//
// Refund does not release the slot that the request holds: see [Decision.Slot].
//
// It returns the limiter's error, [ratelimit.ErrInvalidN] if the request was denied, and
// [ratelimit.ErrInvalidOption] unless the Decision comes from [FromContext].
func (d Decision) Refund(ctx context.Context) error {
	if d.charge == nil {
		return guard.Invalid("Refund: only a Decision returned by FromContext can be refunded")
	}
	return d.charge.refund(ctx, d.Key, &d.Result)
}

// Slot returns the slot that the request holds if the limiter counts slots (package inflight), for
// example to settle its tokens or to see whether it is lost. It is nil if the request holds no
// slot, and unless the Decision comes from [FromContext]. A handler may release the slot before it
// returns.
func (d Decision) Slot() *inflight.Slot {
	if d.charge == nil {
		return nil
	}
	return d.charge.Slot
}

// FromContext returns the decision on the request that ctx belongs to. It returns false unless the
// middleware was made with [WithContext]. If middlewares are nested, the decision is that of the
// innermost one.
func FromContext(ctx context.Context) (Decision, bool) {
	d, ok := ctx.Value(decisionKey{}).(*Decision)
	if !ok {
		return Decision{}, false
	}
	return *d, true
}

type decisionKey struct{}

// decisionContext carries a Decision with a single allocation.
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
