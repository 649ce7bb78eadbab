// Package suite holds the tests that judge the whole, most of them by the public API alone.
package suite_test

import (
	"context"
	"log"
	"os"
	"path/filepath"
	"testing"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/internal/suite/internal/pgtest"
	"github.com/ratelimit-go/ratelimit/internal/testkit"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
)

// TestMain runs the tests in the root of the tree, which some of them read.
func TestMain(m *testing.M) {
	if err := os.Chdir(filepath.Join("..", "..")); err != nil {
		log.Fatal(err)
	}
	code := redistest.Main(m)
	pgtest.End()
	os.Exit(code)
}

// What the tests of this package share with others.
type (
	clock      = ratelimittest.Clock
	away       = testkit.Away
	tally      = testkit.Tally
	unreliable = testkit.Unreliable
)

var (
	algorithms = ratelimit.PerSecond(1).Algorithms()
	start      = testkit.Start

	newClock     = testkit.NewClock
	memory       = testkit.Memory
	onRedis      = testkit.OnRedis
	redisServer  = testkit.RedisServer
	newDenyCache = testkit.NewDenyCache
	newCoalesced = testkit.NewCoalesced

	newLimiter = ratelimittest.New
	all        = ratelimittest.All
	inMemory   = testkit.InMemory
	inBubble   = testkit.InBubble
	failover   = testkit.Failover
	hasBurst   = testkit.HasBurst

	allow      = testkit.Allow
	allowN     = testkit.AllowN
	admitted   = testkit.Admitted
	peek       = testkit.Peek
	overcharge = testkit.Overcharge
	wait       = testkit.Wait
	calls      = testkit.Calls
)

// onOneKey lets l decide on one key, whatever it is asked for.
func onOneKey(_ testing.TB, l ratelimit.Limiter, key string) ratelimit.Limiter {
	return testkit.OtherKey(l, func(context.Context, string) (string, error) { return key, nil })
}
