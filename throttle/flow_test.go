package throttle_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/fallback"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/internal/testkit"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
	"github.com/ratelimit-go/ratelimit/store/lease"
	"github.com/ratelimit-go/ratelimit/store/memstore"
	"github.com/ratelimit-go/ratelimit/throttle"
)

// aSecond is a limit of 100 bytes per second, with a burst of 20.
var aSecond = ratelimit.Limit{Rate: 100, Period: time.Second, Burst: 20}

// counting records the largest write to a writer.
type counting struct {
	bytes.Buffer
	most int
}

func (c *counting) Write(p []byte) (int, error) {
	c.most = max(c.most, len(p))
	return c.Buffer.Write(p)
}

func reader(t *testing.T, ctx context.Context, from io.Reader, l ratelimit.Limiter) *throttle.Reader {
	t.Helper()
	r, err := throttle.NewReader(ctx, from, l, "key")
	require.NoError(t, err)
	return r
}

func writer(t *testing.T, ctx context.Context, to io.Writer, l ratelimit.Limiter) *throttle.Writer {
	t.Helper()
	w, err := throttle.NewWriter(ctx, to, l, "key")
	require.NoError(t, err)
	return w
}

func TestBytesFlowAtTheRateOfTheLimiter(t *testing.T) {
	text := strings.Repeat("0123456789", 22) // 220 bytes, of which 20 go at once
	for name, pipe := range map[string]func(t *testing.T, lim ratelimit.Limiter) (string, error){
		"Reader": func(t *testing.T, lim ratelimit.Limiter) (string, error) {
			got, err := io.ReadAll(reader(t, t.Context(), strings.NewReader(text), lim))
			return string(got), err
		},
		"Reader, byte by byte": func(t *testing.T, lim ratelimit.Limiter) (string, error) {
			got, err := io.ReadAll(reader(t, t.Context(), iotest.OneByteReader(strings.NewReader(text)), lim))
			return string(got), err
		},
		"Reader, the end with the last bytes": func(t *testing.T, lim ratelimit.Limiter) (string, error) {
			got, err := io.ReadAll(reader(t, t.Context(), iotest.DataErrReader(strings.NewReader(text)), lim))
			return string(got), err
		},
		"Writer": func(t *testing.T, lim ratelimit.Limiter) (string, error) {
			var to counting
			n, err := io.WriteString(writer(t, t.Context(), &to, lim), text)
			require.Equal(t, len(text), n)
			require.Equal(t, 20, to.most, "no more at once than the Burst")
			return to.String(), err
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, "token_bucket", aSecond, func(t *testing.T, lim ratelimit.Limiter) {
				began := time.Now()
				got, err := pipe(t, lim)
				require.NoError(t, err)
				require.Equal(t, text, got)
				require.Equal(t, 2*time.Second, time.Since(began))
			})
		})
	}
}

func TestReadersAndWritersOfAKeyShareItsRate(t *testing.T) {
	inBubble(t, "token_bucket", aSecond, func(t *testing.T, lim ratelimit.Limiter) {
		began := time.Now()
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				_, err := io.Copy(io.Discard, struct{ io.Reader }{reader(t, t.Context(), strings.NewReader(strings.Repeat("x", 55)), lim)})
				require.NoError(t, err)
			})
		}
		all.Wait()
		require.Equal(t, 2*time.Second, time.Since(began))
	})
}

func TestALimitThatIsLoweredMeanwhileLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := aSecond
		lim := inMemory(t, "token_bucket", aSecond, ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) {
			return limit, nil
		}))
		lowers := readerFunc(func(p []byte) (int, error) {
			limit.Burst = 3
			return len(p), nil
		})
		n, err := reader(t, t.Context(), lowers, lim).Read(make([]byte, 100))
		require.NoError(t, err)
		require.Equal(t, 20, n)
	})
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestAWaitThatFailsEndsTheReading(t *testing.T) {
	inBubble(t, "token_bucket", aSecond, func(t *testing.T, lim ratelimit.Limiter) {
		ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
		defer cancel()
		from := strings.NewReader(strings.Repeat("x", 100))
		r := reader(t, ctx, from, lim)
		n, err := r.Read(make([]byte, 100))
		require.Equal(t, 20, n)
		require.NoError(t, err)
		for range 2 { // 20 more would come after 200 ms
			n, err = r.Read(make([]byte, 100))
			require.Zero(t, n)
			require.ErrorIs(t, err, ratelimit.ErrWouldExceedDeadline)
			require.Equal(t, 60, from.Len(), "nothing is read behind a gap")
		}
	})
}

func TestAWriterSaysHowFarItCame(t *testing.T) {
	inBubble(t, "token_bucket", aSecond, func(t *testing.T, lim ratelimit.Limiter) {
		ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
		defer cancel()
		n, err := writer(t, ctx, io.Discard, lim).Write(make([]byte, 100))
		require.Equal(t, 20, n)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
	inBubble(t, "fixed_window", ratelimit.PerSecond(20), func(t *testing.T, lim ratelimit.Limiter) {
		broken := errors.New("broken pipe")
		n, err := writer(t, t.Context(), writerFunc(func(p []byte) (int, error) { return 7, broken }), lim).Write(make([]byte, 100))
		require.Equal(t, 7, n)
		require.ErrorIs(t, err, broken)
		n, err = writer(t, t.Context(), writerFunc(func(p []byte) (int, error) { return 7, nil }), lim).Write(make([]byte, 100))
		require.Equal(t, 7, n)
		require.ErrorIs(t, err, io.ErrShortWrite)
	})
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestNoBytesNeedNoPermit(t *testing.T) {
	inBubble(t, "token_bucket", ratelimit.PerHour(0), func(t *testing.T, lim ratelimit.Limiter) {
		n, err := reader(t, t.Context(), strings.NewReader(""), lim).Read(make([]byte, 10))
		require.Zero(t, n)
		require.Equal(t, io.EOF, err)
		_, err = writer(t, t.Context(), io.Discard, lim).Write(nil)
		require.NoError(t, err)
		_, err = writer(t, t.Context(), io.Discard, lim).Write([]byte("x"))
		require.ErrorIs(t, err, ratelimit.ErrNever)
		_, err = reader(t, t.Context(), strings.NewReader("x"), lim).Read(make([]byte, 10))
		require.ErrorIs(t, err, ratelimit.ErrNever)
	})
}

func TestReadersAndWritersRefuseWhatCannotWork(t *testing.T) {
	inBubble(t, "token_bucket", aSecond, func(t *testing.T, lim ratelimit.Limiter) {
		slots := ratelimit.Must(inflight.New(ratelimit.Must(memstore.New()), 5, time.Minute)) // a Read would lose the bytes
		for _, c := range []struct {
			stream io.ReadWriter
			lim    ratelimit.Limiter
			key    string
			want   error
		}{
			{nil, lim, "key", ratelimit.ErrInvalidOption},
			{(*bytes.Buffer)(nil), lim, "key", ratelimit.ErrInvalidOption},
			{new(bytes.Buffer), nil, "key", ratelimit.ErrInvalidOption},
			{new(bytes.Buffer), slots, "key", ratelimit.ErrInvalidOption},
			{new(bytes.Buffer), lim, "", ratelimit.ErrInvalidKey},
		} {
			_, err := throttle.NewReader(t.Context(), c.stream, c.lim, c.key)
			require.ErrorIs(t, err, c.want)
			_, err = throttle.NewWriter(t.Context(), c.stream, c.lim, c.key)
			require.ErrorIs(t, err, c.want)
		}
	})
}

// A First goes on to its second limiter if the first one admits nothing, and so do the bytes.
func TestBytesFlowInPiecesOfTheLimiterOfAFirstThatAdmitsAny(t *testing.T) {
	of := ratelimit.Limit{Rate: 1 << 20, Period: time.Second, Burst: 1 << 10}
	l := ratelimit.Must(ratelimit.NewFirst(inMemory(t, "token_bucket", ratelimit.PerSecond(0)), inMemory(t, "token_bucket", of)))
	var to counting
	n, err := writer(t, t.Context(), &to, l).Write(make([]byte, 1500))
	require.NoError(t, err)
	require.Equal(t, 1500, n)
	require.Equal(t, 1<<10, to.most)
	n, err = reader(t, t.Context(), strings.NewReader(strings.Repeat("x", 1500)), l).Read(make([]byte, 1500))
	require.NoError(t, err)
	require.Equal(t, 1<<10, n)

	none := ratelimit.Must(ratelimit.NewFirst(inMemory(t, "token_bucket", ratelimit.PerSecond(0))))
	_, err = writer(t, t.Context(), &to, none).Write(make([]byte, 1500))
	require.ErrorIs(t, err, ratelimit.ErrNever)
}

// A limit that counts calls admits any number of bytes in one.
func TestBytesFlowInPiecesOfTheLimitThatCountsThem(t *testing.T) {
	of := ratelimit.Limit{Rate: 1 << 20, Period: time.Second, Burst: 1 << 10}
	calls := inMemory(t, "token_bucket", ratelimit.PerHour(1000), ratelimit.CountCalls())
	l := ratelimittest.All(t, calls, inMemory(t, "token_bucket", of))
	var to counting
	n, err := writer(t, t.Context(), &to, l).Write(make([]byte, 1500))
	require.NoError(t, err)
	require.Equal(t, 1500, n)
	require.Equal(t, 1<<10, to.most)
	n, err = reader(t, t.Context(), strings.NewReader(strings.Repeat("x", 1500)), calls).Read(make([]byte, 1500))
	require.NoError(t, err)
	require.Equal(t, 1500, n)
	r, err := calls.Peek(t.Context(), "key")
	require.NoError(t, err)
	require.Equal(t, 1000-3, r.Remaining)
}

// A lease admits fewer bytes at once than the limit does. In an outage, an instance admits its share, which
// is enough for the reads of io.Copy here.
func TestBytesFlowThroughASmallerLimit(t *testing.T) {
	limit := ratelimit.Limit{Rate: 64 << 10, Period: time.Second, Burst: 32 << 10}
	text := strings.Repeat("x", 1<<20)
	for name, of := range map[string]func(t *testing.T) ratelimit.Limiter{
		"on a lease": func(t *testing.T) ratelimit.Limiter {
			leases := ratelimit.Must(lease.New(ratelimit.Must(memstore.New()), 50*time.Millisecond))
			t.Cleanup(func() { _ = leases.Close(context.Background()) })
			return ratelimit.Must(ratelimit.NewTokenBucket(leases, limit))
		},
		"in an outage": func(*testing.T) ratelimit.Limiter {
			return ratelimit.Must(fallback.New(ratelimit.Must(ratelimit.NewTokenBucket(testkit.Away{Store: ratelimit.Must(memstore.New())}, ratelimit.Limit{Rate: 64 << 10, Period: time.Second, Burst: 64 << 10})), fallback.FailLocal(2)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				l := of(t)
				r, err := throttle.NewReader(ctx, strings.NewReader(text), l, "reader")
				require.NoError(t, err)
				n, err := io.Copy(struct{ io.Writer }{io.Discard}, r)
				require.NoError(t, err)
				require.EqualValues(t, len(text), n)
				w, err := throttle.NewWriter(t.Context(), io.Discard, l, "writer")
				require.NoError(t, err)
				m, err := io.Copy(w, struct{ io.Reader }{strings.NewReader(text)})
				require.NoError(t, err)
				require.EqualValues(t, len(text), m)
			})
		})
	}
}
