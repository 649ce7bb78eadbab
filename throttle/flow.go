package throttle

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/internal/see"
	"github.com/ratelimit-go/ratelimit/store"
)

// Reader limits how many bytes it reads: each byte is an event of a limiter. It reads the bytes
// that are available, and then waits until the limiter admits them, as [ratelimit.Wait] does. All
// Readers and Writers with the same key of the limiter share its rate. A token bucket gives the
// smoothest flow:
//
//	ratelimit.NewTokenBucket(store, ratelimit.Limit{Rate: 1 << 20, Period: time.Second, Burst: 64 << 10})
//
// A Read returns no more bytes than the limit admits at one instant: the Burst of a bucket, or the
// Rate of a window. If the bucket is small compared with the bytes that callers read at a time,
// more calls to its store are needed. If a lease admits fewer bytes at once, the Reader asks for
// half as many. If the limiter has no policies, the Reader asks it for all bytes that were read,
// and the limiter may return [ratelimit.ErrNever].
//
// If a wait fails, the bytes that it was for are lost, and all further Reads return the same error.
// A Reader is not safe for concurrent use. Use [NewReader] to create one.
type Reader struct {
	flow
	from io.Reader
	err  error // the error of a wait
}

// Writer limits how many bytes it writes: each byte is an event of a limiter. It waits for permits,
// as [ratelimit.Wait] does, and then writes, in pieces no larger than the limit admits at one
// instant. Bytes that could not be written stay charged. For the choice of the limiter, see
// [Reader].
//
// A Writer is safe for concurrent use if the underlying writer is. Use [NewWriter] to create one.
type Writer struct {
	flow
	to io.Writer
}

// NewReader returns a Reader that reads from r. It calls [ratelimit.Wait] with ctx, l and key. When
// ctx ends, reading ends, because [io.Reader] has no context of its own. NewReader returns
// [ratelimit.ErrInvalidOption] if r or l is nil, or if l counts slots or contains a [Waiter], and [ratelimit.ErrInvalidKey] if key is
// invalid.
func NewReader(ctx context.Context, r io.Reader, l ratelimit.Limiter, key string) (*Reader, error) {
	f, err := newFlow(ctx, r, l, key)
	if err != nil {
		return nil, err
	}
	return &Reader{flow: f, from: r}, nil
}

// NewWriter returns a Writer that writes to w. Its other arguments and its errors are those of
// [NewReader].
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
	n, err := r.from.Read(p[:r.most(r.limiter, len(p))])
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

// Write writes p. If a wait or the underlying writer fails, it returns that error and the number of
// bytes written before.
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
	if err := see.NoWait(l); err != nil {
		return flow{}, err
	}
	return flow{ctx, l, key}, store.CheckCall(context.WithoutCancel(ctx), key, 1)
}

// most returns how many of n bytes l can admit at the same time. If it never admits any, the wait returns the error.
func (f *flow) most(l ratelimit.Limiter, n int) int {
	if see.Calls(l) { // a call for any number of bytes is one event of the limits that count calls
		if !see.Behind(l).Calls {
			for _, inside := range see.Inside(l) {
				n = f.most(inside, n)
			}
		}
		return n
	}
	var room [4]ratelimit.Policy
	policies, err := ratelimit.AppendPolicies(f.ctx, room[:0], l, f.key)
	if err != nil { // the wait returns it too
		return n
	}
	either := see.Alternatives(f.limiter)
	for _, p := range policies {
		if p.Quota > 0 || !either { // otherwise another limiter of a First may admit more
			n = min(n, max(1, p.Quota))
		}
	}
	return n
}

// wait waits for some of n bytes.
func (f *flow) wait(n int) (admitted int, err error) {
	for admitted = f.most(f.limiter, n); ; admitted = (admitted + 1) / 2 { // a lease admits fewer at once than the policy says
		if _, err = ratelimit.Wait(f.ctx, f.limiter, f.key, admitted); admitted == 1 || !errors.Is(err, ratelimit.ErrNever) {
			return admitted, err
		}
	}
}
