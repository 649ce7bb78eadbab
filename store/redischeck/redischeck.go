// Package redischeck looks for settings of a [redisstore.Store]'s client and servers under which limits do not hold, or
// calls fail or cost more than they need to. Call [Run] once at the start of a program, and log what it finds.
package redischeck

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit/internal/redisview"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/carrier"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

const (
	runTimeout     = 5 * time.Second // of a whole Run, if its context has no nearer deadline
	commandTimeout = time.Second     // of each command in it
)

// Run returns what it finds. Each finding is one or two sentences for
// a log: what is set, why it matters, and what to do. A setting that could not be checked
// is a finding as well. The store keeps working with any of them.
//
// Run asks each master of a cluster and each shard of a ring, by INFO, TIME and
// CONFIG GET. On each server it also runs a script that tries
// the commands of the limiters' scripts. The script uses two keys that begin with the
// store's prefix and "check:", and removes them. It finds commands that the user may not
// run, and why a server does not write. The fastest of a few round trips is compared with
// the store's timeout.
//
// Run returns by ctx's deadline, or within 5 s. An error means that not all servers
// could be asked; the findings so far come with it. It is ctx's own or wraps
// [store.ErrStore].
func Run(ctx context.Context, s *redisstore.Store) ([]string, error) {
	c := check{View: redisview.Of(s), store: s}
	if c.View == nil {
		return nil, fmt.Errorf("%w: redischeck: the Store was not made by redisstore.New", store.ErrStore)
	}
	limited, cancel := context.WithTimeout(ctx, runTimeout)
	defer cancel()
	c.client()
	err := c.servers(limited)
	if ended := (carrier.Budget{Context: ctx}).Over(); ended != nil {
		err = ended
	}
	return c.found, err
}

// check is a Run.
type check struct {
	*redisview.View
	store *redisstore.Store
	found []string
}

// findf adds a finding about the client, or about a server.
func (c *check) findf(about, format string, args ...any) {
	c.found = append(c.found, about+": "+fmt.Sprintf(format, args...))
}

// servers checks all servers.
func (c *check) servers(ctx context.Context) error {
	clients, err := c.Servers(ctx)
	c.unfound(err)
	if len(clients) == 0 && err == nil {
		return (&server{check: c, name: "server"}).examine(ctx)
	}
	_, cluster := c.Client.(*redis.ClusterClient)
	for _, client := range clients {
		o := client.Options()
		n := &server{check: c, name: o.Addr, client: client, single: !cluster, keeps: o.ConnMaxIdleTime, tls: o.TLSConfig != nil}
		err = errors.Join(err, n.examine(ctx))
	}
	return err
}

// unfound adds a finding if err is the answer of a server that was asked where the others are.
func (c *check) unfound(err error) {
	const about = "client"
	switch answer := redisview.Answer(err); {
	case redisview.Unauthenticated(err):
		c.unauthenticated(about, answer)
	case forbidden(answer):
		c.findf(about, "its user may not run a command that it needs to find the servers (%s), so that all calls fail. "+
			"Allow +cluster|slots, and +readonly if it reads from replicas.", answer)
	case answer != "":
		c.findf(about, "it cannot find the servers (%s), so that all calls fail. Use redis.NewClient for a server that is not part of a cluster.", answer)
	}
}

func (c *check) unauthenticated(about, answer string) {
	c.findf(about, "the server does not know this user by this password (%s), so that all calls fail. "+
		"Set Username and Password in the client's options.", answer)
}
