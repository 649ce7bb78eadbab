// Command benchmarks measures this library beside its peers, with the same work for each,
// and prints a report in Markdown. README.md says what is compared and how.
//
//	go run . > report.md           # everything: about ten minutes
//	go run . -quick                # few keys and rounds, for a look: some seconds
//	go run . -only time,redis      # parts: time, footprint, latency, http, redis, trouble, waiting, leased, overload, several, postgres
//	go run . -run 'Bucket|go-limiter'
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"time"
)

// manyKeys is the number of keys from which on a batch does not visit every key.
const manyKeys = 100_000

// bench is how much is measured, and where the report goes.
type bench struct {
	out, err io.Writer
	start    time.Time
	failures int

	roundCount      int           // of each cell
	batch           int           // decisions in a round
	manyBatch       int           // the same from manyKeys keys on
	keys            []int         // of the cells of times
	allocKeys       int           // the number of them for which allocations are counted
	footprintKeys   []int         // filled for bytes per key
	gcKeys          int           // one of those, for collections, idling and latency
	window          time.Duration // after which their keys begin to go idle
	latencyPasses   int
	addresses       int // of HTTP clients
	requests        int // in a round
	redisRounds     int
	redisKeys       int
	redisShare      int // of the full number of decisions: 1/redisShare
	troubleRounds   int
	herds           []herd
	coldTrips       []time.Duration
	coldCallers     []int
	troubleTime     time.Duration // measured in each cell
	busy            int           // processes that spin beside the callers in trouble
	queues          []queueCell
	waitFor         time.Duration // for callers that wait again and again
	leaseCells      []leaseCell
	leaseRounds     int
	leaseTime       time.Duration // of each round
	pressCells      []pressCell
	pressRounds     int
	pressTime       time.Duration // of each round
	severalCells    []severalCell
	severalCallers  []int
	severalRounds   int
	severalTime     time.Duration // of each round
	postgresCallers []int
	postgresRounds  int
	postgresTime    time.Duration // of each round
	beside          string        // another build of this program
}

// full takes about ten minutes on two cores.
func full() *bench {
	return &bench{
		roundCount: 8, batch: 200_000, manyBatch: 250_000,
		keys: []int{1, 10_000, 1_000_000}, allocKeys: 10_000,
		footprintKeys: []int{600_000, 800_000, 1_000_000, 1_300_000}, gcKeys: 1_000_000, window: 2 * time.Second,
		latencyPasses: 3, addresses: 10_000, requests: 20_000, redisRounds: 5, redisKeys: 10_000, redisShare: 1,
		troubleRounds: 3, troubleTime: 2 * time.Second, herds: herds, coldTrips: coldTrips, coldCallers: []int{4, 100},
		queues: []queueCell{{10, 100}, {50, 100}, {200, 100}, {1000, 500}}, waitFor: 3 * time.Second,
		leaseCells: leaseCells(), leaseRounds: 2, leaseTime: 2 * time.Second,
		pressCells: pressCells(), pressRounds: 3, pressTime: 1500 * time.Millisecond,
		severalCells: severalCells(1, 3, 6), severalCallers: []int{1, 32, 512, 4096, 16384}, severalRounds: 3, severalTime: 2 * time.Second,
		postgresCallers: []int{1, 64, 512}, postgresRounds: 5, postgresTime: time.Second,
	}
}

// quick shows that everything runs. Its figures mean little.
func quick() *bench {
	return &bench{
		roundCount: 2, batch: 2_000, manyBatch: 2_000,
		keys: []int{1, 1_000}, allocKeys: 1_000,
		footprintKeys: []int{6_000, 10_000}, gcKeys: 10_000, window: 100 * time.Millisecond,
		latencyPasses: 1, addresses: 1_000, requests: 1_000, redisRounds: 1, redisKeys: 1_000, redisShare: 20,
		troubleRounds: 1, troubleTime: 200 * time.Millisecond, herds: herds[len(herds)-2:], coldTrips: coldTrips[:1], coldCallers: []int{4},
		queues: []queueCell{{10, 100}, {100, 500}}, waitFor: 300 * time.Millisecond,
		leaseCells: leaseCells()[4:5], leaseRounds: 1, leaseTime: 100 * time.Millisecond,
		pressCells: quickPress(), pressRounds: 1, pressTime: 100 * time.Millisecond,
		severalCells: severalCells(1, 3), severalCallers: []int{32}, severalRounds: 1, severalTime: 100 * time.Millisecond,
		postgresCallers: []int{1, 64}, postgresRounds: 1, postgresTime: 100 * time.Millisecond,
	}
}

var parts = []string{"time", "footprint", "latency", "http", "redis", "trouble", "waiting", "leased", "overload", "several", "postgres"}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	is, err := part(ctx)
	if !is {
		err = run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// part runs what this program started itself for, and reports whether it was.
func part(ctx context.Context) (is bool, err error) {
	if os.Getenv(spinning) != "" {
		for end := time.Now().Add(time.Hour); time.Now().Before(end); {
		}
		return true, nil
	}
	if text := os.Getenv(leasing); text != "" {
		return true, runMember(ctx, text, os.Stdin, os.Stdout)
	}
	if text := os.Getenv(pressing); text != "" {
		return true, runLoad(ctx, text, os.Stdin, os.Stdout)
	}
	if text := os.Getenv(pacing); text != "" {
		p := new(paced)
		return true, errors.Join(json.Unmarshal([]byte(text), p), runPaced(ctx, p, os.Stdout))
	}
	return false, nil
}

func run(ctx context.Context, args []string, out, progress io.Writer) error {
	flags := flag.NewFlagSet("benchmarks", flag.ContinueOnError)
	flags.SetOutput(progress)
	var beside string
	isQuick := flags.Bool("quick", false, "few keys and rounds")
	only := flags.String("only", strings.Join(parts, ","), "the `parts` to measure")
	rounds := flags.Int("rounds", 0, "rounds of each cell of times; 0 is the default")
	keys := flags.Int("keys", 0, "the number of keys in the cells of times; 0 is each of several")
	busy := flags.Int("busy", 0, "processes that spin beside the part trouble")
	flags.StringVar(&beside, "beside", "", "a `program` of this kind, built of another state, to measure beside this one in the part overload")
	cells := flags.String("cells", "", "a `regexp` of the cells of the part overload")
	pattern := flags.String("run", "", "a `regexp` of the contestants to measure")
	if err := flags.Parse(args); err != nil {
		return err
	}
	name, err := regexp.Compile(*pattern)
	if err != nil {
		return err
	}
	some, err := regexp.Compile(*cells)
	if err != nil {
		return err
	}
	b := full()
	if *isQuick {
		b = quick()
	}
	b.out, b.err, b.start = out, progress, time.Now()
	b.busy, b.beside = *busy, beside
	b.pressCells = slices.DeleteFunc(b.pressCells, func(c pressCell) bool { return !some.MatchString(c.name) })
	if *keys > 0 {
		b.keys = []int{*keys}
	}
	if *rounds > 0 {
		b.roundCount, b.redisRounds, b.troubleRounds, b.pressRounds, b.severalRounds, b.postgresRounds = *rounds, *rounds, *rounds, *rounds, *rounds, *rounds
	}
	return b.measure(ctx, strings.Split(*only, ","), name)
}

// measure runs the chosen parts and writes the report as it goes.
func (b *bench) measure(ctx context.Context, chosen []string, name *regexp.Regexp) error {
	for _, part := range chosen {
		if !slices.Contains(parts, part) {
			return fmt.Errorf("no part %q: they are %s", part, strings.Join(parts, ", "))
		}
	}
	all := matching(contestants(), name)
	describe(b.out, all)
	for _, step := range []struct {
		part string
		f    func([]contestant) error
	}{
		{"time", func(all []contestant) error {
			return b.measureTimes(append(all, matching([]contestant{tokenBucketAgain, tokenBucketPeek, allOfTwo, growingLog}, name)...))
		}},
		{"footprint", b.measureFootprint},
		{"footprint", b.measureMany},
		{"latency", b.measureLatency},
		{"http", func([]contestant) error { return b.measureHTTP(matching(middlewares(), name)) }},
		{"redis", func([]contestant) error { return b.measureRedis(ctx, matching(redisContestants(), name)) }},
		{"trouble", func([]contestant) error { return b.measureTrouble(ctx) }},
		{"waiting", func([]contestant) error { return b.measureWaiting(ctx) }},
		{"leased", func([]contestant) error { return b.measureLeased(ctx) }},
		{"overload", func([]contestant) error { return b.measureOverload(ctx, name) }},
		{"several", func([]contestant) error { return b.measureSeveral(ctx) }},
		{"postgres", func([]contestant) error { return b.measurePostgres(ctx) }},
	} {
		if !slices.Contains(chosen, step.part) {
			continue
		}
		if err := step.f(all); err != nil {
			return err
		}
	}
	b.progress("done")
	if b.failures > 0 {
		return fmt.Errorf("%d measurements failed; the report names them", b.failures)
	}
	return nil
}

// report writes finished tables.
func (b *bench) report(grids ...*grid) {
	for _, g := range grids {
		g.write(b.out)
		b.failures += len(g.failed)
	}
}

func (b *bench) progress(format string, args ...any) {
	fmt.Fprintf(b.err, "%4.0f s  %s\n", time.Since(b.start).Seconds(), fmt.Sprintf(format, args...))
}
