package redistest

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const slots = 16384

// Cluster is a Redis Cluster of real servers with a node timeout of 1 s.
type Cluster struct {
	Masters  []*Server // in the order of their slots, which are divided evenly
	Replicas []*Server // replica i follows master i modulo the number of masters
}

// StartCluster starts a cluster with the given total numbers of masters and replicas. It returns
// when every node sees the cluster as complete, which takes about 2 s for 3 and 3.
func StartCluster(t testing.TB, masters, replicas int) *Cluster {
	t.Helper()
	needBinary(t)
	NeedRedis7(t) // for the choice of the bus port, and for ranges of slots
	nodes := startNodes(t, masters+replicas)
	c := &Cluster{Masters: nodes[:masters], Replicas: nodes[masters:]}

	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	do := func(s *Server, args ...any) string {
		t.Helper()
		reply, err := s.Client(t).Do(ctx, args...).Text()
		if err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		return reply
	}
	for i, s := range c.Masters {
		do(s, "CLUSTER", "SET-CONFIG-EPOCH", i+1)
		do(s, "CLUSTER", "ADDSLOTSRANGE", i*slots/masters, (i+1)*slots/masters-1)
	}
	for _, s := range nodes[1:] {
		do(nodes[0], "CLUSTER", "MEET", "127.0.0.1", s.port, s.busPort())
	}
	know := "cluster_known_nodes:" + strconv.Itoa(len(nodes)) + "\r"
	for _, s := range nodes {
		eventually(t, 10*time.Second, "nodes meet", func(context.Context) bool {
			return strings.Contains(do(s, "CLUSTER", "INFO"), know)
		})
	}
	for i, s := range c.Replicas {
		do(s, "CLUSTER", "REPLICATE", do(c.Masters[i%masters], "CLUSTER", "MYID"))
	}
	for i, s := range nodes {
		eventually(t, 20*time.Second, "cluster_state:ok", func(context.Context) bool {
			return strings.Contains(do(s, "CLUSTER", "INFO"), "cluster_state:ok") &&
				(i < masters || strings.Contains(do(s, "INFO", "replication"), "master_link_status:up"))
		})
	}
	return c
}

// startNodes starts n servers at the same time.
func startNodes(t testing.TB, n int) []*Server {
	t.Helper()
	nodes, errs := make([]*Server, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range nodes {
		dir := t.TempDir()
		wg.Go(func() {
			for range startTries {
				var bus string
				if bus, errs[i] = freePort(); errs[i] != nil {
					return
				}
				nodes[i], errs[i] = start(dir, []string{
					"--cluster-enabled", "yes", "--cluster-port", bus,
					"--cluster-node-timeout", "1000", "--repl-diskless-sync-delay", "0",
				})
				if errs[i] == nil {
					return
				}
			}
		})
	}
	wg.Wait()
	for i, s := range nodes {
		if s != nil {
			t.Cleanup(s.Kill)
		}
		if errs[i] != nil {
			t.Error(errs[i])
		}
	}
	if t.Failed() {
		t.FailNow()
	}
	return nodes
}

// busPort is the cluster bus port that startNodes chose.
func (s *Server) busPort() string { return s.args[3] }

// Client returns a client of c with go-redis' default options, closed with t.
func (c *Cluster) Client(t testing.TB) *redis.ClusterClient {
	t.Helper()
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs()})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// Addrs returns the addresses of all nodes, masters first.
func (c *Cluster) Addrs() []string {
	addrs := make([]string, 0, len(c.Masters)+len(c.Replicas))
	for _, s := range c.Masters {
		addrs = append(addrs, s.Addr())
	}
	for _, s := range c.Replicas {
		addrs = append(addrs, s.Addr())
	}
	return addrs
}
