package carrier_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit/store/carrier"
)

// counter is a server that counts: one round trip increments any number of keys.
type counter struct {
	mu     sync.Mutex
	counts map[string]int
}

var errUnknownKey = errors.New("unknown key")

func (s *counter) increment(_ context.Context, keys []string) (counts []int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range keys {
		s.counts[key]++
		counts = append(counts, s.counts[key])
	}
	return counts, nil
}

// increment is a call of a store of that server.
type increment struct {
	key   string
	count int
}

// tiny is the store.
type tiny struct {
	server  *counter
	carrier *carrier.Carrier[increment]
}

func newTiny(server *counter) (*tiny, error) {
	s := &tiny{server: server}
	var err error
	s.carrier, err = carrier.New(carrier.Config[increment]{
		Timeout: 250 * time.Millisecond,
		Conns:   4,
		Send:    s.send,
		Means: func(err error) carrier.Meaning {
			if errors.Is(err, errUnknownKey) {
				return carrier.Answered
			}
			return carrier.Unknown
		},
	})
	return s, err
}

// send makes a round trip. A real store takes a connection here, which may wait until ctx is done.
func (s *tiny) send(ctx context.Context, t *carrier.Trip[increment]) error {
	if !t.Writing().Begin() {
		return nil // all of its callers have left
	}
	keys := make([]string, 0, t.Len())
	for c := range t.Calls {
		keys = append(keys, c.Call.key)
	}
	counts, err := s.server.increment(ctx, keys)
	if err != nil {
		return err
	}
	for c := range t.Calls {
		c.Call.count, counts = counts[0], counts[1:]
		c.End(nil)
	}
	return nil
}

// Increment returns how often key was incremented.
func (s *tiny) Increment(ctx context.Context, key string) (int, error) {
	b := s.carrier.Begin(ctx)
	if err := s.carrier.Admit(&b); err != nil {
		return 0, err
	}
	defer b.Leave()
	for {
		done, err := s.carrier.Do(b, increment{key: key})
		var failed *carrier.Failure
		switch {
		case !errors.As(err, &failed):
			return done.count, err
		case !b.Again(failed):
			return 0, b.Fail(failed)
		}
	}
}

func Example() {
	s, err := newTiny(&counter{counts: map[string]int{}})
	if err != nil {
		fmt.Println(err)
		return
	}
	var callers sync.WaitGroup
	for range 100 {
		callers.Go(func() {
			if _, err := s.Increment(context.Background(), "user:1"); err != nil {
				fmt.Println(err)
			}
		})
	}
	callers.Wait()
	fmt.Println(s.Increment(context.Background(), "user:1"))
	// Output: 101 <nil>
}
