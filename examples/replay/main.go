// Replay shows what a limit would have done to past traffic. It reads an access log in
// the common or the combined format, plain or gzip, and asks a limiter about each request
// at the log's own time. It prints how many requests it would have denied, and whose.
//
//	replay -algorithm token_bucket -limit "10/m burst 20" access.log.gz
//
// Look at newReplay: it makes the time of the current line the store's clock. Days of
// traffic pass in a second, with the decisions that they would have had then.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

const (
	maxLine   = 64 << 10 // bytes of a line that are read
	maxClient = 255      // bytes of a client's address or host name
	maxShown  = 3        // unreadable lines that are shown
	reach     = 1 << 14  // lines by which a request may be out of order
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run is the program. It returns the exit code: 1 after an error, 2 for arguments that it
// cannot use.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	var o options
	flags := o.flags(stderr)
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2 // flags has printed the error
	}
	o.files = flags.Args()
	r, err := newReplay(o, stderr)
	if err != nil {
		fmt.Fprintln(stderr, "replay:", err)
		flags.Usage()
		return 2
	}
	err = r.readFile(ctx, flags.Arg(0), stdin)
	if err == nil || r.lines > 0 { // report what was read, even before an error
		_, writing := io.WriteString(stdout, r.report())
		err = errors.Join(err, writing)
	}
	if err != nil {
		fmt.Fprintln(stderr, "replay:", err)
		return 1
	}
	return 0
}

// options are the arguments.
type options struct {
	algorithm string
	limit     ratelimit.Limit
	top       int
	progress  int
	files     []string
}

func (o *options) flags(stderr io.Writer) *flag.FlagSet {
	flags := flag.NewFlagSet("replay", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.algorithm, "algorithm", "token_bucket",
		"`name`, one of "+strings.Join(ratelimit.Algorithms(), ", "))
	flags.TextVar(&o.limit, "limit", ratelimit.PerMinute(60),
		"`limit` of each client, such as 100/s, 5/15m or \"10/m burst 20\"")
	flags.IntVar(&o.top, "top", 10, "print the `n` clients that are denied most")
	flags.IntVar(&o.progress, "progress", 1_000_000, "say where it is each `n` lines, 0 for never")
	flags.Usage = func() {
		fmt.Fprintln(stderr, "usage: replay [flags] [access log, plain or gzip; standard input if none or -]")
		flags.PrintDefaults()
	}
	return flags
}

// replay is a run through a log.
type replay struct {
	options
	stderr  io.Writer
	limiter ratelimit.Limiter
	now     time.Time // of the current request
	waiting []request // to be put in order

	lines, unreadable         int
	requests, denied, delayed int
	longest                   time.Duration // Delay
	first, last               time.Time
	clients                   map[string]*tally // of all clients in the log
}

type request struct {
	client string
	at     time.Time
}

// tally counts requests.
type tally struct{ requests, denied int }

// newReplay makes the limiter, whose time is that of the requests.
func newReplay(o options, stderr io.Writer) (*replay, error) {
	if len(o.files) > 1 || o.top < 0 || o.progress < 0 {
		return nil, errors.New("it takes one file at most, and no negative number")
	}
	r := &replay{options: o, stderr: stderr, clients: make(map[string]*tally)}
	mem, err := memstore.New(memstore.WithClock(func() time.Time { return r.now }))
	if err != nil {
		return nil, err
	}
	r.limiter, err = ratelimit.New(o.algorithm, mem, o.limit)
	return r, err
}

func (r *replay) readFile(ctx context.Context, name string, stdin io.Reader) error {
	if name == "" || name == "-" {
		return r.read(ctx, stdin)
	}
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // it was only read
	return r.read(ctx, file)
}

// read replays a log, plain or gzip.
func (r *replay) read(ctx context.Context, log io.Reader) error {
	plain, err := unzip(log)
	for err == nil {
		var line string
		if line, err = readLine(plain); err == nil {
			err = r.line(ctx, line)
		}
	}
	if err := r.decide(ctx, len(r.waiting)); err != nil {
		return err
	}
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF): // a plain file cannot end so
		return fmt.Errorf("the gzip file is truncated: it breaks off after line %d", r.lines)
	case !errors.Is(err, io.EOF):
		return fmt.Errorf("after line %d: %w", r.lines, err)
	case r.unreadable > 0 && r.unreadable == r.lines:
		return errors.New("no line could be read: is it an access log?")
	}
	return nil
}

// unzip returns the text of log. It sees by the first two bytes whether log is gzip.
func unzip(log io.Reader) (*bufio.Reader, error) {
	in := bufio.NewReaderSize(log, maxLine)
	if magic, err := in.Peek(2); string(magic) != "\x1f\x8b" {
		if errors.Is(err, io.EOF) {
			err = nil // an empty file, or one of a single byte
		}
		return in, err
	}
	unzipped, err := gzip.NewReader(in)
	if err != nil {
		return nil, err
	}
	return bufio.NewReaderSize(unzipped, maxLine), nil
}

// readLine returns the next line without its end, or the first maxLine bytes of a longer
// one. The last line may lack its end, unless an error cuts it off.
func readLine(in *bufio.Reader) (string, error) {
	line, err := in.ReadSlice('\n')
	text := string(bytes.TrimRight(line, "\r\n"))
	for errors.Is(err, bufio.ErrBufferFull) {
		_, err = in.ReadSlice('\n')
	}
	if errors.Is(err, io.EOF) && len(line) > 0 {
		err = nil // the next call gets it again
	}
	return text, err
}

// line reads a line and its request.
func (r *replay) line(ctx context.Context, line string) error {
	r.lines++
	if r.progress > 0 && r.lines%r.progress == 0 {
		fmt.Fprintf(r.stderr, "replay: %d lines\n", r.lines)
	}
	client, at, err := parseLine(line)
	if err != nil {
		r.complain(line, err)
		return nil
	}
	r.waiting = append(r.waiting, request{client, at})
	if len(r.waiting) < 2*reach {
		return nil
	}
	return r.decide(ctx, reach)
}

func (r *replay) complain(line string, err error) {
	r.unreadable++
	switch {
	case r.unreadable <= maxShown:
		fmt.Fprintf(r.stderr, "replay: line %d: %v: %.80q\n", r.lines, err, line)
	case r.unreadable == maxShown+1:
		fmt.Fprintln(r.stderr, "replay: further lines that cannot be read are only counted")
	}
}

// decide asks the limiter about the n earliest waiting requests.
//
// Servers write a line after the answer, and many stamp it with the time of the request,
// so lines are slightly out of order. Sorting twice as many requests as are decided
// orders those that are out of order by at most reach lines. A later one is decided at
// the latest time that its client's state depends on, since the time of a key never goes
// back. That denies more, not less.
func (r *replay) decide(ctx context.Context, n int) error {
	slices.SortStableFunc(r.waiting, func(a, b request) int { return a.at.Compare(b.at) })
	for _, q := range r.waiting[:n] {
		r.now = q.at
		result, err := r.limiter.Allow(ctx, q.client)
		if err != nil {
			return err
		}
		r.count(q, result)
	}
	r.waiting = slices.Delete(r.waiting, 0, n)
	return nil
}

func (r *replay) count(q request, result ratelimit.Result) {
	count := r.clients[q.client]
	if count == nil {
		count = new(tally)
		r.clients[q.client] = count
	}
	count.requests++
	if !result.Allowed {
		count.denied++
		r.denied++
	}
	if result.Delay > 0 {
		r.delayed++
		r.longest = max(r.longest, result.Delay)
	}
	if r.requests == 0 || q.at.Before(r.first) {
		r.first = q.at
	}
	if r.requests == 0 || q.at.After(r.last) {
		r.last = q.at
	}
	r.requests++
}

// report is the program's output.
func (r *replay) report() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %v\n", r.algorithm, r.limit)
	fmt.Fprintf(&b, "%9d requests of %d clients", r.requests, len(r.clients))
	if r.requests > 0 {
		fmt.Fprintf(&b, ", %s to %s UTC", stamp(r.first), stamp(r.last))
	}
	deniedMost := r.deniedMost()
	fmt.Fprintf(&b, "\n%9d denied (%.2f %%), of %d clients\n", r.denied,
		100*float64(r.denied)/float64(max(1, r.requests)), len(deniedMost))
	if r.delayed > 0 {
		fmt.Fprintf(&b, "%9d delayed, for up to %v\n", r.delayed, r.longest)
	}
	if r.unreadable > 0 {
		fmt.Fprintf(&b, "%9d lines that could not be read\n", r.unreadable)
	}

	if top := min(r.top, len(deniedMost)); top > 0 {
		fmt.Fprintf(&b, "\n%9s %9s  client\n", "denied", "requests")
		for _, client := range deniedMost[:top] {
			count := r.clients[client]
			fmt.Fprintf(&b, "%9d %9d  %s\n", count.denied, count.requests, client)
		}
	}
	return b.String()
}

// deniedMost returns the clients that were denied, those denied most first.
func (r *replay) deniedMost() []string {
	var clients []string
	for client, count := range r.clients {
		if count.denied > 0 {
			clients = append(clients, client)
		}
	}
	slices.SortFunc(clients, func(a, b string) int {
		return cmp.Or(cmp.Compare(r.clients[b].denied, r.clients[a].denied), cmp.Compare(a, b))
	})
	return clients
}

func stamp(t time.Time) string { return t.Format(time.DateTime) }

// parseLine returns the client of a line, and the time of its request:
//
//	192.0.2.1 - frank [17/May/2015:10:05:03 +0000] "GET /a HTTP/1.1" 200 2326 ...
//
// The request in quotation marks comes from the client, and is not parsed: whatever it
// contains, a request was made. Before it, the client chooses only the user name. Servers
// escape quotation marks in that, so a client cannot put another time before the request.
//
// One client may own many IPv6 addresses. A limit for such clients would use the first 64
// bits as the key.
func parseLine(line string) (client string, at time.Time, err error) {
	client, rest, _ := strings.Cut(line, " ")
	if !isClient(client) {
		return "", time.Time{}, errors.New("it does not begin with a client's address")
	}
	rest, _, found := strings.Cut(rest, `] "`)
	i := strings.LastIndex(rest, "[")
	if !found || i < 0 {
		return "", time.Time{}, errors.New("no time in brackets before a request")
	}
	at, ok := parseTime(rest[i+1:])
	if !ok {
		return "", time.Time{}, errors.New("the time is not like 17/May/2015:10:05:03 +0000")
	}
	return strings.Clone(client), at, nil // keeps nothing of the line
}

// isClient reports whether s can be an IP address or a host name.
func isClient(s string) bool {
	for _, c := range []byte(s) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case strings.IndexByte(".:-_%", c) >= 0:
		default:
			return false
		}
	}
	return 0 < len(s) && len(s) <= maxClient
}

// parseTime reads a time in the one form that logs have, strictly. A leap second, 60, is
// the second after.
func parseTime(s string) (time.Time, bool) {
	if !looksLikeTime(s) {
		return time.Time{}, false
	}
	const months = "JanFebMarAprMayJunJulAugSepOctNovDec"
	month := strings.Index(months, s[3:6]) // "anF" is no month
	if month%3 != 0 {                      // also refuses -1
		return time.Time{}, false
	}
	number := func(from, to int) int { n, _ := strconv.Atoi(s[from:to]); return n }
	day, hour, minute, second := number(0, 2), number(12, 14), number(15, 17), number(18, 20)
	zoneHour, zoneMinute := number(22, 24), number(24, 26)
	date := time.Date(number(7, 11), time.Month(1+month/3), day, 0, 0, 0, 0, time.UTC)
	if date.Day() != day || hour > 23 || minute > 59 || second > 60 || zoneHour > 23 || zoneMinute > 59 {
		return time.Time{}, false
	}
	sinceMidnight := time.Duration(hour*3600+minute*60+second) * time.Second
	zone := time.Duration(zoneHour*60+zoneMinute) * time.Minute
	if s[21] == '-' {
		zone = -zone
	}
	return date.Add(sinceMidnight - zone), true
}

// looksLikeTime reports whether s has digits and separators where a time has them.
func looksLikeTime(s string) bool {
	const form = "00/Mmm/0000:00:00:00 +0000"
	if len(s) != len(form) {
		return false
	}
	for i, c := range []byte(form) {
		switch c {
		case '0':
			if s[i] < '0' || s[i] > '9' {
				return false
			}
		case '/', ':', ' ':
			if s[i] != c {
				return false
			}
		case '+':
			if s[i] != '+' && s[i] != '-' {
				return false
			}
		}
	}
	return true
}
