package main

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const combinedTime = "02/Jan/2006:15:04:05 -0700"

// newForm returns the form with these flags: key, format, line, layout.
func newForm(t testing.TB, flags ...string) *form {
	t.Helper()
	flags = append(flags, "", "", "", "")
	f := &form{key: flags[0], format: flags[1], line: flags[2], layout: flags[3]}
	if f.format == "" {
		f.format = "combined"
	}
	require.NoError(t, f.prepare())
	return f
}

func TestTheCombinedFormat(t *testing.T) {
	at := time.Date(2015, 5, 17, 10, 5, 3, 0, time.UTC).UnixMicro()
	for line, client := range map[string]string{
		`192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 2326`:                         "192.0.2.1",
		`192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 2326 "-" "curl/8"`:            "192.0.2.1",
		`192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 2326 "-" "curl/8" extra 0.01`: "192.0.2.1",
		`2001:db8::1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 2326`:                       "2001:db8::1",
		`2001:DB8:0::1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 2326`:                     "2001:db8::1",
		`::ffff:192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 2326`:                  "192.0.2.1",
		`fe80::1%eth0 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 2326`:                      "fe80::1",
		`a_b.example.com - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 2326`:                   "a_b.example.com",
		`192.0.2.1 - frank [17/May/2015:12:05:03 +0200] "GET / HTTP/1.1" 200 2326`:                     "192.0.2.1",
		`192.0.2.1 - frank o [x] [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 2326`:               "192.0.2.1",
		`192.0.2.1 - [01/Jan/2030:00:00:00 +0000] [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 2`: "192.0.2.1",
		`192.0.2.1 - [01/Jan/2030:00:00:00 +0000] \" [17/May/2015:10:05:03 +0000] "GET /" 200 2`:       "192.0.2.1",
		`192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET /?[01/Jan/2030:00:00:00 +0000] \"x\"" 200 2`:  "192.0.2.1",
		`192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET /\"] \"x HTTP/1.1" 200 2326`:                  "192.0.2.1",
		`192.0.2.1 - - [17/May/2015:10:05:03 +0000] "" 400 0`:                                          "192.0.2.1",
		`192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET /cut`:                                         "192.0.2.1",
		strings.Repeat("a", 255) + ` - - [17/May/2015:10:05:03 +0000] "-" 408 -`:                       strings.Repeat("a", 255),
	} {
		got, err := newForm(t).parse(line)
		require.NoError(t, err, line)
		require.Equal(t, event{client, at}, got, line)
	}
	for _, line := range []string{
		"",
		" ",
		"192.0.2.1",
		"192.0.2.1 - -",
		` - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 2326`,
		` 192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 2326`,
		"\ufeff" + `192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 2326`,
		"\x1b[31m" + `192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 2326`,
		strings.Repeat("a", 256) + ` - - [17/May/2015:10:05:03 +0000] "-" 408 -`,
		`192.0.2.1 - - [17/May/2015:10:05:03 +0000]`,
		`192.0.2.1 - - [17/May/2015:10:05:03 +0000] GET / HTTP/1.1 200 2326`,
		`192.0.2.1 - - 17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 2326`,
		`192.0.2.1 - - [] "GET / HTTP/1.1" 200 2326`,
		`192.0.2.1 - - [2015-05-17T10:05:03Z] "GET / HTTP/1.1" 200 2326`,
	} {
		got, err := newForm(t).parse(line)
		require.Error(t, err, line)
		require.Zero(t, got, line)
	}
}

func TestKeysOfTheCombinedFormat(t *testing.T) {
	const line = `2001:db8:1:2:3::4 - frank o [x] [17/May/2015:10:05:03 +0000] "GET /a?b=c HTTP/1.1" 200 2326`
	const other = `192.0.2.1 - - [17/May/2015:10:05:03 +0000] "-" 408 -`
	for key, want := range map[string][2]string{
		"":     {"2001:db8:1:2:3::4", "192.0.2.1"},
		"ip":   {"2001:db8:1:2:3::4", "192.0.2.1"},
		"ip64": {"2001:db8:1:2::/64", "192.0.2.1"},
		"user": {"frank o [x]", ""},
		"path": {"/a", ""},
	} {
		for i, line := range []string{line, other} {
			got, err := newForm(t, key).parse(line)
			require.NoError(t, err)
			require.Equal(t, want[i], got.key, key)
		}
	}
}

// A log is replayed by paths in the form that httplimit.Path counts.
func TestPathsOfALogAreInOneForm(t *testing.T) {
	for target, want := range map[string]string{
		"//login?a": "/login", "/x/../login": "/login", "/%6Cogin": "/login", "http://example.com/login": "/login", "/login%zz?b": "/login%zz", "*": "*", "x": "x",
	} {
		got, err := newForm(t, "path").parse(`192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET ` + target + ` HTTP/1.1" 200 1`)
		require.NoError(t, err)
		require.Equal(t, want, got.key, target)
	}
}

func TestLinesOfJSON(t *testing.T) {
	const caddy = `{"level":"info","ts":1431857103.5,"request":{"remote_ip":"2001:db8:1:2:3::4","uri":"/a?b","headers":{"Host":["x"]}},"user_id":"u7","status":200,"base64":"eA=="}`
	at := time.Date(2015, 5, 17, 10, 5, 3, 5e8, time.UTC).UnixMicro()
	for key, want := range map[string]string{
		"ip": "2001:db8:1:2:3::4", "ip64": "2001:db8:1:2::/64", "user": "u7", "path": "/a",
		"status": "200", "base64": "eA==", "level": "info", "request.uri": "/a?b", "none": "", "request.none.x": "",
	} {
		got, err := newForm(t, key, "json").parse(caddy)
		require.NoError(t, err)
		require.Equal(t, event{want, at}, got, key)
	}
	for _, line := range []string{"", "x", "[1]", "null", `{"ip":"192.0.2.1"}`, `{"time":"soon"}`, `{"time":{}}`, `{"time":1`} {
		_, err := newForm(t, "", "json").parse(line)
		require.Error(t, err, line)
	}
}

func TestLinesOfARegexp(t *testing.T) {
	at := time.Date(2015, 5, 17, 10, 5, 3, 0, time.UTC).UnixMicro()
	const line = "2015/05/17 10:05:03 [error] client: 2001:db8:1:2:3::4, tenant=acme"
	const re = `^(?P<time>\S+ \S+) .*client: (?P<key>[^,]+), tenant=(?P<tenant>\w*)`
	for key, want := range map[string]string{"": "2001:db8:1:2:3::4", "ip64": "2001:db8:1:2::/64", "tenant": "acme"} {
		got, err := newForm(t, key, "", re).parse(line)
		require.NoError(t, err)
		require.Equal(t, event{want, at}, got, key)
	}
	got, err := newForm(t, "", "", `(?P<time>\d+)(?: (?P<key>\w+))?`).parse("7")
	require.NoError(t, err)
	require.Equal(t, event{"", 7e6}, got, "the group of the key is optional")
	_, err = newForm(t, "", "", re).parse("2015/05/17 10:05:03 started")
	require.EqualError(t, err, "it does not match -line")
	_, err = newForm(t, "", "", `(?P<key>\w+)(?: (?P<time>\d+))?`).parse("a")
	require.EqualError(t, err, "it does not match -line")
}

func TestALongKeyIsCut(t *testing.T) {
	got, err := newForm(t, "name", "json").parse(`{"time":1,"name":"` + strings.Repeat("a", 1000) + `"}`)
	require.NoError(t, err)
	require.Len(t, got.key, maxKey)
}

func TestFormsOfTime(t *testing.T) {
	at := time.Date(2015, 5, 17, 10, 5, 3, 0, time.UTC)
	f := newForm(t, "", "json")
	for _, text := range []string{
		"17/May/2015:12:05:03 +0200", "2015-05-17T10:05:03Z", "2015-05-17T12:05:03.000+02:00", "2015-05-17 10:05:03",
		"2015-05-17T10:05:03", "2015/05/17 10:05:03", "2015-05-17 10:05:03.000", "Sun, 17 May 2015 10:05:03 UTC",
		"Sun May 17 10:05:03 2015", "Sun May 17 10:05:03.000000 2015", "2015-05-17T12:05:03+0200", "2015-05-17T12:05:03,000+0200",
		"2015-05-17 10:05:03,000", "2015-05-17 12:05:03 +0200", "2015-05-17 12:05:03+02:00", "2015-05-17 10:05:03Z",
		"1431857103", "1431857103.000", "1431857103000", "1431857103000000", "1431857103000000000",
	} {
		got, err := f.time(text)
		require.NoError(t, err, text)
		require.True(t, at.Equal(got), "%s: %v", text, got)
	}
	for _, text := range []string{"May 17 10:05:03", "May 17 10:05:03.000"} { // without a year
		got, err := f.time(text)
		require.NoError(t, err, text)
		require.True(t, at.AddDate(-2015, 0, 0).Equal(got), "%s: %v", text, got)
	}
	for _, text := range []string{"", "x", "-1", "NaN", "Inf", "1e30", "10:05:03", "2015-05-17"} {
		_, err := f.time(text)
		require.Error(t, err, text)
	}
	got, err := newForm(t, "", "json", "", "02.01.2006 15:04").time("17.05.2015 10:05")
	require.NoError(t, err)
	require.True(t, at.Truncate(time.Minute).Equal(got))
}

func TestParseTimeReadsWhatServersWrite(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 10_000 {
		zone := time.FixedZone("", 60*(random.IntN(2*14*60)-14*60))
		at := time.Unix(random.Int64N(4_102_444_800), 0).In(zone) // to 2100
		got, ok := parseTime(at.Format(combinedTime))
		require.True(t, ok, at)
		require.Equal(t, at.UTC(), got)
	}
	for text, want := range map[string]time.Time{
		"29/Feb/2024:00:00:00 +0000": time.Date(2024, 2, 29, 0, 0, 0, 0, time.UTC),
		"31/Dec/2016:23:59:60 +0000": time.Date(2017, 1, 1, 0, 0, 0, 0, time.UTC), // a leap second
		"01/Jan/2015:00:00:00 +0530": time.Date(2014, 12, 31, 18, 30, 0, 0, time.UTC),
		"31/Dec/2014:19:00:00 -0500": time.Date(2015, 1, 1, 0, 0, 0, 0, time.UTC),
	} {
		got, ok := parseTime(text)
		require.True(t, ok, text)
		require.Equal(t, want, got, text)
	}
}

func TestParseTimeRefusesTheRest(t *testing.T) {
	const good = "17/May/2015:10:05:03 +0000"
	for i := range good {
		_, ok := parseTime(good[:i] + "x" + good[i+1:])
		require.False(t, ok, "x at %d", i)
		_, ok = parseTime(good[:i])
		require.False(t, ok, good[:i])
	}
	for _, text := range []string{
		"00/May/2015:10:05:03 +0000", "32/May/2015:10:05:03 +0000", "31/Apr/2015:10:05:03 +0000",
		"29/Feb/2015:10:05:03 +0000", "17/may/2015:10:05:03 +0000", "17/ayJ/2015:10:05:03 +0000",
		"17/May/2015:24:05:03 +0000", "17/May/2015:10:60:03 +0000", "17/May/2015:10:05:61 +0000",
		"17/May/2015:10:05:03 +2400", "17/May/2015:10:05:03 +0060", "17/May/2015:10:05:03 00000",
		"17/May/2015:10:05:03 +0000 ",
	} {
		_, ok := parseTime(text)
		require.False(t, ok, text)
	}
}

func FuzzCombined(f *testing.F) {
	for line := range strings.Lines(sample) {
		f.Add(line)
	}
	f.Add("192.0.2.1 - [01/Jan/2030:00:00:00 +0000] [17/May/2015:10:05:60 -2359] \"GET")
	form := newForm(f)
	f.Fuzz(func(t *testing.T, line string) {
		client, stamp, err := combinedField(line, "ip")
		if err != nil {
			require.Zero(t, client+stamp)
			return
		}
		require.True(t, strings.HasPrefix(line, client+" "))
		require.NotContains(t, client, " ")
		at, err := form.time(stamp)
		if err != nil {
			return
		}
		// The parsed time is the time that package time parses, except for leap seconds.
		leap := strings.Contains(stamp, ":60 ")
		want, err := time.Parse(combinedTime, strings.Replace(stamp, ":60 ", ":59 ", 1))
		require.NoError(t, err)
		if leap {
			want = want.Add(time.Second)
		}
		require.Equal(t, want.UTC(), at)
	})
}
