package script_test

import (
	"os"
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

// A batch, and several keys at once, have the plain case of each algorithm whose state is five
// numbers.
func TestBatchesAndSeveralKeysHaveAPlainCase(t *testing.T) {
	other := ruleOf(t, "sliding_log")
	for algorithm, file := range map[string]string{
		"fixed_window": "fixedwindow", "sliding_window": "slidingwindow", "token_bucket": "bucket", "leaky_bucket": "bucket",
	} {
		rule := ruleOf(t, algorithm)
		text, err := os.ReadFile("../../scripts/" + file + "_plain.lua")
		require.NoError(t, err)
		step := string(text)
		require.Contains(t, rule.Script, step)
		require.Contains(t, rule.BatchScript(rule), step)
		require.Contains(t, rule.JointScript([]*store.Rule{rule}), "if rule == '1' then\n"+step+"end\n")
		require.NotContains(t, rule.JointScript([]*store.Rule{rule, other}), step)
	}
}
