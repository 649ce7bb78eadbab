package observe

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/keyhash"
)

const (
	maxLines   = 10 // per second
	maxDenials = 8  // of maxLines, so that a flood of keys does not hide a failing store

	maxEpisodes  = 4096 // keys, in each of two sets
	episode      = time.Minute
	errorsWithin = time.Minute
)

// LogOption configures a [Logger].
type LogOption func(*logger)

// WithLoggedKey logs f(key) instead of a key, for example a hash of it. If f returns "" or is nil,
// no key is logged. f must be safe for concurrent use.
func WithLoggedKey(f func(key string) string) LogOption {
	if f == nil {
		f = func(string) string { return "" }
	}
	return func(l *logger) { l.key = f }
}

// Logger returns an observer that logs when something begins or ends:
//
//   - The first denial of a key, at level Info. Further denials are logged only after the key has
//     not been denied for one to two minutes.
//   - A failing store, which makes package fallback decide, at level Warn, and its recovery at
//     level Info. The lines have the [ratelimit.Source] before and after.
//   - Errors, at level Warn: each class ([ErrorClass]) at most once per minute, with the number
//     of calls that had one since the last line. Errors of class "canceled" are at level Info.
//
// It logs at most 10 lines per second, 8 of which may be denials. With the next decision in a later
// second, it logs a line with the number of lines that were left out.
//
// Lines contain the first 128 bytes of the key, which may be personal data: see [WithLoggedKey]. To
// show which limiter a line is about, give l an attribute: l.With("limiter", "api"). If l is nil,
// Logger uses [slog.Default]. The texts of the lines may change.
//
// An admission costs the hook and 5 ns. A denial of a key that was denied before costs 100 ns.
// Neither allocates. The observer remembers 4,096 to 8,192 denied keys, in 400 KB. If more keys are
// denied, some are logged again.
func Logger(l *slog.Logger, opts ...LogOption) ratelimit.Observer {
	lg := &logger{
		log: cmp.Or(l, slog.Default()), key: shown, seeds: keyhash.New(), base: time.Now(),
		now: make(map[keyhash.Hash]struct{}), last: make(map[keyhash.Hash]struct{}),
	}
	for _, opt := range opts {
		if opt != nil {
			opt(lg)
		}
	}
	return lg
}

type logger struct {
	log   *slog.Logger
	key   func(string) string
	seeds keyhash.Seeds
	base  time.Time

	source  atomic.Uint32 // of the last Result that shows whether the store works
	leftOut atomic.Int64  // lines

	mu        sync.Mutex // protects the fields below; not held while logging
	now, last map[keyhash.Hash]struct{}
	minute    int64 // the minute that now belongs to
	errors    [len(classes)]struct {
		logged time.Duration // when it was last logged, plus 1; 0 for never
		calls  int64         // since the last line
	}
	second int64
	lines  int // in this second
}

// Decided logs what is new in a decision. It implements [ratelimit.Observer].
func (l *logger) Decided(ctx context.Context, key string, n int, r ratelimit.Result, err error, _ time.Duration) {
	if l.leftOut.Load() > 0 {
		l.catchUp(ctx)
	}
	if err != nil {
		l.failed(ctx, err)
		return
	}
	source := r.Source()
	switch source {
	case ratelimit.SourceStore, ratelimit.SourceFailOpen, ratelimit.SourceFailClosed, ratelimit.SourceLocal:
		if before := l.source.Load(); before != uint32(source) && l.source.CompareAndSwap(before, uint32(source)) {
			l.changed(ctx, ratelimit.Source(before), source)
		}
	}
	if !r.Allowed {
		l.denied(ctx, key, n, &r, source)
	}
}

func (l *logger) changed(ctx context.Context, before, source ratelimit.Source) {
	level, text := slog.LevelWarn, "ratelimit: the store fails"
	if source == ratelimit.SourceStore {
		level, text = slog.LevelInfo, "ratelimit: the store decides again"
	}
	if l.mayLog(ctx, level, maxLines) {
		l.log.LogAttrs(ctx, level, text, slog.String("source", source.String()), slog.String("before", before.String()))
	}
}

func (l *logger) failed(ctx context.Context, err error) {
	class := classOf(err)
	level := slog.LevelWarn
	if classes[class].name == "canceled" {
		level = slog.LevelInfo
	}
	l.mu.Lock()
	e, now := &l.errors[class], time.Since(l.base)
	e.calls++
	calls, due := e.calls, e.logged == 0 || now >= e.logged-1+errorsWithin
	if due {
		e.logged, e.calls = now+1, 0
	}
	l.mu.Unlock()
	if !due {
		return
	}
	if l.mayLog(ctx, level, maxLines) {
		l.log.LogAttrs(ctx, level, "ratelimit: no decision",
			slog.String("class", classes[class].name), slog.Int64("calls", calls), slog.Any("error", err))
		return
	}
	l.mu.Lock() // the next line is due in a second, and counts these calls too
	defer l.mu.Unlock()
	e.logged, e.calls = now+1+time.Second-errorsWithin, e.calls+calls
}

func (l *logger) denied(ctx context.Context, key string, n int, r *ratelimit.Result, source ratelimit.Source) {
	if !l.isNew(key) || !l.mayLog(ctx, slog.LevelInfo, maxDenials) {
		return
	}
	attrs := make([]slog.Attr, 0, 6)
	if key = l.key(key); key != "" {
		attrs = append(attrs, slog.String("key", key))
	}
	limit, longest := r.Limit, time.Duration(0)
	for _, part := range r.Parts() { // find the limit that DeniedBy names
		decides := part.RetryAfter == r.RetryAfter // for a First, RetryAfter is not the longest
		if !part.Allowed && (decides || part.RetryAfter > longest) {
			limit, longest = part.Limit, part.RetryAfter
			if decides {
				break
			}
		}
	}
	attrs = append(attrs, slog.Int("n", n), slog.Int("limit", limit), slog.String("source", source.String()))
	if name := r.DeniedBy(); name != "" {
		attrs = append(attrs, slog.String("denied_by", name))
	}
	retryAfter := "never"
	if r.RetryAfter != ratelimit.Never {
		retryAfter = r.RetryAfter.String() // a Duration is a number in JSON, without its unit
	}
	attrs = append(attrs, slog.String("retry_after", retryAfter))
	l.log.LogAttrs(ctx, slog.LevelInfo, "ratelimit: denied", attrs...)
}

// isNew remembers a denial of key, and reports whether it is the first of an episode.
func (l *logger) isNew(key string) bool {
	id := l.seeds.Hash(key)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rotate()
	_, now := l.now[id]
	_, last := l.last[id]
	l.now[id] = struct{}{}
	return !now && !last
}

// rotate begins a new set if its time has come, or if the set is full. The lock is held.
func (l *logger) rotate() {
	minute := int64(time.Since(l.base) / episode)
	if minute == l.minute && len(l.now) < maxEpisodes {
		return
	}
	l.now, l.last = l.last, l.now
	clear(l.now)
	if minute > l.minute+1 {
		clear(l.last)
	}
	l.minute = minute
}

// mayLog takes one of the at most most lines of this second, and reports whether one was left.
func (l *logger) mayLog(ctx context.Context, level slog.Level, most int) bool {
	if !l.log.Enabled(ctx, level) {
		return false
	}
	l.catchUp(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lines >= most {
		l.leftOut.Add(1)
		return false
	}
	l.lines++
	return true
}

// catchUp begins a new second if its time has come, and logs how many lines were left out before.
func (l *logger) catchUp(ctx context.Context) {
	l.mu.Lock()
	var leftOut int64
	if second := int64(time.Since(l.base) / time.Second); second != l.second {
		l.second, l.lines = second, 0
		if leftOut = l.leftOut.Swap(0); leftOut > 0 {
			l.lines++
		}
	}
	l.mu.Unlock()
	if leftOut > 0 {
		l.log.LogAttrs(ctx, slog.LevelWarn, "ratelimit: lines left out", slog.Int64("lines", leftOut))
	}
}
