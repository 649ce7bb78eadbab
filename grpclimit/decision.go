package grpclimit

import (
	"context"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/grpclimit/internal/report"
)

// Decision is what an interceptor knows of a call that the limiter has decided on.
type Decision struct {
	Result ratelimit.Result
	// Policies are those of Key, if the limiter is a [ratelimit.Describer]. While a local
	// limiter decides in an outage ([ratelimit.SourceLocal]) their quotas are that one's.
	Policies []ratelimit.Policy
	Key      string // see [Key]; API keys are hashed
}

// Limiter returns the name of the limit that decided (see [ratelimit.Policy]): the one that
// denied or, of an admission, the one with the least left. It is "" if that is not known.
func (d Decision) Limiter() string { return report.Limiter(&d.Result, d.Policies) }

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
