package redisstore

// The names of states in Redis: their keys, the hash tags of the keys, and the holders of slots.

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/bits"
	"os"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit/internal/evenhash"
	"github.com/ratelimit-go/ratelimit/internal/options"
	"github.com/ratelimit-go/ratelimit/store"
)

const (
	maxPlainKey = 128   // bytes; longer user keys are hashed
	mostSlots   = 16384 // of a cluster
	maxName     = 64    // bytes of a label, and of a host in a name
)

// key returns the Redis key of key's state. Different user keys have different Redis keys.
func (s *Store) key(ns *store.Namespace, key string) string {
	if s.tags != nil || len(key) > maxPlainKey || strings.ContainsAny(key, "{}") {
		return s.prefix + ns.Rule.Name + ":" + ns.Name + ":" + s.tail(key)
	}
	return s.prefix + ns.Rule.Name + ":" + ns.Name + ":{=" + key + "}"
}

// where returns the key in Redis if the client has several servers. Otherwise it returns "", because the
// key is not needed to admit a call.
func (s *Store) where(ns *store.Namespace, key string) string {
	if s.link == nil || s.link.owner == nil {
		return ""
	}
	return s.key(ns, key)
}

// WithHashTags spreads all keys over n hash tags, 1 to 16,384, so that calls of a cluster can share
// scripts. By default the hash tag of a key in Redis is the user's key, which puts two users into two
// slots, and a server runs one script for each call. Keys of one tag are in one slot, and are
// decided on together. docs/scaling.md has what a cluster serves with them.
//
// All processes must use the same n. If n changes, all counts start from zero. The keys of a tag move
// together from one master to another, so n should be at least ten times the number of masters. A key
// that many callers ask for shares its master with all other keys of its tag.
//
// The tags are spread evenly over the slots, so masters with equal ranges have equally many tags. The
// tag of a key depends only on the key and n, and is the same in every version. New returns
// [store.ErrInvalidOption] if the client is not a *redis.ClusterClient, because only a cluster has slots.
func WithHashTags(n int) Option {
	return options.Checked(options.Within("WithHashTags", n, 1, mostSlots), func(s *Store) { s.tags = hashTags(n) })
}

// checkTags refuses tags for clients on which they have no effect.
func (s *Store) checkTags(client Client) error {
	if _, cluster := client.(*redis.ClusterClient); s.tags != nil && !cluster {
		return fmt.Errorf("%w: WithHashTags needs a *redis.ClusterClient, because it has no effect with a %T", store.ErrInvalidOption, client)
	}
	return nil
}

// hashTags returns n tags. The slot of tag i is the middle of the i-th of n equal ranges, and
// the tag is the least number, in decimal, that has this slot.
func hashTags(n int) []string {
	tags, of, left := make([]string, n), make(map[int]int, n), n
	for i := range n {
		of[(2*i+1)*mostSlots/(2*n)] = i
	}
	for number := 0; left > 0; number++ {
		tag := strconv.Itoa(number)
		if i, ok := of[slotOf(tag)]; ok && tags[i] == "" {
			tags[i] = tag
			left--
		}
	}
	return tags
}

// tagOf returns the one of tags that key belongs to.
func tagOf(tags []string, key string) string {
	i, _ := bits.Mul64(evenhash.Of(key), uint64(len(tags)))
	return tags[i]
}

// tail returns the end of the Redis key of a user's key. Redis keys differ if their tails differ, because
// names and plain keys have no braces, and '=' and '#' keep plain and hashed keys apart.
func (s *Store) tail(key string) string {
	plain := "=" + key
	if len(key) > maxPlainKey || strings.ContainsAny(key, "{}") {
		sum := sha256.Sum256([]byte(key))
		plain = "#" + hex.EncodeToString(sum[:])
	}
	if s.tags != nil {
		return "{" + tagOf(s.tags, key) + "}" + plain
	}
	return "{" + plain + "}"
}

// slotOf returns the slot of a cluster that has key: CRC-16 (XMODEM) of its hash tag, modulo the number of
// slots.
func slotOf(key string) int {
	if i := strings.IndexByte(key, '{'); i >= 0 {
		if j := strings.IndexByte(key[i+1:], '}'); j > 0 {
			key = key[i+1 : i+1+j]
		}
	}
	var crc uint16
	for i := range len(key) {
		crc = crc<<8 ^ crc16[byte(crc>>8)^key[i]]
	}
	return int(crc) % mostSlots
}

// crc16 is the table of CRC-16 for each byte.
var crc16 = func() (table [256]uint16) {
	for i := range table {
		crc := uint16(i) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
		table[i] = crc
	}
	return table
}()

// WithLabel adds label to the holder that Redis stores for a slot of package inflight. A holder is the
// host and the process, as in "web-3:4711:exports", and "ratelimit key" lists it. WithLabel returns
// [store.ErrInvalidOption] unless label is 1 to 64 bytes of printable UTF-8. It has no effect on rates.
func WithLabel(label string) Option {
	return func(s *Store) error {
		if label == "" || len(label) > maxName || !utf8.ValidString(label) || strings.ContainsFunc(label, unprintable) {
			return fmt.Errorf("%w: WithLabel(%q), want 1 to %d bytes of printable UTF-8", store.ErrInvalidOption, label, maxName)
		}
		s.label = label
		return nil
	}
}

func unprintable(r rune) bool { return !unicode.IsPrint(r) }

// holder names this process.
func holder(label string) string {
	host, err := os.Hostname()
	if err != nil {
		host = "?"
	}
	name := hostName(host) + ":" + strconv.Itoa(os.Getpid())
	if label != "" {
		name += ":" + label
	}
	return name
}

// hostName returns host as a part of a holder: short, and without blanks, colons and unprintable characters.
func hostName(host string) string {
	host = strings.Map(func(r rune) rune {
		if r == ':' || r == ' ' || r == utf8.RuneError || unprintable(r) {
			return '-'
		}
		return r
	}, host)
	return strings.ToValidUTF8(host[:min(len(host), maxName)], "")
}

// periodOfHolder returns the Period of l with the holder of its slots, as inflight.lua reads it.
func periodOfHolder(l store.Limit, holder string) any {
	return strconv.FormatInt(l.Period, 10) + " " + holder
}
