package redischeck

// The checks of a server.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit/internal/redisview"
	"github.com/ratelimit-go/ratelimit/store"
)

// server is a server to check.
type server struct {
	*check
	name   string
	client *redis.Client // nil for whatever server the client chooses
	single bool          // the client expects no other server

	keeps time.Duration // how long the client keeps an idle connection; 0 if that is not known, or forever
	tls   bool
}

func (n *server) findf(format string, args ...any) { n.check.findf(n.name, format, args...) }

func (n *server) ask(ctx context.Context, args ...any) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	return n.Ask(ctx, n.client, args...)
}

// unreachable returns the error of a server that could not be asked.
func (n *server) unreachable(err error) error {
	return fmt.Errorf("%w: %s: %v", store.ErrUnavailable, n.name, err) //nolint:errorlint // no context error may show
}

// examine runs all checks of the server.
func (n *server) examine(ctx context.Context) error {
	val, err := n.ask(ctx, "info")
	info, old := map[string]string{}, false
	switch answer := redisview.Answer(err); {
	case redisview.Unauthenticated(err):
		n.unauthenticated(n.name, answer)
		return fmt.Errorf("%w: %s: %w", store.ErrStore, n.name, err)
	case answer != "":
		n.findf("version, role and eviction could not be checked (%v). Allow the user to run INFO.", err)
	case err != nil:
		return n.unreachable(err)
	default:
		text, _ := val.(string)
		info = parseInfo(text)
		old = n.version(info)
		n.role(info)
		n.eviction(ctx, info)
	}
	n.rest(ctx)
	n.clock(ctx)
	n.roundTrip(ctx)
	if old || info["role"] == "slave" { // it would refuse the script's commands, or its writes
		return nil
	}
	return n.permissions(ctx)
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

// version reports whether the server is too old for the scripts.
func (n *server) version(info map[string]string) (old bool) {
	name, version, least := "Redis", info["redis_version"], [2]int{6, 2}
	if v := info["valkey_version"]; v != "" { // Valkey also names a Redis version that it is compatible with
		name, version, least = "Valkey", v, [2]int{7, 2}
	}
	var major, minor int
	_, err := fmt.Sscanf(version, "%d.%d", &major, &minor)
	switch {
	case err != nil:
		n.findf("the version could not be checked (%q). The scripts need Redis 6.2 or Valkey 7.2.", version)
	case major < least[0] || major == least[0] && minor < least[1]:
		n.findf("%s %s is too old: the scripts need %d.%d or later, and may fail or decide wrongly. Upgrade it.",
			name, version, least[0], least[1])
		return true
	}
	return false
}

func (n *server) role(info map[string]string) {
	if info["role"] == "slave" {
		n.findf("this is a replica, which refuses to charge (READONLY) or charges without its master's knowledge. " +
			"Connect to the master; with Sentinel, without ReplicaOnly.")
	}
	if n.single && info["cluster_enabled"] == "1" {
		n.findf("this is a node of a cluster, and the client is not a ClusterClient: keys of other nodes fail (MOVED). " +
			"Use redis.NewClusterClient.")
	}
}

func (n *server) eviction(ctx context.Context, info map[string]string) {
	policy, ok := info["maxmemory_policy"]
	if !ok {
		var err error
		if policy, err = n.setting(ctx, "maxmemory-policy"); err != nil {
			n.findf("maxmemory-policy could not be checked (%v). Make sure that it is noeviction.", err)
			return
		}
	}
	if policy == "noeviction" {
		return
	}
	when := "When memory is full"
	if info["maxmemory"] == "0" {
		when = "No maxmemory is set yet; once there is one and memory is full"
	}
	n.findf("maxmemory-policy is %s. %s, the server drops keys of limiters, all of which have a TTL, and "+
		"each key that it drops starts again with its whole limit. Set noeviction, on a server for limiters only.", policy, when)
}

// longRest is a time after which many proxies close an idle connection.
const longRest = 5 * time.Minute

// rest compares how long the server lets connections be idle with how long the client keeps them. A
// server that does not report it is often a hosted one, which is used over TLS.
func (n *server) rest(ctx context.Context) {
	seconds, keeps := 0, n.keeps
	text, err := n.setting(ctx, "timeout")
	if err == nil {
		seconds, err = strconv.Atoi(text)
	}
	closes := time.Duration(seconds) * time.Second
	if keeps <= 0 {
		keeps = math.MaxInt64
	}
	switch {
	case err == nil && closes > 0 && keeps >= closes:
		n.findf("timeout is %v: the server closes connections that rest for longer. The next call then has to make "+
			"one, and a call that is sent at that moment has no known outcome. Set ConnMaxIdleTime in the client's options to less.", closes)
	case err != nil && n.tls && keeps >= longRest:
		n.findf("timeout, after which the server closes connections that rest, could not be checked (%v). "+
			"Set ConnMaxIdleTime in the client's options to less than it, and than that of any proxy on the way.", err)
	}
}

// setting returns the value of name by CONFIG GET, whose reply is a map or a list.
func (n *server) setting(ctx context.Context, name string) (string, error) {
	reply, err := n.ask(ctx, "config", "get", name)
	if err != nil {
		return "", err
	}
	var val any
	switch v := reply.(type) {
	case map[any]any:
		val = v[name]
	case []any:
		if len(v) == 2 && v[0] == name {
			val = v[1]
		}
	}
	if value, ok := val.(string); ok {
		return value, nil
	}
	return "", errors.New("the server does not report it")
}

// clock compares the server's clock with this process's, or with that of WithClock.
// The server reads its clock at some time between two readings of the other clock.
func (n *server) clock(ctx context.Context) {
	const slack = 100 * time.Millisecond // the difference that is accepted
	now := time.Now
	if n.Clock != nil {
		now = n.Clock
	}
	before := now()
	val, err := n.ask(ctx, "time")
	after := now()
	at, unread := serverTime(val)
	ahead := max(at.Sub(after), 0) - max(before.Sub(at), 0)
	switch {
	case err != nil || unread != nil:
		n.findf("the clock could not be checked (%v).", cmp.Or(err, unread))
	case ahead.Abs() <= slack:
	case n.Clock != nil:
		n.findf("its clock is %v ahead of WithClock's. Decisions go by WithClock and keys expire by the server, "+
			"so spend is forgotten early or kept late by as much. Set both clocks by NTP.", ahead.Round(time.Millisecond))
	default:
		n.findf("its clock is %v ahead of this machine's. Decisions go by the server's, so windows begin and "+
			"end at other times than this machine thinks. Set both clocks by NTP.", ahead.Round(time.Millisecond))
	}
}

// serverTime reads the reply of TIME, seconds and µs.
func serverTime(val any) (time.Time, error) {
	list, _ := val.([]any)
	var seconds, micros int64
	_, err := fmt.Sscan(fmt.Sprintln(list...), &seconds, &micros)
	return time.Unix(seconds, micros*1000), err
}

// roundTrip compares a round trip to the server with the store's timeout, and with the deadlines that callers give. The
// fastest of a few counts, because the first may make the connection.
func (n *server) roundTrip(ctx context.Context) {
	const measured = 4
	trip := time.Duration(math.MaxInt64)
	for range measured {
		begun := time.Now()
		if _, err := n.ask(ctx, "time"); err != nil {
			return // clock reports it
		}
		trip = min(trip, time.Since(begun))
	}
	n.distance(trip, n.store.Timeout())
	if st := n.store.Stats(); st.TooShort > 0 {
		n.findf("%d calls had less time than a round trip takes (%v), and were not sent. "+
			"Your deadlines are shorter than the way: give the contexts of calls at least %v.",
			st.TooShort, st.RoundTrip.Round(time.Microsecond), max(3*st.RoundTrip, time.Millisecond).Round(time.Millisecond))
	}
}

// distance adds a finding if the timeout is short for a round trip of this length.
func (n *server) distance(trip, timeout time.Duration) {
	about, enough := trip.Round(trip/10), (3 * trip).Round(time.Millisecond)
	switch {
	case trip > timeout*9/10:
		n.findf("a round trip takes %v, and a call has %v: none is answered in time. "+
			"Set WithTimeout to at least %v.", about, timeout, enough)
	case trip > timeout/2:
		n.findf("a round trip takes %v, and a call has %v: the first call of a script, which takes two, fails "+
			"after each restart and failover. Call Ready at the start, or set WithTimeout to at least %v.", about, timeout, enough)
	}
}
