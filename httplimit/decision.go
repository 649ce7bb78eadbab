package httplimit

import (
	"context"
	"net/http"

	"github.com/ratelimit-go/ratelimit"
)

// Decision is what the middleware knows of a request that was decided on.
type Decision struct {
	Result   ratelimit.Result
	Policies []ratelimit.Policy // of Key, as far as the limiter is a [ratelimit.Describer]
	Key      string             // whose bucket it was; of API keys the hash
}

// Limiter is the name of the limit that decided (see [ratelimit.Policy]): that which
// denied or, of an admission, that with the least left. It is "" if that is not known.
func (d Decision) Limiter() string {
	if name := d.Result.DeniedBy(); name != "" {
		return name
	}
	if len(d.Policies) == 1 {
		return d.Policies[0].Name
	}
	parts, least := d.Result.Parts(), -1
	if len(parts) != len(d.Policies) {
		return ""
	}
	for i := range parts {
		if parts[i].Counted() && (least < 0 || parts[i].Remaining < parts[least].Remaining) {
			least = i
		}
	}
	if least < 0 {
		return ""
	}
	return d.Policies[least].Name
}

// FromContext is the decision on the request whose context ctx is, if the middleware
// was made [WithContext]. Of several around each other it is the innermost one's.
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
}

func (c *decisionContext) Value(key any) any {
	if key == (decisionKey{}) {
		return &c.decision
	}
	return c.Context.Value(key)
}

// withDecision is r with d in its context.
func withDecision(r *http.Request, d Decision) *http.Request {
	return r.WithContext(&decisionContext{r.Context(), d})
}
