package main

import (
	"cmp"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/store"
)

// bucket is the algorithm of a row that a token bucket or a leaky bucket has written.
const bucket = "bucket"

// algorithmsOfRows are the algorithms that rows tell.
var algorithmsOfRows = append(slices.DeleteFunc(slices.Clone(algorithms), isBucket), bucket)

func isBucket(algorithm string) bool { return strings.HasSuffix(algorithm, "_"+bucket) }

// ruleSpy is a store that only learns the rule of a limiter that is made on it.
type ruleSpy struct {
	store.Store
	rule *store.Rule
}

func (s *ruleSpy) Prepare(rule *store.Rule, _ store.Limit, _ bool) error {
	s.rule = rule
	return nil
}

// rulesOf returns the rules of algorithms.
func rulesOf(algorithms []string) (map[string]*store.Rule, error) {
	rules, inside := make(map[string]*store.Rule), ratelimit.Limiter(nil)
	for _, algorithm := range algorithms {
		var err error
		spy := new(ruleSpy)
		switch algorithm {
		case ban:
			_, err = ratelimit.NewBan(inside, spy, ratelimit.Penalty{Denials: 1, Within: time.Second, For: time.Second})
		case inflight.Algorithm:
			_, err = inflight.New(spy, 1, time.Second)
		default:
			inside, err = ratelimit.New(algorithm, spy, ratelimit.PerDay(1))
		}
		if err != nil {
			return nil, err
		}
		rules[algorithm] = spy.rule
	}
	return rules, nil
}

// The first bytes of values. A value that begins with 0 has slots: it begins with a time.
const (
	formSlots   = 0
	formState   = 1
	formLog     = 2
	formShifted = 3
)

var errNoState = errors.New("the value is not a state")

// readRow reads a value. The algorithm is "?" if it is not known.
func (h *held) readRow(rules map[string]*store.Rule, value []byte, ends, now int64) error {
	h.algorithm = "?"
	if len(value) == 0 {
		return errNoState
	}
	switch value[0] {
	case formSlots:
		h.algorithm = inflight.Algorithm
		return h.readSlotRow(rules[inflight.Algorithm], value, now)
	case formState:
		return h.readStateRow(rules, value, ends, now)
	case formLog, formShifted:
		h.algorithm = "sliding_log"
		return h.readLogRow(rules[h.algorithm], value, now)
	}
	return errNoState
}

// readStateRow reads a state. It does not name its algorithm, but only one algorithm lets it end at
// ends, to the µs. Both buckets do, because their states are alike.
func (h *held) readStateRow(rules map[string]*store.Rule, value []byte, ends, now int64) error {
	s, l, err := store.ParseState(value)
	if err != nil {
		return errNoState
	}
	var of []string
	for name, rule := range rules {
		if rule.NewLog == nil && s.At+rule.TTL(s, l) == ends {
			of = append(of, name)
		}
	}
	h.limit = ratelimit.Limit{Rate: int(l.Rate), Period: time.Duration(l.Period) * time.Microsecond}
	if told := len(of) == 1 || len(of) == 2 && isBucket(of[0]) && isBucket(of[1]); !told {
		return errors.New("the value does not tell its algorithm")
	}
	h.algorithm = of[0]
	if h.algorithm == ban {
		h.setBan(stored{time.UnixMicro(s.At), h.limit, int(s.Whole), time.Duration(s.Part) * time.Microsecond}, time.UnixMicro(now))
		h.limit.Period = 0 // the Within is not known
		return nil
	}
	h.calendar = h.algorithm == "fixed_window" && s.Part > 0
	l = h.wideIntegers()
	_, reply := rules[h.algorithm].Step(s, l, now, 1)
	h.setSpent(rules[h.algorithm], l, reply)
	for _, by := range [...]ratelimit.Limit{ratelimit.PerWeek(h.limit.Rate), ratelimit.PerMonth(h.limit.Rate)} {
		if h.calendar && h.limit.Period == by.Period { // its first day and its zone are not known
			h.limit = by
		}
	}
	if isBucket(h.algorithm) {
		h.algorithm = bucket
	}
	return nil
}

// wideIntegers returns the limit of wide, as rules take it.
func (h *held) wideIntegers() store.Limit {
	wide := h.wide()
	return store.Limit{Rate: int64(wide.Rate), Period: wide.Period.Microseconds(), Burst: int64(cmp.Or(wide.Burst, wide.Rate))}
}

// setSpent sets what a reply under l, which is wide, says of the spend.
func (h *held) setSpent(rule *store.Rule, l store.Limit, reply store.Reply) {
	report := reply.Report(rule, l, 1, 0)
	h.spent, h.reset = int(l.Burst-report.Remaining), time.Duration(report.Reset)*time.Microsecond
}

// readLogRow reads a sliding log. It may follow the µs by which the server's clock was set back.
func (h *held) readLogRow(rule *store.Rule, value []byte, now int64) error {
	var shift int64
	if value[0] == formShifted {
		n := 0
		if shift, n = binary.Varint(value[1:]); n <= 0 {
			return errNoState
		}
		value = value[1+n:]
	}
	log, err := rule.ParseLog(value)
	if err != nil {
		return errNoState
	}
	period, _ := binary.Uvarint(value[1:])
	h.limit.Period = time.Duration(period) * time.Microsecond //nolint:gosec // ParseLog limits it
	l := h.wideIntegers()
	h.setSpent(rule, l, log.Step(l, now-shift, 1))
	return nil
}

// readSlotRow reads the slots of package inflight: the last number, then the number and the end of
// each. Their holders are not known.
func (h *held) readSlotRow(rule *store.Rule, value []byte, now int64) error {
	if _, err := rule.ParseLog(value); err != nil {
		return errNoState
	}
	for b := value[8:]; len(b) > 0; b = b[16:] {
		number, end := int64(binary.BigEndian.Uint64(b)), int64(binary.BigEndian.Uint64(b[8:])) //nolint:gosec // the bits stay
		if end > now {
			h.addSlot(slot{number: number}, time.UnixMicro(end), time.UnixMicro(now))
		}
	}
	return nil
}
