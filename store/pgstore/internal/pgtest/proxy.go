package pgtest

import (
	"net"
	"sync"
	"testing"
)

// Proxy is a TCP proxy in front of a server. It can hold replies back, and lose the replies to some requests.
type Proxy struct {
	target   string
	listener net.Listener
	done     sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]struct{} // nil once closed
	gate  chan struct{}         // closed: replies pass
	lose  func(request []byte) bool
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

// Lose closes the connection of each request for which is returns true, once the server has answered the request, and
// does not pass the answer on. Nil loses nothing.
func (p *Proxy) Lose(is func(request []byte) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lose = is
}

// Hold keeps all replies back until Release.
func (p *Proxy) Hold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gate = make(chan struct{})
}

// Release lets the held replies pass, and all that follow.
func (p *Proxy) Release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.gate:
	default:
		close(p.gate)
	}
}

// Cut closes all connections.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
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
		p.mu.Lock()
		open := p.conns != nil
		if open {
			p.conns[client], p.conns[server] = struct{}{}, struct{}{}
		}
		p.mu.Unlock()
		if !open {
			_, _ = client.Close(), server.Close()
			return
		}
		lost := make(chan struct{}, 1)
		p.done.Go(func() { p.requests(client, server, lost) })
		p.done.Go(func() { p.replies(client, server, lost) })
	}
}

func (p *Proxy) requests(client, server net.Conn, lost chan<- struct{}) {
	defer p.end(client, server)
	buf := make([]byte, 1<<20)
	for {
		n, err := client.Read(buf)
		if err != nil {
			return
		}
		p.mu.Lock()
		lose := p.lose != nil && p.lose(buf[:n])
		p.mu.Unlock()
		if lose {
			lost <- struct{}{}
		}
		if _, err = server.Write(buf[:n]); err != nil {
			return
		}
	}
}

func (p *Proxy) replies(client, server net.Conn, lost <-chan struct{}) {
	defer p.end(client, server)
	buf := make([]byte, 1<<20)
	for {
		n, err := server.Read(buf)
		if err != nil {
			return
		}
		p.mu.Lock()
		gate := p.gate
		p.mu.Unlock()
		<-gate
		select {
		case <-lost:
			return
		default:
		}
		if _, err = client.Write(buf[:n]); err != nil {
			return
		}
	}
}

func (p *Proxy) end(client, server net.Conn) {
	_, _ = client.Close(), server.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, client)
	delete(p.conns, server)
}

func (p *Proxy) close() {
	p.Release()
	_ = p.listener.Close()
	p.Cut()
	p.mu.Lock()
	p.conns = nil
	p.mu.Unlock()
	p.done.Wait()
}
