package serve

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/serve/internal/testenv"
)

// The first pattern of the list that matches is found, as by a regular expression for each.
func TestWildcards(t *testing.T) {
	t.Parallel()
	for seed := range uint64(testenv.Of(50, 300)) {
		r := rand.New(rand.NewPCG(seed, 2))
		var w wildcards[int]
		var likes []*regexp.Regexp
		for i := range 1 + r.IntN(12) {
			pattern := letters(r, "ab*", 5) + "*" + letters(r, "ab*", 3)
			w.add(pattern, i)
			likes = append(likes, regexp.MustCompile("^"+strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*`, ".*")+"$"))
		}
		for range 50 {
			text, want := letters(r, "ab", 7), -1
			for i := len(likes) - 1; i >= 0; i-- {
				if likes[i].MatchString(text) {
					want = i
				}
			}
			got, found := w.find(text)
			if !found {
				got = -1
			}
			require.Equal(t, want, got, "%q of %v", text, likes)
		}
	}
}

func letters(r *rand.Rand, of string, most int) string {
	b := make([]byte, r.IntN(most+1))
	for i := range b {
		b[i] = of[r.IntN(len(of))]
	}
	return string(b)
}

// A match among many rules takes about the time of one among few.
func BenchmarkMatch(b *testing.B) {
	for name, value := range map[string]string{"10000 values": "/path/%d", "1000 patterns of one beginning": "/path/*/%d", "1000 beginnings": "/path/%d/*"} {
		b.Run(name, func(b *testing.B) {
			n := 1000
			if !strings.Contains(value, "*") {
				n = 10_000
			}
			text := []byte("domain: d\ndescriptors:\n")
			for i := range n {
				text = fmt.Appendf(text, "- {key: path, value: '"+value+"', rate_limit: {unit: day, requests_per_unit: 1}}\n", i)
			}
			rules, err := Parse(File{"f", text})
			require.NoError(b, err)
			entries := make([][]*common.RateLimitDescriptor_Entry, n)
			for i := range n { // in no order, since each costs more than the last one again
				value := strings.ReplaceAll(fmt.Sprintf(value, i*7919%n), "*", "some")
				entries[i] = []*common.RateLimitDescriptor_Entry{{Key: "path", Value: value}}
			}
			var buf [256]byte
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if r, _ := rules.domains["d"].match(entries[i%n], buf[:0]); r == nil {
					b.Fatal("no rule")
				}
			}
		})
	}
}
