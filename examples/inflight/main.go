// Inflight shares five slots between three processes, each of which wants two, and kills one of
// them with its slots in hand. Within a life of a slot, 2 s, those are free again.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/exec"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

const addrVariable = "RATELIMIT_EXAMPLE_ADDR" // set for the processes that are started here

func main() {
	addr := os.Getenv(addrVariable)
	if addr != "" {
		work(limiter(addr))
	}
	server, err := miniredis.Run() // or a Redis server
	must(err)
	defer server.Close()
	var processes [3]*exec.Cmd
	for i := range processes {
		processes[i] = exec.CommandContext(context.Background(), os.Args[0])
		processes[i].Env = append(os.Environ(), addrVariable+"="+server.Addr())
		processes[i].Stderr = os.Stderr
		must(processes[i].Start())
		defer func() { _ = processes[i].Process.Kill() }()
	}
	slots := limiter(server.Addr())
	wait(slots, 0, "All are held")
	must(processes[0].Process.Kill())
	killed := time.Now()
	wait(slots, 1, "One process was killed, and the others hold four")
	fmt.Println("Within a life:", time.Since(killed) < 3*time.Second)
}

func limiter(addr string) *ratelimit.Custom {
	s, err := redisstore.New(redis.NewClient(&redis.Options{Addr: addr}))
	must(err)
	l, err := inflight.New(s, 5, 2*time.Second, ratelimit.WithName("exports"))
	must(err)
	return l
}

// work holds up to two slots until the process is killed.
func work(l ratelimit.Limiter) {
	var held []*inflight.Slot
	for ; ; time.Sleep(10 * time.Millisecond) {
		if len(held) < 2 {
			slot, _, err := inflight.Hold(context.Background(), l, "all", 1)
			must(err)
			if slot != nil {
				held = append(held, slot)
			}
		}
	}
}

// wait waits until so many slots are free.
func wait(l ratelimit.Limiter, free int, what string) {
	for ; ; time.Sleep(10 * time.Millisecond) {
		r, err := l.Peek(context.Background(), "all")
		must(err)
		if r.Remaining == free {
			fmt.Printf("%s: %d of %d are free.\n", what, r.Remaining, r.Limit)
			return
		}
	}
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
