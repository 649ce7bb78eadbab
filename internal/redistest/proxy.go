package redistest

import (
	"bytes"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// Proxy is a TCP proxy in front of a server that loses or holds replies on purpose. It regards each
// chunk that a client writes as a request. Each client connection must therefore have only one
// request in flight, as in go-redis outside pipelines.
type Proxy struct {
	target   string
	listener net.Listener
	done     sync.WaitGroup

	mu      sync.Mutex
	conns   map[net.Conn]struct{} // nil once closed
	drop    int                   // replies still to lose
	names   [][]byte              // of the commands whose replies are lost, in lower case
	dropped int
	gate    chan struct{}         // closed: replies pass
	delay   time.Duration         // of each reply
	muted   map[net.Conn]struct{} // clients' connections whose replies are swallowed
	made    int                   // connections
}

// StartProxy starts a proxy in front of addr, closed with t.
func StartProxy(t testing.TB, addr string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{target: addr, listener: l, conns: map[net.Conn]struct{}{}, gate: make(chan struct{})}
	close(p.gate)
	p.done.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// Addr returns the proxy's host:port.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// DropReplies loses the next n replies to commands with these names. The server gets and answers the
// request, and then the proxy closes the client's connection without passing the reply on. Exactly n
// commands run whose replies are lost.
func (p *Proxy) DropReplies(n int, names ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop, p.dropped, p.names = n, 0, nil
	for _, name := range names {
		p.names = append(p.names, []byte("\r\n"+strings.ToLower(name)+"\r\n"))
	}
}

// Dropped returns how many replies have been lost since DropReplies.
func (p *Proxy) Dropped() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dropped
}

// Hold holds all replies back until Release.
func (p *Proxy) Hold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.release()
	p.gate = make(chan struct{})
}

// Release lets the held replies pass, and all that follow.
func (p *Proxy) Release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.release()
}

// Delay delays each reply by d.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// Mute swallows all replies on the connections that are open now, until they are closed, like
// half-open connections. Later connections are not affected. It returns the number of these
// connections.
func (p *Proxy) Mute() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.muted = map[net.Conn]struct{}{}
	for c := range p.conns {
		p.muted[c] = struct{}{}
	}
	return len(p.conns) / 2 // one to the client, one to the server
}

// Cut closes all connections.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
}

// Made returns how many connections clients have made.
func (p *Proxy) Made() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.made
}

func (p *Proxy) release() {
	select {
	case <-p.gate:
	default:
		close(p.gate)
	}
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			_ = client.Close() // as a dead server's kernel would
			continue
		}
		if !p.track(client, server) {
			return
		}
		lose := make(chan struct{}, 1) // the next reply is to be lost
		p.done.Go(func() { defer p.untrack(client, server); p.requests(client, server, lose) })
		p.done.Go(func() { defer p.untrack(client, server); p.replies(client, server, lose) })
	}
}

func (p *Proxy) requests(client, server net.Conn, lose chan<- struct{}) {
	buf := make([]byte, 64<<10)
	for {
		n, err := client.Read(buf)
		if err != nil {
			return
		}
		if p.chosen(buf[:n]) {
			select {
			case lose <- struct{}{}:
			default: // a second chunk of the same request
			}
		}
		if _, err := server.Write(buf[:n]); err != nil {
			return
		}
	}
}

func (p *Proxy) replies(client, server net.Conn, lose <-chan struct{}) {
	buf := make([]byte, 64<<10)
	for {
		n, err := server.Read(buf)
		if err != nil {
			return
		}
		select {
		case <-lose:
			return
		default:
		}
		p.mu.Lock()
		gate, delay := p.gate, p.delay
		_, muted := p.muted[client]
		p.mu.Unlock()
		if muted {
			continue
		}
		<-gate
		time.Sleep(delay)
		if _, err := client.Write(buf[:n]); err != nil {
			return
		}
	}
}

// chosen reports whether to lose the reply to request, and counts it.
func (p *Proxy) chosen(request []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.drop == 0 {
		return false
	}
	head := bytes.ToLower(request[:min(len(request), 64)]) // the command's name comes first
	for _, name := range p.names {
		if bytes.Contains(head, name) {
			p.drop--
			p.dropped++
			return true
		}
	}
	return false
}

func (p *Proxy) track(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.made++
	for _, c := range conns {
		if p.conns == nil {
			_ = c.Close()
		} else {
			p.conns[c] = struct{}{}
		}
	}
	return p.conns != nil
}

func (p *Proxy) untrack(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
		delete(p.conns, c)
	}
}

func (p *Proxy) close() {
	_ = p.listener.Close()
	p.mu.Lock()
	p.release()
	for c := range p.conns {
		_ = c.Close()
	}
	p.conns = nil
	p.mu.Unlock()
	p.done.Wait()
}
