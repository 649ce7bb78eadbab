package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// haveRedis reports whether a server can be started.
func haveRedis() bool {
	_, err := exec.LookPath("redis-server")
	return err == nil
}

// startRedis starts a server on the loopback interface that keeps nothing on disk. It
// ends with stop, or with ctx.
func startRedis(ctx context.Context, args ...string) (addr string, stop func(), err error) {
	port, err := freePort(ctx)
	if err != nil {
		return "", nil, err
	}
	dir, err := os.MkdirTemp("", "benchmarks")
	if err != nil {
		return "", nil, err
	}
	cmd := exec.CommandContext(ctx, "redis-server", append([]string{"--port", port, "--bind", "127.0.0.1",
		"--dir", dir, "--save", "", "--appendonly", "no", "--maxclients", "4000"}, args...)...)
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	stop = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = os.RemoveAll(dir)
	}
	addr = net.JoinHostPort("127.0.0.1", port)
	if err := answers(ctx, addr, cmd.Process.Pid); err != nil {
		stop()
		return "", nil, err
	}
	return addr, stop, nil
}

// answers waits until the server at addr is the process that was started.
func answers(ctx context.Context, addr string, pid int) error {
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer func() { _ = client.Close() }()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	mine := "process_id:" + strconv.Itoa(pid) + "\r"
	for ; ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
		if info, err := client.Info(ctx, "server").Result(); err == nil && strings.Contains(info, mine) {
			return nil
		}
	}
	return fmt.Errorf("redis-server did not come up at %s", addr)
}

func freePort(ctx context.Context) (string, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer func() { _ = l.Close() }()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port), nil
}
