package redistest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// MasterName is what the Sentinels of StartSentinel call their master.
const MasterName = "mymaster"

const quorum = 2

// Sentinel is a master, its replicas, and three Sentinels that watch them.
type Sentinel struct {
	Master    *Server // at the start
	Replicas  []*Server
	Sentinels []*Server
}

// StartSentinel starts a master with the given number of replicas, and three Sentinels, which regard
// a server as dead after downAfter without an answer. It returns when all of them know each other,
// which takes about 3 s.
func StartSentinel(t testing.TB, replicas int, downAfter time.Duration) *Sentinel {
	t.Helper()
	s := &Sentinel{Master: Start(t, "--repl-diskless-sync-delay", "0")}
	for range replicas {
		s.Replicas = append(s.Replicas, Start(t, "--replicaof", "127.0.0.1", s.Master.port))
	}
	for _, r := range s.Replicas {
		eventually(t, 10*time.Second, "replica follows", func(ctx context.Context) bool {
			return linkStatus(ctx, r) == "up"
		})
	}
	for range 3 {
		s.Sentinels = append(s.Sentinels, startWatch(t, s.Master, downAfter))
	}
	for _, watch := range s.Sentinels {
		client := redis.NewSentinelClient(&redis.Options{Addr: watch.Addr()})
		t.Cleanup(func() { _ = client.Close() })
		eventually(t, 20*time.Second, "Sentinels meet", func(ctx context.Context) bool {
			m := client.Master(ctx, MasterName).Val()
			return m["num-other-sentinels"] == "2" && m["num-slaves"] == strconv.Itoa(replicas) && m["flags"] == "master"
		})
	}
	return s
}

// startWatch starts a Sentinel, which repeats a failed failover after 2 s, twice its
// failover-timeout.
func startWatch(t testing.TB, master *Server, downAfter time.Duration) *Server {
	t.Helper()
	var err error
	for range startTries {
		s := &Server{dir: t.TempDir()}
		if s.port, err = freePort(); err != nil {
			break
		}
		s.config = filepath.Join(s.dir, "sentinel.conf")
		text := fmt.Sprintf("port %s\nbind 127.0.0.1\ndir %s\nsentinel monitor %s 127.0.0.1 %s %d\n"+
			"sentinel down-after-milliseconds %s %d\nsentinel failover-timeout %s 1000\n",
			s.port, s.dir, MasterName, master.port, quorum, MasterName, downAfter.Milliseconds(), MasterName)
		if err = os.WriteFile(s.config, []byte(text), 0o600); err != nil {
			break
		}
		if err = s.run(); err == nil {
			t.Cleanup(s.Kill)
			return s
		}
	}
	t.Fatal(err)
	return nil
}

// linkStatus returns the state of a replica's link to its master: "up" or "down".
func linkStatus(ctx context.Context, s *Server) string {
	client := redis.NewClient(&redis.Options{Addr: s.Addr()})
	defer func() { _ = client.Close() }()
	return client.InfoMap(ctx, "replication").Item("Replication", "master_link_status")
}

// Addrs returns the addresses of the Sentinels.
func (s *Sentinel) Addrs() []string {
	addrs := make([]string, len(s.Sentinels))
	for i, watch := range s.Sentinels {
		addrs[i] = watch.Addr()
	}
	return addrs
}

// Client returns a client of the current master with go-redis' default options, closed
// with t.
func (s *Sentinel) Client(t testing.TB) *redis.Client {
	t.Helper()
	c := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: MasterName, SentinelAddrs: s.Addrs()})
	t.Cleanup(func() { _ = c.Close() })
	return c
}
