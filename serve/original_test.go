package serve_test

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/serve"

	"github.com/ratelimit-go/ratelimit/serve/internal/testenv"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

// step is a request, so many times, and the answer to the last. there is what envoyproxy/ratelimit
// answers where it is another one.
type step struct {
	times       int
	descriptors string
	want, there string
}

// originals are what the tests of envoyproxy/ratelimit ask for, in files and words of our own. The
// name is the domain.
var originals = map[string]struct {
	file  string
	steps []step
}{
	"lookups": {`
	- key: one
	  value: a
	  descriptors:
	  	- {key: two, rate_limit: {unit: day, requests_per_unit: 5}}
	  	- {key: two, value: b, rate_limit: {unit: day, requests_per_unit: 10}}
	- {key: plain, rate_limit: {unit: hour, requests_per_unit: 20}}
	- {key: plain, value: large, rate_limit: {unit: hour, requests_per_unit: 30}}
	- {key: plain, value: listed}
	- key: deep
	  value: d
	  rate_limit: {unit: day, requests_per_unit: 15}
	  descriptors: [{key: deeper, value: e, rate_limit: {unit: day, requests_per_unit: 25}}]
	- {key: named, rate_limit: {name: mine, unit: day, requests_per_unit: 1}}
	- {key: free, rate_limit: {unlimited: true}}
`, []step{
		{1, "one=x", "OK, OK", ""},
		{1, "one=a", "OK, OK", ""},
		{1, "plain=x,two=b", "OK, OK", ""},
		{1, "deep=d,deeper=x", "OK, OK", ""}, // the limit above is none of it
		{1, "deep=d,deeper=e", "OK, OK 24/25", ""},
		{1, "deep=d", "OK, OK 14/15", ""},
		{1, "one=a,two=x", "OK, OK 4/5", ""},
		{1, "one=a,two=b", "OK, OK 9/10", ""},
		{1, "plain=x", "OK, OK 19/20", ""},
		{1, "plain=large", "OK, OK 29/30", ""},
		{1, "plain=listed", "OK, OK", ""},
		{1, "named=x", "OK, OK 0/1", ""},
		{1, "free=x|named=y", "OK, OK, OK 0/1", ""},
		{1, "nothing=x", "OK, OK", ""},
	}},
	"one limit": {`
	- {key: k, rate_limit: {unit: day, requests_per_unit: 20}}
`, []step{
		{1, "k=x", "OK, OK 19/20", ""},
		{19, "k=x", "OK, OK 0/20", ""},
		{5, "k=x", "OVER, OVER 0/20", ""},
	}},
	"two limits": {`
	- {key: k, rate_limit: {unit: day, requests_per_unit: 20}}
	- {key: l, rate_limit: {unit: month, requests_per_unit: 10}}
`, []step{
		{10, "k=x|l=x", "OK, OK 10/20, OK 0/10", ""},
		{5, "k=x|l=x", "OVER, OK 10/20, OVER 0/10", "OVER, OK 5/20, OVER 0/10"},
	}},
	"nothing at all": {`
	- {key: block, rate_limit: {unit: day, requests_per_unit: 0}}
`, []step{
		{1, "block=x", "OVER, OVER 0/0", ""},
	}},
	"hits": {`
	- {key: k, rate_limit: {unit: day, requests_per_unit: 10}}
`, []step{
		{1, "k=x 4", "OK, OK 6/10", ""},
		{1, "k=x 7", "OVER, OVER 6/10", "OVER, OVER 0/10"},
		{1, "k=x 6", "OK, OK 0/10", "OVER, OVER 0/10"},
	}},
	"looks, and more than all": {`
	- {key: k, rate_limit: {unit: day, requests_per_unit: 3}}
`, []step{
		{1, "k=x 3", "OK, OK 0/3", ""},
		{1, "k=x 0", "OVER, OVER 0/3", "OK, OK 0/3"},
		{1, "k=y 4", "OVER, OVER 3/3", "OVER, OVER 0/3"},
		{1, "k=y", "OK, OK 2/3", "OVER, OVER 0/3"},
		{1, "k=z 2|k=z 2", "OVER, OVER 3/3, OVER 3/3", "OVER, OK 1/3, OVER 0/3"},
	}},
	"shadows": {`
	- {key: k, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 2}}
	- {key: k, value: v, rate_limit: {unit: day, requests_per_unit: 3}}
`, []step{
		{2, "k=x", "OK, OK 0/2", ""},
		{1, "k=x|k=v", "OK, OK 0/2, OK 2/3", ""},
		{3, "k=v", "OVER, OVER 0/3", ""},
	}},
	"wildcards": {`
	- {key: w, value: "foo*", rate_limit: {unit: day, requests_per_unit: 20}}
	- {key: exact, value: foo, rate_limit: {unit: day, requests_per_unit: 20}}
	- {key: mid, value: "bar*b", rate_limit: {unit: day, requests_per_unit: 20}}
	- {key: multi, value: "foo*bar*baz", rate_limit: {unit: day, requests_per_unit: 10}}
	- key: nest
	  value: v
	  descriptors: [{key: w, value: "goo*", rate_limit: {unit: day, requests_per_unit: 20}}]
	- {key: order, value: "a*", rate_limit: {unit: day, requests_per_unit: 1}}
	- {key: order, value: "a*b", rate_limit: {unit: day, requests_per_unit: 2}}
	- {key: order, rate_limit: {unit: day, requests_per_unit: 3}}
`, []step{
		{1, "w=foo1|w=foo2|w=foo", "OK, OK 19/20, OK 19/20, OK 19/20", ""},
		{1, "w=bar|exact=foo1|w=fo", "OK, OK, OK, OK", ""},
		{1, "mid=barab|mid=bar123b|mid=barb", "OK, OK 19/20, OK 19/20, OK 19/20", ""},
		{1, "mid=bara|mid=xbarb|mid=bar", "OK, OK, OK, OK", ""},
		{1, "multi=foo1bar2baz|multi=foobarbaz", "OK, OK 9/10, OK 9/10", ""},
		{1, "multi=foo1baz|multi=bar4baz|multi=foobazbar", "OK, OK, OK, OK", ""},
		{1, "nest=v,w=goo2", "OK, OK 19/20", ""},
		{1, "order=ab|order=b", "OK, OK 0/1, OK 2/3", ""},
	}},
	"shared": {`
	- {key: f, value: "f/*", share_threshold: true, rate_limit: {unit: day, requests_per_unit: 10}}
	- {key: own, value: "f/*", rate_limit: {unit: day, requests_per_unit: 10}}
	- {key: e, value: t1, rate_limit: {unit: day, requests_per_unit: 5}}
	- {key: e, value: "t*", share_threshold: true, rate_limit: {unit: day, requests_per_unit: 10}}
	- key: p
	  value: "p*"
	  share_threshold: true
	  descriptors:
	  	- key: q
	  	  value: "q*"
	  	  descriptors: [{key: r, rate_limit: {unit: day, requests_per_unit: 10}}]
	- key: both
	  value: "p*x"
	  share_threshold: true
	  descriptors: [{key: q, value: "q*", share_threshold: true, rate_limit: {unit: day, requests_per_unit: 10}}]
`, []step{
		{10, "f=f/a", "OK, OK 0/10", ""},
		{1, "f=f/b", "OVER, OVER 0/10", ""},
		{1, "own=f/a|own=f/b", "OK, OK 9/10, OK 9/10", ""},
		{1, "e=t1", "OK, OK 4/5", ""},
		{1, "e=t2", "OK, OK 9/10", ""},
		{1, "e=t3", "OK, OK 8/10", ""},
		{1, "p=p1,q=q1,r=1", "OK, OK 9/10", ""},
		{1, "p=p2,q=q1,r=1", "OK, OK 8/10", ""},
		{1, "p=p2,q=q2,r=1", "OK, OK 9/10", ""},
		{1, "p=p2,q=q1,r=2", "OK, OK 9/10", ""},
		{1, "both=p1x,q=q1", "OK, OK 9/10", ""},
		{1, "both=p2x,q=q2", "OK, OK 8/10", ""},
	}},
	"replaces": {`
	- {key: home, rate_limit: {name: home, unit: day, requests_per_unit: 5}}
	- {key: plan, value: gold, rate_limit: {name: plan, unit: day, requests_per_unit: 9, replaces: [{name: home}]}}
	- {key: plan, value: free, rate_limit: {unlimited: true, replaces: [{name: home}]}}
`, []step{
		{1, "home=a|plan=gold", "OK, OK, OK 8/9", ""},
		{1, "home=a|plan=free", "OK, OK, OK", ""},
		{1, "home=a", "OK, OK 4/5", ""},
	}},
	"quotas": {`
	- {key: b, value: one, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}
	- {key: b, value: two, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 2}}
`, []step{
		{1, "b=one|b=two", "OK, OK 0/1, OK 1/2", ""},
		{1, "b=one|b=two", "OK, OVER 0/1, OK 0/2", ""},
		{1, "b=one|b=two", "OVER, OVER 0/1, OVER 0/2", ""},
	}},
	"apart": {`
	- {key: a, value: b_c, rate_limit: {unit: day, requests_per_unit: 3}}
	- {key: x_y, rate_limit: {unit: day, requests_per_unit: 3}}
	- {key: x, rate_limit: {unit: day, requests_per_unit: 3}}
`, []step{
		{1, "a=b_c", "OK, OK 2/3", ""},
		{1, "a_b=c", "OK, OK", "OK, OK 1/3"},
		{1, "x_y=z", "OK, OK 2/3", ""},
		{1, "x=y_z", "OK, OK 2/3", "OK, OK 1/3"},
	}},
}

var durations = regexp.MustCompile(`(/\d+) \S+?(,|$)`)

// timeless is an answer in short, without the times, which pass.
func timeless(r *pb.RateLimitResponse) string { return durations.ReplaceAllString(short(r), "$1$2") }

// playOriginals asks everything. differs reports whether a question is not ours.
func playOriginals(t *testing.T, client func(domain string) func(*pb.RateLimitRequest) (*pb.RateLimitResponse, error), differs bool) {
	for name, c := range originals {
		decide := client(name)
		for _, step := range c.steps {
			req := request(strings.Split(step.descriptors, "|")...)
			req.Domain = name
			var answer *pb.RateLimitResponse
			for range step.times {
				var err error
				answer, err = decide(req)
				require.NoError(t, err)
			}
			want := step.want
			if differs && step.there != "" {
				want = step.there
			}
			require.Equal(t, want, timeless(answer), "%s: %s", name, step.descriptors)
		}
	}
}

func originalFile(name string) string {
	return text("domain: " + name + "\ndescriptors:" + originals[name].file)
}

// Requests of the tests of envoyproxy/ratelimit get the same answers, except for the differences
// that docs/serve.md lists.
func TestRequestsOfTheOriginalsTestsGetTheSameAnswers(t *testing.T) {
	t.Parallel()
	playOriginals(t, func(domain string) func(*pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
		s, _ := inMemory(t, originalFile(domain))
		return func(req *pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
			return s.ShouldRateLimit(t.Context(), req)
		}
	}, false)
}

// The same of the original itself: what is said of it here is true. Around midnight it can fail.
func TestTheOriginalItself(t *testing.T) {
	files := map[string]string{}
	for name := range originals {
		files[name+".yaml"] = originalFile(name)
	}
	address, _ := testenv.Original(t, testenv.Redis(t), files)
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	client := pb.NewRateLimitServiceClient(conn)
	playOriginals(t, func(string) func(*pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
		return func(req *pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
			return client.ShouldRateLimit(t.Context(), req)
		}
	}, true)
}

// Random files, asked of both at random, by one hit: what is denied of several is charged there, and with
// charge_over_limit here too. Around midnight it can fail.
func TestTheOriginalAtRandom(t *testing.T) {
	for how, env := range map[string]string{"all_or_none: false\n": "false", "": "true", "charge_over_limit: true\n": "false"} {
		for range 3 { // files for one process
			compareAtRandom(t, how, "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT="+env)
		}
	}
}

// compareAtRandom asks both of random files. how is before each of ours.
func compareAtRandom(t *testing.T, how, env string) {
	const seeds, steps = 50, 60
	files, all := map[string]string{}, [seeds]*model{}
	base := rand.Uint64()
	for i := range all {
		m := &model{rules: randomRules(rand.New(rand.NewPCG(base, uint64(i))), 0)}
		slow(m.rules)
		apart(m.rules, how == "")
		all[i], files[fmt.Sprint(i, ".yaml")] = m, fmt.Sprint("domain: s", i, "\n", yaml(m.rules, ""))
	}
	address, process := testenv.Original(t, testenv.Redis(t), files, env)
	defer func() { _ = process.Kill() }()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	client := pb.NewRateLimitServiceClient(conn)
	for i, m := range all {
		file := files[fmt.Sprint(i, ".yaml")]
		s, err := serve.New(ratelimit.Must(memstore.New()), rules(t, how+file))
		require.NoError(t, err)
		r := rand.New(rand.NewPCG(base, uint64(i)))
		for range steps {
			over := strings.HasPrefix(how, "charge_over_limit")
			texts := randomTexts(r, m, over || how == "")
			for i := range texts {
				if over {
					texts[i] += pick(r, "", " 2", " 3", " 7")
				}
			}
			req := request(texts...)
			req.Domain = fmt.Sprint("s", i)
			want, err := client.ShouldRateLimit(t.Context(), req)
			require.NoError(t, err)
			got, err := s.ShouldRateLimit(t.Context(), req)
			require.NoError(t, err)
			require.Equal(t, timeless(want), timeless(got), "%s %s %v\n%s", env, how, req.GetDescriptors(), file)
		}
	}
}

// randomTexts are descriptors. With once no two have one count, of which the original takes both.
func randomTexts(r *rand.Rand, m *model, once bool) (texts []string) {
	counts := map[string]bool{}
	for range 1 + r.IntN(4) {
		text := pick(r, "a", "b", "c") + "=" + pick(r, "", "x", "y", "z", "xy", "xzy", "x*")
		for r.IntN(3) == 0 {
			text += "," + pick(r, "a", "b") + "=" + pick(r, "x", "xy", "q")
		}
		if _, count := m.match(text); !once || count == "" || !counts[count] {
			texts = append(texts, text)
			counts[count] = true
		}
	}
	return texts
}

// apart renames what the original takes for one another: a_b with c, and a with b_c. With plain there are
// no shadows and no quotas, which deny others there.
func apart(rules []*rule, plain bool) {
	for _, r := range rules {
		r.key, r.value = strings.Replace(r.key, "a_b", "c", 1), strings.Replace(r.value, "b_x", "z", 1)
		r.shadow, r.quota = r.shadow && !plain, r.quota && !plain
		apart(r.inner, plain)
	}
}
