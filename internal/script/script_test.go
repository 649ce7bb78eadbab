package script_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store"
)

// rules is a store that keeps the rule of the last limiter.
type rules struct {
	store.Store
	last *store.Rule
}

func (r *rules) Prepare(rule *store.Rule, _ store.Limit, _ bool) error {
	r.last = rule
	return nil
}

func ruleOf(t *testing.T, algorithm string) *store.Rule {
	t.Helper()
	var r rules
	_, err := ratelimit.New(algorithm, &r, ratelimit.PerHour(1))
	require.NoError(t, err)
	return r.last
}

// A request alone, many of one rule, and groups of requests of several rules have the plain case of each
// algorithm.
func TestScriptsHaveThePlainCaseOfEachAlgorithm(t *testing.T) {
	other := ruleOf(t, "sliding_log")
	for algorithm, file := range map[string]string{
		"fixed_window": "fixedwindow", "sliding_window": "slidingwindow", "token_bucket": "bucket", "leaky_bucket": "bucket", "sliding_log": "slidinglog",
	} {
		rule := ruleOf(t, algorithm)
		text, err := os.ReadFile("../../scripts/" + file + "_plain.lua")
		require.NoError(t, err)
		step := string(text)
		require.Equal(t, 2, strings.Count(rule.Script([]*store.Rule{rule}), step), "alone, and in groups")
		two := rule.Script([]*store.Rule{other, rule})
		require.Contains(t, two, step)
		require.Contains(t, two, "if rule == '2' then\n"+rule.Plain)
	}
}
