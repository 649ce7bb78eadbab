// Replay shows what a limit would have done to past traffic. It reads an access log from
// standard input, and asks a limiter about each request at the log's own time.
//
//	replay -limit 100/m <access.log
//
// Look at the store's clock: it is the time of the current line. Days of traffic pass in a
// second, with the decisions that they would have had then. The command [ratelimit] does the
// same for any log, with several limits.
//
// [ratelimit]: https://github.com/ratelimit-go/ratelimit/tree/main/cmd/ratelimit
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"strings"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

func main() {
	limit := ratelimit.PerMinute(60)
	flag.TextVar(&limit, "limit", limit, "`limit` of each client, such as 100/s or 5/15m")
	flag.Parse()
	if flag.NArg() > 0 {
		log.Fatalf("no argument %q: the log is read from standard input, as in replay <access.log", flag.Arg(0))
	}
	if err := replay(context.Background(), limit, os.Stdin, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func replay(ctx context.Context, limit ratelimit.Limit, in io.Reader, out io.Writer) error {
	var now time.Time // of the current request
	mem, err := memstore.New(memstore.WithClock(func() time.Time { return now }))
	if err != nil {
		return err
	}
	limiter, err := ratelimit.NewTokenBucket(mem, limit)
	if err != nil {
		return err
	}
	requests, denied := 0, 0
	lines := bufio.NewScanner(in)
	for ; lines.Scan(); requests++ {
		var client string
		if client, now, err = parse(lines.Text()); err != nil {
			return err
		}
		r, err := limiter.Allow(ctx, client)
		if err != nil {
			return err
		}
		if !r.Allowed {
			denied++
			fmt.Fprintf(out, "%s  %s  denied for %v\n", now.Format(time.DateTime), client, r.RetryAfter)
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%v denies %d of %d requests\n", limit, denied, requests)
	return err
}

// parse reads the client and the time of a line such as
//
//	192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 5
func parse(line string) (client string, at time.Time, err error) {
	client, _, _ = strings.Cut(line, " ")
	before, _, _ := strings.Cut(line, `] "`) // a user's name may contain a bracket
	text := before[strings.LastIndexByte(before, '[')+1:]
	at, err = time.Parse("02/Jan/2006:15:04:05 -0700", text)
	return client, at, err
}
