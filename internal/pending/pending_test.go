package pending_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/pending"
)

func TestACallHasTheFirstAnswer(t *testing.T) {
	wrong := errors.New("wrong")
	c := pending.New[int]()
	require.True(t, c.Answer(7, wrong))
	require.False(t, c.Answer(8, nil))
	answer, err := c.Wait(t.Context())
	require.Equal(t, 7, answer)
	require.Equal(t, wrong, err)
}

func TestACallThatHasLeftHasNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := pending.New[int](), pending.New[int]()
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			_, err := first.Wait(ctx)
			require.ErrorIs(t, err, context.Canceled)
		}()
		cancel()
		synctest.Wait()
		require.False(t, first.Answer(7, nil))
		require.Equal(t, []*pending.Call[int]{second}, pending.Waiting([]*pending.Call[int]{first, second}))
	})
}

func TestAPanicIsTheCallers(t *testing.T) {
	c := pending.New[int]()
	c.Panic("planted")
	require.PanicsWithValue(t, "planted", func() { _, _ = c.Wait(t.Context()) })
}

// Of a caller that leaves and one that answers, one is told that it did.
func TestAnAnswerIsGivenOrNot(t *testing.T) {
	for range 2000 {
		c := pending.New[int]()
		ctx, cancel := context.WithCancel(t.Context())
		given := make(chan bool)
		go func() { given <- c.Answer(7, nil) }()
		go cancel()
		answer, err := c.Wait(ctx)
		require.Equal(t, <-given, err == nil)
		require.Equal(t, err == nil, answer == 7)
	}
}
