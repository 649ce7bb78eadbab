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
