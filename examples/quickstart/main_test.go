package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const golden = `Limit 5/s, + admitted, . denied

          fixed_window    sliding_window  sliding_log     token_bucket    leaky_bucket
0.90 s    +               +               +               +               +
0.92 s    +               +               +               +               + in 180ms
0.94 s    +               +               +               +               + in 360ms
0.96 s    +               +               +               +               + in 540ms
0.98 s    +               +               +               +               + in 720ms
1.00 s    +               .               .               .               .
1.02 s    +               .               .               .               .
1.04 s    +               .               .               .               .
1.06 s    +               .               .               .               .
1.08 s    +               .               .               .               .
1.10 s    .               .               .               +               + in 800ms
1.20 s    .               +               .               .               .
1.30 s    .               .               .               +               + in 800ms
1.40 s    .               +               .               .               .
1.50 s    .               .               .               +               + in 800ms
1.60 s    .               +               .               .               .
1.70 s    .               .               .               +               + in 800ms
1.80 s    .               +               .               .               .
1.90 s    .               .               +               +               + in 800ms
2.00 s    +               +               +               .               .
in 200ms  10              5               5               5               1
in 1s     10              9               5               9               5

The last two lines are the most events that went through within any 200 ms, and
within any second, at their time or after their delay.

fixed_window    counts anew from 1.00 s on: a double burst, then nothing until 2.00 s
sliding_window  lets the burst before 1.00 s fade: a place each 200 ms, here from 1.20 s
sliding_log     forgets an event after exactly 1 s, the first at 1.90 s: 5 in any second
token_bucket    begins with 5 tokens and gains one each 200 ms: a burst, then the rate
leaky_bucket    admits the same events, and lets one go each 200 ms from the first on
`

func TestOutput(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), &out))
	require.Equal(t, golden, out.String())
}

func TestBusiestCountsAnEndToTheNextSpan(t *testing.T) {
	times := []time.Duration{0, 1, 2, 10, 11, 20}
	for _, test := range []struct {
		span time.Duration
		most int
	}{{1, 1}, {2, 2}, {3, 3}, {10, 3}, {11, 4}, {20, 5}, {21, 6}} {
		require.Equal(t, test.most, busiest(times, test.span), "span %d", test.span)
	}
	require.Zero(t, busiest(nil, time.Second))
}
