package serve

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/ratelimit-go/ratelimit"
)

// The limits of a request.
const (
	maxDescriptors = 64
	maxAsks        = 16       // descriptors with a limit: as many as a Decide takes
	maxEntries     = 32       // per descriptor
	maxSize        = 64 << 10 // bytes per descriptor, more than the header that Envoy accepts from a client
	maxHits        = math.MaxInt32
)

// errInvalid means that a request is invalid. Nothing was counted.
var errInvalid = errors.New("invalid request")

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errInvalid, fmt.Sprintf(format, args...))
}

// errUnread is an errInvalid of a request that could not be read, so that no metric has counted it.
var errUnread = fmt.Errorf("%w", errInvalid)

func unread(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errUnread, fmt.Sprintf(format, args...))
}

// question is a request and, once it is decided, its answer.
type question struct {
	domain   *domain // nil if no file defines it
	parts    []part  // one for each descriptor, in their order
	asks     []ratelimit.Ask
	stored   int   // so many of asks are for the store
	together int   // so many are asked together, those that this process decides included; each of the others alone, afterwards
	check    bool  // whether the question is only whether the breaker is open
	over     bool  // whether the whole request is over a limit
	cause    error // why the store failed; nil while the breaker is open

	array [4]part // for most parts
	asked [4]ratelimit.Ask
}

// part is the part of a question for one descriptor.
type part struct {
	rule      *rule // nil if there is no limit
	key       string
	limiter   ratelimit.Limiter               // nil if nothing is asked
	observers []ratelimit.Observer            // of the limiter
	shown     *pb.RateLimitResponse_RateLimit // nil if there is no limit
	limit     ratelimit.Limit
	n         int
	back      bool // whether n is refunded
	overdraws bool // whether n is charged even beyond the limit
	unlimited bool
	local     bool   // whether this process decides in place of the store
	out       bool   // whether nothing is known, because the part's server fails
	label     string // for the metrics by value; "" if there are none

	ask    int // its index in asks
	result ratelimit.Result
	over   bool // whether its own limit is exceeded
}

// decided reports whether the part has a decision by its limit.
func (p *part) decided() bool { return p.limiter != nil }

// denies reports whether the part is over its limit, and callers are told so.
func (p *part) denies() bool { return p.over && p.counts() }

// counts reports whether the part can deny the whole. Shadows cannot.
func (p *part) counts() bool { return p.rule == nil || !p.rule.shadow }

// algorithm returns the algorithm of the limit, whether that is from the request or from a file.
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
		return nil, invalid("%d descriptors, more than %d", n, maxDescriptors)
	}
	now := cmp.Or(how.by, s.now.Load())
	q := &question{domain: now.domains[req.GetDomain()]}
	q.parts = q.array[:0]
	for i := range req.GetDescriptors() {
		q.parts = append(q.parts, part{})
		if err := q.read(s, now, req, i, how); err != nil {
			return nil, err
		}
	}
	q.replace()
	q.gather(s.joint)
	if len(q.asks) > maxAsks {
		return nil, invalid("%d of the descriptors have a limit, more than %d", len(q.asks), maxAsks)
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
	p.key, p.limiter, p.observers = string(key), now.limiters[rule.index], now.observers[rule.index]
	p.overdraws = rule.overdraws && p.n > 0 && !p.back && !how.reserve
	if p.back && !canGiveBack(rule.algorithm) {
		return invalid("descriptor %d: a %s cannot refund without the answer to its charge", i, rule.algorithm)
	}
	return nil
}

// hits reads how many events descriptor i is for.
func (p *part) hits(i int, req *pb.RateLimitRequest, d *common.RateLimitDescriptor) error {
	hits := uint64(req.GetHitsAddend())
	if hits == 0 {
		hits = 1
	}
	if own := d.GetHitsAddend(); own != nil {
		hits = own.GetValue()
	}
	if hits > maxHits {
		return invalid("descriptor %d: hits_addend %d is more than %d", i, hits, maxHits)
	}
	p.n, p.back = int(hits), d.GetIsNegativeHits()
	return nil
}

func checkEntries(i int, entries []*common.RateLimitDescriptor_Entry) error {
	if n := len(entries); n > maxEntries {
		return invalid("descriptor %d: %d entries, more than %d", i, n, maxEntries)
	}
	size := 0
	for _, e := range entries {
		if e.GetKey() == "" {
			return invalid("descriptor %d: an entry has no key", i)
		}
		size += len(e.GetKey()) + len(e.GetValue())
	}
	if size > maxSize {
		return invalid("descriptor %d: %d bytes of entries, more than %d", i, size, maxSize)
	}
	return nil
}

const maxKey = 8 << 10 // bytes of a key that is stored as it is

// countedAs returns the key under which events are counted. A long key is replaced by its hash and
// not rejected, because Envoy lets rejected requests through, and clients could make their keys
// long. No other key looks like a hash, because each contains a = or a ~.
func countedAs(key []byte) []byte {
	if len(key) <= maxKey {
		return key
	}
	sum := sha256.Sum256(key)
	return hex.AppendEncode([]byte("sha256:"), sum[:])
}

// canGiveBack reports whether an algorithm can refund without a receipt: see [ratelimit.Credit].
func canGiveBack(algorithm string) bool {
	switch algorithm {
	case "fixed_window", "sliding_window", "token_bucket":
		return true
	}
	return false
}

// overridden makes the limit that is part of the request. It counts by its own unit, in place of
// the file's limit.
func (p *part) overridden(s *Service, now *plan, dom *domain, i int, d *common.RateLimitDescriptor) error {
	o := d.GetLimit()
	period := time.Duration(0)
	if o.GetUnit() != typev3.RateLimitUnit_UNKNOWN {
		period = periodOf(o.GetUnit().String())
	}
	switch {
	case period == 0:
		return invalid("descriptor %d: the unit %v of its limit is unknown", i, o.GetUnit())
	case o.GetRequestsPerUnit() > maxRate:
		return invalid("descriptor %d: requests_per_unit %d is more than %d", i, o.GetRequestsPerUnit(), maxRate)
	case len(d.GetEntries()) == 0:
		return invalid("descriptor %d: a limit needs entries", i)
	case dom == nil:
		return nil
	}
	l := ratelimit.Limit{Rate: int(o.GetRequestsPerUnit()), Period: period}
	var buf [256]byte
	p.key, p.shown, p.limit = string(countedAs(entriesKey(d.GetEntries(), buf[:0]))), shownLimit(l, 0, ""), l
	p.observers = now.overrides[dom.name]
	var err error
	p.limiter, err = ratelimit.NewFixedWindow(s.store, l, ratelimit.WithName(nameOf(dom)), ratelimit.WithObserver(p.observers...))
	return err
}

// replace removes the limits that other rules of the request replace.
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

// gather makes the asks: those for the store, then those that this process decides, and then the shadows on servers
// that have no part that counts. On_failure would decide the whole request while such a server fails or hangs.
func (q *question) gather(j *joint) {
	q.asks = q.asked[:0]
	q.add(func(p *part) bool { return !p.local && (p.counts() || !j.elsewhere(p, q.parts)) })
	q.stored = len(q.asks)
	q.add(func(p *part) bool { return p.local })
	q.together = len(q.asks)
	q.add(func(p *part) bool { return !p.local && !p.counts() && j.elsewhere(p, q.parts) })
}

// add adds the asks of the parts for which now returns true.
func (q *question) add(now func(*part) bool) {
	for i := range q.parts {
		if p := &q.parts[i]; p.limiter != nil && !p.out && now(p) {
			p.ask = len(q.asks)
			one := p.question(q.domain)
			if p.local && p.limit.Rate > 0 { // must not be charged before the store's shadows, which come last, may fail
				one.Shadow = one.Shadow || slices.ContainsFunc(q.ofStore(), func(a ratelimit.Ask) bool { return a.Shadow })
			}
			q.asks = append(q.asks, one)
		}
	}
}

// question returns what the part asks its limiter. If it must not deny the others, it is asked as a
// shadow.
func (p *part) question(d *domain) ratelimit.Ask {
	a := ratelimit.Ask{Limiter: p.limiter, Key: p.key, N: p.n}
	if p.back {
		a.N = 0
	}
	a.Look, a.Shadow = a.N == 0, d.each || p.overdraws || p.rule != nil && (p.rule.shadow || p.rule.quota)
	return a
}
