package storetest

import (
	"fmt"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// question is a request for n events. If within is set, they may wait for at most d µs.
type question struct {
	n      int64
	within bool
	d      int64
	peek   bool

	reserved int64 // events that must fit as well
}

// admitted reports whether the request would be admitted at t.
func (q question) admitted(m model, l limit, t int64) bool {
	if q.within && (q.reserved == 0 || m.delays()) { // otherwise, events that are admitted ahead of their time would be missing
		return m.inTime(l, t, q.n+q.reserved, q.d)
	}
	return m.fits(l, t, q.n+q.reserved)
}

// judge returns what is wrong with r, the answer to q at a reading of the clock. If r is an
// admission and not a Peek, it charges the events to m.
func judge(m model, l limit, reading int64, q question, r ratelimit.Result) error {
	now := m.seen(reading)
	allowed := q.admitted(m, l, now)
	if r.Allowed != allowed {
		return fmt.Errorf("Allowed is %v, want %v", r.Allowed, allowed)
	}
	if want := max(0, l.burst-q.reserved); r.Limit != int(want) {
		return fmt.Errorf("Limit is %d, want %d", r.Limit, want)
	}
	if err := judgeRetry(m, l, now, q, r); err != nil {
		return err
	}
	turn := func(t int64) bool { return m.fits(l, t, q.n+q.reserved) }
	if m.delays() {
		turn = func(t int64) bool { return m.fresh(l, t) }
	}
	switch {
	case allowed:
		if err := earliest("Delay", r.Delay, 0, func(d int64) bool { return turn(now + d) }); err != nil {
			return err
		}
	case r.Delay != 0:
		return fmt.Errorf("Delay is %v, want 0", r.Delay)
	}
	if allowed && !q.peek {
		m.charge(l, now, q.n)
	}
	if err := judgeRemaining(m, l, now, int64(r.Remaining), q.reserved); err != nil {
		return err
	}
	return earliest("ResetAfter", r.ResetAfter, 0, func(d int64) bool { return m.fresh(l, now+d) })
}

// judgeCharge returns what is wrong with r, the answer to a Charge of n events, and
// charges them to m. It also returns how many were charged.
func judgeCharge(m model, l limit, reading, n, reserved int64, r ratelimit.Result) (charged int64, err error) {
	now := m.seen(reading)
	if most := max(0, l.burst-reserved); !r.Allowed || r.Limit != int(most) || r.RetryAfter != 0 {
		return 0, fmt.Errorf("a Charge must be Allowed without RetryAfter, and with a Limit of %d", most)
	}
	queued := func(d int64) bool { return m.fresh(l, now+d) }
	if !m.delays() {
		queued = func(int64) bool { return true }
	}
	delay := earliest("Delay", r.Delay, 0, queued)
	charged = m.charge(l, now, min(n, most))
	switch {
	case charged > 0 && delay != nil:
		return charged, delay
	case charged == 0 && r.Delay != 0:
		return charged, fmt.Errorf("Delay is %v, but nothing was charged", r.Delay)
	}
	if err := judgeRemaining(m, l, now, int64(r.Remaining), reserved); err != nil {
		return charged, err
	}
	return charged, earliest("ResetAfter", r.ResetAfter, 0, func(d int64) bool { return m.fresh(l, now+d) })
}

func judgeRetry(m model, l limit, now int64, q question, r ratelimit.Result) error {
	switch {
	case r.Allowed && r.RetryAfter != 0:
		return fmt.Errorf("RetryAfter is %v, want 0", r.RetryAfter)
	case r.Allowed:
		return nil
	case q.n+q.reserved > l.burst && r.RetryAfter != ratelimit.Never:
		return fmt.Errorf("RetryAfter is %v, want Never", r.RetryAfter)
	case q.n+q.reserved > l.burst:
		return nil
	}
	return earliest("RetryAfter", r.RetryAfter, 1, func(d int64) bool { return q.admitted(m, l, now+d) })
}

func judgeRemaining(m model, l limit, now, k, reserved int64) error {
	fits := func(k int64) bool { return k == 0 || k+reserved <= l.burst && m.fits(l, now, k+reserved) }
	if k >= 0 && fits(k) && !fits(k+1) {
		return nil
	}
	return fmt.Errorf("Remaining is %d, want %d", k, room(m, l, now, l.burst, reserved))
}

// room returns how many of n events fit at now, in addition to those reserved.
func room(m model, l limit, now, n, reserved int64) int64 {
	k := int64(0)
	for step := int64(1) << 31; step > 0; step /= 2 {
		if k+step <= min(n, l.burst-reserved) && m.fits(l, now, k+step+reserved) {
			k += step
		}
	}
	return k
}

// earliest returns what is wrong with d, which must be the first whole µs from low on at which ok
// holds. Once ok holds, it must hold forever.
func earliest(name string, d time.Duration, low int64, ok func(us int64) bool) error {
	us := d.Microseconds()
	if d%time.Microsecond == 0 && us >= low && ok(us) && (us == low || !ok(us-1)) {
		return nil
	}
	const forever = int64(1) << 53
	low, high := low-1, forever
	for high-low > 1 {
		if mid := (low + high) / 2; ok(mid) {
			high = mid
		} else {
			low = mid
		}
	}
	if high == forever {
		return fmt.Errorf("%s is %v, but waiting never helps", name, d)
	}
	return fmt.Errorf("%s is %d µs, want %d µs", name, us, high)
}
