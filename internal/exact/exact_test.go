package exact_test

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/exact"
)

func TestProductsAndQuotientsAreThoseOfBigIntegers(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	number := func() int64 { return rng.Int64() >> rng.IntN(63) }
	largest := big.NewInt(math.MaxInt64)
	for range 100_000 {
		a, b, c, d := number(), number(), 1+number()/2, number()
		product := new(big.Int).Mul(big.NewInt(a), big.NewInt(b))
		want, rest := new(big.Int).QuoRem(product, big.NewInt(c), new(big.Int))
		q, r := exact.MulDiv(a, b, c)
		if want.Cmp(largest) > 0 {
			require.Equal(t, int64(math.MaxInt64), q)
		} else {
			require.Equal(t, want.Int64(), q, "%d * %d / %d", a, b, c)
			require.Equal(t, rest.Int64(), r)
		}
		require.Equal(t, product.Cmp(new(big.Int).Mul(big.NewInt(c), big.NewInt(d))) <= 0, exact.AtMost(a, b, c, d))

		sum := new(big.Int).Add(product, big.NewInt(d))
		up, rest := sum.QuoRem(sum, big.NewInt(c), rest)
		if rest.Sign() > 0 {
			up.Add(up, big.NewInt(1))
		}
		if up.Cmp(big.NewInt(exact.Most)) > 0 {
			up.SetInt64(exact.Most)
		}
		require.Equal(t, up.Int64(), exact.MulDivUp(a, b, d, c))
	}
	require.True(t, exact.AtMost(math.MaxInt64, 3, 3, math.MaxInt64), "equal")
}
