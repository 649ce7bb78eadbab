package eventlog

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/store"
)

// bytesOf returns g as bytes.
func bytesOf(t testing.TB, g *Log) []byte {
	t.Helper()
	b, err := g.AppendBinary(nil)
	require.NoError(t, err)
	return b
}

func TestTheFormOfALog(t *testing.T) {
	g := new(Log)
	l := store.Limit{Rate: 100, Burst: 100, Period: 1_000_000}
	g.Add(l, 64, 1)
	g.Add(l, 65, 1)
	g.Add(l, 65, 7)
	want := []byte{2, 0xc0, 0x84, 0x3d, 0x80, 0x01, 0, 2, 1, 7}
	require.Equal(t, want, bytesOf(t, g))
	b, err := g.AppendBinary([]byte("before"))
	require.NoError(t, err)
	require.Equal(t, append([]byte("before"), want...), b)

	g.Add(l, 1_000_064, 1)
	require.Equal(t, []byte{2, 0xc0, 0x84, 0x3d, 0x82, 0x01, 0, 1, 7, 0xfe, 0x88, 0x7a}, bytesOf(t, g), "what was cut is left out")
	g.Refund(l, 1_000_064, store.Receipt{At: 1_000_064, N: 1})
	g.Refund(l, 1_000_064, store.Receipt{At: 65, N: 8})
	require.Equal(t, []byte{2, 0xc0, 0x84, 0x3d, 0}, bytesOf(t, g), "no entries")
}

// Two logs get the same calls and give the same answers. One of them is encoded and decoded again
// before each call.
func TestALogOfBytesIsTheSame(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 2))
		limits := []store.Limit{{Rate: 300, Period: 1_000_000}, {Rate: 300, Period: 400_000}, {Rate: 200, Period: 2_500_000}}
		g, now := new(Log), int64(rng.IntN(3)-1)*5_000_000 // also before 1970
		var times []int64
		for range 400 {
			l := limits[0]
			if rng.IntN(20) == 0 {
				l = limits[rng.IntN(3)]
			}
			now += rng.Int64N(3 * l.Period / l.Rate)
			if rng.IntN(200) == 0 {
				now += 2 * l.Period
			}
			other := new(Log)
			require.True(t, other.parse(bytesOf(t, g)) || len(times) == 0, "it has no Period yet")
			requireBlocks(t, other)
			n := 1 + rng.Int64N(2)*rng.Int64N(9)
			reading := now - rng.Int64N(2)*rng.Int64N(9)
			require.Equal(t, g.Step(l, reading, n), other.Step(l, reading, n))
			require.Equal(t, g.Step(l, reading, 2*n), other.Step(l, reading, 2*n))
			require.Equal(t, g.Used(reading), other.Used(reading))
			if len(times) > 0 && rng.IntN(4) == 0 {
				c := store.Receipt{At: times[rng.IntN(len(times))], N: n}
				g.Refund(l, reading, c)
				other.Refund(l, reading, c)
			} else if g.Step(l, reading, n).OK() {
				require.Equal(t, g.Add(l, reading, n), other.Add(l, reading, n))
				times = append(times, g.newest)
			}
			require.Equal(t, g.End(), other.End())
			require.Equal(t, bytesOf(t, g), bytesOf(t, other))
		}
	}
}

func TestALogTakesAtMost4BytesAnEventInBytes(t *testing.T) {
	g, _, _ := logOf(10_000, time.Hour)
	require.LessOrEqual(t, len(bytesOf(t, g)), 4*10_000)
}

func TestBytesThatAreNotALogAreCorrupt(t *testing.T) {
	huge := []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}
	head := []byte{2, 0xc0, 0x84, 0x3d, 0x80, 0x01}
	for name, b := range map[string][]byte{
		"nothing":                {},
		"a state":                store.AppendState(nil, store.State{At: 1, Period: 1_000_000, Whole: 1}, store.Limit{Rate: 1}),
		"another form":           {3, 0xc0, 0x84, 0x3d, 0x80, 0x01, 0},
		"no Period":              {2},
		"a Period of 999 µs":     {2, 0xe7, 0x07, 0},
		"a Period over 10 years": append(binary.AppendUvarint([]byte{2}, maxPeriod+1), 0),
		"a Period of ages":       append([]byte{2}, append(huge, 0)...),
		"no time":                {2, 0xc0, 0x84, 0x3d},
		"a time of ages":         append([]byte{2, 0xc0, 0x84, 0x3d}, huge...),
		"half a number":          append(head[:6:6], 0x80),
		"ages between entries":   append(head[:6:6], huge...),
		"no count":               append(head[:6:6], 1),
		"no events":              append(head[:6:6], 1, 0),
		"more than n events":     append(head[:6:6], 1, 0x80, 0x80, 0x80, 0x80, 0x08),
		"2^47 events and so on":  append(head[:6:6], bytes.Repeat([]byte{1, 0xff, 0xff, 0xff, 0xff, 0x07}, 1<<16+1)...),
	} {
		g, err := Parse(b)
		require.ErrorIs(t, err, store.ErrCorrupt, name)
		require.Nil(t, g, name)
		require.Less(t, len(err.Error()), 300)
	}
	g, err := Parse(append(head[:6:6], bytes.Repeat([]byte{1, 0xff, 0xff, 0xff, 0xff, 0x07}, 1<<16)...))
	require.NoError(t, err, "fewer than 2^47 events")
	l := store.Limit{Rate: math.MaxInt32, Period: 1_000_000}
	require.Equal(t, int64(64)+l.Period-65, g.Step(l, 65, 1).X)
}

// A log may contain numbers at the end of their range, and it must answer.
func TestALogAtTheEdgesIsNotCorrupt(t *testing.T) {
	const decade = 10 * 365 * 24 * 3600 * 1_000_000
	l := store.Limit{Rate: math.MaxInt32, Period: decade}
	log := func(period, first int64, entries ...int64) store.Log {
		b := binary.AppendVarint(binary.AppendUvarint([]byte{form}, uint64(period)), first)
		for i := 0; i < len(entries); i += 2 {
			b = appendEntry(b, entries[i], entries[i+1])
		}
		g, err := Parse(b)
		require.NoError(t, err)
		return g
	}
	require.Equal(t, int64(-1<<60+decade), log(decade, -1<<60, 0, 1).End())
	require.Equal(t, int64(1<<60+1_000), log(1_000, 1<<60, 0, 1).End())
	require.Equal(t, int64(1<<60+decade), log(decade, -1<<60, 0, 1, 1<<61, 1).End())

	full := []int64{0, 1 << 16} // 2^47 events
	for range 1 << 16 {
		full = append(full, 1, math.MaxInt32)
	}
	g := log(decade, 0, full...)
	require.Equal(t, int64(1<<47), g.Used(1<<16))
	require.Equal(t, int64(decade), g.Step(l, 1<<16, l.Rate).X, "the last must leave")
}

// Whatever the bytes are, a log decoded from them can be used, and is encoded as the bytes of an
// equal one.
func FuzzParse(f *testing.F) {
	l := store.Limit{Rate: 300, Period: 1_000_000}
	for events := range int64(3) {
		g := new(Log)
		for i := range 100 * events {
			g.Add(l, 1_000*i, 1+i%(2*events))
		}
		f.Add(bytesOf(f, g))
	}
	f.Add([]byte{2, 0xc0, 0x84, 0x3d, 0x80, 0x01, 0, 2, 1, 7})
	f.Add([]byte{2, 0xe8, 0x07, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x1f, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x3f})
	f.Fuzz(func(t *testing.T, b []byte) {
		g, again := new(Log), new(Log)
		if _, err := Parse(b); err != nil {
			require.ErrorIs(t, err, store.ErrCorrupt)
			return
		}
		require.True(t, g.parse(b))
		requireBlocks(t, g)
		canonical := bytesOf(t, g)
		require.True(t, again.parse(canonical))
		require.Equal(t, canonical, bytesOf(t, again))
		for _, now := range []int64{g.newest - l.Period, g.newest, g.newest + 1, g.newest + g.period, g.newest + 2*l.Period} {
			for _, n := range []int64{1, 150, 300, 301} {
				require.Equal(t, g.Step(l, now, n), again.Step(l, now, n))
			}
			require.Equal(t, g.Used(now), again.Used(now))
		}
		c := store.Receipt{At: g.newest, N: 3}
		g.Refund(l, g.newest, c)
		again.Refund(l, again.newest, c)
		require.Equal(t, bytesOf(t, g), bytesOf(t, again))
		g.Add(l, g.newest+5, 2)
		requireBlocks(t, g)
	})
}
