package redisstore_test

import (
	"bytes"
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/ratelimit-go/ratelimit/store"
)

// bookkeeping is a rule that a [bookkeeper] knows: it reads the arguments, whatever the script is.
var bookkeeping = store.NewNamespace(&store.Rule{Name: "book", Script: func([]*store.Rule) string { return "book" }}, "test")

// mostFits is the most events that a bookkeeper admits.
const mostFits = 2

// bookkeeper is a server in a bubble of testing/synctest, and the network before it. It speaks
// RESP, and it decides on groups of requests as scripts/groups.lua does. A request fits if n is at most mostFits,
// the burst. It remembers of each key what was asked and charged. What it does are timers: it has no goroutines.
type bookkeeper struct {
	mu      sync.Mutex // protects all below, and all wires
	began   time.Time
	note    func(format string, args ...any)
	way     time.Duration // to it, or back
	cost    time.Duration // of a command; each key after the first costs a quarter of it
	answer  string        // to all scripts, in place of running them
	gone    bool          // refuses dials
	dark    bool          // dials hang, and what is sent vanishes
	stopped time.Time     // it does nothing until then
	behind  time.Time     // when it last ran a command that had waited for long

	queue    []job
	working  bool
	scripts  map[string]bool // by SHA-1
	wires    []*wire
	pages    map[string]*page
	instants map[time.Time]bool // at which something happens
}

func newBookkeeper() *bookkeeper {
	return &bookkeeper{
		began: time.Now(), note: func(string, ...any) {}, way: 100 * time.Microsecond, cost: 20 * time.Microsecond,
		scripts: map[string]bool{}, pages: map[string]*page{}, instants: map[time.Time]bool{},
	}
}

// page is what a bookkeeper knows of a key.
type page struct {
	sent    int       // how often a call on it was written that may charge
	ran     int       // how often one was run
	refused int       // answers that prove that it was not run, and that have arrived
	told    time.Time // when the last answer arrived
	answer  string    // its error, or ""
}

func (b *bookkeeper) page(key string) *page {
	if _, tag, ok := strings.Cut(key, "{="); ok {
		key = strings.TrimSuffix(tag, "}")
	}
	if b.pages[key] == nil {
		b.pages[key] = new(page)
	}
	return b.pages[key]
}

// at runs f at t, or a bit later, with the lock held, and returns when. Of timers of one instant
// synctest chooses any, so no two have the same.
func (b *bookkeeper) at(t time.Time, f func()) time.Time {
	for ; b.instants[t]; t = t.Add(1) {
	}
	b.instants[t] = true
	time.AfterFunc(time.Until(t), func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.instants, t)
		f()
	})
	return t
}

// in runs f in d.
func (b *bookkeeper) in(d time.Duration, f func()) { b.at(time.Now().Add(d), f) }

// dial is the Dialer of a client.
func (b *bookkeeper) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	made := make(chan struct{})
	b.mu.Lock()
	b.note("a dial, dark %t, gone %t", b.dark, b.gone)
	if !b.dark {
		b.in(2*b.way, func() { close(made) })
	}
	b.mu.Unlock()
	select {
	case <-ctx.Done():
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: ctx.Err()}
	case <-made:
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.gone {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	w := &wire{b: b, silent: b.dark, changed: make(chan struct{})}
	b.wires = append(b.wires, w)
	return w, nil
}

// job is a command that has arrived.
type job struct {
	w    *wire
	args []string
	came time.Time
}

// next has the next command run, when it is its turn.
func (b *bookkeeper) next() {
	b.working = len(b.queue) > 0
	if !b.working {
		return
	}
	cost := b.cost
	if args := b.queue[0].args; strings.HasPrefix(args[0], "eval") {
		keys, _ := strconv.Atoi(args[2])
		cost += time.Duration(keys-1) * b.cost / 4
	}
	b.in(max(0, time.Until(b.stopped))+cost, func() {
		if len(b.queue) > 0 && !time.Now().Before(b.stopped) {
			j := b.queue[0]
			b.queue = b.queue[1:]
			if time.Since(j.came) > 10*time.Millisecond {
				b.behind = time.Now()
			}
			b.run(j)
		}
		b.next()
	})
}

// busy reports whether commands wait, or one is run.
func (b *bookkeeper) busy() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.working
}

// run runs a command.
func (b *bookkeeper) run(j job) {
	switch {
	case strings.HasPrefix(j.args[0], "eval"):
		b.eval(j)
	case j.args[0] == "time":
		now := time.Now()
		j.w.reply(fmt.Sprintf("*2\r\n$9\r\n%09d\r\n$6\r\n%06d\r\n", now.Unix(), now.Nanosecond()/1000), func() {})
	case j.args[0] == "script":
		j.w.reply(fmt.Sprintf("$40\r\n%s\r\n", b.learn(j.args[2])), func() {})
	case j.args[0] == "hello":
		j.w.reply("-ERR unknown command\r\n", func() {})
	default:
		j.w.reply("+OK\r\n", func() {})
	}
}

// learn keeps a script, and returns its name.
func (b *bookkeeper) learn(text string) string {
	b.scripts[nameOf(text)] = true
	return nameOf(text)
}

func nameOf(text string) string {
	sum := sha1.Sum([]byte(text))
	return hex.EncodeToString(sum[:])
}

// keysOf returns the keys of an EVAL or EVALSHA.
func keysOf(args []string) []string { return args[3 : 3+number(args[2])] }

// request is what is asked about one key.
type request struct {
	key     string
	n       int64
	charges bool
	answer  string // the error that it got
}

// requests returns what an EVAL or EVALSHA asks, by group.
func requests(args []string) (groups [][]request) {
	keys := keysOf(args)
	args = args[3+len(keys):]
	switch args[0] {
	case "none":
		for _, key := range keys {
			groups = append(groups, []request{{key: key}})
		}
	case "groups":
		for args = args[2:]; len(args) > 0; { // after the clock, of each run
			count, size := int(number(args[0])), int(number(args[1]))
			for range count {
				group := make([]request, size)
				for i := range group { // the rule and the operation, the limit, and n
					_, op, _ := strings.Cut(args[2+5*i], " ")
					group[i] = request{key: keys[i], n: number(args[6+5*i]), charges: op != "look"}
				}
				groups, keys = append(groups, group), keys[size:]
			}
			args = args[2+5*size:]
		}
	default:
		groups = [][]request{{{key: keys[0], n: number(args[4]), charges: args[0] != "look"}}}
	}
	return groups
}

// eval runs a script, if it may.
func (b *bookkeeper) eval(j job) {
	if j.args[0] == "eval" {
		b.learn(j.args[1])
	}
	groups, answer := requests(j.args), b.answer
	writes := strings.HasPrefix(answer, "OOM") || strings.HasPrefix(answer, "READONLY") // known at the first write
	if !b.scripts[j.args[1]] && j.args[0] == "evalsha" && (answer == "" || writes) {
		answer, writes = "NOSCRIPT No matching script", false
	}
	reply, told := "", slices.Concat(groups...)
	switch {
	case answer != "" && !writes:
		reply = "-" + answer + "\r\n"
		for i := range told {
			told[i].answer = answer
		}
	case j.args[3+len(told)] == "none":
		told, reply = nil, "*0\r\n"
	default:
		reply, told = fmt.Sprintf("*%d\r\n", 4*len(told)), nil
		for _, group := range groups {
			all := !slices.ContainsFunc(group, func(r request) bool { return r.charges && r.n > mostFits })
			refused := answer != "" && all && slices.ContainsFunc(group, func(r request) bool { return r.charges })
			if refused && len(groups) == 1 {
				reply = "-" + answer + "\r\n"
			} else if refused {
				reply += fmt.Sprintf("$%d\r\n%s\r\n", len(answer), answer) + strings.Repeat(":0\r\n", 4*len(group)-1)
			}
			for _, r := range group {
				if refused {
					r.answer = answer
				} else {
					reply += b.decide(r, all)
				}
				told = append(told, r)
			}
		}
	}
	b.note("%s get %.10q", keysOf(j.args), reply)
	j.w.reply(reply, func() {
		for _, r := range told {
			if r.answer != "" {
				b.page(r.key).refused++
			}
		}
		j.w.tell(told)
	})
}

// decide decides on a request, and returns its part of the reply: whether it fits, whose it is, and n. One that fits
// is charged if all do.
func (b *bookkeeper) decide(r request, all bool) string {
	ok := 0
	if r.n <= mostFits {
		ok = 1
	}
	charge := ok == 1 && all && r.charges
	b.note("%s is run, charge %t", r.key, charge)
	if p := b.page(r.key); charge {
		p.ran++
	}
	return fmt.Sprintf(":%d\r\n:%d\r\n:%d\r\n:0\r\n", ok, owner(r.key), r.n)
}

// owner is the number that a key begins with.
func owner(key string) int64 {
	_, tag, _ := strings.Cut(key, "{=")
	return number(strings.TrimRight(tag, "}ab"))
}

func number(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		panic(err)
	}
	return n
}

// cut resets the wires that which chooses. What is under way to the server is lost, or is not.
func (b *bookkeeper) cut(lost bool, which func(*wire) bool) {
	for _, w := range slices.Clone(b.wires) {
		if which(w) {
			w.lost = lost
			w.end(&net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET})
		}
	}
}

// wire is a connection.
type wire struct {
	b               *bookkeeper
	in, out         []byte // what the server, and the client, have not read
	lastIn, lastOut time.Time
	asked           int       // commands without a reply
	told            []request // what arrives once all replies are there
	again           bool      // one of them was that a script is missing
	err             error     // why it has ended
	lost, silent    bool      // nothing arrives at the server any more; nor at the client
	deadline        time.Time
	changed         chan struct{} // closed and replaced then
}

func (w *wire) change() {
	close(w.changed)
	w.changed = make(chan struct{})
}

// end ends w.
func (w *wire) end(err error) {
	if w.err == nil {
		w.err = err
		w.b.wires = slices.DeleteFunc(w.b.wires, func(o *wire) bool { return o == w })
		w.change()
	}
}

// reply sends text to the client. arrived is called when it is there.
func (w *wire) reply(text string, arrived func()) {
	if w.err != nil || w.silent {
		return
	}
	w.lastOut = w.b.at(later(w.lastOut, time.Now().Add(w.b.way)), func() {
		if w.err == nil && !w.silent {
			w.out = append(w.out, text...)
			w.change()
			w.asked--
			arrived()
		}
	})
}

// tell notes that the answers to list have arrived. The client does not say so before it has all
// replies of a pipeline, and has sent again what the server had no script for.
func (w *wire) tell(list []request) {
	for _, r := range list {
		if strings.HasPrefix(r.answer, "NOSCRIPT") {
			w.again = true
		} else if r.charges { // a look may be what became of a call that was given up
			w.told = append(w.told, r)
		}
	}
	if again := w.again; w.asked == 0 {
		if w.again = false; again {
			return
		}
		for _, r := range w.told {
			p := w.b.page(r.key)
			p.told, p.answer = time.Now(), r.answer
		}
		w.told = nil
	}
}

// later is t, or after last if that is later.
func later(last, t time.Time) time.Time {
	if t.After(last) {
		return t
	}
	return last.Add(1)
}

func (w *wire) Write(data []byte) (int, error) {
	b := w.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if w.err != nil {
		return 0, w.err
	}
	w.in = append(w.in, data...)
	for args := w.command(); args != nil; args = w.command() {
		w.asked++
		if strings.HasPrefix(args[0], "eval") && args[3+number(args[2])] != "none" {
			b.note("%s is sent", keysOf(args))
			for _, r := range slices.Concat(requests(args)...) {
				if r.charges {
					b.page(r.key).sent++
				}
			}
		}
		w.lastIn = b.at(later(w.lastIn, time.Now().Add(b.way)), func() {
			if w.lost || w.silent {
				return
			}
			if b.queue = append(b.queue, job{w, args, time.Now()}); !b.working {
				b.next()
			}
		})
	}
	return len(data), nil
}

// command takes a whole command from what has been written, or nil.
func (w *wire) command() (args []string) {
	rest := w.in
	line := func() (n int, ok bool) {
		text, after, ok := bytes.Cut(rest, []byte("\r\n"))
		if ok {
			n, rest = int(number(string(text[1:]))), after
		}
		return n, ok
	}
	count, ok := line()
	for range count {
		n, ok := line()
		if !ok || len(rest) < n+2 {
			return nil
		}
		args = append(args, string(rest[:n]))
		rest = rest[n+2:]
	}
	if !ok {
		return nil
	}
	args[0] = strings.ToLower(args[0])
	w.in = rest
	return args
}

func (w *wire) Read(data []byte) (int, error) {
	b := w.b
	b.mu.Lock()
	defer b.mu.Unlock()
	for {
		if len(w.out) > 0 {
			n := copy(data, w.out)
			w.out = w.out[n:]
			return n, nil
		}
		if w.err != nil {
			return 0, w.err
		}
		left := time.Until(w.deadline)
		if w.deadline.IsZero() {
			left = time.Hour
		}
		if left <= 0 {
			return 0, &net.OpError{Op: "read", Net: "tcp", Err: os.ErrDeadlineExceeded}
		}
		changed, timer := w.changed, time.NewTimer(left)
		b.mu.Unlock()
		select {
		case <-changed:
		case <-timer.C:
		}
		timer.Stop()
		b.mu.Lock()
	}
}

func (w *wire) Close() error {
	w.b.mu.Lock()
	defer w.b.mu.Unlock()
	w.end(net.ErrClosed)
	return nil
}

func (w *wire) SetDeadline(t time.Time) error { return w.SetReadDeadline(t) }

func (w *wire) SetReadDeadline(t time.Time) error {
	w.b.mu.Lock()
	defer w.b.mu.Unlock()
	w.deadline = t
	w.change()
	return nil
}

func (w *wire) SetWriteDeadline(time.Time) error { return nil } // there is always room

func (w *wire) LocalAddr() net.Addr  { return &net.TCPAddr{} }
func (w *wire) RemoteAddr() net.Addr { return &net.TCPAddr{} }

// SyscallConn lets a client look whether w can still be used.
func (w *wire) SyscallConn() (syscall.RawConn, error) { return rawWire{w}, nil }

// rawWire is a wire without a socket.
type rawWire struct{ w *wire }

// Read is an error where a read would not have to wait.
func (r rawWire) Read(func(fd uintptr) bool) error {
	r.w.b.mu.Lock()
	defer r.w.b.mu.Unlock()
	if len(r.w.out) > 0 {
		return errors.New("unexpected read from socket")
	}
	if r.w.err != nil {
		return io.EOF
	}
	return nil
}

func (rawWire) Write(func(fd uintptr) bool) error { return errors.ErrUnsupported }
func (rawWire) Control(func(fd uintptr)) error    { return errors.ErrUnsupported }
