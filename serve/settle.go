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
	settleWithin = time.Hour       // of the decision
	clocksDiffer = 5 * time.Minute // at most, of two servers
	idSize       = 16
)

// reservation is what a decision has charged by estimate. It goes to the caller as a text and comes
// back with the costs, so that any server can settle it.
type reservation struct {
	id      [idSize]byte
	made    time.Time
	charges []charge // of the descriptors, in their order
}

// charge is that of one descriptor.
type charge struct {
	of    uint32    // askOf of the descriptor, so that no other one is settled by mistake
	where uint32    // countOf of the part, which other rules may count elsewhere
	n     int       // events; 0 if nothing was charged
	until time.Time // the end of the window that counts them, or when a bucket has drained
}

// newSettled makes the limiter that admits each reservation once.
func newSettled(st store.Store) (*ratelimit.TokenBucket, error) {
	once := ratelimit.Limit{Rate: 1, Period: settleWithin + 2*clocksDiffer}
	return ratelimit.NewTokenBucket(st, once, ratelimit.WithName("settled"))
}

// canSettle is the error of a question whose limits cannot all give back.
func (q *question) canSettle() error {
	for i := range q.parts {
		if p := &q.parts[i]; p.limiter != nil && !canGiveBack(p.algorithm()) {
			return invalid("descriptor %d: a %s cannot be settled", i, p.algorithm())
		}
	}
	return nil
}

// askOf tells one descriptor from another. It is no secret: whoever can reserve can ask for anything.
func askOf(domain string, entries []*common.RateLimitDescriptor_Entry) uint32 {
	h := fnv.New32a()
	_, _ = h.Write(entriesKey(entries, append([]byte(domain), 0)))
	return h.Sum32()
}

// countOf tells one place where events are counted from another: see [ratelimit.WithName].
func countOf(p *part) uint32 {
	l, h := p.limit, fnv.New32a()
	l.Rate, l.Burst = 1, 0 // which change no place
	_, _ = fmt.Fprint(h, p.algorithm(), l, " ", p.key)
	return h.Sum32()
}

// reserved is the text of the reservation of a question that was asked at that time, by req. It is "" if
// the store has charged nothing.
func (q *question) reserved(at time.Time, req *pb.RateLimitRequest) string {
	if q.local {
		return ""
	}
	b := make([]byte, idSize, 256)
	_, _ = rand.Read(b) // it never fails
	b = binary.AppendVarint(b, at.UnixMilli())
	some := false
	for i := range q.parts {
		p, c := &q.parts[i], charge{until: at}
		if p.limiter != nil {
			c.n, c.until = p.result.Charged(), at.Add(p.result.ResetAfter)
		}
		if p.limiter != nil && p.algorithm() == "sliding_window" { // it weighs on the next window too
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

// parseReservation reads a text, which may be anything.
func parseReservation(text string) (r reservation, err error) {
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(b) < idSize {
		return r, invalid("reservation: want the text of a decision")
	}
	b = b[copy(r.id[:], b):]
	next := func() int64 {
		v, n := binary.Varint(b)
		b = b[max(n, 0):]
		if n <= 0 {
			err = invalid("reservation: want the text of a decision")
		}
		return v
	}
	r.made = time.UnixMilli(next())
	for err == nil && len(b) > 0 {
		c := charge{n: int(min(max(next(), 0), maxHits)), until: time.UnixMilli(next())}
		if len(b) < 8 {
			return r, invalid("reservation: want the text of a decision")
		}
		c.of, c.where, b = binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:]), b[8:]
		r.charges = append(r.charges, c)
	}
	if age := time.Since(r.made); err == nil && (age > settleWithin || age < -clocksDiffer) {
		err = invalid("reservation: it is %v old, over %v", age.Round(time.Second), settleWithin)
	}
	return r, err
}

// held is how many events of c a limit has not let go of by itself.
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

// isOf is the error of a request with other asks than those of the decision.
func (r *reservation) isOf(req *pb.RateLimitRequest) error {
	for i, d := range req.GetDescriptors() {
		if askOf(req.GetDomain(), d.GetEntries()) != r.charges[i].of {
			return invalid("ask %d: the domain and the entries are not those of the decision", i)
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

// settled is what has been given back, and what was charged besides, of each ask.
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
			return invalid("ask %d: used: want a number", i)
		}
		req.Descriptors = append(req.Descriptors, &common.RateLimitDescriptor{Entries: one.Entries, HitsAddend: wrapperspb.UInt64(*one.Used)})
	}
	q, err := s.question(req, manner{anyOrder: true, reserve: true})
	switch {
	case err != nil:
	case len(q.parts) != len(res.charges):
		err = invalid("reservation: it is of %d asks", len(res.charges))
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

// settle replaces what was charged by what q asks for, unless that has been done.
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

// once is nil for the first call with an id. After an error of the store nobody may settle it: the
// estimate stays charged.
func (s *Service) once(ctx context.Context, id [idSize]byte) error {
	if state, _ := s.breaker.State(); state == fallback.StateOpen {
		return errUnavailable
	}
	r, err := s.settled.Allow(ctx, base64.RawURLEncoding.EncodeToString(id[:]))
	if err == nil && !r.Allowed {
		err = fmt.Errorf("%w: %w", errInvalid, ratelimit.ErrSettled)
	}
	return err
}

// add replaces what a part was charged with by its n, the cost.
func (a *settled) add(ctx context.Context, p *part, c charge) (err error) {
	given, charged := 0, 0
	if p.limiter != nil && c.n > 0 { // or else it was not charged, or its rule is gone
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
