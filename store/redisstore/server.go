package redisstore

// A server: its carrier, in which calls wait and share round trips, and its connections.

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit/store/carrier"
)

// server is a server with its carrier, or all servers behind a client that does not tell them apart.
type server struct {
	*carrier.Carrier[call]
	store   *Store
	client  *redis.Client // whose connections calls use, and which keeps to a context's deadline; nil if it is not known
	hooks   bool          // client is the user's own
	process process       // makes a call by itself

	mu     sync.Mutex      // protects what follows
	clones []*redis.Client // of client, which no trip uses now: see conn
	apart  time.Time       // until then each call has a script of its own
}

// mostConns is how many connections a carrier uses at the same time.
const mostConns = 16

// lasting is the least time that a connection may wait for the server, whatever the timeout.
const lasting = time.Second

// server returns the server of c, which has that client's connections.
func (s *Store) server(c *redis.Client) *server {
	o := c.Options()
	v := &server{store: s, client: deadlines(c, max(s.timeout, lasting)), hooks: o.ContextTimeoutEnabled}
	v.process = inline(v.client, s.timeout)
	v.carry(carrier.Config[call]{
		Conns: poolSize(c), DialTimeout: o.DialTimeout, OneFirst: v.hooks, Send: v.send,
		Pool: func() (idle, total int) {
			stats := c.PoolStats()
			return int(stats.IdleConns), int(stats.TotalConns)
		},
		Dial: func(ctx context.Context) error {
			conn, err := o.Dialer(ctx, o.Network, o.Addr)
			if err == nil {
				_ = conn.Close()
			}
			return err
		},
	})
	return v
}

// unknown returns all servers behind a client, each call to which is made by process.
func (s *Store) unknown(process process) *server {
	v := &server{store: s, process: process}
	v.carry(carrier.Config[call]{Conns: mostConns})
	return v
}

// carry makes the carrier of v.
func (v *server) carry(config carrier.Config[call]) {
	config.Timeout, config.Means, config.Alone, config.GiveBack = v.store.timeout, meaning, v.alone, v.store.giveBack
	config.Jitter = v.store.jitter
	var err error
	if v.Carrier, err = carrier.New(config); err != nil {
		panic(err) // not reached, because the config is complete
	}
}

// poolSize is how many connections c can have.
func poolSize(c *redis.Client) int {
	o := c.Options()
	size := o.PoolSize
	if o.MaxActiveConns > 0 {
		size = min(size, o.MaxActiveConns)
	}
	return max(size, 1)
}

// meaning returns the [carrier.Meaning] of an error of a client.
func meaning(err error) carrier.Meaning {
	switch {
	case isAnswer(err), errors.Is(err, errRefusedBundle):
		return carrier.Answered
	case busy(err):
		return carrier.Busy
	case errors.Is(err, errRested):
		return carrier.Unsent
	case errors.Is(err, redis.ErrClosed):
		return carrier.Closed
	}
	return carrier.Unknown
}

// alone makes a call by a command of its own, or two if the server does not have the script.
func (v *server) alone(b carrier.Budget, c call) (call, bool, error) {
	sent, err := v.aloneBy(b, &c, evalsha)
	if err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") { // nothing ran, and EVAL never answers NOSCRIPT
		sent, err = v.aloneBy(b, &c, eval)
	}
	return c, sent, err
}

func (v *server) aloneBy(b carrier.Budget, c *call, name any) (sent bool, err error) {
	a := new(loneCommand) // if the call fails, the client may keep it
	a.op.writing = &a.writing
	calls := [1]*call{c}
	args, err := v.store.arguments(a.args[:0], calls[:], name, &a.op)
	if err != nil {
		return false, err
	}
	cmd := newAlone(b.Context, args, c)
	if err = v.process(b, cmd, a); err != nil {
		c.late = lateOf(cmd, err)
	} else if c.values, err = valuesOf(cmd); err == nil {
		return false, nil
	}
	return !isAnswer(err) && a.writing.GiveUp(), err
}

// session is a redis.Conn, or a client whose commands go over any of its connections.
type session interface {
	Process(ctx context.Context, cmd redis.Cmder) error
	Pipeline() redis.Pipeliner
}

// sessionOf returns a connection of c, and a function that ends its use. If the credentials of c are streamed, it
// returns c, because a redis.Conn (go-redis 9.23) that has to authenticate then panics. Pipelines of c have a pool
// of their own.
func sessionOf(c *redis.Client) (s session, end func()) {
	if c.Options().StreamingCredentialsProvider != nil {
		return c, func() {}
	}
	conn := c.Conn()
	return conn, func() { _ = conn.Close() }
}

// conn returns a connection to send several calls over, and a function that ends its use.
// A pipeline of the client itself would have a pool of its own. In a first handshake
// go-redis (9.23) changes settings that a client shares with its Conns, without a common
// lock. Therefore, each Conn belongs to a clone that nothing else uses. A client with hooks has
// no such clones.
func (v *server) conn() (conn session, end func()) {
	if v.hooks {
		return sessionOf(v.client)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	var clone *redis.Client
	if n := len(v.clones); n > 0 {
		clone, v.clones = v.clones[n-1], v.clones[:n-1]
	} else {
		clone = v.client.WithTimeout(v.client.Options().ReadTimeout)
	}
	conn, closeConn := sessionOf(clone)
	return conn, func() {
		closeConn()
		v.mu.Lock()
		defer v.mu.Unlock()
		v.clones = append(v.clones, clone) // there are no more clones than trips
	}
}
