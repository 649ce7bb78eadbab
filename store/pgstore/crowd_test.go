package pgstore_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store/pgstore"
	"github.com/ratelimit-go/ratelimit/store/pgstore/internal/pgtest"
)

func TestACrowdOnOneKeySharesExactlyTheLimit(t *testing.T) {
	t.Parallel()
	l := window(t, open(t, shared(t)), "n", 300)
	require.EqualValues(t, 300, crowd(64, 10, func(int, int) bool { return take(t, l, "key").Allowed }))
	require.Zero(t, remaining(t, l, "key"))
}

// Each process has a pool of its own, so rows and their locks are all that they share.
func TestACrowdOfPoolsSharesExactlyTheLimit(t *testing.T) {
	t.Parallel()
	url, name := pgtest.Shared(t).URL(), table()
	var limiters []*ratelimit.FixedWindow
	for range 8 {
		limiters = append(limiters, window(t, openAt(t, connect(t, url, 4), name), "n", 300))
	}
	require.EqualValues(t, 300, crowd(64, 10, func(i, _ int) bool { return take(t, limiters[i%len(limiters)], "key").Allowed }))
	require.Zero(t, remaining(t, limiters[0], "key"))
}

// Lists that lock their rows in opposite orders would wait for each other. Some are new, so that they are inserted at the
// same time too.
func TestListsInOppositeOrderNeitherDeadlockNorAdmitMore(t *testing.T) {
	t.Parallel()
	url, name := pgtest.Shared(t).URL(), table()
	const keys = 5
	var alls [2][]*ratelimit.All
	for i := range alls {
		s := openAt(t, connect(t, url, 8), name)
		for k := range keys {
			parts := make([]ratelimit.Limiter, 3)
			for j := range parts {
				at := (k + j) % keys
				if i == 1 {
					at = (k + len(parts) - 1 - j) % keys
				}
				part, err := ratelimit.NewFixedWindow(s, ratelimit.PerDay(100), ratelimit.WithName(fmt.Sprint("n", at)),
					ratelimit.WithKeyFunc(func(context.Context, string) (string, error) { return fmt.Sprint("key", at), nil }))
				require.NoError(t, err)
				parts[j] = part
			}
			all, err := ratelimit.NewAll(parts...)
			require.NoError(t, err)
			alls[i] = append(alls[i], all)
		}
	}
	admitted := crowd(48, 25, func(i, n int) bool { return take(t, alls[i%2][(i+n)%keys], "key").Allowed })
	require.LessOrEqual(t, admitted, int64(100*keys/3))
	s := openAt(t, connect(t, url, 1), name)
	charged := 0
	for k := range keys {
		charged += 100 - remaining(t, window(t, s, fmt.Sprint("n", k), 100), fmt.Sprint("key", k))
	}
	require.EqualValues(t, 3*admitted, charged)
}

// clientURL is the variable that makes this binary a client.
const clientURL = "RATELIMIT_PG_CLIENT"

// client asks for events of one key and of one All until it is killed, and prints which are admitted.
func client(url string) {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		panic(err)
	}
	s, err := pgstore.New(pool, pgstore.WithTable(os.Getenv("RATELIMIT_PG_TABLE")), pgstore.WithTimeout(long))
	if err != nil {
		panic(err)
	}
	one, err := ratelimit.NewFixedWindow(s, ratelimit.PerDay(clientLimit), ratelimit.WithName("one"))
	if err != nil {
		panic(err)
	}
	other, _ := ratelimit.NewTokenBucket(s, ratelimit.PerDay(clientLimit), ratelimit.WithName("other"))
	third, _ := ratelimit.NewSlidingLog(s, ratelimit.PerDay(clientLimit), ratelimit.WithName("third"))
	all, err := ratelimit.NewAll(other, third)
	if err != nil {
		panic(err)
	}
	var out sync.Mutex
	say := func(text string) {
		out.Lock()
		defer out.Unlock()
		fmt.Println(text)
	}
	crowd(16, 1<<30, func(i, n int) bool {
		name, lim := "one", ratelimit.Limiter(one)
		if (i+n)%2 == 0 {
			name, lim = "all", all
		}
		switch r, err := lim.Allow(ctx, "key"); {
		case err != nil:
			say("error " + strings.ReplaceAll(err.Error(), "\n", " "))
			time.Sleep(10 * time.Millisecond)
		case r.Allowed:
			say(name)
		default:
			say("denied")
		}
		return true
	})
}

const clientLimit = 800

// clients are processes that ask.
type clients struct {
	mu     sync.Mutex
	counts map[string]int
	errors []string
	procs  []*exec.Cmd
	read   sync.WaitGroup
}

func (c *clients) start(t *testing.T, url, table string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), clientURL+"="+url, "RATELIMIT_PG_TABLE="+table)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	c.procs = append(c.procs, cmd)
	c.read.Go(func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			what, text, _ := strings.Cut(lines.Text(), " ")
			c.mu.Lock()
			if c.counts[what]++; what == "error" {
				c.errors = append(c.errors, text)
			}
			c.mu.Unlock()
		}
	})
	return cmd
}

func (c *clients) count(what string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts[what]
}

// kill ends them all and waits for what they have printed.
func (c *clients) kill() {
	for _, cmd := range c.procs {
		_ = cmd.Process.Kill()
	}
	c.read.Wait()
	for _, cmd := range c.procs {
		_ = cmd.Wait()
	}
}

func TestProcessesShareExactlyTheLimit(t *testing.T) {
	t.Parallel()
	name, c := table(), clients{counts: map[string]int{}}
	url := pgtest.Shared(t).URL()
	openAt(t, connect(t, url, 1), name)
	for range pgtest.Of(3, 4, 8) {
		c.start(t, url, name)
	}
	eventually(t, func() bool {
		return c.count("one") >= clientLimit && c.count("all") >= clientLimit && c.count("denied") > 1000
	})
	c.kill()
	require.Equal(t, clientLimit, c.count("one"))
	require.Equal(t, clientLimit, c.count("all"))
}

// What a client was told before a crash of the server is still counted after it. Of clients that die nothing stays locked.
func TestKillsOfServerAndClientsAdmitNothingMore(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	name, c := table(), clients{counts: map[string]int{}}
	one := window(t, openAt(t, connect(t, server.URL(), 4), name), "one", clientLimit)
	for range 3 {
		c.start(t, server.URL(), name)
	}
	for kill := 1; kill <= pgtest.Of(2, 4, 10); kill++ {
		share := clientLimit * kill / pgtest.Of(4, 8, 16)
		eventually(t, func() bool {
			r, err := one.Peek(t.Context(), "key")
			return err == nil && r.Remaining <= clientLimit-share
		})
		server.Restart(t)
		_ = c.procs[len(c.procs)-1].Process.Kill()
		c.start(t, server.URL(), name)
	}
	eventually(t, func() bool {
		r, err := one.Peek(t.Context(), "key")
		return err == nil && r.Remaining == 0
	})
	c.kill()
	require.LessOrEqual(t, c.count("one"), clientLimit)
	require.LessOrEqual(t, c.count("all"), clientLimit)
	for _, text := range c.errors {
		require.Regexp(t, "unavailable|timeout|overloaded", text)
	}
	require.NoError(t, one.Reset(t.Context(), "key"))
	require.True(t, take(t, one, "key").Allowed)
}
