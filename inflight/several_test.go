package inflight_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

// onStores is an All of a limit of one slot on each of so many stores.
func onStores(t *testing.T, n int) (l ratelimit.Limiter, stores []*remote, each []*ratelimit.Custom) {
	var limits []ratelimit.Limiter
	for i := range n {
		stores = append(stores, newRemote(t))
		each = append(each, slots(t, stores[i], 1, ratelimit.WithName(fmt.Sprint(i))))
		limits = append(limits, each[i])
	}
	return ratelimit.Must(ratelimit.NewAll(limits...)), stores, each
}

// Of several slots on stores of their own, those whose stores answer are renewed in time, however many stores hang.
func TestStoresThatHangDoNotLoseTheSlotOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, stores, each := onStores(t, 8)
		a := hold(t, l)
		for _, s := range stores[:7] {
			s.hangs.Store(true)
		}
		for range 100 {
			time.Sleep(100 * time.Millisecond)
			require.Zero(t, free(t, each[7]), "its store answers")
		}
		for _, s := range stores {
			s.hangs.Store(false)
		}
		a.Release()
		time.Sleep(time.Minute)
	})
}

// A Release frees the slots whose stores answer at once, however long the others take.
func TestAStoreThatIsSlowDoesNotKeepTheSlotOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, stores, each := onStores(t, 3)
		memory := slots(t, stores[0].Store, 1)
		l = ratelimit.Must(ratelimit.NewAll(l, memory))
		a := hold(t, l)
		stores[0].way, stores[1].way = time.Second, time.Second
		a.Release()
		synctest.Wait()
		require.Equal(t, []int{0, 0, 1, 1}, []int{free(t, each[0]), free(t, each[1]), free(t, each[2]), free(t, memory)})
		time.Sleep(time.Second)
		synctest.Wait()
		require.Equal(t, []int{1, 1}, []int{free(t, each[0]), free(t, each[1])})
	})
}

// A write that comes late, after the Release, has the token of its slot, and not that of another limit.
func TestATokenIsTheSameAfterTheRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		both, stores, each := onStores(t, 2)
		for name, l := range map[string]ratelimit.Limiter{"memory": slots(t, stores[0].Store, 2), "store": each[0], "several": both} {
			for _, again := range []bool{false, true} {
				a := hold(t, l)
				if again && name != "memory" { // the store loses the slot, which is then taken again
					before := a.Token()
					require.NoError(t, l.Reset(t.Context(), "key"))
					time.Sleep(2 * time.Second)
					require.Greater(t, a.Token(), before)
				}
				token := a.Token()
				require.NotZero(t, token)
				time.Sleep(time.Millisecond)
				stores[1].down.Store(true) // of several, it keeps its slot for a while
				a.Release()
				synctest.Wait()
				require.Equal(t, token, a.Token(), name)
				stores[1].down.Store(false)
				time.Sleep(time.Minute)
				require.Equal(t, token, a.Token(), name)
			}
		}
	})
}
