package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"
)

// certificates are read from files, and read again when these have changed.
type certificates struct {
	cert, key, clients string
	log                *slog.Logger

	mu      sync.Mutex // protects what follows
	read    [3]time.Time
	checked time.Time
	now     *tls.Config
}

// tls returns the certificates, or nil if there are none.
func (s *server) tls() (*certificates, error) {
	if s.cert == "" {
		return nil, nil
	}
	c := &certificates{cert: s.cert, key: s.key, clients: s.clients, log: s.log}
	if err := c.load(); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *certificates) listener(l net.Listener) net.Listener {
	return tls.NewListener(l, c.config("http/1.1"))
}

// config returns the configuration of a server for one protocol.
func (c *certificates) config(protocol string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{protocol},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			now := c.current().Clone()
			now.NextProtos = []string{protocol}
			return now, nil
		},
	}
}

// current returns the configuration in the files, at most a second old.
func (c *certificates) current() *tls.Config {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.checked) > time.Second && c.changed() {
		if err := c.load(); err != nil {
			c.log.Error("the certificate has changed, but the new one cannot be used: the old one stays in force", "error", err)
		}
	}
	return c.now
}

// changed reports whether a file is newer than the configuration.
func (c *certificates) changed() bool {
	c.checked = time.Now()
	return c.times() != c.read
}

func (c *certificates) times() (times [3]time.Time) {
	for i, name := range []string{c.cert, c.key, c.clients} {
		if info, err := os.Stat(name); err == nil {
			times[i] = info.ModTime()
		}
	}
	return times
}

func (c *certificates) load() error {
	c.read = c.times()
	pair, err := tls.LoadX509KeyPair(c.cert, c.key)
	if err != nil {
		return err
	}
	next := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}
	if c.clients != "" {
		text, err := os.ReadFile(c.clients)
		if err != nil {
			return err
		}
		next.ClientCAs, next.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
		if !next.ClientCAs.AppendCertsFromPEM(text) {
			return errors.New(c.clients + ": contains no certificate")
		}
	}
	c.now = next
	return nil
}
