package main

import (
	"cmp"
	"context"
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

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/inflight"
)

const (
	maxPlainKey = 128 // bytes; stores keep the hash of a longer key
	maxRate     = 1<<31 - 1
	patience    = 5 * time.Second // for a call to a store
)

// ban is the name that stores give the algorithm of a Ban. Its Period on Redis is the Ban's Within.
const ban = "ban"

const keyText = `[flags] user:42

Key lists the limiters on Redis or Postgres that hold state of a key: what the key has spent, when
its whole limit is available again, and when the store forgets it. The spend is what the limiter
itself would report, under the limit that last counted it. On Redis, key walks through all keys of
the server with SCAN, and does not find keys with the hash tags of redisstore.WithHashTags. On
Postgres, it uses the index of the table.

"?" stands for what the store does not know, such as the rate of a named sliding log. A row on
Postgres has a hash of its limiter instead of the name. Key lists the first digits of the hash, which
are the same for all keys of the limiter. It finds the algorithm by the content of the row, where
bucket is a token_bucket or a leaky_bucket.

For a ban, the limit is the number of denials that lead to it. The spend is the number of denials
that count, which is all of them while the key is banned. The whole limit is available again when
the ban ends, but the store remembers the key for longer.

For slots, the spend is the number of held slots. One line per slot lists its holder, for how long
it has been held, and when it is free at the latest if nobody renews it. On Redis, the holder is a
host, a process and the label set by redisstore.WithLabel. -reset frees all slots, and -slot only
one of them. A process that still holds a freed slot takes another one at its next renewal. If none
is free, it loses its slot.

Give the key that is counted. A middleware puts the kind of key in front, such as user:42 for
httplimit.User, or the name of a KeyFunc. ratelimit.WithKeyFunc may return another key.
`

// algorithms are the algorithms that keys may have.
var algorithms = append(ratelimit.PerSecond(1).Algorithms(), ban, inflight.Algorithm)

// held is the state that a limiter holds of a key.
type held struct {
	at        string // its key on Redis, or in the table
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

// server has the states of keys.
type server interface {
	// find returns the states that limiters hold of key.
	find(ctx context.Context, key string) ([]held, error)
	// forget deletes these states.
	forget(ctx context.Context, all []held) error
	// free frees a slot. It reports whether the slot was held.
	free(ctx context.Context, of held, one slot) (bool, error)
	close()
}

// keyFlags are the flags of the command key.
type keyFlags struct {
	store, file, prefix string
	only                string
	reset               bool
	slot                int64 // -1 for all
}

// key is the command key.
func (p *program) key(ctx context.Context, args []string) error {
	flags, set := p.newFlags("key", keyText), keyFlags{slot: -1}
	flags.StringVar(&set.store, "store", "localhost:6379", "`URL` of the store, as for ratelimit-serve: redis://host:6379, or host:port; any node of a cluster; or postgres://host/database")
	flags.StringVar(&set.file, "store-file", "", "`file` with that URL, which may have a password")
	flags.StringVar(&set.prefix, "prefix", redisPrefix, "`prefix` of the keys on Redis (redisstore.WithPrefix), or the table on Postgres (pgstore.WithTable), where rl stands for ratelimit")
	flags.StringVar(&set.only, "algorithm", "", "only limiters of this `algorithm`, as listed; with -reset, ban lifts only the bans")
	flags.BoolVar(&set.reset, "reset", false, "reset the key in all listed limiters")
	flags.Func("slot", "with -reset: free the slot of this `number` alone, as it is listed", func(number string) error {
		n, err := strconv.ParseUint(number, 10, 63)
		set.slot = int64(n) //nolint:gosec // 63 bits
		return err
	})
	if err := p.parse(flags, args); err != nil {
		return err
	}
	if err := set.check(flags); err != nil {
		return p.misuse(flags, err)
	}
	on, err := set.open(ctx, flags.Arg(0))
	if errors.Is(err, ratelimit.ErrInvalidOption) {
		return p.misuse(flags, err)
	}
	if err != nil {
		return err
	}
	defer on.close()
	found, err := on.find(ctx, flags.Arg(0))
	if err != nil {
		return err
	}
	found = slices.DeleteFunc(found, func(h held) bool { return set.only != "" && h.algorithm != set.only })
	err = printHeld(p.stdout, flags.Arg(0), found)
	switch {
	case err != nil:
		return err
	case set.slot >= 0:
		return freeSlot(ctx, p.stdout, on, found, set.slot)
	case !set.reset || len(found) == 0:
		return nil
	}
	if err = on.forget(ctx, found); err == nil {
		_, err = fmt.Fprintf(p.stdout, "reset in %d limiters\n", len(found))
	}
	return err
}

// check returns what is wrong with the flags.
func (set *keyFlags) check(flags *flag.FlagSet) error {
	switch {
	case flags.NArg() != 1 || flags.Arg(0) == "":
		return errors.New("which key? Give exactly one")
	case set.slot >= 0 && !set.reset:
		return errors.New("-slot needs -reset")
	case set.file != "" && isSet(flags, "store"):
		return errors.New("want -store or -store-file, not both")
	}
	return nil
}

// open connects to the store. It returns [ratelimit.ErrInvalidOption] if a flag is wrong.
func (set *keyFlags) open(ctx context.Context, key string) (server, error) {
	if set.file != "" {
		text, err := os.ReadFile(set.file)
		if err != nil {
			return nil, err
		}
		set.store = strings.TrimSpace(string(text))
	}
	known, connect := algorithms, openRedis
	if isPostgres(set.store) {
		known, connect = algorithmsOfRows, openPostgres
	}
	if set.only != "" && !slices.Contains(known, set.only) {
		return nil, fmt.Errorf("%w: unknown algorithm %q: want one of %s", ratelimit.ErrInvalidOption, set.only, strings.Join(known, ", "))
	}
	return connect(ctx, set.store, set.prefix, key)
}

// isSet reports whether a flag was given.
func isSet(flags *flag.FlagSet, name string) (set bool) {
	flags.Visit(func(f *flag.Flag) { set = set || f.Name == name })
	return set
}

// stored is a state, as a store keeps it: see scripts/state.lua.
type stored struct {
	at    time.Time
	limit ratelimit.Limit
	whole int
	part  time.Duration // meaningful only if the stored number is in µs
}

// setBan sets what a ban has spent, by its state: see scripts/ban.lua.
func (h *held) setBan(s stored, now time.Time) {
	h.limit.Rate = s.limit.Rate
	if h.reset = max(0, s.at.Add(s.part).Sub(now)); h.reset == 0 {
		return
	}
	if h.spent = s.whole % (1 << 16); h.spent == 0 { // banned
		h.spent = h.limit.Rate
	}
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
		_, err := fmt.Fprintf(out, "no limiter holds %s\nIs it the whole key, such as user:42 of httplimit.User or name:42 of a KeyFunc? Is -prefix the store's? Keys with hash tags (redisstore.WithHashTags) are not found.\n", printable(key))
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
			fmt.Fprintf(out, "%s: %v\n", printable(h.at), h.err)
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
	switch {
	case h.limit == ratelimit.Limit{}:
		return "?"
	case h.limit.Period == 0: // a ban, of which Postgres does not know the Within
		return strconv.Itoa(h.limit.Rate) + "/?"
	case h.limit.Rate == 0:
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
