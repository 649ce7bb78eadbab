package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// far is a TCP proxy that puts a server a round trip away. It delays each reply, without
// slowing the next one down. It can break all connections at once.
type far struct {
	target   string
	trip     time.Duration
	listener net.Listener
	accepted atomic.Int64 // connections, since the start

	mu    sync.Mutex
	conns map[net.Conn]struct{} // nil once closed
}

// startFar starts a proxy. If encrypted, it speaks TLS to its clients.
func startFar(ctx context.Context, target string, trip time.Duration, encrypted bool) (*far, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	if encrypted {
		cert, err := selfSigned()
		if err != nil {
			return nil, err
		}
		l = tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12})
	}
	p := &far{target: target, trip: trip, listener: l, conns: map[net.Conn]struct{}{}}
	go p.accept()
	return p, nil
}

func (p *far) addr() string { return p.listener.Addr().String() }

func (p *far) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target) //nolint:noctx // ends with the proxy
		if err != nil {
			_ = client.Close()
			continue
		}
		p.accepted.Add(1)
		p.mu.Lock()
		closed := p.conns == nil
		if !closed {
			p.conns[client], p.conns[server] = struct{}{}, struct{}{}
		}
		p.mu.Unlock()
		if closed {
			_, _ = client.Close(), server.Close()
			return
		}
		go p.relay(client, server, 0)
		go p.relay(server, client, p.trip)
	}
}

// chunk is bytes that are due at a time.
type chunk struct {
	bytes []byte
	due   time.Time
}

// relay copies from one connection to the other, later.
func (p *far) relay(from, to net.Conn, later time.Duration) {
	defer p.forget(from, to)
	if later == 0 {
		buf := make([]byte, 64<<10)
		for {
			n, err := from.Read(buf)
			if n > 0 {
				if _, err := to.Write(buf[:n]); err != nil {
					return
				}
			}
			if err != nil {
				return
			}
		}
	}
	chunks := make(chan chunk, 256)
	defer close(chunks)
	go func() {
		for c := range chunks {
			time.Sleep(time.Until(c.due))
			if _, err := to.Write(c.bytes); err != nil {
				p.forget(from, to)
			}
		}
	}()
	for {
		buf := make([]byte, 16<<10)
		n, err := from.Read(buf)
		if n > 0 {
			chunks <- chunk{buf[:n], time.Now().Add(later)}
		}
		if err != nil {
			return
		}
	}
}

func (p *far) forget(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
		delete(p.conns, c)
	}
}

// cut breaks all connections.
func (p *far) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
	clear(p.conns)
}

func (p *far) close() {
	_ = p.listener.Close()
	p.cut()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns = nil
}

// selfSigned returns a certificate for the loopback address, signed by itself.
func selfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}
