package redisstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/carrier"
)

const (
	checkTimeout = 5 * time.Second        // of a whole Check, if its context has no nearer deadline
	nodeTimeout  = time.Second            // of each command in it
	clockSlack   = 100 * time.Millisecond // the difference of clocks that is accepted
)

// Check looks for settings of the client and its servers under which limits do not hold,
// or calls fail or cost more than they need to. Each finding is one or two sentences for
// a log: what is set, why it matters, and what to do. A setting that could not be checked
// is a finding as well. The store keeps working with any of them.
//
// Check asks each master of a cluster and each shard of a ring, by INFO, TIME and
// CONFIG GET. On each server it also runs a script that tries
// the commands of the limiters' scripts. The script uses two keys that begin with the
// store's prefix and "check:", and removes them. It finds commands that the user may not
// run, and why a server does not write. The fastest of a few round trips is compared with
// the store's timeout.
//
// Check returns by ctx's deadline, or within 5 s. An error means that not all servers
// could be asked; the findings so far come with it. It is ctx's own or wraps
// [store.ErrStore].
func (s *Store) Check(ctx context.Context) ([]string, error) {
	if s.link == nil {
		return nil, errNotMade
	}
	limited, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	found := s.link.settings()
	nodes, err := s.link.nodes(limited)
	for _, n := range nodes {
		sentences, failed := s.checkNode(limited, n)
		for _, sentence := range sentences {
			found = append(found, n.name+": "+sentence)
		}
		err = errors.Join(err, failed)
	}
	if ended := (carrier.Budget{Context: ctx}).Over(); ended != nil {
		err = ended
	}
	return found, err
}

// node is one server to check.
type node struct {
	name    string
	process process
	single  bool // the client expects no other

	keeps time.Duration // how long the client keeps a connection that rests; 0 if that is not known, or for ever
	tls   bool
}

// ask runs a command without a key.
func (n node) ask(ctx context.Context, args ...any) (any, error) {
	return n.run(ctx, command{redis.NewCmd(ctx, args...)})
}

// askKey runs an EVAL or EVALSHA.
func (n node) askKey(ctx context.Context, args ...any) (any, error) {
	return n.run(ctx, newCommand(ctx, args))
}

func (n node) run(ctx context.Context, cmd command) (any, error) {
	b, a := carrier.Budget{Context: ctx, End: time.Now().Add(nodeTimeout)}, new(attempt)
	if end, ok := ctx.Deadline(); ok && end.Before(b.End) {
		b.End = end
	}
	a.writing.Begin() // so that the call waits for its answer
	if err := n.process(b, cmd, a); err != nil {
		return nil, err
	}
	return cmd.Val(), nil
}

func (s *Store) checkNode(ctx context.Context, n node) ([]string, error) {
	val, err := n.ask(ctx, "info")
	if unauthenticated(err) {
		return []string{fmt.Sprintf("the server does not know this user by this password (%v), so that all calls fail. "+
			"Set Username and Password in the client's options.", err)}, fmt.Errorf("%w: %s: %w", store.ErrStore, n.name, err)
	}
	var found []string
	var info map[string]string
	switch answer := answerOfServer(err); {
	case answer != "":
		found = []string{fmt.Sprintf("version, role and eviction could not be checked (%v). Allow the user to run INFO.", err)}
	case err != nil:
		return nil, fmt.Errorf("%w: %s: %v", store.ErrUnavailable, n.name, err) //nolint:errorlint // no context error may show
	default:
		text, _ := val.(string)
		info = parseInfo(text)
		found = checkVersion(info)
		found = append(found, checkRole(info, n.single)...)
		found = append(found, checkEviction(ctx, n, info)...)
	}
	found = append(found, checkRest(ctx, n)...)
	found = append(found, s.checkClock(ctx, n)...)
	found = append(found, s.checkTrip(ctx, n)...)
	if info["role"] == "slave" { // it would not let the probe write
		return found, nil
	}
	sentences, err := s.probe(ctx, n)
	return append(found, sentences...), err
}

// parseInfo reads the lines "name:value" of INFO.
func parseInfo(text string) map[string]string {
	info := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			info[name] = value
		}
	}
	return info
}

func checkVersion(info map[string]string) []string {
	name, version, least := "Redis", info["redis_version"], [2]int{6, 2}
	if v := info["valkey_version"]; v != "" { // Valkey also names a Redis version that it is compatible with
		name, version, least = "Valkey", v, [2]int{7, 2}
	}
	major, rest, _ := strings.Cut(version, ".")
	minor, _, _ := strings.Cut(rest, ".")
	a, err := strconv.Atoi(major)
	b, err2 := strconv.Atoi(minor)
	if err != nil || err2 != nil {
		return []string{fmt.Sprintf("the version could not be checked (%q). The scripts need Redis 6.2 or Valkey 7.2.", version)}
	}
	if a > least[0] || a == least[0] && b >= least[1] {
		return nil
	}
	return []string{fmt.Sprintf("%s %s is too old: the scripts need %d.%d or later, and may fail or decide wrongly. Upgrade it.",
		name, version, least[0], least[1])}
}

func checkRole(info map[string]string, single bool) []string {
	var found []string
	if info["role"] == "slave" {
		found = append(found, "this is a replica, which refuses to charge (READONLY) or charges without its master's knowledge. "+
			"Connect to the master; with Sentinel, without ReplicaOnly.")
	}
	if single && info["cluster_enabled"] == "1" {
		found = append(found, "this is a node of a cluster, and the client is not a ClusterClient: keys of other nodes fail (MOVED). "+
			"Use redis.NewClusterClient.")
	}
	return found
}

func checkEviction(ctx context.Context, n node, info map[string]string) []string {
	policy, ok := info["maxmemory_policy"]
	if !ok {
		val, err := n.ask(ctx, "config", "get", "maxmemory-policy")
		if policy, ok = setting(val, "maxmemory-policy"); !ok {
			return []string{fmt.Sprintf("maxmemory-policy could not be checked (%v). Make sure that it is noeviction.", err)}
		}
	}
	if policy == "noeviction" {
		return nil
	}
	when := "When memory is full"
	if info["maxmemory"] == "0" {
		when = "No maxmemory is set yet; once there is one and memory is full"
	}
	return []string{fmt.Sprintf("maxmemory-policy is %s. %s, the server drops keys of limiters, all of which have a TTL, and "+
		"each key that it drops starts again with its whole limit. Set noeviction, on a server for limiters only.", policy, when)}
}

// longRest is a time after which many a proxy closes a connection.
const longRest = 5 * time.Minute

// checkRest compares how long connections may rest for the server with how long the client keeps
// them. A server that does not tell is often rented, and asked over TLS.
func checkRest(ctx context.Context, n node) []string {
	val, err := n.ask(ctx, "config", "get", "timeout")
	text, _ := setting(val, "timeout")
	seconds, bad := strconv.Atoi(text)
	closes, keeps := time.Duration(seconds)*time.Second, n.keeps
	if keeps <= 0 {
		keeps = math.MaxInt64
	}
	switch {
	case bad == nil && closes > 0 && keeps >= closes:
		return []string{fmt.Sprintf("timeout is %v: the server closes connections that rest for longer. The next call then has to make "+
			"one, and a call that is sent at that moment has no known outcome. Set ConnMaxIdleTime in the client's options to less.", closes)}
	case bad != nil && n.tls && keeps >= longRest:
		return []string{fmt.Sprintf("timeout, after which the server closes connections that rest, could not be checked (%v). "+
			"Set ConnMaxIdleTime in the client's options to less than it, and than that of any proxy on the way.", err)}
	}
	return nil
}

// setting returns the value of name in the reply of CONFIG GET, which is a map or a list.
func setting(val any, name string) (string, bool) {
	switch v := val.(type) {
	case map[any]any:
		value, ok := v[name].(string)
		return value, ok
	case []any:
		if len(v) == 2 && v[0] == name {
			value, ok := v[1].(string)
			return value, ok
		}
	}
	return "", false
}

// checkClock compares the server's clock with this process's, or with that of WithClock.
// The server reads its own at some time between two readings of the other.
func (s *Store) checkClock(ctx context.Context, n node) []string {
	now := time.Now
	if s.clock != nil {
		now = s.clock
	}
	before := now()
	val, err := n.ask(ctx, "time")
	after := now()
	at, ok := serverTime(val)
	if !ok {
		return []string{fmt.Sprintf("the clock could not be checked (%v).", err)}
	}
	ahead := max(at.Sub(after), 0) - max(before.Sub(at), 0)
	if ahead.Abs() <= clockSlack {
		return nil
	}
	if s.clock != nil {
		return []string{fmt.Sprintf("its clock is %v ahead of WithClock's. Decisions go by WithClock and keys expire by the server, "+
			"so spend is forgotten early or kept late by as much. Set both clocks by NTP.", ahead.Round(time.Millisecond))}
	}
	return []string{fmt.Sprintf("its clock is %v ahead of this machine's. Decisions go by the server's, so windows begin and "+
		"end at other times than this machine thinks. Set both clocks by NTP.", ahead.Round(time.Millisecond))}
}

// serverTime reads the reply of TIME, seconds and µs.
func serverTime(val any) (time.Time, bool) {
	list, _ := val.([]any)
	if len(list) != 2 {
		return time.Time{}, false
	}
	seconds, err := strconv.ParseInt(fmt.Sprint(list[0]), 10, 64)
	micros, err2 := strconv.ParseInt(fmt.Sprint(list[1]), 10, 64)
	return time.Unix(seconds, micros*1000), err == nil && err2 == nil
}

// nodes are the servers behind the client.
func (l *link) nodes(ctx context.Context) ([]node, error) {
	clients, err := l.clients(ctx)
	if len(clients) == 0 && err == nil {
		return []node{l.unknown()}, nil
	}
	nodes := make([]node, len(clients))
	_, cluster := l.client.(*redis.ClusterClient)
	for i, c := range clients {
		nodes[i] = node{name: c.Options().Addr, process: direct(deadlines(c, checkTimeout), nodeTimeout), single: !cluster, keeps: c.Options().ConnMaxIdleTime, tls: c.Options().TLSConfig != nil}
	}
	return nodes, err
}

// unknown is whatever server the client asks.
func (l *link) unknown() node { return node{name: "server", process: l.plain.process} }

// clients returns a client for each server behind l.client. It returns none if the servers are not known.
func (l *link) clients(ctx context.Context) ([]*redis.Client, error) {
	switch c := l.client.(type) {
	case *redis.Client:
		return []*redis.Client{c}, nil
	case *redis.ClusterClient:
		return collect(ctx, c.ForEachMaster)
	case *redis.Ring:
		return collect(ctx, c.ForEachShard)
	}
	return nil, nil
}

// collect lists the clients that each visits. It does not wait for a client that asks a
// hanging server where the others are.
func collect(ctx context.Context, each func(context.Context, func(context.Context, *redis.Client) error) error) ([]*redis.Client, error) {
	var mu sync.Mutex
	var clients []*redis.Client
	done := make(chan error, 1)
	go func() {
		done <- each(ctx, func(_ context.Context, c *redis.Client) error {
			mu.Lock()
			defer mu.Unlock()
			clients = append(clients, c)
			return nil
		})
	}()
	var err error
	select {
	case err = <-done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		err = fmt.Errorf("%w: %v", store.ErrUnavailable, err) //nolint:errorlint // no context error may show
	}
	mu.Lock()
	defer mu.Unlock()
	return clients[:len(clients):len(clients)], err
}

// settings returns the findings about the client.
func (l *link) settings() []string {
	const perCall = "client: ContextTimeoutEnabled is false, so each call costs a goroutine, which stays for up to ReadTimeout " +
		"if the server hangs. Set it."
	switch c := l.client.(type) {
	case *redis.Client:
		o := c.Options()
		found := checkTLS(o.TLSConfig, o.Protocol)
		if !o.ContextTimeoutEnabled {
			found = append(found, "client: ContextTimeoutEnabled is false, so it does not keep to deadlines. The store uses a clone that does, "+
				"without the client's hooks (tracing). Set it, and the store uses the client itself.")
		}
		if o.Addr == failoverClient && o.DialTimeout > mostDialing {
			found = append(found, fmt.Sprintf("client: DialTimeout is %v. If the master's host hangs, its dials hold places in the pool for as long, "+
				"even if Sentinel has named another master. Set 500 ms.", o.DialTimeout))
		}
		return found
	case *redis.ClusterClient:
		o := c.Options()
		found := checkTLS(o.TLSConfig, o.Protocol)
		switch {
		case o.ReadOnly: // also with RouteByLatency and RouteRandomly
			found = append(found, "client: it reads from replicas (ReadOnly, RouteByLatency or RouteRandomly). Limiters must read what they wrote, "+
				"so their calls go to masters anyway, at the cost of a goroutine each. Use a client without it.")
		case !o.ContextTimeoutEnabled:
			found = append(found, perCall)
		}
		return found
	case *redis.Ring:
		o := c.Options()
		found := append(checkTLS(o.TLSConfig, o.Protocol), checkShards(c)...)
		if !o.ContextTimeoutEnabled {
			found = append(found, perCall)
		}
		return found
	case *redis.AutoPipeliner:
		if c.Config().MaxQueuedCommands <= 0 {
			return []string{"client: the AutoPipeliner's MaxQueuedCommands is not set, so its queue grows without bound if " +
				"the server hangs. Set it."}
		}
	default:
		return []string{fmt.Sprintf("client: a %T is not known to this package. Its settings could not be checked, and each call "+
			"costs a goroutine. Hand New the go-redis client itself.", c)}
	}
	return nil
}

const (
	failoverClient = "FailoverClient" // the address that go-redis gives a client of Sentinel
	mostDialing    = time.Second      // lets a pool recover within some seconds
)

// checkTLS looks for settings that make go-redis (9.23) hang on a new connection. After a
// handshake of TLS 1.3 a server sends a session ticket. If the connection was made before
// its first command, a client of RESP3 takes the ticket for the beginning of a push
// notification, and reads on.
func checkTLS(config *tls.Config, protocol int) []string {
	if config == nil || protocol == 2 || config.MaxVersion != 0 && config.MaxVersion < tls.VersionTLS13 {
		return nil
	}
	return []string{"client: with TLS 1.3 and RESP3 the first call on a connection that was made ahead (MinIdleConns, or while " +
		"the server hung) may wait until its deadline, and fail. Set Protocol to 2."}
}

// checkShards looks for a ring that gives the keys of a lost shard to the others. Whether it does, its HeartbeatFn says
// of a client that reaches no server.
func checkShards(ring *redis.Ring) []string {
	if max(len(ring.Options().Addrs), ring.Len()) < 2 { // Len leaves out lost ones, and Addrs those of SetAddrs
		return nil
	}
	lost := redis.NewClient(&redis.Options{
		Addr:       "127.0.0.1:1",
		Dialer:     func(context.Context, string, string) (net.Conn, error) { return nil, net.ErrClosed },
		MaxRetries: -1, DialerRetries: 1,
	})
	defer func() { _ = lost.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), nodeTimeout)
	defer cancel()
	if ring.Options().HeartbeatFn(ctx, lost) {
		return nil
	}
	return []string{"client: if a shard of this Ring is lost, its keys go to other shards, and each starts again with its whole limit; and once " +
		"more when the shard comes back. Set HeartbeatFn to a function that returns true, so that calls for these keys fail until then."}
}
