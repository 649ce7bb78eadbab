package ratelimit_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/see"
)

func ExampleParseLimit() {
	l, err := ratelimit.ParseLimit("10/second burst 20")
	fmt.Println(l.Rate, l.Period, l.Burst, err)

	_, err = ratelimit.ParseLimit("10/fortnight")
	fmt.Println(err)
	// Output:
	// 10 1s 20 <nil>
	// ratelimit: invalid limit: "10/fortnight": unit "fortnight" is unknown: want ms, s, m, h, d, week or month
}

func ExampleLimit_String() {
	fmt.Println(ratelimit.PerDay(5))
	fmt.Println(ratelimit.Every(90 * time.Minute))
	fmt.Println(ratelimit.Limit{Rate: 10, Period: time.Second, Burst: 20})
	// Output:
	// 5/d
	// 1/1h30m
	// 10/s burst 20
}

func ExampleLimit_UnmarshalText() {
	var config struct {
		Login ratelimit.Limit `json:"login"`
	}
	err := json.Unmarshal([]byte(`{"login": "5/15m"}`), &config)
	fmt.Println(config.Login.Rate, config.Login.Period, err)
	// Output: 5 15m0s <nil>
}

const (
	day      = 24 * time.Hour
	tenYears = 3650 * day
	most     = math.MaxInt32
)

func TestLimitsByPeriod(t *testing.T) {
	for _, tc := range []struct{ got, want ratelimit.Limit }{
		{ratelimit.PerSecond(3), ratelimit.Limit{Rate: 3, Period: time.Second}},
		{ratelimit.PerMinute(3), ratelimit.Limit{Rate: 3, Period: time.Minute}},
		{ratelimit.PerHour(3), ratelimit.Limit{Rate: 3, Period: time.Hour}},
		{ratelimit.PerDay(3), ratelimit.Limit{Rate: 3, Period: day}},
		{ratelimit.Every(15 * time.Minute), ratelimit.Limit{Rate: 1, Period: 15 * time.Minute}},
	} {
		require.Equal(t, tc.want, tc.got)
	}
}

// accepted is the grammar by example: each text, what it means, and its
// canonical form.
var accepted = []struct {
	text      string
	rate      int
	period    time.Duration
	burst     int
	canonical string
}{
	{"100/s", 100, time.Second, 0, "100/s"},
	{"5/15m", 5, 15 * time.Minute, 0, "5/15m"},
	{"1000/day", 1000, day, 0, "1000/d"},
	{"10/second burst 20", 10, time.Second, 20, "10/s burst 20"},
	{"5/1h30m", 5, 90 * time.Minute, 0, "5/1h30m"},

	// Units and their words.
	{"1/ms", 1, time.Millisecond, 0, "1/ms"},
	{"1/millisecond", 1, time.Millisecond, 0, "1/ms"},
	{"1/20milliseconds", 1, 20 * time.Millisecond, 0, "1/20ms"},
	{"1/s", 1, time.Second, 0, "1/s"},
	{"1/sec", 1, time.Second, 0, "1/s"},
	{"1/2secs", 1, 2 * time.Second, 0, "1/2s"},
	{"1/2seconds", 1, 2 * time.Second, 0, "1/2s"},
	{"1/m", 1, time.Minute, 0, "1/m"},
	{"1/min", 1, time.Minute, 0, "1/m"},
	{"1/2mins", 1, 2 * time.Minute, 0, "1/2m"},
	{"1/minute", 1, time.Minute, 0, "1/m"},
	{"1/2minutes", 1, 2 * time.Minute, 0, "1/2m"},
	{"1/h", 1, time.Hour, 0, "1/h"},
	{"1/hr", 1, time.Hour, 0, "1/h"},
	{"1/2hrs", 1, 2 * time.Hour, 0, "1/2h"},
	{"1/hour", 1, time.Hour, 0, "1/h"},
	{"1/2hours", 1, 2 * time.Hour, 0, "1/2h"},
	{"1/d", 1, day, 0, "1/d"},
	{"1/7days", 1, 7 * day, 0, "1/7d"},

	// Counts.
	{"1/1s", 1, time.Second, 0, "1/s"},
	{"1/60s", 1, time.Minute, 0, "1/m"},
	{"1/24h", 1, day, 0, "1/d"},
	{"1/36h", 1, 36 * time.Hour, 0, "1/36h"},
	{"007/007s burst 007", 7, 7 * time.Second, 7, "7/7s burst 7"},
	{"1/1000s", 1, 1000 * time.Second, 0, "1/16m40s"},
	{"1/3610s", 1, 3610 * time.Second, 0, "1/1h0m10s"},

	// Durations.
	{"5/1.5s", 5, 1500 * time.Millisecond, 0, "5/1.5s"},
	{"5/.5s", 5, 500 * time.Millisecond, 0, "5/500ms"},
	{"5/1.s", 5, time.Second, 0, "5/s"},
	{"5/1500us", 5, 1500 * time.Microsecond, 0, "5/1.5ms"},
	{"5/1500µs", 5, 1500 * time.Microsecond, 0, "5/1.5ms"},
	{"5/1500μs", 5, 1500 * time.Microsecond, 0, "5/1.5ms"},
	{"5/1001000ns", 5, 1001 * time.Microsecond, 0, "5/1.001ms"},
	{"5/30m1h", 5, 90 * time.Minute, 0, "5/1h30m"},
	{"5/1.000001s", 5, time.Second + time.Microsecond, 0, "5/1.000001s"},
	{"5/1.500000000000s", 5, 1500 * time.Millisecond, 0, "5/1.5s"},
	{"5/0.0009765625h", 5, 3515625 * time.Microsecond, 0, "5/3.515625s"},
	{"5/0.5h0.25m0.5s", 5, 30*time.Minute + 15500*time.Millisecond, 0, "5/30m15.5s"},

	// Spaces.
	{"5 / 2 days", 5, 2 * day, 0, "5/2d"},
	{"5/15 minutes", 5, 15 * time.Minute, 0, "5/15m"},
	{"5 / day burst 9", 5, day, 9, "5/d burst 9"},

	// The ends of the ranges.
	{"0/s", 0, time.Second, 0, "0/s"},
	{"0/s burst 3", 0, time.Second, 3, "0/s burst 3"},
	{"2147483647/s burst 2147483647", most, time.Second, most, "2147483647/s burst 2147483647"},
	{"1/1000us", 1, time.Millisecond, 0, "1/ms"},
	{"1/3650d", 1, tenYears, 0, "1/3650d"},
	{"1/87600h", 1, tenYears, 0, "1/3650d"},
	{"1/315360000000ms", 1, tenYears, 0, "1/3650d"},
	{"1/87599h59m59.999999s", 1, tenYears - time.Microsecond, 0, "1/87599h59m59.999999s"},
}

func TestParseLimitAccepts(t *testing.T) {
	for _, tc := range accepted {
		t.Run(tc.text, func(t *testing.T) {
			l, err := ratelimit.ParseLimit(tc.text)
			require.NoError(t, err)
			require.Equal(t, ratelimit.Limit{Rate: tc.rate, Period: tc.period, Burst: tc.burst}, l)
			require.Equal(t, tc.canonical, l.String())

			again, err := ratelimit.ParseLimit(tc.canonical)
			require.NoError(t, err)
			require.Equal(t, l, again)
		})
	}
}

// refused is what is not a limit, and the part of the message that says why.
var refused = []struct{ text, because string }{
	{"", `"": no "/" between rate and period`},
	{"100", `"100": no "/" between rate and period`},
	{"unknown", `no "/" between rate and period`},
	{"10-s", `no "/" between rate and period`},

	// Rates are plain digits.
	{"/s", `rate "" is not a whole number: want digits only`},
	{"-1/s", `rate "-1" is not a whole number: want digits only`},
	{"+1/s", `rate "+1" is not a whole number: want digits only`},
	{"1.5/s", `rate "1.5" is not a whole number: want digits only`},
	{"1e3/s", `rate "1e3" is not a whole number: want digits only`},
	{"0x10/s", `rate "0x10" is not a whole number: want digits only`},
	{"1_000/s", `rate "1_000" is not a whole number: want digits only`},
	{"1,000/s", `rate "1,000" is not a whole number: want digits only`},
	{"٣/s", `rate "٣" is not a whole number: want digits only`},
	{"ten/s", `rate "ten" is not a whole number: want digits only`},
	{"2147483648/s", `rate "2147483648" is too large: want at most 2147483647`},
	{"18446744073709551617/s", `is too large: want at most 2147483647`},

	// Units.
	{"5/", `unit "" is unknown: want ms, s, m, h, d`},
	{"5/S", `unit "S" is unknown: want ms, s, m, h, d`},
	{"5/Second", `unit "Second" is unknown`},
	{"5/M", `unit "M" is unknown`},
	{"5/\u017fecond", `unit "ſecond" is unknown`},
	{"5/fortnight", `unit "fortnight" is unknown`},
	{"5/us", `unit "us" is unknown`},
	{"5/h30m", `unit "h30m" is unknown`},
	{"5//s", `unit "/s" is unknown`},
	{"5/s/s", `unit "s/s" is unknown`},
	{"5/s.", `unit "s." is unknown`},
	{"5/s\x00", `unit "s\x00" is unknown`},
	{"5/s extra", `unit "s extra" is unknown`},
	{"5/-1s", `unit "-1s" is unknown`},
	{"5/+1s", `unit "+1s" is unknown`},
	{"5/15", `period "15" is invalid: want a count and a unit`},
	{"5/15x", `period "15x" is invalid: want a count and a unit`},
	{"5/15M", `period "15M" is invalid: want a count and a unit`},
	{"5/.", `period "." is invalid: want a count and a unit`},
	{"5/1.5d", `period "1.5d" is invalid: want a count and a unit`},
	{"5/1d12h", `period "1d12h" is invalid: want a count and a unit`},
	{"5/1h 30m", `period "1h 30m" is invalid: want a count and a unit`},
	{"5/1e3s", `period "1e3s" is invalid: want a count and a unit`},
	{"5/1h-30m", `period "1h-30m" is invalid: want a count and a unit`},
	{"5/1s\x00", `period "1s\x00" is invalid: want a count and a unit`},

	// Spaces.
	{" 5/s", `rate " 5" is not a whole number: want digits only`},
	{"5  /s", `rate "5 " is not a whole number: want digits only`},
	{"5/  s", `unit " s" is unknown`},
	{"5/s ", `unit "s " is unknown`},
	{"5/s\n", `unit "s\n" is unknown`},
	{"5/\ts", `unit "\ts" is unknown`},
	{"5/2  days", `period "2  days" is invalid: want a count and a unit`},
	{"5/s  burst 3", `unit "s " is unknown`},

	// Bursts.
	{"5/s burst", `burst needs a space and a number after it`},
	{"5/s burst3", `burst needs a space and a number after it`},
	{"5/s burst ", `burst "" is not a whole number: want digits only`},
	{"5/s burst  3", `burst " 3" is not a whole number: want digits only`},
	{"5/s burst 3 ", `burst "3 " is not a whole number: want digits only`},
	{"5/s burst -3", `burst "-3" is not a whole number: want digits only`},
	{"5/s burst 3 burst 4", `burst "3 burst 4" is not a whole number: want digits only`},
	{"5/s burst 2147483648", `burst "2147483648" is too large: want at most 2147483647`},
	{"5/s burst 0", `burst is 0: leave it out if the burst should equal the rate`},
	{"5/sburst 3", `unit "sburst 3" is unknown`},
	{"5/s Burst 3", `unit "s Burst 3" is unknown`},
	{"5/ burst 3", `unit "" is unknown`},
	{"5/s, burst 3", `unit "s," is unknown`},

	// Periods out of range.
	{"1/0s", `period 0s is out of range: want 1ms to 10 years`},
	{"1/0d", `period 0s is out of range: want 1ms to 10 years`},
	{"1/0", `period 0s is out of range: want 1ms to 10 years`},
	{"1/999us", `period 999µs is out of range: want 1ms to 10 years`},
	{"1/3651d", `period "3651d" is longer than 10 years`},
	{"1/7300 days", `period "7300 days" is longer than 10 years`},
	{"1/315360000001ms", `period "315360000001ms" is longer than 10 years`},
	{"1/9223372036854775808d", `period "9223372036854775808d" is longer than 10 years`},
	{"1/87600h0.000001s", `period 87600h0m0.000001s is out of range: want 1ms to 10 years`},
	{"1/87600h1000000h1000000h1000000h", `or a duration of at most 10 years`},

	// Periods finer than a microsecond, however fine.
	{"1/1.0000001s", `period 1.0000001s is not a whole number of microseconds`},
	{"1/1500001ns", `period 1.500001ms is not a whole number of microseconds`},
	{"1/1.0000000001s", `period "1.0000000001s" is not a whole number of microseconds`},
	{"1/1000.0001us", `period "1000.0001us" is not a whole number of microseconds`},
	{"1/1000000.5ns", `period "1000000.5ns" is not a whole number of microseconds`},
	{"1/1.0000001ms1h", `period "1.0000001ms1h" is not a whole number of microseconds`},
	{"1/0.33333333333333h", `period "0.33333333333333h" is not a whole number of microseconds`},

	// Calendars.
	{"5/hour in UTC", `period "hour" cannot count by calendar`},
	{"5/day from 1", `from needs a week or a month, not a day`},
	{"5/week from Saturday", `"Saturday" is not a day of the week`},
	{"5/month from 256", `"256" is not a day of the month: want 1 to 31`},
	{"5/month from first", `"first" is not a day of the month: want 1 to 31`},
}

func TestParseLimitRefuses(t *testing.T) {
	for _, tc := range refused {
		t.Run(tc.text, func(t *testing.T) {
			l, err := ratelimit.ParseLimit(tc.text)
			require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
			require.ErrorContains(t, err, tc.because)
			require.Zero(t, l)
		})
	}
}

func TestTheDaysOfCalendarsHaveTexts(t *testing.T) {
	want := map[string]ratelimit.Limit{"5/week": ratelimit.PerWeek(5), "5/month": ratelimit.PerMonth(5)}
	for day := time.Sunday; day <= time.Saturday; day++ {
		want["5/week from "+strings.ToLower(day.String())] = ratelimit.PerWeek(5).From(int(day))
	}
	for day := 1; day <= 31; day++ {
		want["5/month from "+strconv.Itoa(day)] = ratelimit.PerMonth(5).From(day)
	}
	for text, l := range want {
		parsed, err := ratelimit.ParseLimit(text)
		require.NoError(t, err)
		require.Equal(t, l, parsed, text)
	}
}

func TestTextsOfLimitsAtTheirEdges(t *testing.T) {
	l, err := ratelimit.ParseLimit(strings.Repeat("0", 125) + "1/s") // 128 bytes
	require.NoError(t, err)
	require.Equal(t, ratelimit.PerSecond(1), l)
	l, err = ratelimit.ParseLimit("1/0.5µs1.0005ms2µs") // whole microseconds in all
	require.NoError(t, err)
	require.Equal(t, 1003*time.Microsecond, l.Period)
	_, err = ratelimit.ParseLimit(strings.Repeat("x", 48))
	require.ErrorContains(t, err, strconv.Quote(strings.Repeat("x", 48)))
	require.NotContains(t, err.Error(), "...")
	_, err = ratelimit.ParseLimit(strings.Repeat("x", 49))
	require.ErrorContains(t, err, strconv.Quote(strings.Repeat("x", 48))+"...:")
	wrong := ratelimit.PerMonth(5)
	wrong.Period = time.Hour
	require.Equal(t, "5/h from 1 in UTC", wrong.String())
}

func TestParseLimitRefusesLongTextsInShortWords(t *testing.T) {
	for _, text := range []string{
		strings.Repeat("9", 127) + "/s",
		"5/" + strings.Repeat("9", 125) + "s",
		"5/" + strings.Repeat("9000h", 25),
		"5/" + strings.Repeat("\x00", 120),
		"5/s burst " + strings.Repeat("\xff", 118),
		strings.Repeat("0", 126) + "1/s",
		strings.Repeat("\x00", 1<<20),
	} {
		_, err := ratelimit.ParseLimit(text)
		require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
		require.Less(t, len(err.Error()), 600)
	}
	_, err := ratelimit.ParseLimit(strings.Repeat("0", 127) + "/s")
	require.ErrorContains(t, err, `000"...: the text has 129 bytes, more than 128`)
}

// tooMany is a variable, for ints of 32 bits too: there it is negative.
var tooMany int64 = most + 1

// invalid is every way to be out of range, and what the error says of it.
var invalid = []struct {
	limit   ratelimit.Limit
	text    string
	because string
}{
	{ratelimit.Limit{}, "0/0s", "period 0s is out of range: want 1ms to 10 years"},
	{ratelimit.PerSecond(-1), "-1/s", "rate -1 is out of range: want 0 to 2147483647"},
	{ratelimit.PerSecond(math.MinInt), "/s", "is out of range: want 0 to 2147483647"},
	{ratelimit.PerSecond(int(tooMany)), "/s", "2147483648 is out of range: want 0 to 2147483647"},
	{ratelimit.Limit{Rate: 1, Period: time.Second, Burst: -1}, "1/s burst -1", "burst -1 is out of range: want 0 to 2147483647"},
	{ratelimit.Limit{Rate: 1, Period: time.Second, Burst: int(tooMany)}, "1/s burst", "2147483648 is out of range: want 0 to 2147483647"},
	{ratelimit.Every(0), "1/0s", "period 0s is out of range: want 1ms to 10 years"},
	{ratelimit.Every(-day), "1/-1d", "period -24h0m0s is out of range: want 1ms to 10 years"},
	{ratelimit.Every(time.Microsecond), "1/1µs", "period 1µs is out of range: want 1ms to 10 years"},
	{ratelimit.Every(time.Millisecond - 1), "1/999.999µs", "period 999.999µs is out of range: want 1ms to 10 years"},
	{ratelimit.Every(time.Millisecond + 1), "1/1.000001ms", "period 1.000001ms is not a whole number of microseconds"},
	{ratelimit.Every(tenYears + time.Microsecond), "1/87600h0m0.000001s", "is out of range: want 1ms to 10 years"},
	{ratelimit.Every(2 * tenYears), "1/7300d", "period 175200h0m0s is out of range: want 1ms to 10 years"},
	{ratelimit.Every(math.MaxInt64), "1/2562047h47m16.854775807s", "is out of range: want 1ms to 10 years"},
	{ratelimit.Every(math.MinInt64), "1/-2562047h47m16.854775808s", "is out of range: want 1ms to 10 years"},
}

func TestInvalidLimitsPrintButDoNotMarshal(t *testing.T) {
	for _, tc := range invalid {
		t.Run(tc.limit.String(), func(t *testing.T) {
			require.Contains(t, tc.limit.String(), tc.text)

			_, err := tc.limit.MarshalText()
			require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
			require.ErrorContains(t, err, tc.because)

			_, err = ratelimit.ParseLimit(tc.limit.String())
			require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
		})
	}
}

func TestValidLimitsSurviveTheirText(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range effort.Of(5_000, 20_000) {
		l := randomLimit(rng)
		text, err := l.MarshalText()
		require.NoError(t, err)
		require.Equal(t, l.String(), string(text))

		var back ratelimit.Limit
		require.NoError(t, back.UnmarshalText(text))
		require.Equal(t, l, back, "from %q", text)

		// What package time prints is read too.
		back, err = ratelimit.ParseLimit("1/" + l.Period.String())
		require.NoError(t, err)
		require.Equal(t, l.Period, back.Period)
	}
}

// randomLimit is a valid limit, with small and round values as likely as any.
func randomLimit(rng *rand.Rand) ratelimit.Limit {
	units := []time.Duration{
		time.Microsecond, time.Millisecond, time.Second, time.Minute, time.Hour, day, 365 * day,
	}
	unit := units[rng.IntN(len(units))]
	first, last := int64((time.Millisecond+unit-1)/unit), int64(tenYears/unit)
	count := first + rng.Int64N(min(last-first+1, 1<<rng.IntN(50)))
	l := ratelimit.Limit{Rate: randomEvents(rng), Period: time.Duration(count) * unit}
	if rng.IntN(2) == 0 {
		l.Burst = randomEvents(rng)
	}
	return l
}

// randomEvents is a number from 0 to 2^31-1, of a random size.
func randomEvents(rng *rand.Rand) int { return int(rng.Uint32() >> (1 + rng.IntN(32))) }

func TestLimitIsTextInJSON(t *testing.T) {
	type config struct {
		Login  ratelimit.Limit            `json:"login"`
		Quotas map[ratelimit.Limit]string `json:"quotas"`
		Unset  ratelimit.Limit            `json:"unset,omitzero"`
	}
	in := config{
		Login: ratelimit.Limit{Rate: 10, Period: 90 * time.Second, Burst: 20},
		Quotas: map[ratelimit.Limit]string{
			ratelimit.PerDay(1000):   "free",
			ratelimit.PerSecond(100): "paid",
		},
	}
	text, err := json.Marshal(in)
	require.NoError(t, err)
	require.JSONEq(t, `{"login": "10/1m30s burst 20", "quotas": {"1000/d": "free", "100/s": "paid"}}`, string(text))

	var out config
	require.NoError(t, json.Unmarshal(text, &out))
	require.Equal(t, in, out)

	require.ErrorIs(t, json.Unmarshal([]byte(`{"login": "10/y"}`), &out), ratelimit.ErrInvalidLimit)
	require.ErrorIs(t, json.Unmarshal([]byte(`{"quotas": {"10": ""}}`), &out), ratelimit.ErrInvalidLimit)
	require.Error(t, json.Unmarshal([]byte(`{"login": 10}`), &out))
	require.Equal(t, in, out)

	_, err = json.Marshal(config{})
	require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
}

func TestLimitIsAFlag(t *testing.T) {
	var l ratelimit.Limit
	flags := flag.NewFlagSet("test", flag.ContinueOnError)
	flags.SetOutput(t.Output())
	flags.TextVar(&l, "limit", ratelimit.PerSecond(5), "how many requests to admit")
	require.Equal(t, ratelimit.PerSecond(5), l)
	require.NoError(t, flags.Parse([]string{"-limit", "100/m"}))
	require.Equal(t, ratelimit.PerMinute(100), l)
}

func TestUnmarshalTextLeavesTheLimitOnError(t *testing.T) {
	for _, tc := range refused {
		l := ratelimit.PerHour(7)
		require.ErrorIs(t, l.UnmarshalText([]byte(tc.text)), ratelimit.ErrInvalidLimit)
		require.Equal(t, ratelimit.PerHour(7), l)
	}
}

func FuzzParseLimit(f *testing.F) {
	for _, tc := range accepted {
		f.Add(tc.text)
	}
	for _, tc := range refused {
		f.Add(tc.text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		l, err := ratelimit.ParseLimit(text)
		if err != nil {
			require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
			require.Less(t, len(err.Error()), 1000)
			require.Zero(t, l)
			return
		}
		canonical, err := l.MarshalText()
		require.NoError(t, err, "%q gave an invalid limit", text)
		require.LessOrEqual(t, len(canonical), 48)
		again, err := ratelimit.ParseLimit(string(canonical))
		require.NoError(t, err)
		require.Equal(t, l, again)
		require.Equal(t, string(canonical), again.String())
	})
}

// FuzzParseLimitReadsDurations holds the periods against package time.
func FuzzParseLimitReadsDurations(f *testing.F) {
	for _, text := range []string{"1h30m", "1.5s", ".5h", "1500us", "1ns", "1.0000000001s", "24h", "0", "9d"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		d, err := time.ParseDuration(text)
		if err != nil || strings.ContainsAny(text, "+-") {
			t.Skip("not a duration")
		}
		l, err := ratelimit.ParseLimit("1/" + text)
		_, invalid := ratelimit.Every(d).MarshalText()
		switch {
		case err == nil:
			require.Equal(t, d, l.Period)
		case !strings.Contains(text, ".") && len(text) < 100:
			require.Error(t, invalid, "refused: %v", err)
		default:
			require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
		}
	})
}

func TestAShareIsOneNthOfTheLimit(t *testing.T) {
	year := 365 * 24 * time.Hour
	tests := []struct {
		limit ratelimit.Limit
		n     int
		want  ratelimit.Limit
	}{
		{ratelimit.PerSecond(100), 1, ratelimit.PerSecond(100)},
		{ratelimit.PerSecond(100), 4, ratelimit.PerSecond(25)},
		{ratelimit.PerSecond(100), 100, ratelimit.PerSecond(1)},
		{ratelimit.PerSecond(100), 3, ratelimit.PerSecond(33)},
		{ratelimit.PerSecond(100), 200, ratelimit.Every(2 * time.Second)},
		{ratelimit.PerSecond(100), 101, ratelimit.Every(2 * time.Second)},
		{ratelimit.PerSecond(2), 5, ratelimit.Every(3 * time.Second)},
		{ratelimit.PerSecond(0), 3, ratelimit.PerSecond(0)},
		{ratelimit.Limit{Rate: 10, Period: time.Second, Burst: 20}, 5, ratelimit.Limit{Rate: 2, Period: time.Second, Burst: 4}},
		{ratelimit.Limit{Rate: 10, Period: time.Second, Burst: 20}, 3, ratelimit.Limit{Rate: 10, Period: 3 * time.Second, Burst: 7}},
		{ratelimit.Limit{Rate: 10, Period: time.Second, Burst: 3}, 5, ratelimit.Limit{Rate: 2, Period: time.Second, Burst: 1}},
		{ratelimit.Every(year), 10, ratelimit.Every(10 * year)},
		{ratelimit.Limit{Rate: math.MaxInt32, Period: time.Second, Burst: math.MaxInt32}, math.MaxInt32, ratelimit.Limit{Rate: 1, Period: time.Second, Burst: 1}},
	}
	for _, tt := range tests {
		got, err := tt.limit.Share(tt.n)
		require.NoError(t, err)
		require.Equal(t, tt.want, got, "1/%d of %v", tt.n, tt.limit)
	}
	for _, tt := range tests {
		for _, n := range []int{0, -1, math.MinInt} {
			_, err := tt.limit.Share(n)
			require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
		}
	}
	for _, n := range []int{11, min(1<<40, math.MaxInt), math.MaxInt} {
		share, err := ratelimit.Every(year).Share(n)
		require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
		require.Zero(t, share)
	}
	_, err := ratelimit.PerMinute(5).Share(0) // also of FailLocal(0)
	require.ErrorContains(t, err, "0 instances share 5/m, want 1 or more")
	_, err = ratelimit.Limit{}.Share(1)
	require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
}

// All shares together have exactly the limit's rate and its burst, but for what is rounded up.
// Without a burst they have no more than the limit's rate, and more than half of it.
func TestSharesAddUpToTheLimit(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 1))
	for range effort.Of(10_000, 30_000, 100_000) {
		limit := ratelimit.Limit{
			Rate:   int(rnd.Int64N(1 << (1 + rnd.IntN(31)))),
			Period: time.Duration(1+rnd.IntN(1_000_000)) * time.Millisecond,
			Burst:  int(rnd.Int64N(1<<(1+rnd.IntN(31)))) * rnd.IntN(2),
		}
		n := 1 + rnd.IntN(1<<(1+rnd.IntN(12)))
		share, err := limit.Share(n)
		require.NoError(t, err)
		_, err = share.MarshalText()
		require.NoError(t, err)
		// n·share.Rate/share.Period = limit.Rate/limit.Period
		left := new(big.Int).Mul(big.NewInt(int64(n)*int64(share.Rate)), big.NewInt(int64(limit.Period)))
		right := new(big.Int).Mul(big.NewInt(int64(limit.Rate)), big.NewInt(int64(share.Period)))
		if limit.Burst == 0 {
			require.LessOrEqual(t, left.Cmp(right), 0, "1/%d of %v is %v", n, limit, share)
			require.GreaterOrEqual(t, left.Mul(left, big.NewInt(2)).Cmp(right), 0, "1/%d of %v is %v", n, limit, share)
			require.True(t, share.Rate*n <= max(limit.Rate, n))
			continue
		}
		require.Zero(t, left.Cmp(right), "1/%d of %v is %v", n, limit, share)
		all := int64(n) * int64(share.Burst)
		require.GreaterOrEqual(t, all, int64(limit.Burst))
		require.Less(t, all, int64(limit.Burst)+int64(n))
	}
}

func TestShareOfACalendar(t *testing.T) {
	zone, err := time.LoadLocation("America/Sao_Paulo")
	require.NoError(t, err)
	plan := ratelimit.PerMonth(10_000).From(31).In(zone)
	share, err := plan.Share(4)
	require.NoError(t, err)
	require.Equal(t, "2500/month from 31 in America/Sao_Paulo", share.String())
	_, err = plan.Share(10_001)
	require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
	_, err = ratelimit.PerMonth(1).Share(2)
	require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
	share, err = ratelimit.PerMonth(0).Share(3)
	require.NoError(t, err)
	require.Equal(t, ratelimit.PerMonth(0), share)
}

// While a store is away each of several processes limits by a share: of the limit, of each tier, and
// of what a limit function says.
func TestALocalLimiterHasAShareOfEachLimit(t *testing.T) {
	mem := memory(t, newClock())
	half := func(l ratelimit.Limiter) (ratelimit.Limiter, error) { return see.Local(l, mem, 2) }

	bucket, err := half(newLimiter(t, "token_bucket", mem, ratelimit.PerHour(5)))
	require.NoError(t, err)
	require.Equal(t, 3, peek(t, bucket, "key").Limit, "as of a bucket with that Burst: 5 in two hours, rounded up at one instant")
	for _, l := range []ratelimit.Limit{ratelimit.Unlimited(), ratelimit.PerHour(0)} { // there is nothing to share
		bucket, err = half(newLimiter(t, "token_bucket", mem, l))
		require.NoError(t, err)
		require.Equal(t, l, policiesOf(t, bucket, "key")[1].Limit)
	}
	long := ratelimit.Limit{Rate: 2, Period: 3397 * 24 * time.Hour, Burst: 21}
	_, err = half(newLimiter(t, "token_bucket", mem, long))
	require.ErrorIs(t, err, ratelimit.ErrInvalidLimit, "the share has a Burst of 11, which takes over 100 years to refill")

	tiers := func(l ratelimit.Limit) ratelimit.Limiter {
		return newLimiter(t, "sliding_log", mem, ratelimit.PerHour(6), ratelimit.WithTiers(
			func(_ context.Context, key string) (string, error) { return key, nil }, map[string]ratelimit.Limit{"plus": l}))
	}
	local, err := half(tiers(ratelimit.PerHour(20)))
	require.NoError(t, err)
	require.Equal(t, []int{3, 10}, []int{peek(t, local, "free").Limit, peek(t, local, "plus").Limit})
	_, err = half(tiers(ratelimit.Limit{Rate: 1, Period: 9 * 365 * 24 * time.Hour}))
	require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)

	wrong := errors.New("no such key")
	local, err = half(newLimiter(t, "sliding_log", mem, ratelimit.PerHour(6), ratelimit.WithLimitFunc(
		func(_ context.Context, key string) (ratelimit.Limit, error) {
			switch key {
			case "plus":
				return ratelimit.PerHour(20), nil
			case "wrong":
				return ratelimit.PerHour(20), wrong
			}
			return ratelimit.Limit{}, nil
		})))
	require.NoError(t, err)
	require.Equal(t, []int{3, 10}, []int{peek(t, local, "free").Limit, peek(t, local, "plus").Limit})
	_, err = local.Allow(t.Context(), "wrong")
	require.ErrorIs(t, err, wrong)
}
