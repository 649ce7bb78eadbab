package suite_test

import (
	"math"
	"slices"
	"time"

	"github.com/ratelimit-go/ratelimit/inflight"
)

// judge judges one key by what callers were told, and when: it knows nothing of the limiter.
type judge interface {
	// saw is whether t is within the limit.
	saw(t *turn) bool
	forget(t *turn)
	// restart forgets everything: a server has lost it.
	restart()
}

// turn is n events that were admitted at some instant between two readings of the clock.
type turn struct {
	began, ended time.Time
	n            int
	slot         *inflight.Slot // that is held, of a judge of slots
}

// judgeOf makes judges of an algorithm with so many events a second.
func judgeOf(algorithm string, rate int) func() judge {
	switch algorithm {
	case "fixed_window", "sliding_window":
		return func() judge { return &windowJudge{rate: rate} }
	case "sliding_log":
		return func() judge {
			return &spanJudge{keep: 2 * soakPeriod, most: func(d time.Duration) int {
				if d >= soakPeriod {
					return math.MaxInt
				}
				return rate
			}}
		}
	}
	return func() judge { // what a full bucket has, and what flows meanwhile
		return &spanJudge{keep: soakKeep, most: func(d time.Duration) int { return rate + int(d*time.Duration(rate)/soakPeriod) }}
	}
}

// windowJudge counts in the windows of the clock what was certainly admitted in one.
type windowJudge struct {
	rate   int
	window time.Time
	n      int
}

func (j *windowJudge) saw(t *turn) bool {
	w := t.began.Truncate(soakPeriod)
	if w.Before(j.window) || !t.ended.Truncate(soakPeriod).Equal(w) {
		return true
	}
	if w.After(j.window) {
		j.window, j.n = w, 0
	}
	j.n += t.n
	return j.n <= j.rate
}

func (j *windowJudge) forget(t *turn) {
	if t.began.Truncate(soakPeriod).Equal(j.window) && t.ended.Truncate(soakPeriod).Equal(j.window) {
		j.n -= t.n
	}
}

func (j *windowJudge) restart() { j.window, j.n = time.Now().Truncate(soakPeriod).Add(soakPeriod), 0 }

// spanJudge counts what was certainly admitted between the beginning of one turn and the end of
// another.
type spanJudge struct {
	most  func(d time.Duration) int
	keep  time.Duration
	turns []*turn // by when they began
}

func (j *spanJudge) saw(t *turn) bool {
	at, _ := slices.BinarySearchFunc(j.turns, t, func(a, b *turn) int { return a.began.Compare(b.began) })
	j.turns = slices.Insert(j.turns, at, t)
	for len(j.turns) > 0 && t.ended.Sub(j.turns[0].began) > j.keep {
		j.turns = j.turns[1:]
	}
	n := 0
	for _, first := range slices.Backward(j.turns) {
		if first.ended.After(t.ended) {
			continue
		}
		if n += first.n; n > j.most(t.ended.Sub(first.began)) {
			return false
		}
	}
	return true
}

func (j *spanJudge) forget(t *turn) {
	j.turns = slices.DeleteFunc(j.turns, func(o *turn) bool { return o == t })
}

func (j *spanJudge) restart() { j.turns = nil }

// slotsJudge has the turns that hold a slot.
type slotsJudge struct{ held []*turn }

func slotJudge() judge { return &slotsJudge{} }

func (j *slotsJudge) saw(t *turn) bool {
	j.held = append(j.held, t)
	n := 0
	for _, t := range j.held {
		if !t.slot.Lost() { // its caller may not have looked yet
			n++
		}
	}
	return n <= soakSlots
}

func (j *slotsJudge) forget(t *turn) {
	j.held = slices.DeleteFunc(j.held, func(o *turn) bool { return o == t })
}

// restart forgets no slot: it counts until its caller learns that it is lost.
func (j *slotsJudge) restart() {}

// saw tells the judge of a key of an admission. A slot is held from now on, until forget.
func (sub *subject) saw(key string, t *turn) {
	if len(key) > 1 { // it is asked once
		return
	}
	sub.mu.Lock()
	defer sub.mu.Unlock()
	j := sub.judges[key]
	if j == nil {
		j = sub.judge()
		sub.judges[key] = j
	}
	switch {
	case j.saw(t):
	case sub.at.isLossy():
		sub.told["over, while writes were lost"]++
	default:
		sub.overAt = append(sub.overAt, time.Now())
	}
}

func (sub *subject) forget(key string, t *turn) {
	sub.mu.Lock()
	defer sub.mu.Unlock()
	if j := sub.judges[key]; j != nil {
		j.forget(t)
	}
}

func (p *place) isLossy() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lossy
}
