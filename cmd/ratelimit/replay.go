package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/config"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

const (
	maxCounted = 1 << 20 // keys with their own count: about 200 MB
	maxStored  = 1 << 22 // keys of the limiters: about 250 MB

	defaultAlgorithm = "token_bucket"
)

// replay asks limiters about the requests of a log, at the time of the log.
type replay struct {
	logs
	algorithm string
	limits    limits
	top       int
	out       string
	svg       string
	config    string

	name   string // of the limiter in -config
	file   fileLimiter
	others []*replay // the limiters of -config; they decide instead of this one

	now     time.Time // of the current request
	store   *memstore.Store
	limiter ratelimit.Limiter

	denied, delayed int
	longest         time.Duration // Delay
	byLimit         []int         // requests denied, by limit
	keys            map[string]*tally
	maxKeys         int // maxCounted
	uncounted       int // requests of keys beyond maxKeys

	picture *os.File // -svg
	chart   *chart
}

// tally counts the requests of a key.
type tally struct {
	requests, denied int
	byLimit          []int // nil while nothing is denied
}

// limits is a flag that can be given several times.
type limits []ratelimit.Limit

func (ls *limits) String() string {
	var texts []string
	for _, l := range *ls {
		texts = append(texts, l.String())
	}
	return strings.Join(texts, " and ")
}

// Set implements [flag.Value].
func (ls *limits) Set(text string) error {
	l, err := ratelimit.ParseLimit(text)
	if err == nil && slices.Contains(*ls, l) {
		err = fmt.Errorf("%v is repeated", l)
	}
	*ls = append(*ls, l)
	return err
}

const replayText = `[flags] [access log, plain or gzip; standard input if none or -]...

Replay reports who would have been denied by the limits, and how often. A request must be
admitted by all of the limits. If two limits deny it, each of them counts the denial. A limiter
of this library decides on each request, at the time in the log. Lines may be out of order by up
to 16,384, and files may be given in any order.

With -config, each limiter of a configuration file decides on all requests by itself, as if no
key had a tier and no other limiter shared its counts. Replay ignores the file's caches (lease,
coalescing, deny_cache), on_failure, bans, and slots (in_flight).

Memory is bounded, to about 1 GB per limiter. At most 1,048,576 keys have a row of their own.
Requests of other keys are decided on too, and counted together. The limiters keep 4,194,304
keys, those with the most spend.
`

// replay is the command replay.
func (p *program) replay(ctx context.Context, args []string) error {
	r := &replay{keys: make(map[string]*tally), maxKeys: maxCounted}
	r.program = p
	flags := p.newFlags("replay", replayText)
	r.flags(flags)
	if err := p.parse(flags, args); err != nil {
		return err
	}
	if r.config == "-" && (flags.NArg() == 0 || slices.Contains(flags.Args(), "-")) {
		return p.misuse(flags, errors.New("-config - and a log in standard input cannot be combined: name the file of one of them"))
	}
	if err := r.prepare(); err != nil {
		return p.misuse(flags, err)
	}
	if err := r.prepareConfig(); err != nil {
		return err
	}
	if err := r.openPicture(); err != nil { // an error must not come after hours of reading
		return err
	}
	all := r.others
	if r.config == "" {
		all = []*replay{r}
	}
	err := r.each(flags.Args(), func(e event) error {
		for _, one := range all {
			if err := one.decide(ctx, e); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil && r.Lines == 0 {
		return errors.Join(err, r.draw())
	}
	errs := []error{err}
	for _, one := range all { // report what was read, even before an error
		one.logs = r.logs
		errs = append(errs, one.print(p.stdout))
	}
	return errors.Join(append(errs, r.draw())...)
}

func (r *replay) flags(flags *flag.FlagSet) {
	flags.Var(&r.limits, "limit", "`limit` of each key, such as 100/s, 5/15m or \"10/m burst 20\"; several must all admit")
	flags.StringVar(&r.config, "config", "", "try each limiter of this `file` of package config, in place of -limit and -algorithm")
	flags.StringVar(&r.algorithm, "algorithm", "", "`name`, one of "+strings.Join(ratelimit.PerSecond(1).Algorithms(), ", ")+" (default "+defaultAlgorithm+")")
	r.form.flags(flags)
	flags.StringVar(&r.out, "out", "text", "`form` of the report: text, json or csv")
	flags.StringVar(&r.svg, "svg", "", "draw what was offered and denied over time into this `file`, *.svg")
	flags.IntVar(&r.top, "top", 10, "list the `n` keys that are denied most; -1 for all")
}

// prepare checks the flags. Without -config it creates the limiter, whose time is the time of the requests.
func (r *replay) prepare() error {
	switch {
	case len(r.limits) == 0 && r.config == "":
		return errors.New("want -limit or -config")
	case r.config != "" && (len(r.limits) > 0 || r.algorithm != "" || r.svg != "" || r.out == "csv"):
		return errors.New("-config cannot be combined with -limit, -algorithm, -svg or -out csv")
	}
	r.algorithm = cmp.Or(r.algorithm, defaultAlgorithm)
	if !slices.Contains([]string{"text", "json", "csv"}, r.out) {
		return fmt.Errorf("unknown output %q: want text, json or csv", r.out)
	}
	if r.svg != "" && filepath.Ext(r.svg) != ".svg" { // so that a mistake does not overwrite a log
		return fmt.Errorf("-svg %s: the name must end in .svg", r.svg)
	}
	if err := r.form.prepare(); err != nil || r.config != "" {
		return err
	}
	return r.prepareLimiter()
}

// prepareConfig creates a replay for each limiter of -config, if it was given.
func (r *replay) prepareConfig() error {
	if r.config == "" {
		return nil
	}
	text, err := r.program.readFile(r.config)
	if err != nil {
		return err
	}
	if _, err := config.Parse(text); err != nil {
		return errors.New(located(r.config, split(err)[0]))
	}
	limiters, err := readLimiters(text)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(limiters)) {
		l := limiters[name]
		one := &replay{name: name, file: l, algorithm: l.Algorithm, top: r.top, out: r.out, keys: make(map[string]*tally), maxKeys: r.maxKeys}
		if one.limits, err = l.limits(); err != nil {
			return err
		}
		if len(one.limits) == 0 {
			continue // slots: a log does not show when requests end
		}
		if err := one.prepareLimiter(); err != nil {
			return err
		}
		r.others = append(r.others, one)
	}
	if len(r.others) == 0 {
		return errors.New(r.config + ": no limiter has a limit, and a log does not show how many requests were in flight")
	}
	return nil
}

func (r *replay) prepareLimiter() (err error) {
	if r.store, err = memstore.New(memstore.WithMaxKeys(maxStored), memstore.WithClock(func() time.Time { return r.now })); err != nil {
		return err
	}
	parts := make([]ratelimit.Limiter, len(r.limits))
	for i, l := range r.limits {
		if parts[i], err = ratelimit.New(r.algorithm, r.store, l, ratelimit.WithName(l.String()), ratelimit.WithReserved(r.file.reserves(l))); err != nil {
			return err
		}
	}
	r.byLimit = make([]int, len(parts))
	r.limiter = parts[0]
	if len(parts) > 1 {
		r.limiter, err = ratelimit.NewAll(parts...)
	}
	return err
}

// openPicture creates the file of -svg.
func (r *replay) openPicture() (err error) {
	if r.svg == "" {
		return nil
	}
	r.chart = newChart(len(r.limits))
	r.picture, err = os.Create(r.svg)
	return err
}

// draw writes the picture, if -svg was given.
func (r *replay) draw() error {
	if r.picture == nil {
		return nil
	}
	titles := []string{fmt.Sprintf("%d of %d requests denied (%.2f %%)", r.denied, r.Requests, percent(r.denied, r.Requests))}
	for i, n := range r.byLimit {
		if len(r.limits) > 1 {
			titles = append(titles, fmt.Sprintf("%d by %v", n, r.limits[i]))
		}
	}
	title := fmt.Sprintf("%s, %v", r.algorithm, &r.limits)
	if r.Requests > 0 {
		title += fmt.Sprintf(", %s to %s UTC", r.From.Format(time.DateTime), r.To.Format(time.DateTime))
	}
	return errors.Join(r.chart.svg(r.picture, title, titles), r.picture.Close())
}

func (r *replay) decide(ctx context.Context, e event) error {
	r.now = time.UnixMicro(e.at)
	result, err := r.limiter.Allow(ctx, e.key)
	if err != nil {
		return err
	}
	if result.Delay > 0 {
		r.delayed++
		r.longest = max(r.longest, result.Delay)
	}
	if r.chart != nil {
		r.chart.count(e.at, result)
	}
	t := r.tallyOf(e.key)
	t.requests++
	if !result.Allowed {
		r.denied++
		t.deny(result, r.byLimit)
	}
	return nil
}

func (r *replay) tallyOf(key string) *tally {
	t := r.keys[key]
	switch {
	case t != nil:
	case len(r.keys) < r.maxKeys:
		t = new(tally)
		r.keys[key] = t
	default:
		r.uncounted++
		return new(tally)
	}
	return t
}

// deny counts a denial in t and in total, by the limits that denied.
func (t *tally) deny(result ratelimit.Result, total []int) {
	if t.byLimit == nil {
		t.byLimit = make([]int, len(total))
	}
	t.denied++
	for i := range total {
		if deniedBy(result, i) {
			total[i]++
			t.byLimit[i]++
		}
	}
}

// deniedBy reports whether the limit denied. A limit that was not asked did not deny.
func deniedBy(result ratelimit.Result, limit int) bool {
	parts := result.Parts()
	return parts == nil || !parts[limit].Allowed && parts[limit].Result != (ratelimit.Result{})
}

// deniedMost returns the keys that were denied, sorted by the number of denials.
func (r *replay) deniedMost() []string {
	var keys []string
	for key, t := range r.keys {
		if t.denied > 0 {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, func(a, b string) int {
		return cmp.Or(cmp.Compare(r.keys[b].denied, r.keys[a].denied), cmp.Compare(a, b))
	})
	return keys
}
