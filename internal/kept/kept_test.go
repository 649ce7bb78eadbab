package kept

import (
	"context"
	"errors"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestALimitIsKeptForItsLimiterAndKey(t *testing.T) {
	var calls int
	var failure error
	ask := func(context.Context, string) (int, error) {
		calls++
		return calls, failure
	}
	asks := func(k *Limits[int], of any, key string) int {
		l, err := k.Ask(k, of, key, ask)
		require.Equal(t, failure, err)
		return l
	}
	first, second := new(int), new(int)
	outer := New[int](t.Context(), false)
	once := New[int](outer, true)
	require.Same(t, once, In[int](context.WithoutCancel(once)))
	require.Nil(t, In[int](t.Context()))

	require.Equal(t, []int{1, 1, 2, 3}, []int{asks(once, first, "key"), asks(once, first, "key"), asks(once, second, "key"), asks(once, first, "other")})
	require.Equal(t, 4, asks(outer, first, "key"), "each decision asks")
	l, ok := once.Find(first, "key")
	require.True(t, ok && l == 1, "it does not know what was decided outside of it")
	l, ok = outer.Find(second, "key")
	require.True(t, ok && l == 2, "but tells what it has asked")

	failure = errors.New("the database is down")
	asks(outer, first, "key")
	l, ok = outer.Find(first, "key")
	require.True(t, ok && l == 4, "an error is no limit")
	_, ok = (*Limits[int])(nil).Find(first, "key")
	require.False(t, ok)
}

// A stream may live for days, and its handler may ask for the limits of any number of keys.
func TestSomeLimitsAreKept(t *testing.T) {
	k, of := New[int](t.Context(), false), new(int)
	for i := range 10 * most {
		_, err := k.Ask(k, of, strconv.Itoa(i), func(context.Context, string) (int, error) { return i, nil })
		require.NoError(t, err)
	}
	require.Equal(t, most, len(k.limits))
	for i := range 10 * most {
		l, ok := k.Find(of, strconv.Itoa(i))
		require.Equal(t, i < most-1 || i == 10*most-1, ok, "the first ones, and the last")
		require.True(t, !ok || l == i)
	}
}
