package serve

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/ratelimit-go/ratelimit"
)

// ShouldRateLimit decides on all descriptors of a request together. The response has a status for
// each descriptor, in the same order. It returns InvalidArgument for an invalid request, of which
// nothing is counted, Unavailable while the store fails (on_failure), or the error of the caller's
// context.
func (s *Service) ShouldRateLimit(ctx context.Context, req *pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
	q, err := s.answer(ctx, req, manner{})
	if err != nil {
		return nil, statusOf(err)
	}
	return s.response(req, q), nil
}

// manner describes how a request is to be decided.
type manner struct {
	by       *plan // the rules; nil for those in force
	anyOrder bool  // the entries of a descriptor are a set instead of a list
	reserve  bool  // the request will be settled later
}

// answer decides on a request, and counts the decision in the metrics.
func (s *Service) answer(ctx context.Context, req *pb.RateLimitRequest, how manner) (*question, error) {
	q, err := s.question(req, how)
	if err == nil && how.reserve {
		err = q.canSettle()
	}
	if err == nil {
		err = s.decide(ctx, q)
	}
	s.metrics.decided(q, err)
	return q, err
}

// denies reports whether callers are told that the whole request is over a limit.
func (s *Service) denies(q *question) bool { return q.over && !s.shadow }

// statusOf converts err for callers over gRPC.
func statusOf(err error) error {
	switch {
	case errors.Is(err, errInvalid), errors.Is(err, ratelimit.ErrInvalidKey), errors.Is(err, ratelimit.ErrInvalidN):
		return status.Error(codes.InvalidArgument, err.Error())
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return status.FromContextError(err).Err()
	case errors.Is(err, errUnavailable), errors.Is(err, ratelimit.ErrStore):
		return status.Error(codes.Unavailable, errUnavailable.Error())
	}
	return status.Error(codes.Internal, err.Error())
}

// response returns the response for q.
func (s *Service) response(req *pb.RateLimitRequest, q *question) *pb.RateLimitResponse {
	r := &pb.RateLimitResponse{OverallCode: pb.RateLimitResponse_OK, Statuses: make([]*pb.RateLimitResponse_DescriptorStatus, len(q.parts))}
	for i := range q.parts {
		r.Statuses[i] = q.parts[i].status()
	}
	if s.denies(q) {
		r.OverallCode = pb.RateLimitResponse_OVER_LIMIT
	}
	if s.headers != nil {
		r.ResponseHeadersToAdd = s.headers.of(q.worst())
	}
	if s.metadata {
		r.DynamicMetadata = q.metadata(req)
	}
	return r
}

func (p *part) status() *pb.RateLimitResponse_DescriptorStatus {
	st := &pb.RateLimitResponse_DescriptorStatus{Code: pb.RateLimitResponse_OK}
	switch {
	case p.unlimited:
		st.LimitRemaining = math.MaxUint32
		return st
	case !p.decided():
		return st
	}
	if p.denies() {
		st.Code = pb.RateLimitResponse_OVER_LIMIT
	}
	if st.CurrentLimit = p.shown; p.shown != nil {
		st.LimitRemaining = uint32(p.result.Remaining)
		st.DurationUntilReset = &durationpb.Duration{Seconds: seconds(p.wait())}
	}
	return st
}

// of returns the header fields for a part, or none if it is nil.
func (h *Headers) of(p *part) []*core.HeaderValue {
	if p == nil {
		return nil
	}
	return []*core.HeaderValue{
		{Key: h.Limit, Value: strconv.FormatUint(uint64(p.shown.GetRequestsPerUnit()), 10)},
		{Key: h.Remaining, Value: strconv.Itoa(p.result.Remaining)},
		{Key: h.Reset, Value: strconv.FormatInt(seconds(p.wait()), 10)},
	}
}

// metadata returns the request, and the metadata of the rules that it passes.
func (q *question) metadata(req *pb.RateLimitRequest) *structpb.Struct {
	var descriptors []*structpb.Value
	for _, d := range req.GetDescriptors() {
		descriptors = append(descriptors, structpb.NewStructValue(descriptorStruct(d)))
	}
	fields := map[string]*structpb.Value{
		"domain":      structpb.NewStringValue(strings.ToValidUTF8(req.GetDomain(), "\uFFFD")),
		"descriptors": structpb.NewListValue(&structpb.ListValue{Values: descriptors}),
	}
	if n := req.GetHitsAddend(); n != 0 {
		fields["hitsAddend"] = structpb.NewNumberValue(float64(n))
	}
	passed := &structpb.Struct{Fields: map[string]*structpb.Value{}}
	for i := range q.parts {
		if p := &q.parts[i]; p.decided() && p.rule != nil && !p.denies() {
			merge(passed, p.rule.metadata)
		}
	}
	if len(passed.GetFields()) > 0 {
		fields["metadata"] = structpb.NewStructValue(passed)
	}
	return &structpb.Struct{Fields: fields}
}

func descriptorStruct(d *common.RateLimitDescriptor) *structpb.Struct {
	var entries []*structpb.Value
	for _, e := range d.GetEntries() {
		entries = append(entries, structpb.NewStringValue(strings.ToValidUTF8(e.GetKey()+"="+e.GetValue(), "\uFFFD")))
	}
	fields := map[string]*structpb.Value{"entries": structpb.NewListValue(&structpb.ListValue{Values: entries})}
	if o := d.GetLimit(); o != nil {
		fields["limit"] = structpb.NewStringValue(fmt.Sprintf("%d/%v", o.GetRequestsPerUnit(), o.GetUnit()))
	}
	if n := d.GetHitsAddend(); n != nil {
		fields["hitsAddend"] = structpb.NewNumberValue(float64(n.GetValue()))
	}
	return &structpb.Struct{Fields: fields}
}

// merge adds the fields of from that to does not have. Structs that both have are merged.
func merge(to, from *structpb.Struct) {
	for name, v := range from.GetFields() {
		have, found := to.GetFields()[name]
		switch {
		case !found && v.GetStructValue() != nil: // a copy, because more may be merged into it
			inner := &structpb.Struct{Fields: map[string]*structpb.Value{}}
			merge(inner, v.GetStructValue())
			to.Fields[name] = structpb.NewStructValue(inner)
		case !found:
			to.Fields[name] = v
		case have.GetStructValue() != nil && v.GetStructValue() != nil:
			merge(have.GetStructValue(), v.GetStructValue())
		}
	}
}
