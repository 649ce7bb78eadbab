package otellimit

import (
	"context"
	"strconv"
	"time"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/observe"
)

// Spans returns an Observer, for observe.Around, that writes each decision on the span
// of its caller, if that records. It makes no span of its own. It writes:
//
//	ratelimit.limiter      the name given here
//	ratelimit.outcome      "allowed", "denied" or "error"
//	ratelimit.source       text of a ratelimit.Source: "store", "fail_open" and others
//	ratelimit.denied_by    of a denial where several limits decided together: the one that denied
//	ratelimit.retry_after  of a denial: s until the event would be admitted, if ever
//	ratelimit.error.type   of an error: its observe.ErrorClass
//
// A span has each of them once. After several decisions it says what the last one said, and
// the last three what the last one of their kind said. So observe the outermost limiter.
//
// If the span does not record, it costs some 17 ns and no allocation.
func Spans(limiter string) ratelimit.Observer {
	if !utf8.ValidString(limiter) { // the value of an attribute must be
		limiter = strconv.QuoteToASCII(limiter)
	}
	return spans(attrLimiter.String(limiter))
}

type spans attribute.KeyValue

// Decided writes a decision on the span of ctx.
func (s spans) Decided(ctx context.Context, _ string, _ int, r ratelimit.Result, err error, _ time.Duration) {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	limiter := attribute.KeyValue(s)
	switch {
	case err != nil:
		span.SetAttributes(limiter, attrOutcome.String("error"), attrSpanError.String(observe.ErrorClass(err)))
		return
	case r.Allowed:
		span.SetAttributes(limiter, attrOutcome.String("allowed"), attrSource.String(r.Source().String()))
		return
	}
	span.SetAttributes(limiter, attrOutcome.String("denied"), attrSource.String(r.Source().String()))
	if name := r.DeniedBy(); name != "" {
		span.SetAttributes(attrDeniedBy.String(name))
	}
	if r.RetryAfter != ratelimit.Never {
		span.SetAttributes(attrRetryAfter.Float64(r.RetryAfter.Seconds()))
	}
}
