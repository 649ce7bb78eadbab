package carrier

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// answer is an error that the server answered.
type answer string

func (a answer) Error() string { return string(a) }

func meaning(err error) Meaning {
	var a answer
	if errors.As(err, &a) {
		return Answered
	}
	return Unknown
}

// plain is a server that is not reached, of a client with a large pool.
func plain() Config[int] {
	return Config[int]{
		Timeout: 250 * ms, Conns: 20, DialTimeout: 5 * time.Second, Means: meaning,
		Send:  func(context.Context, *Trip[int]) error { return io.EOF },
		Alone: func(_ Budget, call int) (int, bool, error) { return call, false, io.EOF },
	}
}

func made(t testing.TB, config Config[int]) *Carrier[int] {
	p, err := New(config)
	require.NoError(t, err)
	return p
}

// full returns a carrier that has no room for one more call.
func full(t testing.TB) *Carrier[int] {
	p := made(t, plain())
	p.pulse.beat()
	p.forecast.admitted.Store(mostAdmitted)
	p.refusal.retriers.limit.Store(mostCount)
	return p
}

// far returns a carrier with a ready connection to a server that is 10 ms away. Trips take 12 ms, and it rests.
func far(t testing.TB) *Carrier[int] {
	p, now := full(t), time.Now()
	p.forecast.admitted.Store(100)
	p.distance = distance{least: 10 * ms, since: now, probed: now}
	p.usualTrip, p.quickTrip = 12*ms, 12*ms
	p.conns.ready, p.conns.used = 1, now
	return p
}

// occupy has as many round trips under way as there may be, until it is called back.
func (p *Carrier[C]) occupy() (release func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.trips += mostConns
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.trips -= mostConns
		p.start(time.Now())
	}
}

// failure is err as the failure of a call.
func failure(t testing.TB, err error) *Failure {
	var f *Failure
	require.ErrorAs(t, err, &f)
	return f
}

// call makes a call as a store does.
func (p *Carrier[C]) call(ctx context.Context, call C) (C, error) {
	b := p.Begin(ctx)
	if err := p.Admit(&b); err != nil {
		return call, err
	}
	defer b.Leave()
	for {
		after, err := p.Do(b, call)
		var f *Failure
		if err == nil || !errors.As(err, &f) {
			return after, err
		}
		if !b.Again(f) {
			return call, b.Fail(f)
		}
	}
}
