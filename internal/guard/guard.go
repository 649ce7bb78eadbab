// Package guard is shared by packages httplimit and grpclimit: the keys of calls, the options, and
// how a limiter is asked about a call. Each of the two packages answers calls in its own way. The
// type parameter C is a call: an *http.Request, or a call of gRPC.
package guard

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/cooldown"
	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/internal/see"
)

// Config is set by options. Each With… method does the work of the option with that name.
type Config[C any] struct {
	Admission
	Key  Key[C]
	Cost func(C) int  // nil: 1
	Skip func(C) bool // nil: no call

	Addr       func(C) netip.Addr // for servers; nil: the address in Key, if it has one
	InContext  bool               // for servers: handlers get the decision
	SlotRetry  time.Duration      // for servers; 0 unless set
	CancelLost bool               // for servers
	Refunds    bool               // whether WithRefund is set
}

// New returns the Config of l without options.
func New[C any](l ratelimit.Limiter, key Key[C]) (Config[C], error) {
	if isnil.Is(l) {
		return Config[C]{}, Invalid("the limiter is nil")
	}
	a := Admission{Limiter: l, Holder: l, Pauses: new(cooldown.Set), slots: see.Held(l), fixed: see.Fixed(l)}
	return Config[C]{Admission: a, Key: key}, nil
}

// ApplyClient applies opts to the c of a client, which waits for its limiter unless it refuses.
func ApplyClient[C, O any](c *Config[C], opts []O, apply func(O) error) error {
	if err := Apply(c, opts, apply); err != nil {
		return err
	}
	if sleeper, sleeps := see.Sleeping(c.Limiter); sleeps && !c.Refuse {
		return Invalid("a client that waits would ignore the maximum of a %T: use WithoutWaiting, with which the %[2]T waits", sleeper)
	}
	return nil
}

// Apply applies opts to c. It returns the error of an option, or of options that cannot be combined.
func Apply[C, O any](c *Config[C], opts []O, apply func(O) error) error {
	for _, opt := range opts {
		if isnil.Is(opt) {
			return Invalid("an option is nil")
		}
		if err := apply(opt); err != nil {
			return err
		}
	}
	switch {
	case (c.hold != nil || c.SlotRetry > 0 || c.CancelLost) && !c.Holds():
		return Invalid("WithSlots, WithSlotRetryAfter and WithCancelLost need a limiter that counts slots (package inflight)")
	case c.Refunds && see.OnlyHeld(c.Limiter):
		return Invalid("WithRefund has no effect on a limiter that counts only slots, because each of them is given back")
	case c.waits && c.Refuse:
		return Invalid("inflight.WaitUpTo cannot be combined with WithoutWaiting")
	}
	return nil
}

// Invalid returns an error that wraps [ratelimit.ErrInvalidOption].
func Invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ratelimit.ErrInvalidOption}, args...)...)
}

// WithKey sets the Key.
func (c *Config[C]) WithKey(k Key[C]) error {
	c.Key = k
	return k.Check()
}

// WithClientAddr sets the Key that knows the address.
func (c *Config[C]) WithClientAddr(k Key[C]) error {
	if err := k.Check(); err != nil {
		return err
	}
	if c.Addr = k.Addr; c.Addr == nil {
		return Invalid("WithClientAddr: the Key contains neither a PeerIP nor a ClientIP")
	}
	return nil
}

// Skips reports whether a call bypasses the limiter.
func (c *Config[C]) Skips(call C) bool { return c.Skip != nil && c.Skip(call) }

// Costs returns how many events a call costs.
func (c *Config[C]) Costs(call C) int {
	if c.Cost == nil {
		return 1
	}
	return c.Cost(call)
}
