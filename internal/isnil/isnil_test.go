package isnil_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/isnil"
)

func TestNilIsFoundInsideAnInterface(t *testing.T) {
	for _, x := range []any{nil, (*int)(nil), (func())(nil), map[string]int(nil), []int(nil), (chan int)(nil)} {
		require.True(t, isnil.Is(x), "%T", x)
	}
	for _, x := range []any{0, "", new(int), func() {}, map[string]int{}, []int{}, make(chan int), struct{}{}} {
		require.False(t, isnil.Is(x), "%T", x)
	}
}
