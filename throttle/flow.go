package throttle

import (
	"context"
	"fmt"
	"io"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/store"
)

// Reader reads no more bytes than a limiter admits: an event is a byte. It reads what is there, and
// then waits for as many permits, by [ratelimit.Wait]. All that read and write with one key of the
// limiter share its rate. A token bucket gives the smoothest flow:
//
//	ratelimit.NewTokenBucket(store, ratelimit.Limit{Rate: 1 << 20, Period: time.Second, Burst: 64 << 10})
//
// No Read is for more bytes than the limit has at one instant: the Burst of a bucket, the Rate of a
// window. A bucket that is small beside what callers read at once costs more calls of its store.
// A limiter without policies is asked for all that was read, and may say [ratelimit.ErrNever].
//
// Errors of the wait end it: the bytes that it was for are lost, and all further Reads return the
// same error. It is not safe for concurrent use. Make it by [NewReader].
type Reader struct {
	flow
	from io.Reader
	err  error // of a wait
}

// Writer writes no more bytes than a limiter admits: an event is a byte. It waits for the permits by
// [ratelimit.Wait], and writes then, at most as many bytes at once as the limit has at one instant.
// What fails to be written stays charged. See [Reader] for the limiter.
//
// It is safe for concurrent use as far as the writer below it is. Make it by [NewWriter].
type Writer struct {
	flow
	to io.Writer
}

// NewReader returns a Reader of r. The key and the limiter are those of [ratelimit.Wait], and so
// is ctx, whose end ends the reading: [io.Reader] has none. The error is
// [ratelimit.ErrInvalidOption] if r or l is nil, and [ratelimit.ErrInvalidKey].
func NewReader(ctx context.Context, r io.Reader, l ratelimit.Limiter, key string) (*Reader, error) {
	f, err := newFlow(ctx, r, l, key)
	if err != nil {
		return nil, err
	}
	return &Reader{flow: f, from: r}, nil
}

// NewWriter returns a Writer to w. Its arguments and errors are those of [NewReader].
func NewWriter(ctx context.Context, w io.Writer, l ratelimit.Limiter, key string) (*Writer, error) {
	f, err := newFlow(ctx, w, l, key)
	if err != nil {
		return nil, err
	}
	return &Writer{flow: f, to: w}, nil
}

// Read reads at most len(p) bytes, and waits until they are admitted.
func (r *Reader) Read(p []byte) (int, error) {
	if r.err != nil {
		return 0, r.err
	}
	n, err := r.from.Read(p[:r.most(len(p))])
	for admitted := 0; admitted < n; {
		more, err := r.wait(n - admitted)
		if err != nil {
			r.err = err
			return 0, err
		}
		admitted += more
	}
	return n, err
}

// Write writes p. The error is that of the wait or of the writer, after n bytes.
func (w *Writer) Write(p []byte) (n int, err error) {
	if len(p) == 0 {
		return w.to.Write(p)
	}
	for n < len(p) {
		admitted, err := w.wait(len(p) - n)
		if err != nil {
			return n, err
		}
		written, err := w.to.Write(p[n : n+admitted])
		n += written
		if err != nil {
			return n, err
		}
		if written < admitted {
			return n, io.ErrShortWrite
		}
	}
	return n, nil
}

// flow waits for the bytes of a key.
type flow struct {
	ctx     context.Context // Read and Write have none
	limiter ratelimit.Limiter
	key     string
}

func newFlow(ctx context.Context, stream any, l ratelimit.Limiter, key string) (flow, error) {
	switch {
	case isnil.Is(stream):
		return flow{}, fmt.Errorf("%w: the Reader or Writer is nil", ratelimit.ErrInvalidOption)
	case isnil.Is(l):
		return flow{}, fmt.Errorf("%w: the limiter is nil", ratelimit.ErrInvalidOption)
	}
	return flow{ctx, l, key}, store.CheckCall(context.WithoutCancel(ctx), key, 1)
}

// most is how many of n bytes can be admitted at once, and 1 if none ever can: the wait says so.
func (f *flow) most(n int) int {
	var room [4]ratelimit.Policy
	policies, err := ratelimit.AppendPolicies(f.ctx, room[:0], f.limiter, f.key)
	if err != nil { // the wait has it too
		return n
	}
	for _, p := range policies {
		n = min(n, max(1, p.Quota))
	}
	return n
}

// wait waits for some of n bytes.
func (f *flow) wait(n int) (admitted int, err error) {
	admitted = f.most(n)
	_, err = ratelimit.Wait(f.ctx, f.limiter, f.key, admitted)
	return admitted, err
}
