package serve_test

import (
	"encoding/base64"
	"encoding/json"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/serve"
	"github.com/ratelimit-go/ratelimit/serve/internal/testenv"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

const costs = `domain: edge
descriptors:
	- {key: window, rate_limit: {limit: 1000/m}}
	- {key: slide, rate_limit: {limit: 1000/m, algorithm: sliding_window}}
	- {key: bucket, rate_limit: {limit: 1000/m, algorithm: token_bucket}}
	- {key: log, rate_limit: {limit: 1000/m, algorithm: sliding_log}}
	- {key: free, rate_limit: {unlimited: true}}
`

// reserve charges an estimate of one ask, and returns its reservation.
func reserve(t *testing.T, s *serve.Service, entry, hits string) string {
	t.Helper()
	key, value, _ := strings.Cut(entry, "=")
	w := post(s, "/v1/decide", `{"domain": "edge", "reserve": true, "asks": [{"entries": {"`+key+`": "`+value+`"}, "hits": `+hits+`}]}`)
	var answer struct{ Reservation string }
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &answer), w.Body)
	return answer.Reservation
}

// settleBody is what settles a reservation of one ask.
func settleBody(entry, used, reservation string) string {
	key, value, _ := strings.Cut(entry, "=")
	return `{"domain": "edge", "reservation": "` + reservation + `", "asks": [{"entries": {"` + key + `": "` + value + `"}, "used": ` + used + `}]}`
}

// left is what is left for an entry.
func left(t *testing.T, s *serve.Service, entry string) int {
	t.Helper()
	return int(ask(t, s, entry+" 0").GetStatuses()[0].GetLimitRemaining())
}

// A cost that is known afterwards takes the place of its estimate, once.
func TestSettle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, err := serve.New(ratelimit.Must(memstore.New()), rules(t, costs))
		require.NoError(t, err)
		for _, entry := range []string{"window=a", "slide=a", "bucket=a"} {
			for used, after := range map[string][2]int{"120": {780, 880}, "900": {0, 100}, "950": {0, 50}, "2000": {0, 0}, "0": {900, 1000}} {
				time.Sleep(2 * time.Minute) // nothing of before counts, and a window begins
				id := reserve(t, s, entry, "900")
				w := post(s, "/v1/settle", settleBody(entry, used, id))
				require.Equal(t, http.StatusOK, w.Code, w.Body)
				var answer struct{ Given, Charged []int }
				require.NoError(t, json.Unmarshal(w.Body.Bytes(), &answer))
				given, all := after[0], after[1]
				if entry == "bucket=a" && used == "0" { // its last event stays
					given, all = given-1, all-1
				}
				require.Equal(t, given, answer.Given[0], "%s %s", entry, used)
				require.Equal(t, map[string]int{"950": 50, "2000": 1100}[used], answer.Charged[0], "%s %s", entry, used)
				require.Equal(t, all, left(t, s, entry), "%s %s", entry, used)
				require.Equal(t, http.StatusConflict, post(s, "/v1/settle", settleBody(entry, used, id)).Code)
				require.Equal(t, all, left(t, s, entry), "%s %s: the second time", entry, used)
				time.Sleep(2 * time.Minute)
			}
		}
	})
}

// Events that a limit no longer counts are not refunded, because they would be those of others.
func TestSettleLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, err := serve.New(ratelimit.Must(memstore.New()), rules(t, costs))
		require.NoError(t, err)
		for entry, given := range map[string]string{"window=a": "0", "slide=a": "0", "bucket=a": "250"} {
			time.Sleep(10 * time.Minute)
			first := reserve(t, s, entry, "500")
			if entry == "bucket=a" {
				time.Sleep(15 * time.Second) // 250 have drained, 250 are charged
				reserve(t, s, entry, "700")
			} else {
				time.Sleep(time.Minute)
				reserve(t, s, entry, "400")
			}
			before := left(t, s, entry)
			w := post(s, "/v1/settle", settleBody(entry, "0", first))
			require.JSONEq(t, `{"given": [`+given+`], "charged": [0]}`, w.Body.String(), entry)
			if given == "0" {
				require.Equal(t, before, left(t, s, entry))
			}
		}
		id := reserve(t, s, "window=b", "10")
		time.Sleep(time.Hour)
		require.Equal(t, http.StatusOK, post(s, "/v1/settle", settleBody("window=b", "0", id)).Code)
		id = reserve(t, s, "window=b", "10")
		time.Sleep(time.Hour + time.Second)
		w := post(s, "/v1/settle", settleBody("window=b", "0", id))
		require.Equal(t, http.StatusBadRequest, w.Code)
		require.Contains(t, w.Body.String(), "it is 1h0m1s old")
	})
}

// Invalid requests are rejected and settle nothing. If nothing was charged, there is no
// reservation.
func TestInvalidRequestsSettleNothing(t *testing.T) {
	t.Parallel()
	s, err := serve.New(ratelimit.Must(memstore.New()), rules(t, strings.ReplaceAll(costs, "/m", "/365d")))
	require.NoError(t, err)
	id := reserve(t, s, "window=a", "900")
	require.NotEmpty(t, id)
	for _, body := range []string{ // with a misspelt key, value or domain, or of another
		settleBody("windw=a", "1", id), settleBody("window=A", "1", id), settleBody("bucket=a", "1", id), settleBody("free=a", "1", id),
		strings.Replace(settleBody("window=a", "1", id), `"edge"`, `"edgy"`, 1), strings.Replace(settleBody("window=a", "1", id), `"a"}`, `"a", "b": "c"}`, 1),
	} {
		w := post(s, "/v1/settle", body)
		require.Equal(t, http.StatusBadRequest, w.Code, body)
		require.Contains(t, w.Body.String(), "ask 0: the domain and the entries differ from those of the decision")
	}
	for reason, body := range map[string]string{
		"want the string from a decision": settleBody("window=a", "1", ""),
		"reservation: want":               settleBody("window=a", "1", "%%%"),
		"the string from a decision":      settleBody("window=a", "1", id[:25]),
		"the decision had 1 asks":         strings.Replace(settleBody("window=a", "1", id), "]", `, {"entries": {"slide": "a"}, "used": 1}]`, 1),
		"ask 0: entries: want":            strings.Replace(settleBody("window=a", "1", id), `{"window": "a"}`, "{}", 1),
		"used: want a number":             strings.Replace(settleBody("window=a", "1", id), `, "used": 1`, "", 1),
		"cannot unmarshal":                settleBody("window=a", "-1", id),
		"is more than 2147483647":         settleBody("window=a", "2147483648", id),
		"unknown field":                   strings.Replace(settleBody("window=a", "1", id), `"used"`, `"hits"`, 1),
		"domain must not be empty":        strings.Replace(settleBody("window=a", "1", id), `edge`, "", 1),
	} {
		w := post(s, "/v1/settle", body)
		require.Equal(t, http.StatusBadRequest, w.Code, reason)
		require.Contains(t, w.Body.String(), reason)
	}
	w := post(s, "/v1/decide", `{"domain": "edge", "reserve": true, "asks": [{"entries": {"log": "a"}}]}`)
	require.Equal(t, http.StatusBadRequest, w.Code)
	require.Equal(t, 1000, left(t, s, "log=a"))
	w = post(s, "/v1/refund", `{"domain": "edge", "reserve": true, "asks": [{"entries": {"window": "a"}}]}`)
	require.Equal(t, http.StatusBadRequest, w.Code)
	require.Equal(t, 100, left(t, s, "window=a"))
	require.Empty(t, reserve(t, s, "window=a", "101"), "denied")
	require.Empty(t, reserve(t, s, "free=a", "1"), "not counted")
	require.Empty(t, reserve(t, s, "window=a", "0"), "a look")
	require.Equal(t, http.StatusOK, post(s, "/v1/settle", settleBody("window=a", "1", id)).Code)

	two := `"asks": [{"entries": {"window": "b"}, "VERB": 1}, {"entries": {"free": "b"}, "VERB": 1}, {"entries": {"bucket": "b"}, "VERB": 9}]}`
	w = post(s, "/v1/decide", `{"domain": "edge", "reserve": true, `+strings.ReplaceAll(two, "VERB", "hits"))
	var answer struct{ Reservation string }
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &answer))
	swapped := strings.NewReplacer("window", "bucket", "bucket", "window").Replace(two)
	w = post(s, "/v1/settle", `{"domain": "edge", "reservation": "`+answer.Reservation+`", `+strings.ReplaceAll(swapped, "VERB", "used"))
	require.Equal(t, http.StatusBadRequest, w.Code, "in another order")
	w = post(s, "/v1/settle", `{"domain": "edge", "reservation": "`+answer.Reservation+`", `+strings.ReplaceAll(strings.Replace(two, "9", "5", 1), "VERB", "used"))
	require.JSONEq(t, `{"given": [0, 0, 4], "charged": [0, 0, 0]}`, w.Body.String())
}

// A rule that is gone meanwhile has nothing to give back, and no error: the caller has done nothing wrong.
func TestSettleWithoutTheRule(t *testing.T) {
	t.Parallel()
	s, err := serve.New(ratelimit.Must(memstore.New()), rules(t, costs))
	require.NoError(t, err)
	id := reserve(t, s, "window=a", "900")
	require.NoError(t, s.Update(rules(t, strings.Replace(costs, "{limit: 1000/m}", "{limit: 1000/m, algorithm: sliding_log}", 1))))
	require.Contains(t, post(s, "/v1/settle", settleBody("window=a", "1", id)).Body.String(), "a sliding_log cannot be settled")
	require.NoError(t, s.Update(rules(t, "domain: edge")))
	w := post(s, "/v1/settle", settleBody("window=a", "1", id))
	require.Equal(t, http.StatusOK, w.Code)
	require.JSONEq(t, `{"given": [0], "charged": [0]}`, w.Body.String())
}

// A rule that counts in another place meanwhile has nothing to give back either: that would be what others were charged.
func TestSettleAfterTheRuleCountsElsewhere(t *testing.T) {
	t.Parallel()
	for before, after := range map[string]string{
		"rate_limit: {limit: 1000/m}":                            "rate_limit: {limit: 1000/h}",
		"rate_limit: {limit: 1000/week}":                         "rate_limit: {limit: 1000/week from tuesday}",
		"rate_limit: {limit: 1000/m, algorithm: sliding_window}": "rate_limit: {limit: 1000/m, algorithm: token_bucket}",
		"rate_limit: {limit: 1000/m, algorithm: token_bucket}":   `value: "a*", share_threshold: true, rate_limit: {limit: 1000/m, algorithm: token_bucket}`,
	} {
		synctest.Test(t, func(t *testing.T) {
			file := func(rule string) *serve.Rules { return rules(t, "domain: edge\ndescriptors: [{key: user, "+rule+"}]") }
			s, err := serve.New(ratelimit.Must(memstore.New()), file(before))
			require.NoError(t, err)
			first, second := reserve(t, s, "user=a", "500"), reserve(t, s, "user=a", "100")
			require.NoError(t, s.Update(file(after)))
			require.NotEmpty(t, reserve(t, s, "user=a", "400"))
			require.JSONEq(t, `{"given": [0], "charged": [0]}`, post(s, "/v1/settle", settleBody("user=a", "0", first)).Body.String(), after)
			require.Equal(t, 600, left(t, s, "user=a"), after)
			require.JSONEq(t, `{"given": [0], "charged": [50]}`, post(s, "/v1/settle", settleBody("user=a", "150", second)).Body.String(), after)
			require.Equal(t, 550, left(t, s, "user=a"), "what a cost is beyond its estimate comes now: %s", after)
		})
	}
}

// Whatever a stranger sends as a reservation is rejected, or treated as the stranger's own.
func TestReservationsOfStrangers(t *testing.T) {
	t.Parallel()
	s, err := serve.New(ratelimit.Must(memstore.New()), rules(t, strings.ReplaceAll(costs, "/m", "/365d")))
	require.NoError(t, err)
	good, err := base64.RawURLEncoding.DecodeString(reserve(t, s, "bucket=a", "900"))
	require.NoError(t, err)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range testenv.Of(600, 50_000) {
		b := slices.Clone(good)
		if i%3 == 0 {
			b = make([]byte, 1+random.IntN(64)) // of which nothing is right
		}
		for range 1 + random.IntN(4) {
			b[random.IntN(len(b))] = byte(random.Uint32())
		}
		b = b[:len(b)-random.IntN(2)]
		w := post(s, "/v1/settle", settleBody("bucket=a", "900", base64.RawURLEncoding.EncodeToString(b)))
		require.Contains(t, []int{http.StatusOK, http.StatusBadRequest, http.StatusConflict}, w.Code, w.Body)
		require.LessOrEqual(t, left(t, s, "bucket=a"), 1000)
	}
}

// Of many who settle one reservation at once, at two servers on one Redis, one does.
func TestSettleOnce(t *testing.T) {
	t.Parallel()
	server := testenv.StartRedis(t)
	var servers [2]*serve.Service
	for i := range servers {
		st, err := serve.Open("redis://"+server.Address, "edge", time.Minute)
		require.NoError(t, err)
		defer st.Close()
		servers[i], err = serve.New(st.Store, rules(t, strings.ReplaceAll(costs, "/m", "/365d")), serve.WithLogger(slog.New(slog.DiscardHandler)))
		require.NoError(t, err)
	}
	for _, entry := range []string{"window=a", "bucket=a"} {
		id := reserve(t, servers[0], entry, "900")
		var settled, conflicts atomic.Int64
		var all sync.WaitGroup
		for i := range 32 {
			all.Go(func() {
				switch post(servers[i%2], "/v1/settle", settleBody(entry, "850", id)).Code {
				case http.StatusOK:
					settled.Add(1)
				case http.StatusConflict:
					conflicts.Add(1)
				}
			})
		}
		all.Wait()
		require.EqualValues(t, 1, settled.Load())
		require.EqualValues(t, 31, conflicts.Load())
		require.Equal(t, 150, left(t, servers[1], entry))
	}
	id := reserve(t, servers[0], "window=a", "1")
	server.Stop()
	short, err := serve.Open("redis://"+server.Address, "edge", 50*time.Millisecond)
	require.NoError(t, err)
	defer short.Close()
	s, err := serve.New(short.Store, rules(t, "instances: 2\non_failure: local\n"+costs), serve.WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	for range 7 { // also once the breaker is open
		require.Equal(t, http.StatusServiceUnavailable, post(s, "/v1/settle", settleBody("window=a", "0", id)).Code)
		require.Empty(t, reserve(t, s, "window=a", "1"), "the share of this process cannot be settled")
	}
}
