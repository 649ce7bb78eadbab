package redisstore_test

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// FuzzRedisKey checks that equal bytes, and only they, have equal keys. The hash tag is
// between the first pair of braces, and depends on the user's key alone.
func FuzzRedisKey(f *testing.F) {
	long := strings.Repeat("k", 129)
	f.Add("a", "b", "a:b", "c")
	f.Add("1000:=n", "1000:=n", "{x}", "#"+hexSHA256("{x}"))
	f.Add("1000:=n:{=a", "1000:=n", "a}", "a")
	f.Add("n", "n", long, "="+long)
	f.Add("", "", "}{", "\xff\x00")
	s, err := redisstore.New(redis.NewClient(&redis.Options{})) // which is never used
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, name1, name2, key1, key2 string) {
		if strings.ContainsAny(name1+name2, "{}") {
			t.Skip("the root package refuses such names")
		}
		one := store.NewNamespace(&store.Rule{Name: "rule"}, name1)
		two := store.NewNamespace(&store.Rule{Name: "rule"}, name2)
		require.Equal(t, name1 == name2 && key1 == key2, s.RedisKey(one, key1) == s.RedisKey(two, key2))
		require.Equal(t, tag(s.RedisKey(one, key1)), tag(s.RedisKey(two, key1)))
		require.Equal(t, key1 == key2, tag(s.RedisKey(one, key1)) == tag(s.RedisKey(one, key2)))
	})
}

// tag is the part of key that Redis Cluster hashes.
func tag(key string) string {
	_, rest, _ := strings.Cut(key, "{")
	inner, _, _ := strings.Cut(rest, "}")
	return inner
}
