package serve_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/serve"
	"github.com/ratelimit-go/ratelimit/serve/internal/testenv"
)

// inOrder is a JSON object of entries such as user=ann, in their order.
func inOrder(entries ...string) string {
	var all []string
	for _, e := range entries {
		key, value, _ := strings.Cut(e, "=")
		all = append(all, fmt.Sprintf("%q: %q", key, value))
	}
	return "{" + strings.Join(all, ", ") + "}"
}

// orders are all of a list.
func orders(list []string) (all [][]string) {
	if len(list) < 2 {
		return [][]string{list}
	}
	for i, first := range list {
		for _, rest := range orders(slices.Delete(slices.Clone(list), i, i+1)) {
			all = append(all, append([]string{first}, rest...))
		}
	}
	return all
}

const nested = `domain: edge
descriptors:
	- key: user
	  rate_limit: {unit: day, requests_per_unit: 90}
	  descriptors:
	  	- key: path
	  	  rate_limit: {unit: day, requests_per_unit: 80}
	  	  descriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 70}}]
	- key: path
	  value: /login*
	  descriptors:
	  	- {key: user, rate_limit: {unit: day, requests_per_unit: 60}}
	  	- {key: plan, rate_limit: {unit: day, requests_per_unit: 50}}
	- key: plan
	  descriptors:
	  	- {key: path, value: /login, rate_limit: {unit: day, requests_per_unit: 40}}
	  	- {key: path, descriptors: [{key: a}]}
	- key: a
	  descriptors: [{key: plan, descriptors: [{key: path, rate_limit: {unit: day, requests_per_unit: 30}}]}]
checks:
	back: [{user: header X-User, path: header X-Path}]
	forth: [{path: header X-Path, user: header X-User}]
`

// A JSON object has no order: whatever a program's encoder makes of it, the same rule counts it, in one place.
func TestTheOrderOfAnObjectMeansNothing(t *testing.T) {
	t.Parallel()
	for entries, limit := range map[string]int{
		"user=ann": 90, "user=ann path=/x": 80, "user=ann path=/x a=1": 70,
		"user=ann path=/login":  80,          // of two rules the first in the file
		"plan=gold path=/login": 50,          // also where a later one has the exact value
		"plan=gold path=/x":     0,           // which no rule has
		"plan=gold path=/x a=1": 30,          // a descriptor without a limit is none
		"plan=gold user=ann":    0, "z=1": 0, // no rule
		"user=ann path=/x a=1 plan=gold": 0,
	} {
		s, _ := inMemory(t, nested)
		left := limit
		for _, order := range orders(strings.Fields(entries)) {
			w := post(s, "/v1/decide", `{"domain": "edge", "asks": [{"entries": `+inOrder(order...)+`}]}`)
			require.Equal(t, http.StatusOK, w.Code, w.Body)
			var answer struct {
				Asks []struct {
					NoRule           bool `json:"no_rule"`
					Limit, Remaining int
				}
			}
			require.NoError(t, json.Unmarshal(w.Body.Bytes(), &answer))
			require.Equal(t, limit, answer.Asks[0].Limit, "%v", order)
			require.Equal(t, limit == 0, answer.Asks[0].NoRule, "%v", order)
			if limit > 0 {
				left--
				require.Equal(t, left, answer.Asks[0].Remaining, "%v: one count", order)
			}
		}
		for _, order := range orders(strings.Fields(entries)) {
			w := post(s, "/v1/refund", `{"domain": "edge", "asks": [{"entries": `+inOrder(order...)+`, "hits": 1}]}`)
			require.JSONEq(t, `{"given": [`+map[bool]string{true: "0", false: "1"}[limit == 0]+`]}`, w.Body.String(), "%v", order)
		}
	}
}

// A reservation made with entries in one order can be settled in another.
func TestSettleInAnotherOrder(t *testing.T) {
	t.Parallel()
	s, _ := inMemory(t, nested)
	w := post(s, "/v1/decide", `{"domain": "edge", "reserve": true, "asks": [{"entries": `+inOrder("path=/x", "user=ann")+`, "hits": 5}]}`)
	var answer struct{ Reservation string }
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &answer))
	w = post(s, "/v1/settle", `{"domain": "edge", "reservation": "`+answer.Reservation+`", "asks": [{"entries": `+inOrder("user=ann", "path=/x")+`, "used": 2}]}`)
	require.Equal(t, http.StatusOK, w.Code, w.Body)
	require.Equal(t, 78, left(t, s, "user=ann,path=/x"))
}

// A mapping of YAML has no order either. Over gRPC descriptors are lists, and an order that no rule has is not counted, as in Envoy.
func TestTheOrderOfACheckMeansNothing(t *testing.T) {
	t.Parallel()
	s, _ := inMemory(t, nested)
	require.Empty(t, rules(t, nested).Notes())
	for i, name := range []string{"back", "forth"} {
		w := check(s, "/check/"+name, "X-User: ann", "X-Path: /x")
		require.Equal(t, fmt.Sprint(79-i), w.Header().Get("RateLimit-Remaining"), name)
	}
	require.Equal(t, "OK, OK", short(ask(t, s, "path=/x,user=ann")))
}

// A key that comes twice has two meanings, and so does an object.
func TestObjectsWithAKeyTwice(t *testing.T) {
	t.Parallel()
	s, _ := inMemory(t, nested)
	w := post(s, "/v1/decide", `{"domain": "edge", "asks": [{"entries": {"user": "ann", "path": "/x", "user": "ben"}}]}`)
	require.Equal(t, http.StatusBadRequest, w.Code)
	require.Contains(t, w.Body.String(), `"user" is repeated`)
	w = post(s, "/v1/decide", `{"domain": "edge", "asks": [{"entries": {"path": "/x"}, "entries": {"user": "ann"}}]}`)
	require.Equal(t, http.StatusBadRequest, w.Code)
	require.Contains(t, w.Body.String(), `"entries" is repeated`)
}

// Whatever the file, a set has a limit if its list has one in any order, and always the same one.
func TestSetsAtRandom(t *testing.T) {
	t.Parallel()
	for seed := range uint64(testenv.Of(100, 1000)) {
		r := rand.New(rand.NewPCG(seed, 3))
		m := &model{rules: randomRules(r, 0)}
		file := "domain: edge\n" + yaml(m.rules, "")
		s, err := serve.New(memory(t), rules(t, file))
		require.NoError(t, err)
		for range 10 {
			set := map[string]bool{}
			for _, key := range []string{"a", "b", "a_b"}[:1+r.IntN(3)] {
				set[key+"="+pick(r, "x", "y", "xy", "q")] = true
			}
			entries := slices.Collect(maps.Keys(set))
			some, first := false, ""
			for i, order := range orders(entries) {
				found, _ := m.match(strings.Join(order, ","))
				some = some || found != nil
				w := post(s, "/v1/decide", `{"domain": "edge", "asks": [{"entries": `+inOrder(order...)+`, "hits": 0}]}`)
				if i == 0 {
					first = w.Body.String()
				}
				require.Equal(t, first, w.Body.String(), "%v\n%s", order, file)
			}
			require.Equal(t, !some, strings.Contains(first, "no_rule"), "%v\n%s", entries, file)
		}
	}
}
