package serve

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math/bits"
	"net/http"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/store"
)

const (
	settleWithin = time.Hour       // after the decision
	clocksDiffer = 5 * time.Minute // the largest difference between two servers' clocks
	idSize       = 16
)

// reservation is what a decision has charged by estimate. The caller gets it as a text and sends it
// back with the actual costs, so that any server can settle it.
type reservation struct {
	id      [idSize]byte
	made    time.Time
	charges []charge // one for each descriptor, in their order
}

// charge is the charge of one descriptor.
type charge struct {
	of    uint32    // askOf of the descriptor, so that no other one is settled by mistake
	where uint32    // countOf of the part, because other rules may count it elsewhere
	n     int       // events; 0 if nothing was charged
	until time.Time // the end of the window that counts them, or when a bucket has drained
}

// newSettled makes the limiter that admits each reservation once.
func newSettled(st store.Store) (*fallback.Limiter, error) {
	once := ratelimit.Limit{Rate: 1, Period: settleWithin + 2*clocksDiffer}
	ids, err := ratelimit.NewTokenBucket(st, once, ratelimit.WithName("settled"))
	if err != nil {
		return nil, err
	}
	return fallback.New(ids, fallback.FailClosed())
}

// canSettle returns an error if not all limits of the question can refund.
func (q *question) canSettle() error {
	for i := range q.parts {
		if p := &q.parts[i]; p.limiter != nil && !canGiveBack(p.algorithm()) {
			return invalid("descriptor %d: a %s cannot be settled", i, p.algorithm())
		}
	}
	return nil
}

// askOf distinguishes descriptors. It is not a secret, because a client that can reserve can ask
// for anything.
func askOf(domain string, entries []*common.RateLimitDescriptor_Entry) uint32 {
	h := fnv.New32a()
	_, _ = h.Write(entriesKey(entries, append([]byte(domain), 0)))
	return h.Sum32()
}

// countOf distinguishes the places where events are counted: see [ratelimit.WithName].
func countOf(p *part) uint32 {
	l, h := p.limit, fnv.New32a()
	l.Rate, l.Burst = 1, 0 // Rate and Burst do not change the place
	_, _ = fmt.Fprint(h, p.algorithm(), l, " ", p.key)
	return h.Sum32()
}

// reserved returns the text of the reservation for a question that req asked at that time. It is ""
// if the store has charged nothing.
func (q *question) reserved(at time.Time, req *pb.RateLimitRequest) string {
	b := make([]byte, idSize, 256)
	_, _ = rand.Read(b) // Read never fails
	b = binary.AppendVarint(b, at.UnixMilli())
	some := false
	for i := range q.parts {
		p, c := &q.parts[i], charge{until: at}
		if p.limiter != nil && !p.local {
			c.n, c.until = p.result.Charged(), at.Add(p.result.ResetAfter)
		}
		if p.limiter != nil && p.algorithm() == "sliding_window" { // because it also counts in the next window
			c.until = c.until.Add(-p.limit.Period)
		}
		some = some || c.n > 0
		b = binary.AppendVarint(binary.AppendVarint(b, int64(c.n)), c.until.UnixMilli())
		b = binary.BigEndian.AppendUint32(b, askOf(req.GetDomain(), req.GetDescriptors()[i].GetEntries()))
		b = binary.BigEndian.AppendUint32(b, countOf(p))
	}
	if !some {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

// parseReservation reads a text, which can contain anything.
func parseReservation(text string) (r reservation, err error) {
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(b) < idSize {
		return r, unread("reservation: want the string from a decision")
	}
	b = b[copy(r.id[:], b):]
	next := func() int64 {
		v, n := binary.Varint(b)
		b = b[max(n, 0):]
		if n <= 0 {
			err = unread("reservation: want the string from a decision")
		}
		return v
	}
	r.made = time.UnixMilli(next())
	for err == nil && len(b) > 0 {
		c := charge{n: int(min(max(next(), 0), maxHits)), until: time.UnixMilli(next())}
		if len(b) < 8 {
			return r, unread("reservation: want the string from a decision")
		}
		c.of, c.where, b = binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:]), b[8:]
		r.charges = append(r.charges, c)
	}
	if age := time.Since(r.made); err == nil && (age > settleWithin || age < -clocksDiffer) {
		err = unread("reservation: it is %v old, more than %v", age.Round(time.Second), settleWithin)
	}
	return r, err
}

// held returns how many events of c the limit still counts.
func (c charge) held(p *part, now time.Time) int {
	left := c.until.Sub(now)
	switch {
	case left <= 0 || c.where != countOf(p):
		return 0
	case p.algorithm() != "token_bucket":
		return c.n
	}
	hi, lo := bits.Mul64(uint64(left), uint64(p.limit.Rate))
	if hi >= uint64(p.limit.Period) { // more than a uint64 holds
		return c.n
	}
	drains, _ := bits.Div64(hi, lo, uint64(p.limit.Period))
	return int(min(uint64(c.n), drains))
}

// isOf returns an error if a request has other asks than the decision.
func (r *reservation) isOf(req *pb.RateLimitRequest) error {
	for i, d := range req.GetDescriptors() {
		if askOf(req.GetDomain(), d.GetEntries()) != r.charges[i].of {
			return invalid("ask %d: the domain and the entries differ from those of the decision", i)
		}
	}
	return nil
}

// settling is the body of /v1/settle.
type settling struct {
	Domain      string `json:"domain"`
	Reservation string `json:"reservation"`
	Asks        []struct {
		Entries entries `json:"entries"`
		Used    *uint64 `json:"used"`
	} `json:"asks"`
}

// settled is what has been refunded and charged in addition, for each ask.
type settled struct {
	Given   []int `json:"given"`
	Charged []int `json:"charged"`
}

func (s *Service) serveSettle(w http.ResponseWriter, r *http.Request) error {
	var body settling
	if err := readJSON(w, r, &body); err != nil {
		return err
	}
	res, err := parseReservation(body.Reservation)
	if err != nil {
		return err
	}
	req := &pb.RateLimitRequest{Domain: body.Domain}
	for i, one := range body.Asks {
		if err := one.Entries.check(i); err != nil {
			return err
		}
		if one.Used == nil {
			return unread("ask %d: used: want a number", i)
		}
		req.Descriptors = append(req.Descriptors, &common.RateLimitDescriptor{Entries: one.Entries, HitsAddend: wrapperspb.UInt64(*one.Used)})
	}
	q, err := s.question(req, manner{anyOrder: true, reserve: true})
	switch {
	case err != nil:
	case len(q.parts) != len(res.charges):
		err = invalid("reservation: the decision had %d asks", len(res.charges))
	default:
		err = cmp.Or(res.isOf(req), q.canSettle())
	}
	var answer settled
	if err == nil {
		answer, err = s.settle(r.Context(), q, res)
	}
	s.metrics.decided(q, err)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, answer)
	return nil
}

// settle replaces what was charged by what q asks for, unless that has already been done.
func (s *Service) settle(ctx context.Context, q *question, res reservation) (answer settled, err error) {
	if err := s.once(ctx, res.id); err != nil {
		return answer, err
	}
	ctx = context.WithoutCancel(ctx)
	for i := range q.parts {
		if err := answer.add(ctx, &q.parts[i], res.charges[i]); err != nil {
			return answer, err
		}
	}
	return answer, nil
}

// once returns nil for the first call with an id. After an error of the store, the reservation can
// no longer be settled, and the estimate stays charged.
func (s *Service) once(ctx context.Context, id [idSize]byte) error {
	switch r, err := s.settled.Allow(ctx, base64.RawURLEncoding.EncodeToString(id[:])); {
	case err != nil:
		return err
	case r.Source() == ratelimit.SourceFailClosed:
		return errUnavailable
	case !r.Allowed:
		return fmt.Errorf("%w: %w", errInvalid, ratelimit.ErrSettled)
	}
	return nil
}

// add replaces what a part was charged by its n, the actual cost.
func (a *settled) add(ctx context.Context, p *part, c charge) (err error) {
	given, charged := 0, 0
	if p.limiter != nil && c.n > 0 { // otherwise it was not charged, or its rule is gone
		if back := min(c.n-p.n, c.held(p, time.Now())); back > 0 {
			given, err = ratelimit.Credit(ctx, p.limiter, p.key, back)
		}
		if more := p.n - c.n; more > 0 {
			var r ratelimit.Result
			r, err = ratelimit.Charge(ctx, p.limiter, p.key, more)
			charged = r.Charged()
		}
	}
	a.Given, a.Charged = append(a.Given, given), append(a.Charged, charged)
	return err
}
