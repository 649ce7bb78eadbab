package serve_test

import (
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/serve"
)

const priorities = `domain: edge
descriptors:
	- key: tenant
	  rate_limit: {unit: minute, requests_per_unit: 10}
	  descriptors:
	  	- key: priority
	  	  value: low
	  	  share_parent: true
	  	  rate_limit: {unit: minute, requests_per_unit: 10, reserved: 4}
`

func TestADescriptorLeavesWhatItReserves(t *testing.T) {
	t.Parallel()
	for _, more := range []string{"", "all_or_none: false\n"} {
		s, _ := inMemory(t, more+priorities)
		require.Equal(t, "OK, OK 1/6 1m0s", short(ask(t, s, "tenant=a,priority=low 5")))
		require.Equal(t, "OVER, OVER 1/6 1m0s", short(ask(t, s, "tenant=a,priority=low 2")))
		require.Equal(t, "OK, OK 5/10 1m0s", short(ask(t, s, "tenant=a 0")))
		require.Equal(t, "OK, OK 0/6 1m0s", short(ask(t, s, "tenant=a,priority=low")))
		require.Equal(t, "OVER, OVER 0/6 1m0s", short(ask(t, s, "tenant=a,priority=low")))
		require.Equal(t, "OK, OK 0/10 1m0s", short(ask(t, s, "tenant=a 4")), "although others had all but these")
		require.Equal(t, "OK, OK 5/6 1m0s", short(ask(t, s, "tenant=b,priority=low")), "another tenant")
		require.Equal(t, "OK, OK", short(ask(t, s, "tenant=a,priority=high")), "which has no rule")
		require.Equal(t, "OK, OK 2/10 1m0s", short(ask(t, s, "tenant=a -2")))
		require.Contains(t, get(t, s.Private(nil), "/rules"), `"limit":"10/m","reserved":4,`)
		require.Empty(t, rules(t, more+priorities).Notes())
	}
}

// The file of docs/serve.md.
func TestOnlyHighPriorityHasTheLastRequests(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/serve.md")
	require.NoError(t, err)
	_, file, _ := strings.Cut(string(page), "### Priorities")
	_, file, _ = strings.Cut(file, "```yaml\n")
	file, _, _ = strings.Cut(file, "```")
	require.Empty(t, rules(t, file).Notes())
	s, _ := inMemory(t, file)
	require.Equal(t, "OK, OK 30/80 1m0s", short(ask(t, s, "tenant=a 50")))
	require.Equal(t, "OK, OK 0/80 1m0s", short(ask(t, s, "tenant=a,priority=low 30")))
	for _, others := range []string{"tenant=a", "tenant=a,priority=low", "tenant=a,priority="} {
		require.Equal(t, "OVER, OVER 0/80 1m0s", short(ask(t, s, others)))
	}
	require.Equal(t, "OK, OK 0/100 1m0s", short(ask(t, s, "tenant=a,priority=high 20")))
}

func TestSiblingsShareTheCountAboveThem(t *testing.T) {
	t.Parallel()
	const classes = `
	- {key: class, value: high, share_parent: true, rate_limit: {limit: 10/m, algorithm: token_bucket}}
	- {key: class, value: low, share_parent: true, rate_limit: {limit: 10/m, algorithm: token_bucket, reserved: 4}}
	- {key: class, value: none, share_parent: true, rate_limit: {limit: 10/m, reserved: 4}}
	- {key: other, rate_limit: {limit: 10/m, algorithm: token_bucket}}
`
	top := "domain: edge\ndescriptors:" + classes
	nested := "domain: edge\ndescriptors:\n- key: user\n  descriptors:" + strings.ReplaceAll(classes, "\n", "\n\t")
	for prefix, file := range map[string]string{"": top, "user=a,": nested} {
		s, _ := inMemory(t, file)
		require.Equal(t, "OK, OK 0/6 36s", short(ask(t, s, prefix+"class=low 6")))
		require.Equal(t, "OVER, OVER 0/6 6s", short(ask(t, s, prefix+"class=low")))
		require.Equal(t, "OK, OK 1/10 54s", short(ask(t, s, prefix+"class=high 3")))
		require.Equal(t, "OK, OK 5/6 1m0s", short(ask(t, s, prefix+"class=none")), "another algorithm is another count")
		require.Equal(t, "OK, OK 9/10 6s", short(ask(t, s, prefix+"other=a")))
		require.Len(t, rules(t, file).Notes(), 1)
		require.Contains(t, rules(t, file).Notes()[0], ": reserved: no other descriptor counts the same and reserves fewer, so that nobody can use what is reserved")
	}
}

// The field replaces is for requests that name a count twice.
func TestACountThatIsAskedForTwice(t *testing.T) {
	t.Parallel()
	s, _ := inMemory(t, priorities)
	require.Equal(t, "OK, OK 8/10 1m0s, OK 2/6 1m0s", short(ask(t, s, "tenant=a 2", "tenant=a,priority=low 2")))
	named := strings.NewReplacer("requests_per_unit: 10}", "requests_per_unit: 10, name: all}", "reserved: 4", "reserved: 4, replaces: [{name: all}]").Replace(priorities)
	s, _ = inMemory(t, named)
	require.Equal(t, "OK, OK, OK 4/6 1m0s", short(ask(t, s, "tenant=a 2", "tenant=a,priority=low 2")))
}

// Each of two instances admits a half, and leaves a half of what is reserved.
func TestAReserveIsSharedOutWhileTheStoreFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, _ := hangs(t, "on_failure: local\ninstances: 2\n"+priorities)
		for _, step := range [][2]string{
			{"tenant=a,priority=low 3", "OK, OK 0/3 "}, {"tenant=a,priority=low", "OVER, OVER 0/3 "}, {"tenant=a 2", "OK, OK 0/5 "}, {"tenant=a", "OVER, OVER 0/5 "},
		} {
			got, _ := within(t, s, 100*time.Millisecond, request(step[0]))
			require.True(t, strings.HasPrefix(got, step[1]), got)
		}
	})
}

func TestReservesInMetadataAndOfBursts(t *testing.T) {
	t.Parallel()
	s, _ := inMemory(t, `domain: edge
descriptors:
	- {key: a, rate_limit: {unit: minute, requests_per_unit: 10, reserved: 2}, metadata: {ratelimit: {reserved: 4}}}
	- {key: b, rate_limit: {limit: 10/m burst 30, algorithm: token_bucket, reserved: 20}}
`)
	require.Equal(t, "OK, OK 5/6 1m0s", short(ask(t, s, "a=1")))
	require.Equal(t, "OK, OK 9/10 6s", short(ask(t, s, "b=1")), "the limit is the rate, beside any burst")
	answer := post(s, "/v1/decide", `{"domain": "edge", "asks": [{"entries": {"b": "1"}}]}`)
	require.Contains(t, answer.Body.String(), `"limit":10,"remaining":8`)
}

func TestReservesThatCannotBe(t *testing.T) {
	t.Parallel()
	const one = "domain: d\ndescriptors:\n- key: a\n  "
	for file, want := range map[string]string{
		one + "rate_limit: {limit: 5/s, reserved: 0}":                                  `4:38: reserved: "0": want a number from 1 to 2147483647`,
		one + "rate_limit: {limit: 5/s, reserved: 5}":                                  "4:38: reserved: 5 leaves nothing of 5/s",
		one + "rate_limit: {unit: second, requests_per_unit: 5, reserved: 6}":          "4:62: reserved: 6 leaves nothing of 5/s",
		one + "rate_limit: {limit: 9/s burst 5, algorithm: token_bucket, reserved: 5}": "4:71: reserved: 5 leaves nothing of 9/s burst 5",
		one + "rate_limit: {limit: 5/s}\n  metadata: {ratelimit: {reserved: 5}}":       "5:36: reserved: 5 leaves nothing of 5/s",
		one + "rate_limit: {unlimited: true, reserved: 5}":                             "4:15: rate_limit: unlimited cannot be combined with another limit",
		one + "value: b*\n  share_threshold: true\n  share_parent: true":               "6:3: share_parent: cannot be combined with share_threshold, because no value is counted",
		one + "share_parent: maybe":                                                    `4:17: share_parent: "maybe": want true or false`,
	} {
		_, err := serve.Parse(serve.File{Name: "f.yaml", Text: []byte(file)})
		require.ErrorContains(t, err, "f.yaml:"+want, file)
	}
}
