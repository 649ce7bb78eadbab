package grpclimit

import (
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/guard"
	"github.com/ratelimit-go/ratelimit/internal/report"
)

// The texts of the statuses are constant, because those of errors may contain keys.
var (
	unidentified  = status.New(codes.InvalidArgument, "rate limit: the client cannot be identified")
	misconfigured = status.New(codes.Internal, "rate limit: the limits of this service are not set up correctly")
	notAdmitted   = status.New(codes.PermissionDenied, "rate limit: the client is not admitted")
	unavailable   = status.New(codes.Unavailable, "rate limit: the service cannot check its limits now")
)

// ErrorStatus returns the status of a call for which there is no decision, as the interceptors
// return it by default. Use it in an [ErrorHandler] that handles only some errors itself. It is
//
//   - [codes.InvalidArgument] if the client cannot be identified ([ErrNoIdentity],
//     [ErrAmbiguousIdentity], [ratelimit.ErrInvalidKey])
//   - [codes.Internal] for a configuration error ([ratelimit.ErrInvalidOption],
//     [ratelimit.ErrInvalidLimit], [ratelimit.ErrInvalidN])
//   - [codes.Unavailable] otherwise
//
// It does not contain err's text.
func ErrorStatus(err error) *status.Status {
	switch maker.FaultOf(err) {
	case guard.Unidentified:
		return unidentified
	case guard.Misconfigured:
		return misconfigured
	}
	return unavailable
}

// DeniedStatus returns the status of a denied call, as the interceptors return it by default. Use
// it in a [DeniedHandler] that answers only some calls itself. It is
//
//   - [codes.ResourceExhausted] with QuotaFailure and RetryInfo. If the call costs more than the
//     limit ever admits ([ratelimit.Never]), the message says so, and there is no RetryInfo.
//   - [codes.PermissionDenied] if a list denies ([ratelimit.SourceList])
//   - [codes.Unavailable] with RetryInfo if the limiter is closed by an outage
//     ([ratelimit.SourceFailClosed])
func DeniedStatus(d Decision) *status.Status {
	all := d.report()
	return denial(&all)
}

// denial returns the status of a denied call.
func denial(d *report.Values) *status.Status {
	switch {
	case d.ByList():
		return notAdmitted
	case d.Result.Source() == ratelimit.SourceFailClosed:
		return refusal(codes.Unavailable, "rate limit: the service cannot check its limits now", d.Result.RetryAfter)
	}
	message := "rate limit exceeded"
	switch {
	case d.ByBan(): // its strikes may be wrong passwords as well as denials
		message = "rate limit: the client is banned"
	case d.Result.RetryAfter == ratelimit.Never:
		message = "rate limit: the call costs more than the limit ever admits, so waiting will not help"
	}
	failure := new(errdetails.QuotaFailure)
	for i := range d.Policies {
		if part, ok := d.Part(i); ok && !part.Allowed {
			failure.Violations = append(failure.Violations, violation(&d.Policies[i]))
		}
	}
	if len(failure.Violations) == 0 {
		failure.Violations = []*errdetails.QuotaFailure_Violation{{QuotaId: unnamed, Description: message}}
	}
	return refusal(codes.ResourceExhausted, message, d.Result.RetryAfter, failure)
}

// violation returns the violation of p. Its subject stays empty, because it would be the key.
func violation(p *ratelimit.Policy) *errdetails.QuotaFailure_Violation {
	v := &errdetails.QuotaFailure_Violation{
		QuotaId:     strings.ToValidUTF8(p.Name, "\uFFFD"), // as protobuf requires
		QuotaValue:  int64(p.Quota),
		Description: "rate limit exceeded",
	}
	switch {
	case report.Slots(p):
		v.Description = "concurrency limit exceeded: " + strconv.Itoa(p.Quota)
	case p.Limit != (ratelimit.Limit{}):
		v.Description += ": " + p.Limit.String()
	}
	return v
}

// refusal returns a status with details, and with RetryInfo unless waiting will not help.
func refusal(code codes.Code, message string, retryAfter time.Duration, details ...protoadapt.MessageV1) *status.Status {
	s := status.New(code, message)
	if retryAfter != ratelimit.Never {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(retryAfter)})
	}
	if detailed, err := s.WithDetails(details...); err == nil {
		return detailed
	}
	return s
}
