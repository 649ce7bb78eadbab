package store_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/store"
)

// A store that wraps another one may answer in plain numbers, which mean the same for all rules.
func TestAPlainReplyNeedsNoRule(t *testing.T) {
	none, l := &store.Rule{}, store.Limit{Rate: 10, Period: 1e6, Burst: 10}
	for _, c := range []struct {
		reply     store.Reply
		charged   int64
		want      store.Report
		available int64
	}{
		{store.Reply{Outcome: store.DeniedByCache, X: 5, Y: 3, Z: 9}, 0, store.Report{Remaining: 3, Retry: 5, Reset: 9}, 3},
		{store.Reply{Outcome: store.DeniedByLease, X: store.Never, Z: 9}, 0, store.Report{Retry: store.Never, Reset: 9}, 0},
		{store.Reply{Outcome: store.AdmittedByLease, X: 5, Y: 7, Z: 9}, 4, store.Report{Remaining: 3, Retry: 5, Reset: 9}, 7},
		{store.Reply{Outcome: store.AdmittedPlainly, X: 5, Y: -2, Z: 9}, 4, store.Report{Retry: 5, Reset: 9, Delay: 2}, 0},
	} {
		require.True(t, c.reply.Plain())
		require.Equal(t, c.want, c.reply.Report(none, l, 4, c.charged), "%+v", c.reply)
		require.Equal(t, c.available, c.reply.Available(none, l), "%+v", c.reply)
		after := c.reply
		after.Y -= 4
		require.Equal(t, after, c.reply.After(none, 4), "%+v", c.reply)
		require.Equal(t, c.reply, c.reply.Plainly(none, l, 4, c.charged))
	}
}

func TestWhichOutcomesAdmit(t *testing.T) {
	for outcome, want := range map[store.Outcome]bool{
		store.Denied: false, store.DeniedPlainly: false, store.DeniedByCache: false, store.DeniedByLease: false, store.NotAsked: false,
		store.Admitted: true, store.AdmittedPlainly: true, store.AdmittedByLease: true,
	} {
		require.Equal(t, want, outcome.OK(), outcome)
		require.Equal(t, outcome != store.Denied && outcome != store.Admitted, outcome.Plain(), outcome)
	}
	require.Equal(t, store.Admitted, store.AdmittedIf(true))
	require.Equal(t, store.Denied, store.AdmittedIf(false))
}

// Stores that wrap others and decide by a different limit answer in plain numbers.
func TestAReplyInPlainNumbers(t *testing.T) {
	const room = 10 // events
	l := store.Limit{Rate: 10, Period: 1e6, Burst: 10}
	for name, c := range map[string]struct {
		reply    store.Reply
		n, delay int64
		want     store.Reply
	}{
		"admitted":              {store.Reply{Outcome: store.Admitted, X: 5}, 10, 0, store.Reply{Outcome: store.AdmittedPlainly, X: 5, Y: room, Z: 100}},
		"admitted ahead of now": {store.Reply{Outcome: store.Admitted, X: 5}, 10, 1, store.Reply{Outcome: store.AdmittedPlainly, X: 5, Y: -1, Z: 100}},
		"denied":                {store.Reply{Outcome: store.Denied, X: 5}, 10, 0, store.Reply{Outcome: store.DeniedPlainly, X: 3, Y: room, Z: 0}},
		"denied for ever":       {store.Reply{Outcome: store.Denied, X: 5}, 11, 0, store.Reply{Outcome: store.DeniedPlainly, X: store.Never, Y: room, Z: 0}},
	} {
		rule := &store.Rule{
			Available: func(store.Limit, store.Reply) int64 { return room },
			Report: func(_ store.Limit, _ store.Reply, n, charged int64) store.Report {
				require.Equal(t, c.n, n)
				return store.Report{Remaining: room - charged, Retry: 3, Reset: 10 * charged, Delay: c.delay}
			},
		}
		require.Equal(t, c.want, c.reply.Plainly(rule, l, c.n, c.n), name)
	}
}
