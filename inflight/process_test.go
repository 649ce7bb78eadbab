package inflight_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/internal/effort"
	"github.com/ratelimit-go/ratelimit/internal/redistest"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// These are set for the processes that a test starts.
const (
	workerAddr = "INFLIGHT_TEST_REDIS"
	workerLife = "INFLIGHT_TEST_LIFE" // of slots

	workerWaits   = "INFLIGHT_TEST_WAITS"   // whether it waits in queues, and no referee is asked
	workerFlushes = "INFLIGHT_TEST_FLUSHES" // whether it holds two slots in turn, flushes and exits
)

func TestMain(m *testing.M) {
	if addr := os.Getenv(workerAddr); addr != "" {
		work(addr)
		return
	}
	os.Exit(redistest.Main(m))
}

// onRedis is a limiter of 5 slots.
func onRedis(client redis.UniversalClient, life time.Duration) (*ratelimit.Custom, error) {
	s, err := redisstore.New(client, redisstore.WithTimeout(2*time.Second))
	if err != nil {
		return nil, err
	}
	return inflight.New(s, 5, life, ratelimit.WithName("one"))
}

// referee puts a worker on the list of those that hold a slot, and counts those whose process
// lives.
const referee = `
redis.call('SADD', KEYS[1], ARGV[1])
local n = 0
for _, entry in ipairs(redis.call('SMEMBERS', KEYS[1])) do
	n = n + 1 - redis.call('SISMEMBER', KEYS[2], string.match(entry, '%d+'))
end
return n`

// work is a process of 16 goroutines that hold slots. While one holds a slot it is on a list of a
// referee that knows nothing of slots.
func work(addr string) {
	go func() { // a test that panics kills nobody
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	client := redis.NewClient(&redis.Options{Addr: addr})
	life, err := time.ParseDuration(os.Getenv(workerLife))
	if err != nil {
		panic(err)
	}
	l, err := onRedis(client, life)
	if err != nil {
		panic(err)
	}
	if os.Getenv(workerFlushes) != "" {
		leave(l)
		early, _, _ := inflight.Hold(context.Background(), l, "key", 1)
		early.Release()
		fmt.Println(inflight.Flush(context.Background()))
		early.Tick()
		slot, r, err := inflight.Hold(context.Background(), l, "key", 1)
		slot.Release()
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		fmt.Println(r.Remaining, err, inflight.Flush(ended), inflight.Flush(context.Background()))
		leave(l)
		fmt.Println(inflight.Flush(context.Background()))
		os.Exit(0)
	}
	var all sync.WaitGroup
	if os.Getenv(workerWaits) != "" {
		if err := client.Ping(context.Background()).Err(); err != nil {
			panic(err)
		}
		fmt.Println("ready")
		for range 16 {
			all.Go(func() {
				for {
					slot, _, err := inflight.Wait(context.Background(), l, "key", 1)
					if err != nil {
						panic(err)
					}
					time.Sleep(10*time.Millisecond + time.Duration(rand.IntN(20))*time.Millisecond)
					fmt.Println("kept", time.Now().UnixNano())
					slot.Release()
				}
			})
		}
		all.Wait()
	}
	for i := range 16 {
		all.Go(func() {
			for {
				slot, r, err := inflight.Hold(context.Background(), l, "key", 1)
				if err != nil || !r.Allowed {
					time.Sleep(time.Duration(1+rand.IntN(20)) * time.Millisecond)
					continue
				}
				entry := fmt.Sprint(os.Getpid(), "-", i)
				n, err := client.Eval(context.Background(), referee, []string{"working", "dead"}, entry).Int()
				fmt.Println("held", n, err)
				time.Sleep(time.Duration(rand.IntN(300)) * time.Millisecond)
				ended := time.Now()
				lost := slot.Lost()
				if err := client.SRem(context.Background(), "working", entry).Err(); err != nil {
					panic(err)
				}
				slot.Release()
				fmt.Println(map[bool]string{false: "kept", true: "lost"}[lost], ended.UnixNano())
			}
		})
	}
	all.Wait()
}

// leave calls Hold, and leaves while the store is asked.
func leave(l ratelimit.Limiter) {
	ctx, leave := context.WithCancel(context.Background())
	leaving := ratelimit.Must(ratelimit.NewAround(l, func(ctx context.Context, c ratelimit.Call) (ratelimit.Result, error) {
		time.AfterFunc(10*time.Millisecond, leave)
		return c.Inside(ctx)
	}))
	slot, _, _ := inflight.Hold(ctx, leaving, "key", 1)
	slot.Release() // nil, unless the machine is so busy that the answer was there first
}

// A program that ends after Flush leaves no slot taken, even if the store is far away, and not that of a Hold whose
// caller had left either.
func TestAProgramThatFlushesLeavesNoSlotTaken(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.StartProxy(t, server.Addr())
	proxy.Delay(20 * time.Millisecond)
	for range 2 {
		program := exec.Command(os.Args[0])
		program.Env = append(os.Environ(), workerAddr+"="+proxy.Addr(), workerLife+"=1h", workerFlushes+"=1")
		program.Stderr = os.Stderr
		_, err := program.StdinPipe() // work ends when it is closed
		require.NoError(t, err)
		said, err := program.Output()
		require.NoError(t, err)
		require.Equal(t, "<nil>\n4 <nil> context canceled <nil>\n<nil>\n", string(said))
	}
	l, err := onRedis(server.Client(t), time.Hour)
	require.NoError(t, err)
	r, err := l.Peek(t.Context(), "key")
	require.NoError(t, err)
	require.Equal(t, 5, r.Remaining)

	client := redis.NewClient(&redis.Options{Addr: proxy.Addr()})
	defer func() { _ = client.Close() }()
	l, err = onRedis(client, time.Hour)
	require.NoError(t, err)
	slot := hold(t, l) // a program that does not end needs no Flush
	slot.Release()
	leave(l)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := inflight.Flush(ended); err != nil { // nil if all is released by now
		require.ErrorIs(t, err, context.Canceled)
	}
	require.Eventually(t, func() bool {
		r, err := l.Peek(t.Context(), "key")
		return err == nil && r.Remaining == 5
	}, time.Minute, time.Millisecond)
}

// process is one that works.
type process struct {
	cmd  *exec.Cmd
	held chan int

	kept, lost atomic.Int64 // turns that ended while the slot was held, and others
	last       atomic.Int64 // when the last of the former ended, by Unix ns
	ready      atomic.Bool  // it has reached the server
}

func start(t *testing.T, addr string, life time.Duration, env ...string) *process {
	p := &process{cmd: exec.Command(os.Args[0]), held: make(chan int, 1<<16)}
	p.cmd.Env = append(os.Environ(), workerAddr+"="+addr, workerLife+"="+life.String())
	p.cmd.Env = append(p.cmd.Env, env...)
	p.cmd.Stderr = os.Stderr
	_, err := p.cmd.StdinPipe() // it ends with this process
	require.NoError(t, err)
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	t.Cleanup(p.kill)
	go p.read(out)
	return p
}

func (p *process) read(out io.Reader) {
	defer close(p.held)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		switch fields := strings.Fields(lines.Text()); fields[0] {
		case "ready":
			p.ready.Store(true)
		case "held":
			n, _ := strconv.Atoi(fields[1])
			p.held <- n
		case "kept":
			at, _ := strconv.ParseInt(fields[1], 10, 64)
			p.last.Store(max(p.last.Load(), at))
			p.kept.Add(1)
		case "lost":
			p.lost.Add(1)
		}
	}
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_, _ = p.cmd.Process.Wait()
}

// Four processes hold 5 slots, and are killed one after the other, with their slots in hand.
// There are never more than 5, and after all are killed all slots are free within a life.
func TestProcessesThatAreKilledKeepNoSlot(t *testing.T) {
	t.Parallel()
	const life = 3 * time.Second // on a busy machine a process may renew late
	server := redistest.Start(t)
	client := server.Client(t)
	var processes [4]*process
	turns, kills := 0, effort.Of(1, 4, 12)
	count := func(p *process) {
		for {
			select {
			case n, ok := <-p.held:
				if !ok {
					return
				}
				turns++
				require.LessOrEqual(t, n, 5)
			default:
				return
			}
		}
	}
	for i := range processes {
		processes[i] = start(t, server.Addr(), life)
	}
	for i := range kills {
		enough := 5 * (i + 1)
		for end := time.Now().Add(700 * time.Millisecond); time.Now().Before(end) || turns < enough && time.Since(end) < 30*time.Second; {
			time.Sleep(10 * time.Millisecond)
			for _, p := range processes {
				count(p)
			}
		}
		require.GreaterOrEqual(t, turns, enough)
		p := processes[i%4]
		require.NoError(t, p.cmd.Process.Signal(syscall.SIGKILL))
		_, _ = p.cmd.Process.Wait()
		require.NoError(t, client.SAdd(t.Context(), "dead", p.cmd.Process.Pid).Err())
		count(p)
		processes[i%4] = start(t, server.Addr(), life)
	}
	for _, p := range processes {
		p.kill()
		count(p)
	}
	killed := time.Now()
	l, err := onRedis(client, life)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return free(t, l) == 5 }, 10*time.Second, 20*time.Millisecond)
	t.Log(turns, "turns; all free", time.Since(killed), "after all were killed; a life is", life)
}
