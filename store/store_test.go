package store_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/store"
)

// Lists are charged if all that vote in them are admitted.
func TestAListIsChargedIfAllThatVoteAreAdmitted(t *testing.T) {
	for op, votes := range map[store.Op]bool{
		store.OpTake: true, store.OpGate: true, store.OpUpTo: true, store.OpShadow: false, store.OpLook: false, store.OpOverdraw: false,
	} {
		requests := []store.Request{{Op: store.OpTake}, {Op: op}}
		require.Equal(t, votes, requests[1].Votes(), op)
		require.Equal(t, op == store.OpLook || op == store.OpGate, requests[1].Looks(), op)
		yes, no := store.Reply{Outcome: store.Admitted}, store.Reply{Outcome: store.Denied}
		require.True(t, store.AllOK(requests, []store.Reply{yes, yes}), op)
		require.Equal(t, !votes, store.AllOK(requests, []store.Reply{yes, no}), op)
		require.False(t, store.AllOK(requests, []store.Reply{no, yes}), op)
		require.False(t, store.AllOK(requests, []store.Reply{no, no}), op)
	}
}

// Alternatives are decided in their order, each as a list of its own, up to one that is admitted or fails.
func TestAlternativesAreDecidedUntilOneIsAdmitted(t *testing.T) {
	requests := make([]store.Request, 6) // of one, of two, and of three
	requests[0].Else, requests[1].Else, requests[3].Else = true, true, true
	require.True(t, store.Alternatives(requests))
	require.True(t, store.Alternatives(requests[:2]))
	require.False(t, store.Alternatives(requests[:1]), "an Else of the first begins no other")
	require.False(t, store.Alternatives(requests[1:3]))
	require.False(t, store.Alternatives(nil))

	broken := errors.New("broken")
	for admitted, asked := range map[int][]int{0: {1}, 1: {1, 2}, 2: {1, 2, 3}, 3: {1, 2, 3}} {
		for fails := range 4 {
			var lists []int
			replies := make([]store.Reply, len(requests))
			err := store.InTurn(t.Context(), requests, replies, func(_ context.Context, list []store.Request, replies []store.Reply) error {
				require.Len(t, replies, len(list))
				if lists = append(lists, len(list)); len(lists)-1 == fails {
					return broken
				}
				for i := range replies { // the last one decides
					replies[i].Outcome = store.AdmittedIf(len(lists)-1 == admitted || i < len(list)-1)
				}
				return nil
			})
			if fails < len(asked) {
				require.ErrorIs(t, err, broken)
				require.Equal(t, asked[:fails+1], lists)
				continue
			}
			require.NoError(t, err)
			require.Equal(t, asked, lists)
			decided := 0
			for _, n := range asked {
				decided += n
			}
			for i, r := range replies {
				require.Equal(t, i >= decided, r.Outcome == store.NotAsked, "admitted: %d, reply %d", admitted, i)
			}
		}
	}
}

func TestInvalidCallsAreRefused(t *testing.T) {
	longest := strings.Repeat("k", store.MaxKey)
	require.NoError(t, store.CheckCall(t.Context(), "k", 1))
	require.NoError(t, store.CheckCall(t.Context(), longest, 1<<31-1))
	require.ErrorIs(t, store.CheckCall(t.Context(), longest+"k", 1), store.ErrInvalidKey)
	require.ErrorIs(t, store.CheckCall(t.Context(), "", 1), store.ErrInvalidKey)
	require.ErrorIs(t, store.CheckCall(t.Context(), "k", 0), store.ErrInvalidN)
	require.ErrorIs(t, store.CheckCall(t.Context(), "k", -1), store.ErrInvalidN)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, store.CheckCall(ctx, "k", 1), context.Canceled)
}

// decider is a store of which only Decide is called.
type decider struct {
	store.Store
	decide func([]store.Request, []store.Reply) error
}

func (d decider) Decide(_ context.Context, requests []store.Request, replies []store.Reply) error {
	return d.decide(requests, replies)
}

func TestWhatIsAskedOfOneKey(t *testing.T) {
	ns, l := store.NewNamespace(&store.Rule{Name: "rule"}, "name"), store.Limit{Rate: 10, Period: 1e6, Burst: 10}
	for want, ask := range map[store.Request]func(store.Store) (store.Reply, error){
		{Namespace: ns, Key: "k", Limit: l, N: 5, Op: store.OpUpTo}: func(s store.Store) (store.Reply, error) {
			return store.TakeUpTo(t.Context(), s, ns, "k", l, 5)
		},
		{Namespace: ns, Key: "k", Limit: l, N: 5, Op: store.OpLook}: func(s store.Store) (store.Reply, error) {
			return store.Peek(t.Context(), s, ns, "k", l, 5)
		},
		{Namespace: ns, Key: "k", Limit: l, N: 5, Op: store.OpOverdraw, Most: 6}: func(s store.Store) (store.Reply, error) {
			return store.Overdraw(t.Context(), s, ns, "k", l, 5, 6)
		},
	} {
		var err error
		s := decider{decide: func(requests []store.Request, replies []store.Reply) error {
			require.Equal(t, []store.Request{want}, requests)
			require.Equal(t, []store.Reply{{}}, replies, "the reply to an earlier call")
			replies[0] = store.Reply{Outcome: store.Admitted, X: 1, Y: 2, Z: 3}
			return err
		}}
		reply, failed := ask(s)
		require.NoError(t, failed)
		require.Equal(t, store.Reply{Outcome: store.Admitted, X: 1, Y: 2, Z: 3}, reply)
		err = store.ErrUnavailable
		reply, failed = ask(s)
		require.ErrorIs(t, failed, store.ErrUnavailable)
		require.Equal(t, store.Reply{}, reply, "on an error replies mean nothing")
	}
}

// Stores hash keys with the ID, and may use either half.
func TestTheIDOfANamespace(t *testing.T) {
	a, b := &store.Rule{Name: "a"}, &store.Rule{Name: "b"}
	ns := store.NewNamespace(a, "name")
	hi, lo := ns.ID()
	require.NotEqual(t, hi, lo)
	same := store.NewNamespace(&store.Rule{Name: "a"}, "name")
	require.True(t, ns.Equal(same))
	sameHi, sameLo := same.ID()
	require.Equal(t, []uint64{hi, lo}, []uint64{sameHi, sameLo})
	for _, other := range []*store.Namespace{store.NewNamespace(b, "name"), store.NewNamespace(a, "other"), store.NewNamespace(&store.Rule{Name: "an"}, "ame")} {
		require.False(t, ns.Equal(other))
		otherHi, otherLo := other.ID()
		require.NotEqual(t, hi, otherHi)
		require.NotEqual(t, lo, otherLo)
	}
}
