package observe_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/observe"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// lines collects the lines that a logger writes, without the time. It is safe for concurrent use.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// take returns the lines since its last call.
func (l *lines) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := strings.TrimSpace(l.buf.String())
	l.buf.Reset()
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}

func (l *lines) logger(level slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{
		Level: level,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	}))
}

var denied = ratelimit.Result{Limit: 10, RetryAfter: 1500 * time.Millisecond}

// tell notifies o of a decision on one event.
func tell(o ratelimit.Observer, key string, r ratelimit.Result, err error) {
	o.Decided(context.Background(), key, 1, r, err, 0)
}

func TestTheFirstDenialOfAnEpisodeIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out lines
		o := observe.Logger(out.logger(slog.LevelInfo).With("limiter", "api"))
		tell(o, "user:1", ratelimit.Result{Allowed: true, Limit: 10}, nil)
		require.Empty(t, out.take())
		first := `level=INFO msg="ratelimit: denied" limiter=api key=user:1 n=1 limit=10 source=store retry_after=1.5s`
		tell(o, "user:1", denied, nil)
		require.Equal(t, []string{first}, out.take())
		for range 5 { // an episode lasts as long as the denials
			time.Sleep(50 * time.Second)
			tell(o, "user:1", denied, nil)
			require.Empty(t, out.take())
		}
		time.Sleep(2 * time.Minute)
		tell(o, "user:1", denied, nil)
		require.Equal(t, []string{first}, out.take())
		tell(o, "user:2", ratelimit.Result{RetryAfter: ratelimit.Never}, nil)
		require.Equal(t, []string{`level=INFO msg="ratelimit: denied" limiter=api key=user:2 n=1 limit=0 source=zero_rate retry_after=never`}, out.take())
		tell(o, "user:3", deniedBy(t, "per_user"), nil)
		require.Contains(t, out.take()[0], "denied_by=per_user")
	})
}

// The logged limit is the limit that denied, even if another one has fewer events left.
func TestTheLimitOfADenialIsThatOfItsName(t *testing.T) {
	mem := ratelimit.Must(memstore.New())
	calls := ratelimit.Must(ratelimit.NewSlidingLog(mem, ratelimit.PerHour(20), ratelimit.WithName("calls"), ratelimit.CountCalls()))
	tokens := ratelimit.Must(ratelimit.NewTokenBucket(mem, ratelimit.PerHour(2000), ratelimit.WithName("tokens")))
	free := ratelimit.Must(ratelimit.NewFixedWindow(mem, ratelimit.PerHour(5), ratelimit.WithName("free"), ratelimit.CountCalls()))
	for _, limits := range [][]ratelimit.Limiter{{calls, tokens}, {tokens, calls}, {calls, free, tokens}} {
		var out lines
		l := ratelimit.Must(observe.Around(ratelimit.Must(ratelimit.NewAll(limits...)), observe.Logger(out.logger(slog.LevelInfo))))
		_, err := l.AllowN(t.Context(), "key", 2001)
		require.NoError(t, err)
		require.Contains(t, out.take()[0], "limit=2000 source=store denied_by=tokens")
	}

	var out lines
	day := ratelimit.Must(ratelimit.NewTokenBucket(mem, ratelimit.PerDay(9), ratelimit.WithName("day")))
	last := ratelimit.Must(ratelimit.NewTokenBucket(mem, ratelimit.Limit{Rate: 3, Period: 3650 * 24 * time.Hour}, ratelimit.WithName("last")))
	l := ratelimit.Must(observe.Around(ratelimit.Must(ratelimit.NewFirst(last, day)), observe.Logger(out.logger(slog.LevelInfo))))
	for _, n := range []int{3, 9, 1} {
		_, err := l.AllowN(t.Context(), "key", n)
		require.NoError(t, err)
	}
	require.Contains(t, out.take()[0], "limit=9 source=store denied_by=day")
}

// TestAWaitHasItsUnitInJSON exists because a duration in JSON is a number of nanoseconds.
func TestAWaitHasItsUnitInJSON(t *testing.T) {
	var out lines
	tell(observe.Logger(slog.New(slog.NewJSONHandler(&out, nil))), "user:1", denied, nil)
	require.Contains(t, out.take()[0], `"retry_after":"1.5s"`)
}

func TestKeysInLogsAreShortOrHidden(t *testing.T) {
	long := strings.Repeat("x", 1000)
	for want, opts := range map[string][]observe.LogOption{
		" key=" + long[:128] + " ": {nil},
		" key=hidden ":             {observe.WithLoggedKey(func(string) string { return "hidden" })},
		`denied" n=1 `:             {observe.WithLoggedKey(nil)},
	} {
		var out lines
		tell(observe.Logger(out.logger(slog.LevelInfo), opts...), long, denied, nil)
		require.Contains(t, out.take()[0], want)
	}
}

func TestAStoreThatFailsIsLogged(t *testing.T) {
	var out lines
	o := observe.Logger(out.logger(slog.LevelInfo))
	from := func(source ratelimit.Source) ratelimit.Result {
		return ratelimit.Result{Allowed: true, Limit: 1}.WithMark(ratelimit.NewMark(t, source, nil))
	}
	for _, step := range []struct {
		source ratelimit.Source
		line   string
	}{
		{ratelimit.SourceStore, ""},
		{ratelimit.SourceFailOpen, `level=WARN msg="ratelimit: the store fails" source=fail_open before=store`},
		{ratelimit.SourceFailOpen, ""},
		{ratelimit.SourceList, ""}, // no store was asked
		{ratelimit.SourceUnlimited, ""},
		{ratelimit.SourceDenyCache, ""},
		{ratelimit.SourceLease, ""},
		{ratelimit.SourceLocal, `level=WARN msg="ratelimit: the store fails" source=local before=fail_open`},
		{ratelimit.SourceStore, `level=INFO msg="ratelimit: the store decides again" source=store before=local`},
		{ratelimit.SourceStore, ""},
	} {
		tell(o, "key", from(step.source), nil)
		require.Equal(t, step.line, strings.Join(out.take(), "\n"), step.source)
	}
}

func TestErrorsAreLoggedOnceAMinuteByClass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out lines
		o := observe.Logger(out.logger(slog.LevelInfo))
		for range 3 {
			tell(o, "key", ratelimit.Result{}, store.ErrTimeout)
			tell(o, "key", ratelimit.Result{}, context.Canceled)
			time.Sleep(time.Second)
		}
		require.Equal(t, []string{
			`level=WARN msg="ratelimit: no decision" class=timeout calls=1 error="ratelimit: store failed: timeout"`,
			`level=INFO msg="ratelimit: no decision" class=canceled calls=1 error="context canceled"`,
		}, out.take())
		time.Sleep(57 * time.Second)
		tell(o, "key", ratelimit.Result{}, store.ErrTimeout)
		require.Equal(t, []string{
			`level=WARN msg="ratelimit: no decision" class=timeout calls=3 error="ratelimit: store failed: timeout"`,
		}, out.take())
	})
}

func TestLinesLeftOutAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out lines
		o := observe.Logger(out.logger(slog.LevelInfo))
		for i := range 100 {
			tell(o, fmt.Sprint("user:", i), denied, nil)
		}
		require.Len(t, out.take(), 8)
		for _, err := range []error{store.ErrTimeout, store.ErrCorrupt, store.ErrUnavailable} { // lines are reserved for errors
			tell(o, "key", ratelimit.Result{}, err)
		}
		require.Len(t, out.take(), 2)
		time.Sleep(time.Second)
		tell(o, "key", ratelimit.Result{Allowed: true}, nil)
		require.Equal(t, []string{`level=WARN msg="ratelimit: lines left out" lines=93`}, out.take())
		for i := range 100 {
			tell(o, fmt.Sprint("other:", i), denied, nil)
		}
		require.Len(t, out.take(), 7)
	})
}

// An error whose line was left out is logged a second later, not a minute later, because it may be
// the only error that shows the cause.
func TestAnErrorWhoseLineWasLeftOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out lines
		o := observe.Logger(out.logger(slog.LevelInfo))
		for i := range 8 {
			tell(o, fmt.Sprint("user:", i), denied, nil)
		}
		tell(o, "key", ratelimit.Result{}, context.Canceled)
		tell(o, "key", ratelimit.Result{}, context.DeadlineExceeded)
		require.Len(t, out.take(), 10)
		for range 100 {
			tell(o, "key", ratelimit.Result{}, store.ErrOverloaded)
		}
		require.Empty(t, out.take())
		time.Sleep(time.Second)
		for range 100 {
			tell(o, "key", ratelimit.Result{}, store.ErrOverloaded)
		}
		got := out.take()
		require.Len(t, got, 2)
		require.Equal(t, `level=WARN msg="ratelimit: lines left out" lines=1`, got[0])
		require.Contains(t, got[1], "class=overloaded calls=101 ")
		time.Sleep(time.Minute)
		tell(o, "key", ratelimit.Result{}, store.ErrOverloaded)
		require.Contains(t, out.take()[0], "class=overloaded calls=100 ")
	})
}

func TestLinesOfALevelThatIsOffTakeNoRoom(t *testing.T) {
	var out lines
	o := observe.Logger(out.logger(slog.LevelWarn))
	for i := range 100 {
		tell(o, fmt.Sprint("user:", i), denied, nil)
	}
	require.Empty(t, out.take())
	for _, err := range []error{store.ErrTimeout, store.ErrCorrupt, store.ErrUnavailable} {
		tell(o, "key", ratelimit.Result{}, err)
	}
	require.Len(t, out.take(), 3)
}

func TestLoggingIsBounded(t *testing.T) {
	var out lines
	o := observe.Logger(out.logger(slog.LevelError))
	flood := func(n int) {
		for i := range n {
			tell(o, fmt.Sprint("user:", i), denied, nil)
		}
	}
	flood(20_000)
	heap := heapBytes()
	flood(200_000)
	require.Less(t, heapBytes(), heap+1<<16)
	tell(o, "user:1", denied, nil)
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		tell(o, "user:1", denied, nil)
		tell(o, "user:1", ratelimit.Result{Allowed: true, Limit: 1}, nil)
		tell(o, "user:1", ratelimit.Result{}, store.ErrTimeout)
	}))
}

func TestLoggerIsSafeForConcurrentUse(t *testing.T) {
	var (
		out lines
		wg  sync.WaitGroup
	)
	o := observe.Logger(out.logger(slog.LevelInfo))
	for c := range 8 {
		wg.Go(func() {
			for i := range 1000 {
				source := ratelimit.Source(i / 10 % 4)
				tell(o, fmt.Sprint(c, i), denied.WithMark(ratelimit.NewMark(&out, source, nil)), nil)
				tell(o, "key", ratelimit.Result{}, store.ErrTimeout)
			}
		})
	}
	wg.Wait()
	require.NotEmpty(t, out.take())
}

func TestLoggerWithoutALogger(t *testing.T) {
	var out lines
	old := slog.Default()
	defer slog.SetDefault(old)
	slog.SetDefault(out.logger(slog.LevelInfo))
	tell(observe.Logger(nil), "key", denied, nil)
	require.Len(t, out.take(), 1)
}
