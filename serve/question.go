package serve

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/ratelimit-go/ratelimit"
)

// What a request may have.
const (
	maxDescriptors = 64
	maxAsks        = 16       // of them have a limit: as many as a Decide takes
	maxEntries     = 32       // of a descriptor
	maxSize        = 64 << 10 // bytes of a descriptor: more than the header that Envoy takes of a client
	maxHits        = math.MaxInt32
)

// errInvalid is a request that makes no sense. Nothing was counted.
var errInvalid = errors.New("invalid request")

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errInvalid, fmt.Sprintf(format, args...))
}

// question is a request and, once it is decided, what there is to answer.
type question struct {
	domain *domain // nil if no file knows it
	parts  []part  // of the descriptors, in their order
	asks   []ratelimit.Ask
	over   bool  // the whole
	local  bool  // this process has decided, in place of the store
	cause  error // of the store's failure; nil while the breaker is open

	array [4]part // of parts, mostly
	asked [4]ratelimit.Ask
}

// part is what there is about one descriptor.
type part struct {
	rule      *rule // nil if there is no limit
	key       string
	limiter   ratelimit.Limiter               // nil if nothing is to be asked
	shown     *pb.RateLimitResponse_RateLimit // nil if there is no limit
	limit     ratelimit.Limit
	n         int
	back      bool // n are to be given back
	overdraws bool // n are charged whatever is left
	unlimited bool
	label     string // of the metrics by value; "" if there are none

	ask    int // its place in asks
	result ratelimit.Result
	over   bool // by its own limit
}

// decided reports whether the part has a decision of its limit.
func (p *part) decided() bool { return p.limiter != nil }

// told reports whether callers are told that the part is over its limit.
func (p *part) told() bool { return p.over && p.counts() }

// counts reports whether it has a say: no shadow has.
func (p *part) counts() bool { return p.rule == nil || !p.rule.shadow }

// algorithm is that of the limit, of the request's own or of the file.
func (p *part) algorithm() string {
	if p.rule == nil {
		return byDefault
	}
	return p.rule.algorithm
}

func (p *part) quota() bool { return p.rule != nil && p.rule.quota }

// question reads a request. It counts nothing.
func (s *Service) question(req *pb.RateLimitRequest, how manner) (*question, error) {
	switch n := len(req.GetDescriptors()); {
	case req.GetDomain() == "":
		return nil, invalid("rate limit domain must not be empty")
	case n == 0:
		return nil, invalid("rate limit descriptor list must not be empty")
	case n > maxDescriptors:
		return nil, invalid("%d descriptors, over %d", n, maxDescriptors)
	}
	now := s.now.Load()
	q := &question{domain: now.domains[req.GetDomain()]}
	q.parts = q.array[:0]
	for i := range req.GetDescriptors() {
		q.parts = append(q.parts, part{})
		if err := q.read(s, now, req, i, how); err != nil {
			return nil, err
		}
	}
	q.replace()
	q.asks = q.asked[:0]
	for i := range q.parts {
		if p := &q.parts[i]; p.limiter != nil {
			p.ask = len(q.asks)
			q.asks = append(q.asks, p.question(q.domain))
		}
	}
	if len(q.asks) > maxAsks {
		return nil, invalid("%d of the descriptors have a limit, over %d", len(q.asks), maxAsks)
	}
	return q, nil
}

// read reads descriptor i.
func (q *question) read(s *Service, now *plan, req *pb.RateLimitRequest, i int, how manner) error {
	d := req.GetDescriptors()[i]
	p, entries := &q.parts[i], d.GetEntries()
	if err := p.hits(i, req, d); err != nil {
		return err
	}
	if err := checkEntries(i, entries); err != nil {
		return err
	}
	if o := d.GetLimit(); o != nil {
		return p.overridden(s, now, q.domain, i, d)
	}
	if q.domain == nil {
		return nil
	}
	if how.anyOrder {
		entries = q.domain.next.arranged(entries)
	}
	var buf [256]byte
	rule, key := q.domain.match(entries, buf[:0])
	if rule == nil {
		return nil
	}
	key = countedAs(key)
	p.rule, p.shown, p.limit = rule, rule.shown, rule.limit
	if rule.byValue {
		p.label = q.domain.label(rule, entries)
	}
	if p.unlimited = rule.shown == nil; p.unlimited {
		return nil
	}
	p.key, p.limiter = string(key), now.limiters[rule.index]
	p.overdraws = rule.overdraws && p.n > 0 && !p.back && !how.reserve
	if p.back && !canGiveBack(rule.algorithm) {
		return invalid("descriptor %d: a %s takes nothing back without the answer to its charge", i, rule.algorithm)
	}
	return nil
}

// hits reads how many events descriptor i is about.
func (p *part) hits(i int, req *pb.RateLimitRequest, d *common.RateLimitDescriptor) error {
	hits := uint64(req.GetHitsAddend())
	if hits == 0 {
		hits = 1
	}
	if own := d.GetHitsAddend(); own != nil {
		hits = own.GetValue()
	}
	if hits > maxHits {
		return invalid("descriptor %d: hits_addend %d is over %d", i, hits, maxHits)
	}
	p.n, p.back = int(hits), d.GetIsNegativeHits()
	return nil
}

func checkEntries(i int, entries []*common.RateLimitDescriptor_Entry) error {
	if n := len(entries); n > maxEntries {
		return invalid("descriptor %d: %d entries, over %d", i, n, maxEntries)
	}
	size := 0
	for _, e := range entries {
		if e.GetKey() == "" {
			return invalid("descriptor %d: an entry has no key", i)
		}
		size += len(e.GetKey()) + len(e.GetValue())
	}
	if size > maxSize {
		return invalid("descriptor %d: %d bytes of entries, over %d", i, size, maxSize)
	}
	return nil
}

const maxKey = 8 << 10 // bytes of a key that is counted as it is

// countedAs is a key as it is counted. A long one is its hash, so that what a client can make long is counted too:
// Envoy lets through what is refused. No other key is like that, as each has a = or a ~.
func countedAs(key []byte) []byte {
	if len(key) <= maxKey {
		return key
	}
	sum := sha256.Sum256(key)
	return hex.AppendEncode([]byte("sha256:"), sum[:])
}

// canGiveBack reports whether an algorithm gives back without a receipt: see [ratelimit.Credit].
func canGiveBack(algorithm string) bool {
	switch algorithm {
	case "fixed_window", "sliding_window", "token_bucket":
		return true
	}
	return false
}

// overridden makes the limit that the request brings along. It counts by its own unit, in place of
// the file's limit.
func (p *part) overridden(s *Service, now *plan, dom *domain, i int, d *common.RateLimitDescriptor) error {
	o := d.GetLimit()
	period := time.Duration(0)
	if o.GetUnit() != typev3.RateLimitUnit_UNKNOWN {
		period = periodOf(o.GetUnit().String())
	}
	switch {
	case period == 0:
		return invalid("descriptor %d: the unit %v of its limit is none", i, o.GetUnit())
	case o.GetRequestsPerUnit() > maxRate:
		return invalid("descriptor %d: requests_per_unit %d is over %d", i, o.GetRequestsPerUnit(), maxRate)
	case len(d.GetEntries()) == 0:
		return invalid("descriptor %d: a limit for no entries", i)
	case dom == nil:
		return nil
	}
	l := ratelimit.Limit{Rate: int(o.GetRequestsPerUnit()), Period: period}
	var buf [256]byte
	p.key, p.shown, p.limit = string(countedAs(entriesKey(d.GetEntries(), buf[:0]))), shownLimit(l, 0, ""), l
	var err error
	p.limiter, err = ratelimit.NewFixedWindow(s.store, l, ratelimit.WithName(nameOf(dom)), ratelimit.WithObserver(now.overrides[dom.name]...))
	return err
}

// replace takes out the limits that others of the request replace.
func (q *question) replace() {
	for i := range q.parts {
		if r := q.parts[i].rule; r != nil {
			for _, name := range r.replaces {
				q.takeOut(name)
			}
		}
	}
}

func (q *question) takeOut(name string) {
	for i := range q.parts {
		if p := &q.parts[i]; p.rule != nil && p.rule.name == name && !p.unlimited {
			p.limiter, p.shown = nil, nil
		}
	}
}

// question is what the part asks its limiter. What must not deny the others is asked as a shadow.
func (p *part) question(d *domain) ratelimit.Ask {
	a := ratelimit.Ask{Limiter: p.limiter, Key: p.key, N: p.n}
	if p.back {
		a.N = 0
	}
	a.Look, a.Shadow = a.N == 0, d.each || p.overdraws || p.rule != nil && (p.rule.shadow || p.rule.quota)
	return a
}
