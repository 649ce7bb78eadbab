package inflight

import (
	"fmt"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// Option sets what is optional about a Slot.
type Option func(*settings) error

// settings are what Options set.
type settings struct {
	longest  time.Duration // 0 if it has no end
	onEnd    func(Ending)
	counters *Counters // that count it; nil if none do
	most     int       // MaxWaiting; 0 unless set
	patience time.Duration
}

// Longest ends the slot after d, as a lost one, whatever the work does.
func Longest(d time.Duration) Option {
	return func(s *settings) error {
		if d <= 0 {
			return fmt.Errorf("%w: Longest(%v)", ratelimit.ErrInvalidOption, d)
		}
		s.longest = d
		return nil
	}
}

// OnEnd tells f once how the slot has ended, and of a loss before. f must return soon.
func OnEnd(f func(Ending)) Option {
	return func(s *settings) error {
		if f == nil {
			return fmt.Errorf("%w: OnEnd(nil)", ratelimit.ErrInvalidOption)
		}
		s.onEnd = f
		return nil
	}
}

func (s *settings) apply(opts []Option) error {
	for _, opt := range opts {
		if opt == nil {
			return fmt.Errorf("%w: an Option is nil", ratelimit.ErrInvalidOption)
		}
		if err := opt(s); err != nil {
			return err
		}
	}
	return nil
}

func (s *settings) applyToHold(opts []Option) error {
	if err := s.apply(opts); err != nil || s.most == 0 || s.patience > 0 {
		return err
	}
	return errMaxWaiting
}

// Check returns the error that [Hold] would return because of opts, and whether it would wait ([WaitUpTo]).
func Check(opts ...Option) (waits bool, err error) {
	s := new(settings)
	err = s.applyToHold(opts)
	return s.patience > 0, err
}
