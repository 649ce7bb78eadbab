// Package guard has what packages httplimit and grpclimit share: the keys of calls, the options, and how a limiter is
// asked about a call. Each of the two packages answers calls in its own way. The type parameter C is a call: an
// *http.Request, or a call of gRPC.
package guard

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/internal/cooldown"
	"github.com/ratelimit-go/ratelimit/internal/isnil"
	"github.com/ratelimit-go/ratelimit/internal/see"
)

// Config holds what options set. Each method With… does the work of the option of that name.
type Config[C any] struct {
	Admission
	Key  Key[C]
	Cost func(C) int  // nil: 1
	Skip func(C) bool // nil: no call

	Addr       func(C) netip.Addr // of a server; nil: that of Key, if it has one
	InContext  bool               // of a server: handlers learn the decision
	SlotRetry  time.Duration      // of a server; 0 unless set
	CancelLost bool               // of a server
}

// New returns the Config of l without options.
func New[C any](l ratelimit.Limiter, key Key[C]) (Config[C], error) {
	if isnil.Is(l) {
		return Config[C]{}, Invalid("the limiter is nil")
	}
	a := Admission{Limiter: l, Holder: l, Pauses: new(cooldown.Set), slots: inflight.Has(l), fixed: see.Fixed(l)}
	return Config[C]{Admission: a, Key: key}, nil
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
		return Invalid("WithSlots, WithSlotRetryAfter and WithCancelLost are for a limiter with slots (package inflight)")
	case c.waits && c.Refuse:
		return Invalid("inflight.WaitUpTo beside WithoutWaiting")
	}
	return nil
}

// Invalid returns an error that wraps [ratelimit.ErrInvalidOption].
func Invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ratelimit.ErrInvalidOption}, args...)...)
}

// Given returns an error for an option whose argument is nil, unless ok.
func Given(ok bool, option string) error {
	if !ok {
		return Invalid("%s(nil)", option)
	}
	return nil
}

// WithKey sets the Key.
func (c *Config[C]) WithKey(k Key[C]) error {
	c.Key = k
	return k.Check()
}

// WithClientAddr sets the Key that has the address.
func (c *Config[C]) WithClientAddr(k Key[C]) error {
	if err := k.Check(); err != nil {
		return err
	}
	if c.Addr = k.Addr; c.Addr == nil {
		return Invalid("WithClientAddr: neither a PeerIP nor a ClientIP is in the Key")
	}
	return nil
}

// WithSlotRetryAfter sets SlotRetry, above 0.
func (c *Config[C]) WithSlotRetryAfter(d time.Duration) error {
	c.SlotRetry = d
	return above0(d, "WithSlotRetryAfter")
}

func above0(d time.Duration, option string) error {
	if d <= 0 {
		return Invalid("%s(%v)", option, d)
	}
	return nil
}

// Skips reports whether a call bypasses the limiter.
func (c *Config[C]) Skips(call C) bool { return c.Skip != nil && c.Skip(call) }

// Costs returns how many events a call is.
func (c *Config[C]) Costs(call C) int {
	if c.Cost == nil {
		return 1
	}
	return c.Cost(call)
}
