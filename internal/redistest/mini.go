package redistest

import (
	"strconv"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// MiniServer is an in-process imitation of Redis for fast unit tests. Its time stands still until
// Advance. Where it differs from Redis, Redis is right:
//
//   - Lua numbers are printed in full (Redis: 14 digits), so a script that forgets
//     string.format passes here and fails there.
//   - Lua has no bit, struct and cmsgpack.
//   - PEXPIRE accepts a TTL that overflows, and answers NX wrongly.
//   - Nothing expires with wall time.
//   - It hangs if it is started inside a testing/synctest bubble. Start it outside; clients
//     may be inside.
//   - If an int has 32 bits, so have the integers that scripts return. Tests that need
//     more are skipped there.
type MiniServer struct {
	*miniredis.Miniredis
	now time.Time
}

// Mini starts a MiniServer at 2026-01-01 00:00 UTC, closed with t.
func Mini(t testing.TB) *MiniServer {
	t.Helper()
	if strconv.IntSize < 64 {
		t.Skip("miniredis cuts integers to 32 bits")
	}
	m := &MiniServer{
		Miniredis: miniredis.RunT(t),
		now:       time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
	}
	m.SetTime(m.now)
	return m
}

// Now returns the server's time.
func (m *MiniServer) Now() time.Time { return m.now }

// Advance moves the time that TIME returns and the time of the TTLs. Use it instead of SetTime and
// FastForward, and from one goroutine at a time.
func (m *MiniServer) Advance(d time.Duration) {
	m.now = m.now.Add(d)
	m.SetTime(m.now)
	m.FastForward(d)
}

// Client returns a client of m, closed with t.
func (m *MiniServer) Client(t testing.TB) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: m.Addr()})
	t.Cleanup(func() { _ = c.Close() })
	return c
}
