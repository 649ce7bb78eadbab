package redisstore

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store"
)

// Masters with equal ranges of slots have equally many tags, or one more.
func TestHashTagsStandEvenly(t *testing.T) {
	for _, n := range []int{1, 2, 3, 16, 64, 100, 256, 1000, mostSlots} {
		tags := hashTags(n)
		slots := make([]int, n)
		for i, tag := range tags {
			slots[i] = slotOf("rl:2:token_bucket:x:{" + tag + "}=key")
			require.Equal(t, (2*i+1)*mostSlots/(2*n), slots[i], "tag %d of %d", i, n)
		}
		for masters := 3; masters <= 16; masters++ {
			of := make([]int, masters)
			for _, slot := range slots {
				of[slot*masters/mostSlots]++
			}
			least, most := n, 0
			for _, count := range of {
				least, most = min(least, count), max(most, count)
			}
			require.LessOrEqual(t, most-least, 1, "%d tags on %d masters", n, masters)
		}
	}
}

// What stands on a cluster depends on these: another version must not choose otherwise.
func TestTheTagOfAKeyIsTheSameInEveryVersion(t *testing.T) {
	tags := hashTags(64)
	require.Equal(t, []string{"40821", "5469", "3017", "2113"}, tags[:4])
	for key, tag := range map[string]string{"user:42": "3271", "user:43": "1587", "192.0.2.1": "29899", "": "12149", "\xff": "8518"} {
		require.Equal(t, tag, tagOf(tags, key), "%q", key)
	}
}

func TestKeysAreEvenlyAmongTheTags(t *testing.T) {
	const n, each = 64, 1000
	tags := hashTags(n)
	for _, form := range []string{"user:%d", "%d", "%d@example.com", "2001:db8::%x", "%064d"} {
		count := map[string]int{}
		for i := range n * each {
			count[tagOf(tags, fmt.Sprintf(form, i))]++
		}
		for _, tag := range tags {
			require.InDelta(t, each, count[tag], 0.2*each, form)
		}
	}
}

// The slots that Redis computes are these.
func TestSlotsAreThoseOfRedis(t *testing.T) {
	t.Parallel()
	client := redistest.StartCluster(t, 1, 0).Masters[0].Client(t)
	for _, key := range []string{"", "a", "123456789", "{a}b", "x{}y", "x{", "{{a}}", "x{=user:42}", "x{#ab}c{d}", "rl:2:fixed_window:=n:{17}=user{1}", strings.Repeat("é", 100)} {
		want, err := client.ClusterKeySlot(t.Context(), key).Result()
		require.NoError(t, err)
		require.EqualValues(t, want, slotOf(key), key)
	}
}

func TestWithHashTagsIsForClusters(t *testing.T) {
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	single := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	for _, c := range []interface{ Close() error }{cluster, single, ring} {
		defer c.Close()
	}
	for _, n := range []int{-1, 0, mostSlots + 1} {
		_, err := New(cluster, WithHashTags(n))
		require.ErrorIs(t, err, store.ErrInvalidOption)
	}
	for _, other := range []Client{single, ring} {
		_, err := New(other, WithHashTags(16))
		require.ErrorIs(t, err, store.ErrInvalidOption)
		require.ErrorContains(t, err, "needs a *redis.ClusterClient")
	}
	s, err := New(cluster, WithHashTags(2))
	require.NoError(t, err)
	ns := store.NewNamespace(&store.Rule{Name: "rule"}, "name")
	seen := map[string]string{}
	together := 0
	for i := range 100 {
		key := fmt.Sprintf("user {%d}", i)
		in := s.RedisKey(ns, key)
		require.Empty(t, seen[in])
		seen[in] = key
		if s.Together("user {0}", key) {
			together++
			require.Equal(t, slotOf(s.RedisKey(ns, "user {0}")), slotOf(in))
		}
	}
	require.Greater(t, together, 20)
	require.Less(t, together, 80)
}

func TestALabelIsPrintable(t *testing.T) {
	client := redis.NewClient(&redis.Options{})
	defer client.Close()
	for _, label := range []string{"", strings.Repeat("x", 65), "a\nb", "\xff", "a\x00"} {
		_, err := New(client, WithLabel(label))
		require.ErrorIs(t, err, store.ErrInvalidOption, "%q", label)
	}
	for _, label := range []string{"x", strings.Repeat("x", 64), "night shift: café"} {
		s, err := New(client, WithLabel(label))
		require.NoError(t, err)
		require.True(t, strings.HasSuffix(s.holder(), ":"+strconv.Itoa(os.Getpid())+":"+label), s.holder())
	}
	s, err := New(client)
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(s.holder(), ":"), "no label")
}

func TestAHostNameIsShortAndPlain(t *testing.T) {
	for host, want := range map[string]string{
		"web-3.example":               "web-3.example",
		"a b:c\n\xff":                 "a-b-c--",
		strings.Repeat("x", 65):       strings.Repeat("x", 64),
		strings.Repeat("x", 63) + "é": strings.Repeat("x", 63),
		"":                            "",
	} {
		require.Equal(t, want, hostName(host))
	}
}
