package redisstore

import "github.com/ratelimit-go/ratelimit/store"

// RedisKey is the Redis key of key's state.
func (s *Store) RedisKey(sp *store.Space, key string) string { return s.key(sp, key) }

// CheckVersion is what Check says of a server whose INFO is this.
func CheckVersion(info string) []string { return checkVersion(parseInfo(info)) }
