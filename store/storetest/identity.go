package storetest

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// limitersAreApart exhausts a key of each limiter in turn. The earlier limiters must not have
// changed it.
func limitersAreApart(t testing.TB, s *suite, _ algorithm) {
	b := s.bench(t)
	type one struct {
		what string
		key  *key
	}
	var limiters []one
	for _, a := range s.algorithms {
		limits := []ratelimit.Limit{
			ratelimit.PerHour(10), ratelimit.PerHour(11), ratelimit.PerHour(101), ratelimit.PerDay(10),
			{Rate: 10, Period: time.Hour + microsecond},
		}
		for _, l := range []ratelimit.Limit{{Rate: 10, Period: time.Hour, Burst: 11}, {Rate: 1, Period: time.Hour, Burst: 10}} {
			if a.takes(l) {
				limits = append(limits, l)
			}
		}
		for _, l := range limits {
			limiters = append(limiters, one{fmt.Sprint(a.name, " ", l), b.key(a.name, l)})
		}
		for _, name := range []string{"a", "a:", ":a", "=a", "10,10", "3600000000:10,10", "=10,10", " ", "\x00", "\u00ff", "å"} {
			for _, l := range limits[2:4] {
				limiters = append(limiters, one{fmt.Sprintf("%s %v %q", a.name, l, name), b.key(a.name, l, ratelimit.WithName(name))})
			}
		}
	}
	for i, lim := range limiters {
		r := lim.key.peek()
		if r.Remaining != r.Limit {
			t.Fatalf("%s has spent %d, by one of the %d before it", lim.what, r.Limit-r.Remaining, i)
		}
		lim.key.take(r.Limit)
	}
}

func namesShare(t testing.TB, s *suite, _ algorithm) {
	for _, a := range s.algorithms {
		b := s.bench(t)
		first := b.key(a.name, ratelimit.PerHour(10), ratelimit.WithName("shared"))
		second := b.key(a.name, ratelimit.PerHour(20), ratelimit.WithName("shared"))
		first.take(6)
		second.has(14)
		second.take(3)
		first.has(1)
		first.reset()
		second.has(20)

		twin := b.key(a.name, ratelimit.PerHour(20))
		b.key(a.name, ratelimit.PerHour(20)).take(5) // equal limiters share their counts
		twin.has(15)
		second.has(20)
	}
}

// lookAlikes are keys that look alike, all of them different.
func lookAlikes() []string {
	long := strings.Repeat("k", 129)
	huge := strings.Repeat("K", 65536)
	sum := sha256.Sum256([]byte(long))
	braces := sha256.Sum256([]byte("{a}"))
	return []string{
		"a", "A", "a ", " a", " ", "  ", "\t", "\n", "\x00", "\x00\x00", "a\x00", "0", "00", "-1", "nil",
		"a:b", "b", "a:", ":b", ":", "::", "=", "=a", "=a:b", "#", "#a", "%00", "*", "?", "[a]", "a\nb", "a\r\nb",
		"{a}", "{", "}", "{}", "}{", "{=a}", "{#a}", "=a}", "{a}{b}", "{=a}:b",
		"\xff", "\xff\xfe", "\xc3\x28", "\u00e5", "a\u030a", "\u212b", "\ufffd", "\xef\xbf",
		long[:127], long[:128], long, long + "k", "l" + long[1:], long[:128] + "l",
		huge, huge[:65535], huge[:65535] + "L", "L" + huge[1:],
		string(sum[:]), "#" + string(sum[:]), hex.EncodeToString(sum[:]), "#" + hex.EncodeToString(sum[:]),
		strings.ToUpper(hex.EncodeToString(sum[:])), "#" + hex.EncodeToString(braces[:]),
		base64.RawURLEncoding.EncodeToString(sum[:]), "#" + base64.RawURLEncoding.EncodeToString(sum[:]),
		base64.StdEncoding.EncodeToString(sum[:]), "#" + base64.StdEncoding.EncodeToString(sum[:]),
		"#" + base64.RawURLEncoding.EncodeToString(braces[:]), "#" + string(braces[:]),
	}
}

// keysAreExact spends a different number of events of each key, and then checks the numbers.
func keysAreExact(t testing.TB, s *suite, _ algorithm) {
	keys := lookAlikes()
	for i := range 100 {
		keys = append(keys, fmt.Sprint("user:", i))
	}
	for _, a := range s.algorithms {
		k := s.bench(t).key(a.name, ratelimit.PerHour(1000))
		for i, name := range keys {
			k.name = name
			k.take(i + 1)
		}
		for i, name := range keys {
			k.name = string([]byte(name)) // equal bytes elsewhere in memory
			if r := k.peek(); r.Remaining != 1000-(i+1) {
				t.Fatalf("%s, key %.40q of %d bytes: Remaining is %d, want %d", a.name, name, len(name), r.Remaining, 1000-(i+1))
			}
		}
	}
}
