package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const golden = `20 requests at a limit of 5/s, + allowed, . denied

                0.9 s     1.0 s     1.1 s             2.0 s   in 200ms  in 1s
fixed_window    + + + + + + + + + + . . . . . . . . . +       10        10
sliding_window  + + + + + . . . . . . + . + . + . + . +       5         9
sliding_log     + + + + + . . . . . . . . . . . . . + +       5         5
token_bucket    + + + + + . . . . . + . + . + . + . + .       5         9
leaky_bucket    + + + + + . . . . . + . + . + . + . + .       1         5

The last two columns are the most requests that went through within any 200 ms, and
within any second. Requests of leaky_bucket go through after their Delay.

fixed_window    starts from zero at 1.0 s: a double burst, then nothing until 2.0 s
sliding_window  lets the burst before 1.0 s fade: one request every 200 ms from 1.2 s
sliding_log     forgets a request after exactly 1 s, the first at 1.9 s: 5 in any second
token_bucket    starts with 5 tokens and gains one every 200 ms: a burst, then the rate
leaky_bucket    admits the same requests, but lets one through every 200 ms
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
