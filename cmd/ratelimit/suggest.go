package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// maxWindow is how many events of the longest period are kept. If there are more, that period is
// given up. Each event takes 16 bytes, and as much again before space is freed.
const maxWindow = 1 << 23

// suggest finds the maximum number of events of each key in any Period.
type suggest struct {
	logs
	quantile float64
	periods  periods

	keys      map[string]int32 // the numbers of the keys
	maxKeys   int              // maxCounted
	uncounted int              // events of keys beyond maxKeys
	windows   []*window        // by Period, the shortest first
	events    []counted        // of the longest Period
	dropped   int              // number of events dropped before these
	tooMany   []time.Duration  // Periods that were given up
	maxEvents int              // maxWindow
}

// counted is an event of a numbered key.
type counted struct {
	at  int64
	key int32
}

// window counts the events of the last Period, by key.
type window struct {
	period  time.Duration
	first   int // the number of its oldest event
	current []int32
	most    []int32
}

// periods is a flag.
type periods []time.Duration

func (ps *periods) String() string {
	var texts []string
	for _, p := range *ps {
		texts = append(texts, periodText(p))
	}
	return strings.Join(texts, ",")
}

// Set implements [flag.Value].
func (ps *periods) Set(text string) error {
	*ps = nil
	for text := range strings.SplitSeq(text, ",") {
		l, err := ratelimit.ParseLimit("1/" + text)
		if err != nil {
			return fmt.Errorf("%q is not a period such as 1s, 15m or 1d", text)
		}
		if err := l.ValidateFor("sliding_log"); err != nil { // the period is a calendar's
			return err
		}
		*ps = append(*ps, l.Period)
	}
	slices.Sort(*ps)
	*ps = slices.Compact(*ps)
	return nil
}

const suggestText = `[flags] [access log, plain or gzip; standard input if none or -]...

Suggest reports how many requests clients make at most in any second, minute and hour, and the
limit that all but a few clients keep. For each client, it finds the most requests in any such
period, which is the least limit of a sliding log that would have denied nothing. Then replay
the log with that limit, to see how many requests it denies: a token_bucket, the default of
replay, denies no more than a sliding_log. A sliding_window is an estimate and denies more,
especially for short periods and small limits.

Each row is a separate limit. Choose the one whose period suits what you protect, or combine
several, such as one for bursts and one for an hour. If the share of the clients comes to all of
them, such as 99% of fewer than 100, the limit is that of the busiest client, and suggest says so.

Memory is bounded. Suggest counts 1,048,576 keys, and leaves out the requests of further keys. It
gives up a period with 8,388,608 requests, after they have taken 256 MB.
`

// suggest is the command suggest.
func (p *program) suggest(_ context.Context, args []string) error {
	s := &suggest{
		periods: periods{time.Second, time.Minute, time.Hour}, keys: make(map[string]int32), maxKeys: maxCounted, maxEvents: maxWindow,
	}
	s.program = p
	flags := p.newFlags("suggest", suggestText)
	s.flags(flags)
	if err := p.parse(flags, args); err != nil {
		return err
	}
	if err := s.prepare(); err != nil {
		return p.misuse(flags, err)
	}
	err := s.each(flags.Args(), s.count)
	if err != nil && s.Lines == 0 {
		return err
	}
	var b strings.Builder
	s.print(&b)
	_, writing := io.WriteString(p.stdout, b.String())
	return errors.Join(err, writing)
}

func (s *suggest) flags(flags *flag.FlagSet) {
	flags.Float64Var(&s.quantile, "quantile", 0.99, "the `share` of the clients that are never denied, above 0 and up to 1")
	flags.Var(&s.periods, "periods", "periods of the limits, separated by `commas`")
	s.form.flags(flags)
}

func (s *suggest) prepare() error {
	if !(s.quantile > 0 && s.quantile <= 1) {
		return fmt.Errorf("-quantile %v, want more than 0 and at most 1", s.quantile)
	}
	for _, p := range s.periods {
		s.windows = append(s.windows, &window{period: p})
	}
	return s.form.prepare()
}

// count counts an event. Events come in the order of their times.
func (s *suggest) count(e event) error {
	key, found := s.keys[e.key]
	if !found {
		if len(s.keys) == s.maxKeys {
			s.uncounted++
			return nil
		}
		key = int32(len(s.keys))
		s.keys[e.key] = key
		for _, w := range s.windows {
			w.current, w.most = append(w.current, 0), append(w.most, 0)
		}
	}
	s.events = append(s.events, counted{e.at, key})
	for _, w := range s.windows {
		s.advance(w, e.at)
		w.current[key]++
		w.most[key] = max(w.most[key], w.current[key])
	}
	s.forget()
	return nil
}

// advance removes from w the events that are no longer in its Period at now. In a sliding log, an
// event counts while less than a Period has passed.
func (s *suggest) advance(w *window, now int64) {
	for s.events[w.first-s.dropped].at <= now-w.period.Microseconds() {
		w.current[s.events[w.first-s.dropped].key]--
		w.first++
	}
}

// forget drops events that no window needs. It moves the other events only if they are at most half.
func (s *suggest) forget() {
	for len(s.windows) > 0 {
		longest := s.windows[len(s.windows)-1]
		old := longest.first - s.dropped
		if len(s.events)-old < s.maxEvents {
			break
		}
		s.tooMany = append(s.tooMany, longest.period)
		s.windows = s.windows[:len(s.windows)-1]
	}
	old := len(s.events)
	if n := len(s.windows); n > 0 {
		old = s.windows[n-1].first - s.dropped
	}
	if old < len(s.events)/2 || old < 1024 && len(s.windows) > 0 {
		return
	}
	s.events = append(s.events[:0], s.events[old:]...)
	s.dropped += old
}

func (s *suggest) print(w io.Writer) {
	s.summary(w, len(s.keys), s.uncounted > 0)
	s.remarks(w)
	if s.uncounted > 0 {
		fmt.Fprintf(w, "%9d requests beyond the first %s, left out\n", s.uncounted, s.several(s.maxKeys))
	}
	for _, p := range s.tooMany {
		fmt.Fprintf(w, "period %s was given up, because it had %d requests\n", periodText(p), s.maxEvents)
	}
	if len(s.keys) == 0 || len(s.windows) == 0 {
		return
	}
	fmt.Fprintf(w, "\nMost requests of a %s in any period, and the limit for %.6g %% of them:\n\n", s.noun(), 100*s.quantile)
	fmt.Fprintf(w, "%8s %8s %8s %8s %8s  %-14s %s\n", "period", "50 %", "90 %", "99 %", "most", "limit", "denies something to")
	for _, win := range s.windows {
		most := slices.Sorted(slices.Values(win.most))
		least := quantile(most, s.quantile)
		above, _ := slices.BinarySearch(most, least+1)
		limit := ratelimit.Limit{Rate: int(least), Period: win.period}.String()
		fmt.Fprintf(w, "%8s %8d %8d %8d %8d  %-14s %s (%.2f %%)\n", periodText(win.period),
			quantile(most, 0.5), quantile(most, 0.9), quantile(most, 0.99), most[len(most)-1],
			limit, s.several(len(most)-above), percent(len(most)-above, len(most)))
	}
	s.warnOfFew(w)
}

// warnOfFew prints a warning if the quantile covers all keys. The limits are then those of the
// busiest key, which may be the key that they should stop.
func (s *suggest) warnOfFew(w io.Writer) {
	n := len(s.keys)
	if s.quantile == 1 || rank(n, s.quantile) < n {
		return
	}
	fmt.Fprintf(w, "\nToo few for %.6g %%: %s. The limits are therefore those of the busiest %s, whether its requests are good or bad.\n",
		100*s.quantile, s.several(n), s.noun())
	if n > 1 {
		fmt.Fprintf(w, "Read more of the log, or leave out the busiest: -quantile %v.\n", math.Floor(100*float64(n-1)/float64(n))/100)
	}
}

// periodText returns d in the units of limits: 1s, 15m, 1d.
func periodText(d time.Duration) string {
	text := strings.TrimPrefix(ratelimit.Every(d).String(), "1/")
	if text[0] < '0' || text[0] > '9' { // "m" for a minute
		text = "1" + text
	}
	return text
}

// quantile returns the smallest of the sorted values that a share q of them does not exceed.
func quantile(sorted []int32, q float64) int32 { return sorted[rank(len(sorted), q)-1] }

// rank returns a share q of n values, rounded up. A product such as 0.07*100, which is a little
// above 7, is not.
func rank(n int, q float64) int { return max(1, int(math.Ceil(q*float64(n)-1e-9))) }
