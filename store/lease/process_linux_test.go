package lease_test

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store/lease"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// childAddrs is set for a process that TestProcessesInFaults started: where leases and plain
// limiters find Redis.
const childAddrs = "RATELIMIT_TEST_LEASE_ADDRS"

const (
	children    = 4
	faultyLimit = 300 // a second
	faultyBurst = 150
	faultyLife  = 50 * time.Millisecond
)

// faulty returns the limiters of a child by name: each of the algorithms with leases, and
// without.
func faulty(leased, plain *redis.Client) (map[string]ratelimit.Limiter, error) {
	all := map[string]ratelimit.Limiter{}
	for _, algorithm := range algorithms {
		for mode, client := range map[string]*redis.Client{"leased": leased, "plain": plain} {
			s, err := redisstore.New(client, redisstore.WithTimeout(100*time.Millisecond), redisstore.WithPrefix(mode))
			if err != nil {
				return nil, err
			}
			limit := ratelimit.PerSecond(faultyLimit)
			if algorithm == "token_bucket" {
				limit.Burst = faultyBurst
			}
			if mode == "plain" {
				if all[algorithm+" "+mode], err = ratelimit.New(algorithm, s, limit); err != nil {
					return nil, err
				}
				continue
			}
			leases, err := lease.New(s, faultyLife)
			if err != nil {
				return nil, err
			}
			l, err := ratelimit.New(algorithm, leases, limit)
			if err != nil {
				return nil, err
			}
			all[algorithm+" "+mode] = &onLease{limiting: l.(limiting), Store: leases}
		}
	}
	return all, nil
}

// TestFaultyChild is one of the processes. It prints when each call that was admitted began and
// ended, at once, since it may be killed. It ends when its input does.
func TestFaultyChild(t *testing.T) {
	leased, plain, ok := strings.Cut(os.Getenv(childAddrs), " ")
	if !ok {
		t.Skip("not started by TestProcessesInFaults")
	}
	clients := []*redis.Client{redis.NewClient(&redis.Options{Addr: leased}), redis.NewClient(&redis.Options{Addr: plain})}
	limiters, err := faulty(clients[0], clients[1])
	require.NoError(t, err)
	over := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(over)
	}()
	var asking sync.WaitGroup
	for name, l := range limiters {
		for range 2 {
			asking.Go(func() {
				for tick := time.Tick(8 * time.Millisecond); ; {
					select {
					case <-over:
						return
					case <-tick:
					}
					began := time.Now().UnixMicro()
					r, err := l.Allow(context.Background(), "key")
					switch ended := time.Now().UnixMicro(); {
					case err != nil:
						fmt.Println("failed", name)
					case r.Allowed:
						fmt.Println("admitted", name, began, ended)
					default:
						fmt.Println("denied", name)
					}
				}
			})
		}
	}
	asking.Wait()
	for name, l := range limiters {
		if d, ok := l.(*onLease); ok {
			fmt.Println("asked", name, d.Stats().Asked)
			require.NoError(t, d.Close(t.Context()))
		}
	}
}

// admission is a call that was admitted at some time from began to ended.
type admission struct{ began, ended int64 }

// tally is what all children have said of a limiter.
type tally struct {
	admitted              []admission
	denied, failed, asked int
}

// child is a process under test.
type child struct {
	cmd   *exec.Cmd
	input io.Closer
	said  chan struct{} // closed when all is heard
}

func startChild(t *testing.T, addrs string, heard func(line string)) *child {
	t.Helper()
	c := &child{cmd: exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestFaultyChild$"), said: make(chan struct{})}
	c.cmd.Env = append(os.Environ(), childAddrs+"="+addrs)
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := c.cmd.StdoutPipe()
	require.NoError(t, err)
	c.input, err = c.cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, c.cmd.Start())
	go func() {
		defer close(c.said)
		for queues := bufio.NewScanner(out); queues.Scan(); {
			heard(queues.Text())
		}
	}()
	return c
}

// wait returns when c has ended.
func (c *child) wait() error {
	<-c.said
	return c.cmd.Wait()
}

// Four processes share limits while one of them is killed and one is stopped for longer than a
// life, Redis is paused and frozen, replies are lost, and its scripts are forgotten.
func TestProcessesInFaults(t *testing.T) {
	effort.NeedFull(t)
	if testing.Short() {
		t.Skip("6 s of real time")
	}
	server := redistest.Start(t)
	toLeased, toPlain := redistest.StartProxy(t, server.Addr()), redistest.StartProxy(t, server.Addr())
	tallies := map[string]*tally{}
	for _, algorithm := range algorithms {
		tallies[algorithm+" leased"], tallies[algorithm+" plain"] = new(tally), new(tally)
	}
	var mu sync.Mutex
	heard := func(line string) {
		mu.Lock()
		defer mu.Unlock()
		var what, algorithm, mode string
		var x, y int64
		n, _ := fmt.Sscan(line, &what, &algorithm, &mode, &x, &y)
		c := tallies[algorithm+" "+mode]
		switch {
		case c == nil || n < 3:
			if !strings.HasPrefix(line, "PASS") {
				t.Log(line)
			}
		case what == "admitted" && n == 5: // or else it was cut off
			c.admitted = append(c.admitted, admission{x, y})
		case what == "denied":
			c.denied++
		case what == "failed":
			c.failed++
		case what == "asked":
			c.asked += int(x)
		}
	}
	start := func() *child { return startChild(t, toLeased.Addr()+" "+toPlain.Addr(), heard) }
	var running []*child
	for range children {
		running = append(running, start())
	}

	admin := server.Client(t)
	time.Sleep(1200 * time.Millisecond)
	require.NoError(t, admin.ScriptFlush(t.Context()).Err())
	time.Sleep(300 * time.Millisecond)
	require.NoError(t, running[0].cmd.Process.Signal(syscall.SIGSTOP))
	time.Sleep(6 * faultyLife)
	require.NoError(t, running[0].cmd.Process.Signal(syscall.SIGCONT))
	time.Sleep(300 * time.Millisecond)
	require.NoError(t, running[1].cmd.Process.Kill())
	require.Error(t, running[1].wait())
	running[1] = start()
	time.Sleep(500 * time.Millisecond)
	require.NoError(t, admin.Do(t.Context(), "CLIENT", "PAUSE", 400, "ALL").Err())
	time.Sleep(time.Second)
	server.Freeze()
	time.Sleep(400 * time.Millisecond)
	server.Thaw()
	for _, n := range []int{1, 3} {
		time.Sleep(600 * time.Millisecond)
		toLeased.DropReplies(n, "evalsha", "evalsha_ro")
		toPlain.DropReplies(n, "evalsha", "evalsha_ro")
	}
	time.Sleep(time.Second)
	require.Equal(t, 3, toLeased.Dropped())
	for _, c := range running {
		require.NoError(t, c.input.Close())
	}
	for _, c := range running {
		require.NoError(t, c.wait())
	}

	for _, algorithm := range algorithms {
		leased, plain := tallies[algorithm+" leased"], tallies[algorithm+" plain"]
		part := float64(len(leased.admitted)) / float64(len(plain.admitted))
		decisions := len(leased.admitted) + leased.denied
		t.Logf("%s: most at once %v of %v (plain %v); %d admitted, %.3f of plain; %d errors (plain %d); %.3f calls a decision",
			algorithm, most(algorithm, leased.admitted), bound(algorithm), most(algorithm, plain.admitted),
			len(leased.admitted), part, leased.failed, plain.failed, float64(leased.asked)/float64(decisions))
		require.LessOrEqual(t, most(algorithm, leased.admitted), bound(algorithm), algorithm)
		require.Greater(t, len(leased.admitted), faultyLimit, algorithm) // a busy machine has both do less
		require.Greater(t, part, 0.6, algorithm)
	}
}

func bound(algorithm string) float64 {
	if algorithm == "token_bucket" {
		return faultyBurst
	}
	return faultyLimit
}

// most is the most that was admitted in the sense of the algorithm's promise, of calls that began
// and ended within: in a window, in a second, or in any time less what flows in it.
func most(algorithm string, calls []admission) (most float64) {
	const second = 1_000_000
	if algorithm == "fixed_window" {
		windows := map[int64]float64{}
		for _, c := range calls {
			if w := c.began / second; w == c.ended/second {
				windows[w]++
				most = max(most, windows[w])
			}
		}
		return most
	}
	slices.SortFunc(calls, func(a, b admission) int { return cmp.Compare(a.ended, b.ended) })
	for _, first := range calls {
		n := 0.0
		for _, c := range calls {
			x := c.ended - first.began
			switch {
			case c.began < first.began:
				continue
			case algorithm != "sliding_log":
				n++
				most = max(most, n-float64(x+1)*faultyLimit/second) // its clock has whole microseconds
			case x < second:
				n++
				most = max(most, n)
			}
		}
	}
	return most
}
