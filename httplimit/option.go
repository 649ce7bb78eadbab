package httplimit

import (
	"fmt"
	"net/http"

	"github.com/ratelimit-go/ratelimit"
)

// Option sets what is optional about the middleware.
type Option func(*limit) error

// DeniedHandler answers a request that is over the limit. The header fields are set
// already, those of the styles and Retry-After, and Cache-Control: no-store, which a
// handler that answers something else than a refusal may change. next is the handler
// that the middleware protects.
type DeniedHandler func(w http.ResponseWriter, r *http.Request, next http.Handler, d Decision)

// ErrorHandler answers a request on which there is no decision. next is the handler
// that the middleware protects: next.ServeHTTP(w, r) lets the request pass.
type ErrorHandler func(w http.ResponseWriter, r *http.Request, next http.Handler, err error)

// WithKey says whose bucket a request is charged to, in place of ClientIP().
func WithKey(k Key) Option {
	return func(l *limit) error {
		l.key = k
		return k.check()
	}
}

// WithHeaders tells clients in these styles, in place of [Legacy] and [Draft10]. Without
// any there are no such fields. Retry-After stands in each refusal, whatever the style,
// unless no waiting helps.
func WithHeaders(styles ...HeaderStyle) Option {
	return func(l *limit) error {
		l.styles = 0
		for _, s := range styles {
			if s > Legacy|Draft10|Draft7|Draft6 {
				return fmt.Errorf("%w: WithHeaders(%d): no such style", ratelimit.ErrInvalidOption, s)
			}
			l.styles |= s
		}
		if l.styles&Draft10 != 0 && l.styles&(Draft7|Draft6) != 0 {
			return fmt.Errorf("%w: WithHeaders: Draft10 and an older draft have fields of one name", ratelimit.ErrInvalidOption)
		}
		return nil
	}
}

// WithCost charges f(r) events for a request in place of 1: more for what costs more.
// It is free, and not decided on, if that is 0. Below 0 is [ratelimit.ErrInvalidN].
func WithCost(f func(r *http.Request) int) Option {
	return func(l *limit) error {
		l.cost = f
		return given(f != nil, "WithCost")
	}
}

// WithSkip lets requests pass for which f is true, without a decision: health checks,
// internal networks, lists of friends.
func WithSkip(f func(r *http.Request) bool) Option {
	return func(l *limit) error {
		l.skip = f
		return given(f != nil, "WithSkip")
	}
}

// WithRefund gives back what a request was charged if f is true of the status that it
// got: WithRefund([Failed]) counts only what went well, and WithRefund([Successful]) only
// what failed, such as logins.
//
// It is charged before, so that many at once do not pass the limit, and refunded when
// the handler has returned, also if the client has gone by then. The status is the one
// that was written: 200 if the handler wrote none, 101 of a connection that it took over
// (hijacked) without writing one, and 500 if it panicked before it wrote one. A refund
// that fails leaves the charge. The fields of the answer tell of before the refund.
//
// It costs some allocations: the handler's ResponseWriter is another then, with the same
// optional methods.
func WithRefund(f func(status int) bool) Option {
	return func(l *limit) error {
		l.refund = f
		return given(f != nil, "WithRefund")
	}
}

// WithDeniedHandler refuses requests by h in place of a problem by RFC 9457.
func WithDeniedHandler(h DeniedHandler) Option {
	return func(l *limit) error {
		l.denied = h
		return given(h != nil, "WithDeniedHandler")
	}
}

// WithPlainText refuses requests with a line of plain text in place of a problem by RFC
// 9457.
func WithPlainText() Option {
	return WithDeniedHandler(func(w http.ResponseWriter, _ *http.Request, _ http.Handler, d Decision) { WritePlainText(w, d) })
}

// WithIdentityHandler answers by h, in place of 400, requests that do not show who they
// are from: err is that of the [Key], or [ratelimit.ErrInvalidKey].
func WithIdentityHandler(h ErrorHandler) Option {
	return func(l *limit) error {
		l.noIdentity = h
		return given(h != nil, "WithIdentityHandler")
	}
}

// WithErrorHandler answers by h, in place of 503, when the limiter has an error. Not so
// if that is only that the client has gone.
//
// 503 is the default since to let everything pass would be an outage of the limit that
// nobody chose or sees. Who prefers that wraps the limiter in a [fallback.Limiter],
// which has an answer for each outage, and spares the store.
func WithErrorHandler(h ErrorHandler) Option {
	return func(l *limit) error {
		l.failed = h
		return given(h != nil, "WithErrorHandler")
	}
}

// WithContext gives handlers the decision in the context of their request, for
// [FromContext]. It costs some 600 bytes in three allocations with each request,
// since net/http has to copy it.
func WithContext() Option {
	return func(l *limit) error {
		l.inContext = true
		return nil
	}
}

func given(ok bool, option string) error {
	if !ok {
		return fmt.Errorf("%w: %s(nil)", ratelimit.ErrInvalidOption, option)
	}
	return nil
}
