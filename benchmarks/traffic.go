package main

import (
	"bytes"
	"context"
	"net"
	"strings"
	"sync"
)

// traffic counts what a client writes to its connections: commands by name, and writes.
// With a single caller each write waits for its replies.
type traffic struct {
	mu       sync.Mutex
	writes   float64
	commands map[string]float64
}

func (t *traffic) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	return countedConn{conn, t}, err
}

// reset returns the counts, and begins again.
func (t *traffic) reset() (commands map[string]float64, writes float64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	commands, writes = t.commands, t.writes
	t.commands, t.writes = map[string]float64{}, 0
	return commands, writes
}

// countedConn reports each write, which holds whole commands as long as they are small.
type countedConn struct {
	net.Conn
	traffic *traffic
}

func (c countedConn) Write(p []byte) (int, error) {
	c.traffic.mu.Lock()
	c.traffic.writes++
	for _, name := range commandNames(p) {
		c.traffic.commands[name]++
	}
	c.traffic.mu.Unlock()
	return c.Conn.Write(p)
}

// commandNames finds the commands in p. The name comes after "*", the number of words,
// and "$", the length of the first one. No key or script here has such lines.
func commandNames(p []byte) []string {
	var names []string
	lines := bytes.Split(p, []byte("\r\n"))
	for i, line := range lines {
		if len(line) > 1 && line[0] == '*' && i+2 < len(lines) {
			names = append(names, strings.ToLower(string(lines[i+2])))
		}
	}
	return names
}
