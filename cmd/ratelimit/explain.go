package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/observe"
	"github.com/ratelimit-go/ratelimit/store/lease"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// file is a configuration file that package config has accepted.
type file struct {
	Limiters map[string]fileLimiter `yaml:"limiters"`
}

type fileLimiter struct {
	Algorithm string            `yaml:"algorithm"`
	Limit     string            `yaml:"limit"`
	Limits    []string          `yaml:"limits"`
	Tiers     map[string]string `yaml:"tiers"`
	Shares    string            `yaml:"shares"`
	Reserved  int               `yaml:"reserved"`
	InFlight  int               `yaml:"in_flight"`
	Life      string            `yaml:"life"`
	Instances int               `yaml:"instances"`
	OnFailure string            `yaml:"on_failure"`
	Ban       struct {
		Denials, For, Most string
	} `yaml:"ban"`
	Store struct {
		Lease string `yaml:"lease"`
	} `yaml:"store"`
}

// readLimiters parses a text that config.Parse accepts.
func readLimiters(text []byte) (map[string]fileLimiter, error) {
	var f file
	err := yaml.Unmarshal(text, &f)
	for name, l := range f.Limiters {
		if other, found := f.Limiters[l.Shares]; found {
			l.Algorithm, l.Limit, l.Limits, l.Tiers = other.Algorithm, other.Limit, other.Limits, other.Tiers
			l.Store.Lease = cmp.Or(other.Store.Lease, l.Store.Lease)
			f.Limiters[name] = l
		}
	}
	return f.Limiters, err
}

// leaves returns the names of the limiters that can use what l reserves, sorted. name is the name of l.
func (l *fileLimiter) leaves(name string, limiters map[string]fileLimiter) (to []string) {
	for other, o := range limiters {
		if cmp.Or(o.Shares, other) == cmp.Or(l.Shares, name) && o.Reserved < l.Reserved {
			to = append(to, other)
		}
	}
	slices.Sort(to)
	return to
}

// reserves returns how many events l reserves of a limit.
func (l *fileLimiter) reserves(limit ratelimit.Limit) int {
	if limit == ratelimit.Unlimited() || limit.Rate == 0 {
		return 0
	}
	return l.Reserved
}

// own returns what l admits of a limit, without the reserved events.
func (l *fileLimiter) own(limit ratelimit.Limit) ratelimit.Limit {
	switch reserved := l.reserves(limit); {
	case reserved == 0:
	case l.Algorithm == "token_bucket" || l.Algorithm == "leaky_bucket":
		limit.Burst = atOnce(limit) - reserved
	default:
		limit.Rate -= reserved
	}
	return limit
}

// limits returns the limits that must all admit.
func (l *fileLimiter) limits() ([]ratelimit.Limit, error) {
	texts := l.Limits
	if l.Limit != "" {
		texts = []string{l.Limit}
	}
	var all []ratelimit.Limit
	for _, text := range texts {
		limit, err := ratelimit.ParseLimit(text)
		if err != nil {
			return nil, err
		}
		all = append(all, limit)
	}
	return all, nil
}

// deniesNothing reports whether neither the limits nor a tier deny anything.
func (l *fileLimiter) deniesNothing() bool {
	denies := func(text string) bool { return text != "" && text != ratelimit.Unlimited().String() }
	return !denies(l.Limit) && !slices.ContainsFunc(l.Limits, denies) && !slices.ContainsFunc(slices.Collect(maps.Values(l.Tiers)), denies)
}

// explain prints what the limiters of a valid text do.
func explain(w io.Writer, text []byte) error {
	limiters, err := readLimiters(text)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(limiters)) {
		l := limiters[name]
		if err := l.explain(w, name, limiters); err != nil {
			return err
		}
	}
	return nil
}

func (l *fileLimiter) explain(w io.Writer, name string, limiters map[string]fileLimiter) error {
	fmt.Fprintf(w, "\n%s: %s\n", printable(name), cmp.Or(l.Algorithm, "slots"))
	all, err := l.limits()
	if err != nil {
		return err
	}
	for i, limit := range all {
		l.explainLimit(w, "", limit)
		for j, other := range all {
			if i != j && l.Reserved == 0 && neverDenies(l.Algorithm, limit, other) {
				fmt.Fprintf(w, "    never denies, because %v always denies first\n", other)
			}
		}
	}
	for _, tier := range slices.Sorted(maps.Keys(l.Tiers)) {
		limit, err := ratelimit.ParseLimit(l.Tiers[tier])
		if err != nil {
			return err
		}
		l.explainLimit(w, "tier "+printable(tier)+": ", limit)
		if limit == all[0] {
			fmt.Fprintln(w, "    has no effect: it equals the limit of keys without a tier")
		}
	}
	l.explainReserve(w, name, limiters)
	parts := len(all)
	if l.InFlight > 0 {
		parts++
		fmt.Fprintf(w, "  at most %d concurrent calls per key; the slot of a dead process is free after %s\n", l.InFlight, cmp.Or(l.Life, "1m"))
	}
	switch {
	case l.Ban.Denials == "":
	case l.deniesNothing():
		fmt.Fprintln(w, "  its ban never begins, because nothing is denied")
	default:
		denials, err := ratelimit.ParseLimit(l.Ban.Denials)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "  after %d denials in %s, a key is banned for %s", denials.Rate, periodText(denials.Period), l.Ban.For)
		if l.Ban.Most != "" {
			fmt.Fprintf(w, ", and twice as long each further time, up to %s", l.Ban.Most)
		}
		fmt.Fprintln(w)
	}
	l.explainFailure(w)
	return explainSeries(w, name, parts)
}

// explainReserve prints with whom the limiter shares its counts, and what it leaves to others.
func (l *fileLimiter) explainReserve(w io.Writer, name string, limiters map[string]fileLimiter) {
	if l.Shares != "" {
		fmt.Fprintf(w, "  shares its counts with %s\n", printable(l.Shares))
	}
	if l.Reserved > 0 {
		to := cmp.Or(printable(l.leaves(name, limiters)...), "no limiter of this file: without another one of this name, nobody can use them")
		fmt.Fprintf(w, "  leaves %d events of a key to %s\n", l.Reserved, to)
	}
}

// explainFailure prints what is decided while the store fails.
func (l *fileLimiter) explainFailure(w io.Writer) {
	does := "each call gets an error, which httplimit answers with 503"
	switch l.OnFailure {
	case "open":
		does = "it admits everything"
	case "closed":
		does = "it denies everything"
	case "local":
		does = "each instance admits its share"
	}
	fmt.Fprintf(w, "  while the store fails, %s\n", does)
}

// explainSeries prints how many series promlimit exports for the counters that observe.Around
// notifies of this limiter. For a single limit, there are no series by the limit that denied.
func explainSeries(w io.Writer, name string, parts int) error {
	counters := observe.NewCounters(name)
	if parts > 1 {
		for i := range parts {
			counters.Expect(strconv.Itoa(i))
		}
	}
	s := counters.Snapshot()
	fmt.Fprintf(w, "  its counters have up to %d series in /metrics", seriesOf(s))
	if len(s.DeniedBy) > 0 {
		fmt.Fprintf(w, ", %d of them ratelimit_denied_by_total", len(s.DeniedBy))
	}
	_, err := fmt.Fprintln(w)
	return err
}

// seriesOf returns how many series promlimit exports for s, including those of durations.
func seriesOf(s observe.Snapshot) int {
	const (
		outcomes    = 2 // of ratelimit_events_total
		ofHistogram = 3 // +Inf, sum and count
	)
	return len(s.Decisions) + outcomes + len(s.DeniedBy) + len(s.Errors) + len(s.Headroom) + ofHistogram + len(s.Durations.Buckets) + ofHistogram
}

// leaseEvents is the number of events per key and lease TTL from which a lease saves calls: see
// package lease.
const leaseEvents = 4

// explainLimit prints what one limit does.
func (l *fileLimiter) explainLimit(w io.Writer, what string, limit ratelimit.Limit) {
	fmt.Fprintf(w, "  %s%v\n", what, limit)
	switch {
	case limit == ratelimit.Unlimited():
		fmt.Fprintln(w, "    admits everything, without asking the store")
		return
	case limit.Rate == 0:
		fmt.Fprintln(w, "    denies everything, without asking the store")
		return
	}
	own := l.own(limit)
	in, forgets := "any "+periodText(limit.Period), "at most "+periodText(life(l.Algorithm, limit))+" after its last event"
	if !plain(limit) {
		in, forgets = "the shortest of its windows", "at the end of its window"
	}
	fmt.Fprintf(w, "    admits up to %d events at one instant, and %d in %s; a call for more than %d never\n",
		atOnce(own), most(l.Algorithm, own, limit.Period), in, atOnce(own))
	fmt.Fprintf(w, "    forgets a key %s\n", forgets)
	l.explainLease(w, limit)
	if l.OnFailure == "local" {
		if share, err := limit.Share(l.Instances); err == nil {
			fmt.Fprintf(w, "    while the store fails, each of %d instances admits %v, and all of them together up to %d at one instant\n",
				l.Instances, share, l.Instances*max(1, atOnce(share)-(l.Reserved+l.Instances-1)/l.Instances))
		}
	}
}

// explainLease prints what a lease of limit does.
func (l *fileLimiter) explainLease(w io.Writer, limit ratelimit.Limit) {
	life, err := time.ParseDuration(l.Store.Lease)
	if err != nil {
		return
	}
	if least := leastLife(l.Algorithm, limit); life < least {
		fmt.Fprintf(w, "    is not leased: a lease TTL of %v is too short for an event, use at least %v\n", life, least)
		return
	}
	if l.Reserved == 0 { // or else it asks the store for every decision
		fmt.Fprintf(w, "    a lease has a TTL of %v (at least %v): it saves calls if a process is asked for the key at least %d times per TTL\n",
			life, leastLife(l.Algorithm, limit), leaseEvents)
	}
	if l.Algorithm == "token_bucket" {
		fmt.Fprintf(w, "    with leases, a call for more than %d is never admitted\n", leasedBurst(limit, life)-l.Reserved)
	}
}

// leasedBurst returns the Burst of a token bucket for leases with that TTL.
func leasedBurst(l ratelimit.Limit, life time.Duration) int {
	mem, errMem := memstore.New()
	leases, errLease := lease.New(elsewhere{mem}, life)
	bucket, errBucket := ratelimit.NewTokenBucket(leases, l)
	if errors.Join(errMem, errLease, errBucket) != nil {
		return 0
	}
	r, err := bucket.Peek(context.Background(), "key")
	if err != nil {
		return 0
	}
	return r.Remaining
}

// leastLife returns the shortest possible TTL of a lease: an event of a log or a bucket must flow
// in it.
func leastLife(algorithm string, l ratelimit.Limit) time.Duration {
	if algorithm != "sliding_log" && algorithm != "token_bucket" {
		return time.Millisecond
	}
	us := (l.Period.Microseconds() + int64(l.Rate) - 1) / int64(l.Rate)
	return max(time.Millisecond, time.Duration(us)*time.Microsecond)
}

// atOnce returns the capacity: the Rate, or the Burst of a bucket.
func atOnce(l ratelimit.Limit) int {
	if l.Burst > 0 {
		return l.Burst
	}
	return l.Rate
}

// plain reports whether l has no calendar.
func plain(l ratelimit.Limit) bool {
	return l == ratelimit.Limit{Rate: l.Rate, Period: l.Period, Burst: l.Burst}
}

// most returns the maximum number of events that a limit admits in any interval x:
// docs/promises.md.
func most(algorithm string, l ratelimit.Limit, x time.Duration) int64 {
	rate, periods := int64(l.Rate), (int64(x)+int64(l.Period)-1)/int64(l.Period)
	refilled := int64(float64(rate) * float64(x) / float64(l.Period))
	switch algorithm {
	case "fixed_window":
		return rate * (periods + 1)
	case "sliding_log":
		return rate * periods
	case "sliding_window":
		return rate + refilled
	}
	return int64(atOnce(l)) + refilled
}

// neverDenies reports whether other always denies before l would.
func neverDenies(algorithm string, l, other ratelimit.Limit) bool {
	switch {
	case other.Rate == 0:
		return true
	case l == ratelimit.Unlimited() || other == ratelimit.Unlimited() || !plain(l) || !plain(other):
		return false
	}
	switch algorithm {
	case "token_bucket", "leaky_bucket":
		return atOnce(other) <= atOnce(l) && float64(other.Rate)/float64(other.Period) <= float64(l.Rate)/float64(l.Period)
	case "fixed_window":
		if l.Period%other.Period == 0 { // the windows of l consist of windows of other
			return int64(other.Rate)*int64(l.Period/other.Period) <= int64(l.Rate)
		}
	case "sliding_window": // the estimate may deny more
		return false
	}
	return most(algorithm, other, l.Period) <= int64(l.Rate)
}

// life returns how long the state of a key matters at most after its last event.
func life(algorithm string, l ratelimit.Limit) time.Duration {
	switch algorithm {
	case "sliding_window":
		return 2 * l.Period
	case "token_bucket", "leaky_bucket":
		return time.Duration(float64(l.Period) / float64(l.Rate) * float64(atOnce(l))).Round(time.Microsecond)
	}
	return l.Period
}
