package guard

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

var maker = &KeyMaker[string]{None: errors.New("none"), Ambiguous: errors.New("ambiguous")}

// The examples are from FIPS 180 and RFC 4231, because both transports could be wrong in the same
// way.
func TestAnAPIKeyIsCountedByItsHash(t *testing.T) {
	secret := []byte(strings.Repeat("\x0b", 20))
	for _, c := range []struct {
		key, hash string
		opts      []func(*APIKey[string]) error
	}{
		{"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", nil},
		{"Hi There", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7", []func(*APIKey[string]) error{HashedWith[string](secret)}},
	} {
		a, err := NewAPIKey(maker, "X-API-Key", func(call string) []string { return []string{call} }, c.opts)
		require.NoError(t, err)
		sum, err := hex.DecodeString(c.hash)
		require.NoError(t, err)
		want := "apikey:x-api-key:" + base64.RawURLEncoding.EncodeToString(sum)
		for _, of := range []func(string) (string, error){a.Of, a.Hashed} {
			got, err := of(c.key)
			require.NoError(t, err)
			require.Equal(t, want, got)
		}
	}
}

func TestAnInvalidKeySaysWhy(t *testing.T) {
	f := func(string) (string, error) { return "", nil }
	for why, k := range map[string]Key[string]{
		`KeyFunc("a:b", f): want a name that is not empty, has no colon and is not a hexadecimal number`: maker.Func("a:b", f),
		`KeyFunc("team", nil)`:         maker.Func("team", nil),
		`User(nil)`:                    maker.User(nil),
		`First: want at least one key`: maker.First(Checked("First", []Key[string](nil), func(k Key[string]) Key[string] { return k })),
		`the zero Key: make one with a constructor, such as PeerIP`: {},
	} {
		_, err := k.Of("")
		require.ErrorIs(t, err, ratelimit.ErrInvalidOption)
		require.ErrorContains(t, err, why)
	}
}

// The transports test that it ends with a slot that is lost.
func TestAContextForWorkEndsWhenThatIsDone(t *testing.T) {
	mem, err := memstore.New()
	require.NoError(t, err)
	limiter, err := inflight.New(mem, 1, time.Minute)
	require.NoError(t, err)
	slot, _, err := inflight.Hold(t.Context(), limiter, "key", 1)
	require.NoError(t, err)
	defer slot.Release()
	work, stop := EndWith(t.Context(), slot)
	require.NoError(t, work.Err())
	stop()
	require.ErrorIs(t, work.Err(), context.Canceled)
}

// Work continues without a slot that it has released itself.
func TestOnlyALossEndsTheWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := inflight.New(ratelimit.Must(memstore.New()), 2, time.Minute)
		require.NoError(t, err)
		hold := func(opts ...inflight.Option) *inflight.Slot {
			slot, _, err := inflight.Hold(t.Context(), l, "key", 1, opts...)
			require.NoError(t, err)
			return slot
		}
		released, lost := hold(), hold(inflight.Longest(time.Second))
		on, stop := EndWith(t.Context(), released)
		defer stop()
		off, stop := EndWith(t.Context(), lost)
		defer stop()
		released.Release()
		time.Sleep(time.Second)
		synctest.Wait()
		require.NoError(t, on.Err())
		require.ErrorIs(t, context.Cause(off), inflight.ErrLost)
	})
}
