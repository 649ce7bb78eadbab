package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// The parts of a key of package redisstore are: prefix, layout, algorithm, Period in µs or
// calendar, name or limit, and the user's key.
const (
	layout      = "2"
	maxPlainKey = 128 // bytes; longer user keys are hashed
)

const (
	maxRate    = 1<<31 - 1
	redisLimit = 5 * time.Second // for a call to Redis
)

// ban is the algorithm in the Redis keys of a Ban. Their Period is the Ban's Within.
const ban = "ban"

const keyText = `[flags] user:42

Key lists the limiters on Redis that hold state of a key: what the key has spent, when its whole
limit is available again, and when Redis forgets it. It walks through all keys of the server with
SCAN. The spend is what the limiter itself would report, under the limit that last counted it.
"?" stands for what Redis does not know, which is the rate of a named sliding log.

For a ban, the limit is the number of denials that lead to it. The spend is the number of denials
that count, which is all of them while the key is banned. The whole limit is available again when
the ban ends, but Redis remembers the key for longer.

For slots, the spend is the number of held slots. One line per slot lists its holder, for how long
it has been held, and when it is free at the latest if nobody renews it. The holder is a host, a
process and the label set by redisstore.WithLabel. -reset frees all slots, and -slot only one of
them. A process that still holds a freed slot takes another one at its next renewal. If none is
free, it loses its slot.

Give the key that is counted. A middleware puts the kind of key in front, such as user:42 for
httplimit.User, or the name of a KeyFunc. ratelimit.WithKeyFunc may return another key.
`

// algorithms are the algorithms that keys may have.
var algorithms = append(ratelimit.PerSecond(1).Algorithms(), ban, inflight.Algorithm)

// held is the state that a limiter holds of a key.
type held struct {
	redisKey  string
	algorithm string
	name      string          // "" if the limiter has none
	made      ratelimit.Limit // the limiter's Period or calendar, and its limit if it has no name
	limit     ratelimit.Limit // the limit that the state was counted under; Rate 0 if it is not known
	calendar  bool            // the state was counted by a calendar
	spent     int
	reset     time.Duration
	ttl       time.Duration
	slots     []slot // set for a limiter that counts slots
	err       error  // why the state cannot be read
}

// key is the command key.
func (p *program) key(ctx context.Context, args []string) error {
	flags := p.newFlags("key", keyText)
	address := flags.String("redis", "localhost:6379", "`URL` of the server, as for ratelimit-serve, or host:port; any node of a cluster")
	file := flags.String("redis-file", "", "`file` with that URL, which may have a password")
	prefix := flags.String("prefix", "rl", "the store's `prefix`: redisstore.WithPrefix")
	only := flags.String("algorithm", "", "only limiters of this `algorithm`, as listed; with -reset, ban lifts only the bans")
	reset := flags.Bool("reset", false, "reset the key in all listed limiters")
	slot := ""
	flags.Func("slot", "with -reset: free the slot of this `number` alone, as it is listed", func(number string) error {
		slot = number
		_, err := strconv.ParseUint(number, 10, 63)
		return err
	})
	if err := p.parse(flags, args); err != nil {
		return err
	}
	if flags.NArg() != 1 || flags.Arg(0) == "" {
		return p.misuse(flags, errors.New("which key? Give exactly one"))
	}
	if slot != "" && !*reset {
		return p.misuse(flags, errors.New("-slot needs -reset"))
	}
	if *only != "" && !slices.Contains(algorithms, *only) {
		return p.misuse(flags, fmt.Errorf("unknown algorithm %q: want one of %s", *only, strings.Join(algorithms, ", ")))
	}
	if err := p.readURL(flags, address, *file); err != nil {
		return err
	}
	client, done, err := connect(ctx, *address, flags.Arg(0))
	if errors.Is(err, ratelimit.ErrInvalidOption) {
		return p.misuse(flags, err)
	}
	defer func() { _ = done() }()
	if err != nil {
		return err
	}
	found, err := find(ctx, client, *prefix, flags.Arg(0))
	if err != nil {
		return err
	}
	found = slices.DeleteFunc(found, func(h held) bool { return *only != "" && h.algorithm != *only })
	err = printHeld(p.stdout, flags.Arg(0), found)
	switch {
	case err != nil:
		return err
	case slot != "":
		return freeSlot(ctx, p.stdout, client, found, slot)
	case !*reset || len(found) == 0:
		return nil
	}
	return forget(ctx, p.stdout, client, found)
}

// readURL reads the URL from the file, if one is given.
func (p *program) readURL(flags *flag.FlagSet, address *string, file string) error {
	if file == "" {
		return nil
	}
	if isSet(flags, "redis") {
		return p.misuse(flags, errors.New("want -redis or -redis-file, not both"))
	}
	text, err := os.ReadFile(file)
	*address = strings.TrimSpace(string(text))
	return err
}

// isSet reports whether a flag was given.
func isSet(flags *flag.FlagSet, name string) (set bool) {
	flags.Visit(func(f *flag.Flag) { set = set || f.Name == name })
	return set
}

// connect returns a client of the server at a URL, or of the node of a cluster that has the key.
// Call done after use.
func connect(ctx context.Context, address, key string) (client *redis.Client, done func() error, err error) {
	logging.Disable() // errors are returned
	of, err := redisstore.NewClient(address)
	if err != nil {
		return nil, nil, err
	}
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

// find returns the states that limiters hold of key, in the order of their Redis keys.
func find(ctx context.Context, client *redis.Client, prefix, key string) ([]held, error) {
	st, err := redisstore.New(client, redisstore.WithPrefix(prefix), redisstore.WithTimeout(redisLimit))
	if err != nil {
		return nil, err
	}
	var keys []string
	scan := client.Scan(ctx, 0, keyPattern(prefix, key), 1000).Iterator()
	for scan.Next(ctx) {
		keys = append(keys, scan.Val())
	}
	if err := scan.Err(); err != nil {
		return nil, err
	}
	slices.Sort(keys)
	var all []held
	for _, redisKey := range slices.Compact(keys) { // SCAN may return a key twice
		if h, ok := parseKey(redisKey, prefix, key); ok {
			h.err = h.read(ctx, client, st, key)
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
	h.redisKey, h.algorithm = redisKey, parts[0]
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
	if h.ttl, err = client.PTTL(ctx, h.redisKey).Result(); err != nil {
		return err
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
	if err != nil {
		return err
	}
	h.limit.Rate = s.limit.Rate
	if h.reset = max(0, s.at.Add(s.part).Sub(now)); h.reset == 0 {
		return nil
	}
	if h.spent = s.whole % (1 << 16); h.spent == 0 { // banned
		h.spent = h.limit.Rate
	}
	return nil
}

// stored is a state: the five doubles of scripts/state.lua.
type stored struct {
	at    time.Time
	limit ratelimit.Limit
	whole int
	part  time.Duration // meaningful only if the stored number is in µs
}

func (h *held) state(ctx context.Context, client *redis.Client) (s stored, err error) {
	value, err := client.Get(ctx, h.redisKey).Bytes()
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

// wide returns a limit that is as fast as h.limit and has room for the whole spend, because the
// stored state does not contain the Burst.
func (h *held) wide() ratelimit.Limit {
	wide := h.limit
	if h.calendar { // the state has the end of its window, which may be in another zone
		return ratelimit.Limit{Rate: wide.Rate, Period: 3650 * 24 * time.Hour}
	}
	switch h.algorithm {
	case "sliding_log":
		wide.Rate = maxRate
	case "token_bucket", "leaky_bucket":
		for wide.Burst = maxRate; wide.Burst > 1 && wide.ValidateFor(h.algorithm) != nil; {
			wide.Burst /= 2
		}
	}
	return wide
}

func printHeld(out io.Writer, key string, all []held) error {
	if len(all) == 0 {
		_, err := fmt.Fprintf(out, "no limiter holds %s\nIs it the whole key, such as user:42 of httplimit.User or name:42 of a KeyFunc? Is -prefix the store's?\n", printable(key))
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "limiter\talgorithm\tlimit\tspent\twhole again in\texpires in")
	for _, h := range all {
		fmt.Fprintf(w, "%s\t%s\t%s\t", printable(h.title()), h.algorithm, h.limitText())
		if h.err != nil {
			fmt.Fprintf(w, "?\t?\t%s\n", ttlText(h.ttl))
			continue
		}
		fmt.Fprintf(w, "%d\t%s\t%s\n", h.spent, h.reset.Round(time.Millisecond), ttlText(h.ttl))
	}
	err := w.Flush()
	for _, h := range all {
		if h.err != nil {
			fmt.Fprintf(out, "%s: %v\n", printable(h.redisKey), h.err)
		}
		printSlots(out, h)
	}
	return err
}

func (h *held) title() string { return cmp.Or(h.name, "(no name)") }

// limitText returns the limit that the state was counted under.
func (h *held) limitText() string {
	if h.algorithm == inflight.Algorithm {
		return h.slotsText()
	}
	if h.limit.Rate == 0 {
		return "?" + strings.TrimPrefix(h.limit.String(), "0")
	}
	return h.limit.String()
}

func ttlText(ttl time.Duration) string {
	if ttl < 0 {
		return "never"
	}
	return ttl.String()
}

// forget deletes the states.
func forget(ctx context.Context, out io.Writer, client *redis.Client, all []held) error {
	var keys []string
	for _, h := range all {
		keys = append(keys, h.redisKey)
	}
	if err := client.Unlink(ctx, keys...).Err(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "reset in %d limiters\n", len(keys))
	return err
}
