package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// The parts of a key of package redisstore are: prefix, layout, algorithm, Period in µs or
// calendar, name or limit, and the user's key.
const layout = "2"

// onRedis is a server with keys of package redisstore.
type onRedis struct {
	client *redis.Client
	prefix string
	done   func() error
}

// openRedis connects to the server at a URL, or to the node of a cluster that has the key.
func openRedis(ctx context.Context, address, prefix, key string) (server, error) {
	logging.Disable() // errors are returned
	of, err := redisstore.NewClient(address)
	if err != nil {
		return nil, fmt.Errorf("%w; for Postgres, postgres://user@host/database", err)
	}
	client, done, err := nodeOf(ctx, of, key)
	if err != nil {
		_ = done()
		return nil, err
	}
	return &onRedis{client, prefix, done}, nil
}

// nodeOf returns the client of a server, or of the node of a cluster that has the key. Call done after use, even if
// there is an error.
func nodeOf(ctx context.Context, of redis.UniversalClient, key string) (client *redis.Client, done func() error, err error) {
	client, isNode := of.(*redis.Client)
	if isNode {
		info, err := client.Info(ctx, "cluster").Result()
		if refused := redis.Error(nil); errors.As(err, &refused) {
			return client, client.Close, nil // this user may not call INFO: assume a single server
		}
		if err != nil || !strings.Contains(info, "cluster_enabled:1") {
			return client, client.Close, err
		}
		_ = client.Close()
		o := client.Options()
		of = redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: []string{o.Addr}, Username: o.Username, Password: o.Password, TLSConfig: o.TLSConfig, ContextTimeoutEnabled: true,
		})
	}
	cluster := of.(*redis.ClusterClient)
	client, err = cluster.MasterForKey(ctx, tag(key))
	return client, cluster.Close, err
}

// tag returns the end of every Redis key for a user's key.
func tag(key string) string {
	if len(key) > maxPlainKey || strings.ContainsAny(key, "{}") {
		sum := sha256.Sum256([]byte(key))
		return "{#" + hex.EncodeToString(sum[:]) + "}"
	}
	return "{=" + key + "}"
}

// keyPattern returns a pattern that matches the Redis keys for a user's key.
func keyPattern(prefix, key string) string {
	literal := strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`)
	return literal.Replace(prefix) + ":" + layout + ":*:" + literal.Replace(tag(key))
}

// find implements server. The states are in the order of their Redis keys.
func (r *onRedis) find(ctx context.Context, key string) ([]held, error) {
	st, err := redisstore.New(r.client, redisstore.WithPrefix(r.prefix), redisstore.WithTimeout(patience))
	if err != nil {
		return nil, err
	}
	var keys []string
	scan := r.client.Scan(ctx, 0, keyPattern(r.prefix, key), 1000).Iterator()
	for scan.Next(ctx) {
		keys = append(keys, scan.Val())
	}
	if err := scan.Err(); err != nil {
		return nil, err
	}
	slices.Sort(keys)
	var all []held
	for _, redisKey := range slices.Compact(keys) { // SCAN may return a key twice
		if h, ok := parseKey(redisKey, r.prefix, key); ok {
			h.err = h.read(ctx, r.client, st, key)
			if !errors.Is(h.err, redis.Nil) { // otherwise the state has just expired
				all = append(all, h)
			}
		}
	}
	return all, nil
}

// parseKey parses a Redis key, such as "rl:2:token_bucket:60000000:=api:{=user:42}". The key of a
// limiter without a name has its rate and burst: "rl:2:token_bucket:60000000:100,100:…".
func parseKey(redisKey, prefix, key string) (h held, ok bool) {
	text, began := strings.CutPrefix(redisKey, prefix+":"+layout+":")
	text, ended := strings.CutSuffix(text, ":"+tag(key))
	parts := strings.SplitN(text, ":", 3)
	if !began || !ended || len(parts) < 3 || !slices.Contains(algorithms, parts[0]) {
		return held{}, false
	}
	h.at, h.algorithm = redisKey, parts[0]
	if h.made, ok = parsePeriod(parts[1]); !ok && (h.algorithm != inflight.Algorithm || parts[1] != "any") {
		return held{}, false
	}
	if name, named := strings.CutPrefix(parts[2], "="); named {
		h.name, h.limit = name, h.made
		h.limit.Rate = 0
		return h, true
	}
	rate, burst, _ := strings.Cut(parts[2], ",")
	var errRate, errBurst error
	h.made.Rate, errRate = strconv.Atoi(rate)
	h.made.Burst, errBurst = strconv.Atoi(burst)
	if h.made.Burst == h.made.Rate { // including windows and logs, which have none
		h.made.Burst = 0
	}
	h.limit = h.made
	return h, errRate == nil && errBurst == nil
}

// parsePeriod returns a limit of one event with the Period or calendar in a Redis key: "60000000",
// or for a calendar "month/31/America/Sao_Paulo".
func parsePeriod(text string) (l ratelimit.Limit, ok bool) {
	unit, rest, calendar := strings.Cut(text, "/")
	if !calendar {
		period, err := strconv.ParseInt(text, 10, 64) // µs
		return ratelimit.Limit{Rate: 1, Period: time.Duration(period) * time.Microsecond}, err == nil
	}
	from, zone, _ := strings.Cut(rest, "/")
	switch day, _ := strconv.Atoi(from); {
	case unit == "day":
		from = ""
	case unit == "week" && day >= 0 && day < 7:
		from = " from " + strings.ToLower(time.Weekday(day).String())
	default:
		from = " from " + from
	}
	l, err := ratelimit.ParseLimit("1/" + unit + from + " in " + zone)
	return l, err == nil
}

// read reads the state, as the limiter itself would.
func (h *held) read(ctx context.Context, client *redis.Client, st *redisstore.Store, key string) error {
	var err error
	if h.ttl, err = client.PTTL(ctx, h.at).Result(); err != nil {
		return err
	}
	if h.ttl == -2 { // there is no such key
		return redis.Nil
	}
	switch h.algorithm {
	case ban:
		return h.readBan(ctx, client)
	case inflight.Algorithm:
		return h.readSlots(ctx, client)
	}
	if err = h.readLimit(ctx, client); err != nil {
		return err
	}
	wide := h.wide()
	options := []ratelimit.Option{ratelimit.WithLimitFunc(func(context.Context, string) (ratelimit.Limit, error) { return wide, nil })}
	if h.name != "" {
		options = append(options, ratelimit.WithName(h.name))
	}
	l, err := ratelimit.New(h.algorithm, st, h.made, options...)
	if err != nil {
		return err
	}
	r, err := l.Peek(ctx, key)
	h.spent, h.reset = r.Limit-r.Remaining, r.ResetAfter
	return err
}

// readBan reads a ban. scripts/ban.lua describes its state.
func (h *held) readBan(ctx context.Context, client *redis.Client) error {
	s, err := h.state(ctx, client)
	if err != nil {
		return err
	}
	now, err := client.Time(ctx).Result()
	if err == nil {
		h.setBan(s, now)
	}
	return err
}

func (h *held) state(ctx context.Context, client *redis.Client) (s stored, err error) {
	value, err := client.Get(ctx, h.at).Bytes()
	if err != nil {
		return s, err
	}
	var numbers [5]float64
	n, err := binary.Decode(value, binary.BigEndian, &numbers)
	s = stored{
		at:    time.UnixMicro(int64(numbers[0])),
		limit: ratelimit.Limit{Rate: int(numbers[1]), Period: time.Duration(numbers[2]) * time.Microsecond},
		whole: int(numbers[3]),
		part:  time.Duration(numbers[4]) * time.Microsecond,
	}
	if err != nil || n != len(value) || s.limit.Validate() != nil || s.limit.Rate < 1 {
		return s, errors.New("the value is not a state")
	}
	return s, nil
}

// readLimit reads the limit that the state was counted under. A log does not contain the Rate.
func (h *held) readLimit(ctx context.Context, client *redis.Client) error {
	if h.algorithm == "sliding_log" {
		return nil
	}
	s, err := h.state(ctx, client)
	if err != nil {
		return err
	}
	h.calendar = h.algorithm == "fixed_window" && s.part > 0
	switch {
	case h.calendar && s.limit.Period == h.limit.Period: // the Rate is all that the state adds
		h.limit.Rate = s.limit.Rate
	case s.limit.Rate != h.limit.Rate || s.limit.Period != h.limit.Period: // the limiter has a name, or a limit function
		h.limit = s.limit
	}
	return nil
}

// readSlots reads the slots that are held. inflight/inflight.lua describes how they are stored. The
// number of a slot is the time when it was taken, in Unix µs, or a little more.
func (h *held) readSlots(ctx context.Context, client *redis.Client) error {
	now, err := client.Time(ctx).Result()
	if err != nil {
		return err
	}
	ends, err := client.ZRangeByScoreWithScores(ctx, h.at, &redis.ZRangeBy{Min: "(" + strconv.FormatInt(now.UnixMicro(), 10), Max: "+inf"}).Result()
	if err != nil {
		return err
	}
	for _, z := range ends {
		member := fmt.Sprint(z.Member)
		number, holder, _ := strings.Cut(member, " ")
		taken, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			return fmt.Errorf("the value is not a set of slots: %w", err)
		}
		h.addSlot(slot{number: taken, holder: holder, member: member}, time.UnixMicro(int64(z.Score)), now)
	}
	return nil
}

// free implements server.
func (r *onRedis) free(ctx context.Context, h held, one slot) (bool, error) {
	n, err := r.client.ZRem(ctx, h.at, one.member).Result()
	return n > 0, err
}

// forget implements server.
func (r *onRedis) forget(ctx context.Context, all []held) error {
	var keys []string
	for _, h := range all {
		keys = append(keys, h.at)
	}
	return r.client.Unlink(ctx, keys...).Err()
}

func (r *onRedis) close() { _ = r.done() }
