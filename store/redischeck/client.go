package redischeck

// The checks of the client.

import (
	"context"
	"crypto/tls"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	failoverClient = "FailoverClient" // the address that go-redis gives a client of Sentinel
	mostDialing    = time.Second      // lets a pool recover within some seconds
)

// client checks the options of the client.
func (c *check) client() {
	const about = "client"
	switch client := c.Client.(type) {
	case *redis.Client:
		o := client.Options()
		c.options(o.TLSConfig, o.Protocol, o.ContextTimeoutEnabled)
		if o.Addr == failoverClient && o.DialTimeout > mostDialing {
			c.findf(about, "DialTimeout is %v. If the master's host hangs, its dials hold places in the pool for as long, "+
				"even if Sentinel has named another master. Set 500 ms.", o.DialTimeout)
		}
	case *redis.ClusterClient:
		o := client.Options()
		c.options(o.TLSConfig, o.Protocol, o.ContextTimeoutEnabled)
		if o.ReadOnly { // also with RouteByLatency and RouteRandomly
			c.findf(about, "it reads from replicas (ReadOnly, RouteByLatency or RouteRandomly). Limiters must read what they wrote, "+
				"so their calls go to masters anyway. Use a client without it.")
		}
	case *redis.Ring:
		o := client.Options()
		c.options(o.TLSConfig, o.Protocol, o.ContextTimeoutEnabled)
		if forgets(client) {
			c.findf(about, "if a shard of this Ring is lost, its keys go to other shards, and each starts again with its whole limit; and once "+
				"more when the shard comes back. Set HeartbeatFn to a function that returns true, so that calls for these keys fail until then.")
		}
	case *redis.AutoPipeliner:
		if client.Config().MaxQueuedCommands <= 0 {
			c.findf(about, "the AutoPipeliner's MaxQueuedCommands is not set, so its queue grows without bound if the server hangs. Set it.")
		}
	default:
		c.findf(about, "a %T is not known to this package. Its settings could not be checked, and each call "+
			"costs a goroutine. Hand New the go-redis client itself.", client)
	}
}

// options checks the options that several kinds of clients have.
func (c *check) options(config *tls.Config, protocol int, keepsDeadlines bool) {
	// go-redis (9.23) may hang on a new connection. After a handshake of TLS 1.3, a server sends a
	// session ticket. If the connection was made before its first command, a client of RESP3 takes the
	// ticket for the beginning of a push notification, and reads on.
	if config != nil && protocol != 2 && (config.MaxVersion == 0 || config.MaxVersion >= tls.VersionTLS13) {
		c.findf("client", "with TLS 1.3 and RESP3 the first call on a connection that was made ahead (MinIdleConns, or while "+
			"the server hung) may wait until its deadline, and fail. Set Protocol to 2.")
	}
	if !keepsDeadlines {
		c.findf("client", "ContextTimeoutEnabled is false, so it does not keep to deadlines. The store uses clones that do, "+
			"without hooks (tracing). Set it, and the store uses the client's own connections and hooks.")
	}
}

// forgets reports whether ring gives the keys of a lost shard to the others. To find out, it calls the
// ring's HeartbeatFn with a client that reaches no server.
func forgets(ring *redis.Ring) bool {
	if max(len(ring.Options().Addrs), ring.Len()) < 2 { // Len leaves out lost shards, and Addrs the shards of SetAddrs
		return false
	}
	lost := redis.NewClient(&redis.Options{
		Addr:       "127.0.0.1:1",
		Dialer:     func(context.Context, string, string) (net.Conn, error) { return nil, net.ErrClosed },
		MaxRetries: -1, DialerRetries: 1,
	})
	defer func() { _ = lost.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	return !ring.Options().HeartbeatFn(ctx, lost)
}
