package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"
)

// paced is a stand-in for a server of a fixed speed that takes nearly no processor time: a
// slow one, or the part of a server that one of many processes gets. It admits everything.
type paced struct {
	Script, Decision time.Duration // what a script takes, and each decision in it

	mu   sync.Mutex
	free time.Time // when it has done all that it was asked
}

// pacing is the environment variable with which a process is a paced server.
const pacing = "RATELIMIT_BENCHMARK_PACED"

func runPaced(ctx context.Context, p *paced, out io.Writer) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(out, l.Addr()); err != nil {
		return err
	}
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go p.serve(conn)
	}
}

// reply is a reply and when it is due.
type reply struct {
	due   time.Time
	bytes []byte
}

func (p *paced) serve(conn net.Conn) {
	replies := make(chan reply, 4096)
	defer close(replies)
	go func() {
		defer func() { _ = conn.Close() }()
		w := bufio.NewWriterSize(conn, 64<<10)
		for r := range replies {
			if d := time.Until(r.due); d > 0 {
				if w.Flush() != nil {
					return
				}
				time.Sleep(d)
			}
			_, _ = w.Write(r.bytes)
			if len(replies) == 0 && w.Flush() != nil {
				return
			}
		}
	}()
	in := bufio.NewReaderSize(conn, 64<<10)
	for {
		cmd, err := readCommand(in)
		if err != nil {
			return
		}
		replies <- p.run(cmd)
	}
}

// run decides what a command is answered, and when.
func (p *paced) run(cmd [][]byte) reply {
	name := string(bytes.ToLower(cmd[0]))
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if p.free.Before(now) {
		p.free = now
	}
	switch name {
	case "evalsha", "eval":
		n, _ := strconv.Atoi(string(cmd[2]))
		p.free = p.free.Add(p.Script + time.Duration(n)*p.Decision)
		if bytes.HasPrefix(cmd[3], []byte("rate:")) { // redis_rate
			return reply{p.free, []byte("*4\r\n:1\r\n:1\r\n$2\r\n-1\r\n$1\r\n0\r\n")}
		}
		text := append([]byte("*"), strconv.Itoa(4*n)...)
		return reply{p.free, append(text, "\r\n"+string(bytes.Repeat([]byte(":1\r\n:0\r\n:9\r\n:1000\r\n"), n))...)}
	case "time":
		return reply{now, fmt.Appendf(nil, "*2\r\n:%d\r\n:%d\r\n", now.Unix(), now.Nanosecond()/1000)}
	case "hello":
		return reply{now, []byte("-ERR unknown command 'hello'\r\n")}
	case "info":
		return reply{now, []byte("$0\r\n\r\n")}
	}
	return reply{now, []byte("+OK\r\n")}
}

var errCommand = errors.New("not a command")

// readCommand reads an array of strings.
func readCommand(in *bufio.Reader) ([][]byte, error) {
	n, err := readNumber(in, '*')
	if err != nil {
		return nil, err
	}
	cmd := make([][]byte, n)
	for i := range cmd {
		size, err := readNumber(in, '$')
		if err != nil {
			return nil, err
		}
		cmd[i] = make([]byte, size+2)
		if _, err := io.ReadFull(in, cmd[i]); err != nil {
			return nil, err
		}
		cmd[i] = cmd[i][:size]
	}
	if n == 0 {
		return nil, errCommand
	}
	return cmd, nil
}

func readNumber(in *bufio.Reader, kind byte) (int, error) {
	line, err := in.ReadSlice('\n')
	if err != nil {
		return 0, err
	}
	if len(line) < 4 || line[0] != kind {
		return 0, errCommand
	}
	return strconv.Atoi(string(line[1 : len(line)-2]))
}
