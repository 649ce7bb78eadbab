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

const workerAddr = "INFLIGHT_TEST_REDIS" // set for the processes that a test starts

func TestMain(m *testing.M) {
	if addr := os.Getenv(workerAddr); addr != "" {
		work(addr)
		return
	}
	os.Exit(redistest.Main(m))
}

// onRedis is a limiter of 5 slots with a life of 1 s.
func onRedis(client redis.UniversalClient) (*ratelimit.Custom, error) {
	s, err := redisstore.New(client, redisstore.WithTimeout(2*time.Second))
	if err != nil {
		return nil, err
	}
	return inflight.New(s, 5, time.Second, ratelimit.WithName("one"))
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
	client := redis.NewClient(&redis.Options{Addr: addr})
	l, err := onRedis(client)
	if err != nil {
		panic(err)
	}
	var all sync.WaitGroup
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
				lost := slot.Lost()
				if err := client.SRem(context.Background(), "working", entry).Err(); err != nil {
					panic(err)
				}
				slot.Release()
				if lost {
					fmt.Println("lost")
				}
			}
		})
	}
	all.Wait()
}

// process is one that works.
type process struct {
	cmd  *exec.Cmd
	held chan int
}

func start(t *testing.T, addr string) *process {
	p := &process{cmd: exec.Command(os.Args[0]), held: make(chan int, 1<<16)}
	p.cmd.Env = append(os.Environ(), workerAddr+"="+addr)
	p.cmd.Stderr = os.Stderr
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
		if fields := strings.Fields(lines.Text()); fields[0] == "held" {
			n, _ := strconv.Atoi(fields[1])
			p.held <- n
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
	server := redistest.Start(t)
	client := server.Client(t)
	var processes [4]*process
	turns, kills := 0, effort.Of(2, 4, 12)
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
		processes[i] = start(t, server.Addr())
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
		processes[i%4] = start(t, server.Addr())
	}
	for _, p := range processes {
		p.kill()
		count(p)
	}
	killed := time.Now()
	l, err := onRedis(client)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return free(t, l) == 5 }, 10*time.Second, time.Millisecond)
	t.Log(turns, "turns; all free", time.Since(killed), "after all were killed; a life is 1 s")
}
