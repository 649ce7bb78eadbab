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

// bubble is what the servers in a bubble of testing/synctest have in common.
type bubble struct {
	mu       sync.Mutex // protects the servers, and all wires
	began    time.Time
	note     func(format string, args ...any)
	pages    map[string]*page
	instants map[time.Time]bool // at which something happens
	servers  []*bookkeeper
	behind   time.Time // when one last ran a command that had waited for long
}

func newBubble() *bubble {
	return &bubble{began: time.Now(), note: func(string, ...any) {}, pages: map[string]*page{}, instants: map[time.Time]bool{}}
}

// bookkeeper is a server in a bubble, and the network before it. It speaks RESP, and it decides on groups of requests as
// scripts/groups.lua does. Of bookkeeping a request fits if n is at most mostFits. A fixed window is one without an end. It
// remembers of each request what was asked and charged. What it does are timers: it has no goroutines.
type bookkeeper struct {
	*bubble
	node                  // if it is one of a cluster
	way     time.Duration // to it, or back
	cost    time.Duration // of a command; each key after the first costs a quarter of it
	answer  string        // to all scripts, in place of running them
	gone    bool          // refuses dials
	dark    bool          // dials hang, and what is sent vanishes
	stopped time.Time     // it does nothing until then

	queue   []job
	working bool
	scripts map[string]bool // by SHA-1
	wires   []*wire
	kept    map[string]int64 // the events of fixed windows
}

func newBookkeeper() *bookkeeper { return newBubble().server() }

// server returns a new server in the bubble.
func (bb *bubble) server() *bookkeeper {
	b := &bookkeeper{bubble: bb, way: 100 * time.Microsecond, cost: 20 * time.Microsecond, scripts: map[string]bool{}, kept: map[string]int64{}}
	bb.servers = append(bb.servers, b)
	return b
}

// page is what is known of a request, on whichever servers.
type page struct {
	sent    int       // how often it was written
	ran     int       // how often it was run, and has charged
	back    int       // how often that was given back
	refused int       // answers that prove that it was not run, and that have arrived
	told    time.Time // when the last answer arrived
	answer  string    // its error, or ""
}

// page returns the page of this name: see [request.page].
func (bb *bubble) page(name string) *page {
	if bb.pages[name] == nil {
		bb.pages[name] = new(page)
	}
	return bb.pages[name]
}

// at runs f at t, or a bit later, with the lock held, and returns when. Of timers of one instant
// synctest chooses any, so no two have the same.
func (bb *bubble) at(t time.Time, f func()) time.Time {
	for ; bb.instants[t]; t = t.Add(1) {
	}
	bb.instants[t] = true
	time.AfterFunc(time.Until(t), func() {
		bb.mu.Lock()
		defer bb.mu.Unlock()
		delete(bb.instants, t)
		f()
	})
	return t
}

// in runs f in d.
func (bb *bubble) in(d time.Duration, f func()) { bb.at(time.Now().Add(d), f) }

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
func (bb *bubble) busy() bool {
	bb.mu.Lock()
	defer bb.mu.Unlock()
	return slices.ContainsFunc(bb.servers, func(b *bookkeeper) bool { return b.working })
}

// run runs a command.
func (b *bookkeeper) run(j job) {
	asking := j.w.asking
	j.w.asking = j.args[0] == "asking"
	switch {
	case strings.HasPrefix(j.args[0], "eval"):
		b.eval(j, asking)
	case j.args[0] == "cluster":
		j.w.reply(b.clusterSlots(), func() {})
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
	key            string
	rate, n        int64
	period         string
	charges, gives bool   // events, or events back
	otherwise      bool   // its group is an alternative to the one before
	answer         string // the error that it got
}

// newRequest reads a request: its key, the operation with its arguments, and rate, period, burst and n.
func newRequest(key, op string, limit []string) request {
	op, _, _ = strings.Cut(op, " ")
	return request{
		key: key, rate: number(limit[0]), period: limit[1], n: number(limit[3]), charges: op != "look" && op != "refund", gives: op == "refund",
	}
}

// window reports whether r is of a fixed window.
func (r *request) window() bool { return strings.Contains(r.key, ":fixed_window:") }

// page is the name of r's page. Many share the key of a window, and each of them has a period of its own.
func (r *request) page() string {
	if r.window() {
		return r.key + " " + r.period
	}
	_, tag, _ := strings.Cut(r.key, "{=")
	return strings.TrimSuffix(tag, "}")
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
			otherwise := size < 0
			size = max(size, -size)
			for range count {
				group := make([]request, size)
				for i := range group { // the rule and the operation, and the limit
					_, op, _ := strings.Cut(args[2+5*i], " ")
					group[i] = newRequest(keys[i], op, args[3+5*i:])
					group[i].otherwise = otherwise
				}
				groups, keys = append(groups, group), keys[size:]
			}
			args = args[2+5*size:]
		}
	default:
		groups = [][]request{{newRequest(keys[0], args[0], args[1:])}}
	}
	return groups
}

// eval runs a script, if it may.
func (b *bookkeeper) eval(j job, asking bool) {
	if j.args[0] == "eval" {
		b.learn(j.args[1])
	}
	groups := requests(j.args)
	told, answer := slices.Concat(groups...), b.answer
	writes := strings.HasPrefix(answer, "OOM") || strings.HasPrefix(answer, "READONLY") // known at the first write
	if other := b.redirect(keysOf(j.args), asking); other != "" {
		answer, writes = other, false
	} else if !b.scripts[j.args[1]] && j.args[0] == "evalsha" && (answer == "" || writes) {
		answer, writes = "NOSCRIPT No matching script", false
	}
	var reply string
	switch {
	case answer != "" && !writes:
		reply, told = "-"+answer+"\r\n", refuse(told, answer)
	case j.args[3+len(told)] == "none":
		told, reply = nil, "*0\r\n"
	default:
		reply, told = b.decideAll(groups, answer)
	}
	b.note("%s: %s get %.10q", b.addr, keysOf(j.args), reply)
	j.w.reply(reply, func() {
		for _, r := range told {
			if r.answer != "" && !r.gives {
				b.page(r.page()).refused++
			}
		}
		j.w.tell(told)
	})
}

// decideAll decides on groups of requests, and returns the reply, and the requests with what each of them is told. Those
// that would write get answer, unless that is empty.
func (b *bookkeeper) decideAll(groups [][]request, answer string) (reply string, told []request) {
	count, admitted, refused := 0, false, false
	for _, group := range groups {
		count += 4 * len(group)
		if group[0].otherwise && admitted {
			reply += strings.Repeat(":2\r\n:0\r\n:0\r\n:0\r\n", len(group))
			if refused { // with the alternative before
				told = append(told, refuse(group, answer)...)
			}
			continue
		}
		admitted = !slices.ContainsFunc(group, func(r request) bool { return r.charges && !b.fits(r) })
		refused = answer != "" && admitted && slices.ContainsFunc(group, func(r request) bool { return r.charges || r.gives })
		switch {
		case refused && len(groups) == 1:
			reply = "-" + answer + "\r\n"
		case refused:
			reply += fmt.Sprintf("$%d\r\n%s\r\n", len(answer), answer) + strings.Repeat(":0\r\n", 4*len(group)-1)
		}
		if refused {
			told = append(told, refuse(group, answer)...)
			continue
		}
		for _, r := range group {
			reply += b.decide(r, admitted)
		}
		told = append(told, group...)
	}
	if reply[0] != '-' {
		reply = fmt.Sprintf("*%d\r\n", count) + reply
	}
	return reply, told
}

// refuse returns list, of which each gets answer.
func refuse(list []request, answer string) []request {
	for i := range list {
		list[i].answer = answer
	}
	return list
}

// fits reports whether there is room for r.
func (b *bookkeeper) fits(r request) bool {
	if r.window() {
		return b.kept[r.key]+r.n <= r.rate
	}
	return r.n <= mostFits
}

// decide decides on a request, and returns its part of the reply: whether it fits, whose it is, and n, or what a fixed
// window replies. One that fits is charged if all do.
func (b *bookkeeper) decide(r request, all bool) string {
	ok, kept := 0, b.kept[r.key]
	if b.fits(r) {
		ok = 1
	}
	charge := ok == 1 && all && r.charges
	b.note("%s is run, charge %t", r.key, charge)
	switch p := b.page(r.page()); {
	case charge:
		p.ran++
		b.keep(r, r.n)
	case r.gives:
		p.back++
		b.keep(r, -min(r.n, kept))
		return ":0\r\n:0\r\n:0\r\n:0\r\n"
	}
	if r.window() {
		return fmt.Sprintf(":%d\r\n:%d\r\n:%d\r\n:1\r\n", ok, time.Now().UnixMicro(), kept)
	}
	return fmt.Sprintf(":%d\r\n:%d\r\n:%d\r\n:0\r\n", ok, owner(r.key), r.n)
}

// keep adds n events to those of r's window. A key without events is none.
func (b *bookkeeper) keep(r request, n int64) {
	if !r.window() {
		return
	}
	if b.kept[r.key] += n; b.kept[r.key] == 0 {
		delete(b.kept, r.key)
	}
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
	asking          bool      // the command before was ASKING
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
			p := w.b.page(r.page())
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
					b.page(r.page()).sent++
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
