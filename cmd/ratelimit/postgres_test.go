package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/cmd/ratelimit/internal/pgtest"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/pgstore"
)

func TestMain(m *testing.M) {
	code := m.Run()
	pgtest.End()
	os.Exit(code)
}

// database returns a pool of the server that tests share.
func database(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), pgtest.Shared(t).URL())
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

var tables atomic.Int64

// newTable returns a store with a table of its own, and its name.
func newTable(t *testing.T, pool *pgxpool.Pool, opts ...pgstore.Option) (*pgstore.Store, string) {
	t.Helper()
	name := fmt.Sprintf("limits%d", tables.Add(1))
	return openTable(t, pool, name, opts...), name
}

func openTable(t *testing.T, pool *pgxpool.Pool, name string, opts ...pgstore.Option) *pgstore.Store {
	t.Helper()
	st, err := pgstore.New(pool, append(opts, pgstore.WithTable(name), pgstore.WithTimeout(30*time.Second))...)
	require.NoError(t, err)
	require.NoError(t, st.Migrate(t.Context()))
	return st
}

// rows returns how many rows of keys a table has.
func rows(t *testing.T, pool *pgxpool.Pool, table string) (n int) {
	t.Helper()
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT count(*) FROM "+table+" WHERE key <> ''").Scan(&n))
	return n
}

var hashes = regexp.MustCompile(`#[0-9a-f]{8}\b`)

// sorted returns columns of text, with its lines in order, and with @ in place of the hash of a
// limiter.
func sorted(text string) string {
	lines := strings.Split(hashes.ReplaceAllString(columns(text), "@"), "\n")
	slices.Sort(lines)
	return strings.TrimSpace(strings.Join(lines, "\n"))
}

const listedRows = `@ bucket 10/h 30 # #
@ bucket 10/h 30 # #
@ bucket 10/m 4 # #
@ fixed_window 20/h 3 # #
@ sliding_log ?/h 5 # #
@ sliding_window 100/h 60 # #
limiter algorithm limit spent whole again in expires in`

func TestKeyListsTheRowsOfAKeyAndForgetsThem(t *testing.T) {
	pool := database(t)
	url := pool.Config().ConnString()
	_, err := pool.Exec(t.Context(), "CREATE SCHEMA limits")
	require.NoError(t, err)
	for prefix, table := range map[string]string{"rl": "ratelimit", "limits.rates": "limits.rates"} {
		st := openTable(t, pool, table)
		for _, key := range []string{"user:42", `a*[b]?\`, "{x}", strings.Repeat("a", 129), "zero\x00zero"} {
			chargeAll(t, st, key)
			charge(t, st, "fixed_window", "20/h", "", key+"0", 1)       // of another key
			charge(t, st, "fixed_window", "20/h", "", "tenant:"+key, 1) // one that ends as it does
			before := rows(t, pool, table)

			args := []string{"key", "-store", url + "&pool_max_conns=3", "-prefix", prefix, key}
			got := command(t, nil, args...)
			require.Equal(t, result{0, listedRows, ""}, result{got.code, sorted(got.stdout), got.stderr}, key)
			require.Equal(t, before, rows(t, pool, table), "a list changes nothing")

			got = command(t, nil, append([]string{"key", "-reset"}, args[1:]...)...)
			require.Equal(t, result{0, listedRows + "\nreset in 6 limiters", ""}, result{got.code, sorted(got.stdout), got.stderr})
			require.Equal(t, before-6, rows(t, pool, table))
			got = command(t, nil, args...)
			require.Equal(t, result{0, "no limiter holds " + printable(key) + "\nIs it the whole key, such as user:42 of httplimit.User or name:42 of a KeyFunc? Is -prefix the store's? Keys with hash tags (redisstore.WithHashTags) are not found.\n", ""}, got)
		}
	}
}

// The hash is the same for all keys of a limiter.
func TestKeyShowsTheHashOfALimiter(t *testing.T) {
	pool := database(t)
	st, table := newTable(t, pool)
	first := make([]string, 2)
	for i, key := range []string{"user:42", "user:43"} {
		charge(t, st, "token_bucket", "10/h", "costs", key, 5)
		got := command(t, nil, "key", "-store", pool.Config().ConnString(), "-prefix", table, key)
		require.Regexp(t, `\n#[0-9a-f]{8} +bucket +10/h +5 +(30m0s|29m5\S*s) +(30m0s|29m5\S*s)\n$`, got.stdout)
		first[i] = hashes.FindString(got.stdout)
	}
	require.Equal(t, first[0], first[1])
}

func TestKeyListsBansInATableAndLiftsThem(t *testing.T) {
	pool := database(t)
	st, table := newTable(t, pool)
	inside, err := ratelimit.NewFixedWindow(st, ratelimit.PerDay(1), ratelimit.WithName("login"))
	require.NoError(t, err)
	b, err := ratelimit.NewBan(inside, st, ratelimit.Penalty{
		Denials: 3, Within: 10 * time.Minute, For: 15 * time.Minute, Most: 24 * time.Hour,
	}, ratelimit.WithName("login"))
	require.NoError(t, err)
	key := func(args ...string) result {
		return command(t, nil, append(append([]string{"key", "-store", pool.Config().ConnString(), "-prefix", table}, args...), "user:42")...)
	}
	for range 3 { // two of which are denied
		_, err = b.Allow(t.Context(), "user:42")
		require.NoError(t, err)
	}
	const head = "\nlimiter algorithm limit spent whole again in expires in"
	require.Equal(t, "@ ban 3/? 2 # #\n@ fixed_window 1/d 1 # #"+head, sorted(key().stdout))
	_, err = b.Allow(t.Context(), "user:42")
	require.NoError(t, err)
	banned := key("-algorithm", "ban")
	require.Regexp(t, `\n#\w+ +ban +3/\? +3 +(15m0s|14m5\S*s) +24h1[45]m\S*s\n$`, banned.stdout, banned.stderr)
	require.Equal(t, "@ ban 3/? 3 # #"+head+"\nreset in 1 limiters", sorted(key("-reset", "-algorithm", "ban").stdout))
	require.Equal(t, "@ fixed_window 1/d 1 # #"+head, sorted(key().stdout))
	r, err := b.Peek(t.Context(), "user:42")
	require.NoError(t, err)
	require.NotEqual(t, ratelimit.SourceBan, r.Source())

	for _, algorithm := range []string{"token_bucket", "leaky_bucket", "bans", "?"} {
		got := key("-reset", "-algorithm", algorithm)
		require.Equal(t, result{2, "", ""}, result{got.code, got.stdout, ""})
		require.Contains(t, got.stderr, fmt.Sprintf("unknown algorithm %q: want one of ", algorithm))
		require.Contains(t, got.stderr, ", bucket")
	}
	require.Equal(t, 1, rows(t, pool, table), "nothing was reset")
}

func TestKeyListsSlotsInATableAndFreesThem(t *testing.T) {
	pool := database(t)
	st, table := newTable(t, pool)
	exports, err := inflight.New(st, 5, time.Minute, ratelimit.WithName("exports"))
	require.NoError(t, err)
	for range 2 {
		_, err = exports.Allow(t.Context(), "user:42")
		require.NoError(t, err)
	}
	free := func() int {
		r, err := exports.Peek(t.Context(), "user:42")
		require.NoError(t, err)
		return r.Remaining
	}
	args := []string{"-store", pool.Config().ConnString(), "-prefix", table, "user:42"}
	got := command(t, nil, append([]string{"key"}, args...)...)
	require.Regexp(t, `#\w+ +in_flight +\? at once +2 +(1m0s|5\S*s) `, got.stdout, got.stderr)
	found := slotLine.FindAllStringSubmatch(got.stdout, -1)
	require.Len(t, found, 2, got.stdout)
	require.Equal(t, "?", found[0][3])
	one := found[0][2]
	for range 2 {
		got = command(t, nil, append([]string{"key", "-reset", "-slot", one}, args...)...)
		require.Equal(t, 4, free())
	}
	require.Equal(t, 1, got.code, "it is free already")
	require.Contains(t, got.stderr, "no slot "+one+" of the key is held")
	got = command(t, nil, append([]string{"key", "-reset", "-slot", found[1][2]}, args...)...)
	require.Zero(t, got.code, got.stderr)
	require.Equal(t, 5, free())
	require.Zero(t, rows(t, pool, table), "the last slot leaves nothing")
	_, err = exports.AllowN(t.Context(), "user:42", 3)
	require.NoError(t, err)
	require.Equal(t, 4, free())
}

// A slot is freed while its limiter takes and releases others.
func TestKeyFreesASlotBesideOthers(t *testing.T) {
	pool := database(t)
	st, table := newTable(t, pool)
	exports, err := inflight.New(st, 1000, time.Minute, ratelimit.WithName("exports"))
	require.NoError(t, err)
	const stuck = 10
	for range stuck {
		_, err = exports.Allow(t.Context(), "user:42")
		require.NoError(t, err)
	}
	args := []string{"-store", pool.Config().ConnString(), "-prefix", table, "user:42"}
	found := slotLine.FindAllStringSubmatch(command(t, nil, append([]string{"key"}, args...)...).stdout, -1)
	require.Len(t, found, stuck)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan int)
	go func() {
		calls := 0
		for ; ctx.Err() == nil; calls++ {
			r, err := exports.Allow(t.Context(), "user:42")
			if err == nil {
				err = exports.Refund(t.Context(), "user:42", r, 1)
			}
			if err != nil {
				t.Error(err)
			}
		}
		done <- calls
	}()
	for _, one := range found {
		got := command(t, nil, append([]string{"key", "-reset", "-slot", one[2]}, args...)...)
		require.Zero(t, got.code, got.stderr)
	}
	stop()
	require.Positive(t, <-done)
	r, err := exports.Peek(t.Context(), "user:42")
	require.NoError(t, err)
	require.Equal(t, 1000, r.Remaining)
}

func TestKeyShowsCalendarsInATable(t *testing.T) {
	pool := database(t)
	st, table := newTable(t, pool)
	charge(t, st, "fixed_window", "10000/month from 31 in America/Sao_Paulo", "plan", "user:42", 2500)
	charge(t, st, "fixed_window", "500/week from sunday in Europe/Berlin", "", "user:42", 20)
	got := command(t, nil, "key", "-store", pool.Config().ConnString(), "-prefix", table, "user:42")
	require.Equal(t, `@ fixed_window 10000/month 2500 # #
@ fixed_window 500/week 20 # #
limiter algorithm limit spent whole again in expires in`, sorted(got.stdout))
}

// A state that has ended may still be in the table.
func TestKeyLeavesOutWhatHasEnded(t *testing.T) {
	pool := database(t)
	ended := time.Now().Add(-5 * time.Hour)
	st, table := newTable(t, pool, pgstore.WithClock(func() time.Time { return ended }))
	chargeAll(t, st, "user:42")
	got := command(t, nil, "key", "-store", pool.Config().ConnString(), "-prefix", table, "user:42")
	require.Contains(t, got.stdout, "no limiter holds user:42\n", got.stderr)
	require.Equal(t, 6, rows(t, pool, table))
}

func TestKeyShowsRowsThatItCannotRead(t *testing.T) {
	pool := database(t)
	st, table := newTable(t, pool)
	charge(t, st, "token_bucket", "10/h", "costs", "user:42", 5)
	charge(t, st, "sliding_window", "10/h", "costs", "user:42", 5)
	_, err := pool.Exec(t.Context(), "UPDATE "+table+" SET ends = ends + 7 WHERE value = (SELECT value FROM "+table+" ORDER BY ends DESC LIMIT 1)")
	require.NoError(t, err)
	values := []string{"text", "\x01", "\x00\x01", "\x02", "\x03", "\x03\x02", "\x03\xff", strings.Repeat("\xff", 40), strings.Repeat("\x00", 25)}
	for i, value := range values {
		_, err := pool.Exec(t.Context(), "INSERT INTO "+table+" VALUES ($1, $2, $3)", fmt.Appendf(nil, "=user:42\x00%016d", i), []byte(value), i)
		require.NoError(t, err)
	}
	_, err = pool.Exec(t.Context(), "INSERT INTO "+table+" VALUES ('=user:42\\000', 'x', 0), ('=user:42\\000empty', '', 0), ('=user:42\\000other', $1, 3)",
		store.AppendState(nil, store.State{Period: 1e6, Whole: 5}, store.Limit{Rate: 7})) // of an algorithm that is not ours, and it has ended
	require.NoError(t, err)
	args := []string{"key", "-store", pool.Config().ConnString(), "-prefix", table, "-reset", "user:42"}
	got := command(t, nil, args...)
	require.Zero(t, got.code, got.stderr)
	text := sorted(got.stdout)
	require.Contains(t, text, "@ bucket 10/h 5 # #\n")
	require.Contains(t, text, "@ ? 10/h ? ? #\n")
	require.Contains(t, got.stdout, ": the value does not tell its algorithm\n")
	require.Equal(t, len(values)+1, strings.Count(got.stdout, ": the value is not a state\n"), got.stdout)
	require.Contains(t, got.stdout, fmt.Sprintf("\nreset in %d limiters\n", len(values)+3))
	require.Equal(t, 2, rows(t, pool, table))
}

// Rows of every algorithm, as pgstore has always written them, tell their algorithm and what was spent.
func TestRowsTellTheirAlgorithm(t *testing.T) {
	text, err := os.ReadFile("../../store/pgstore/testdata/layout.json")
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("that module is not beside this one")
	}
	require.NoError(t, err)
	var kept []struct {
		Limit      string
		Key, Value []byte
		Ends       int64
	}
	require.NoError(t, json.Unmarshal(text, &kept))
	rules, err := rulesOf(algorithms)
	require.NoError(t, err)
	at := time.Date(2026, 3, 4, 5, 6, 37, 890123000, time.UTC) // of the second of two calls for 2 events
	seen := make(map[string]bool)
	for _, row := range kept {
		algorithm, spent := strings.Fields(row.Limit)[0], 4
		switch {
		case isBucket(algorithm):
			algorithm = bucket
		case algorithm == "10":
			algorithm, spent = inflight.Algorithm, 2 // a call takes one slot
		case algorithm == "a":
			algorithm, spent = ban, 2
		}
		var h held
		require.NoError(t, h.readRow(rules, row.Value, row.Ends, at.UnixMicro()), row.Limit)
		require.Equal(t, algorithm, h.algorithm)
		require.Equal(t, spent, h.spent, row.Limit)
		require.Equal(t, time.UnixMicro(row.Ends).Sub(at).Truncate(time.Hour) > 0, h.reset >= time.Hour, row.Limit)
		seen[algorithm] = true
		if algorithm == inflight.Algorithm {
			var h held
			require.NoError(t, h.readRow(rules, row.Value, row.Ends, row.Ends-1))
			require.Equal(t, 1, h.spent, "one of them has ended")
		}
		if algorithm == "sliding_log" {
			shifted := append(binary.AppendVarint([]byte{formShifted}, -time.Hour.Microseconds()), row.Value...)
			var h held
			require.NoError(t, h.readRow(rules, shifted, row.Ends, at.Add(-20*time.Minute).UnixMicro()))
			require.Equal(t, 4, h.spent)
			require.Equal(t, 20*time.Minute, h.reset)
		}
	}
	require.Len(t, seen, len(algorithmsOfRows))
}

func TestKeyTakesURLsOfPostgres(t *testing.T) {
	pool := database(t)
	st, table := newTable(t, pool)
	chargeAll(t, st, "user:42")
	url := strings.Replace(pool.Config().ConnString(), "postgres@", "postgres:secret@", 1)
	file := filepath.Join(t.TempDir(), "url")
	require.NoError(t, os.WriteFile(file, []byte(url+"\n"), 0o600))
	for _, args := range [][]string{{"-store", url}, {"-store", "postgresql" + strings.TrimPrefix(url, "postgres")}, {"-store-file", file}} {
		got := command(t, nil, append(append([]string{"key", "-prefix", table}, args...), "user:42")...)
		require.Equal(t, listedRows, sorted(got.stdout), got.stderr)
	}
	for _, wrong := range [][]string{
		{"-store", "postgres://user:secret@127.0.0.1:x/app"}, {"-store", "postgres://user:secret@127.0.0.1:1/app?pool_max_conns=none"},
		{"-store", "postgres://user:sec%ret@127.0.0.1:1/app"}, {"-store", "postgress://user:secret@127.0.0.1:1/app"}, {"-store", url, "-prefix", "a.b.c"},
		{"-store", url, "-prefix", ""}, {"-store", url, "-prefix", "a."}, {"-store", url, "-store-file", file},
	} {
		got := command(t, nil, append(append([]string{"key"}, wrong...), "user:42")...)
		require.Equal(t, result{2, "", ""}, result{got.code, got.stdout, ""}, wrong)
		require.NotContains(t, got.stderr, "secret", wrong)
		require.NotContains(t, got.stderr, "ret@", wrong)
	}
	for _, fails := range [][]string{
		{"-store", "postgres://user:secret@127.0.0.1:1/app"}, {"-store", "postgres://user:secret@" + strings.SplitN(url, "@", 2)[1]},
		{"-store", url, "-prefix", "none"}, {"-store", url + "&nothing=secret"},
	} {
		got := command(t, nil, append(append([]string{"key"}, fails...), "user:42")...)
		require.Equal(t, result{1, "", ""}, result{got.code, got.stdout, ""}, fails)
		require.NotContains(t, got.stderr, "secret", fails)
	}
	got := command(t, nil, "key", "-store", url, "-prefix", "none", "user:42")
	require.Contains(t, got.stderr, `"none" does not exist`)
}

// A user who may only read can list, and a reset that is refused changes nothing.
func TestKeyNeedsNoPermissionToWriteForAList(t *testing.T) {
	pool := database(t)
	st, table := newTable(t, pool)
	chargeAll(t, st, "user:42")
	_, err := pool.Exec(t.Context(), "CREATE ROLE reader LOGIN; GRANT SELECT ON "+table+" TO reader")
	require.NoError(t, err)
	args := []string{"-store", strings.Replace(pool.Config().ConnString(), "postgres@", "reader@", 1), "-prefix", table, "user:42"}
	require.Equal(t, listedRows, sorted(command(t, nil, append([]string{"key"}, args...)...).stdout))
	got := command(t, nil, append([]string{"key", "-reset"}, args...)...)
	require.Equal(t, 1, got.code)
	require.Contains(t, got.stderr, "permission denied")
	require.Equal(t, 6, rows(t, pool, table))
}

// A server that hangs does not hang the command.
func TestKeyEndsIfPostgresHangs(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	got := command(t, nil, "key", "-store", "postgres://user:secret@"+l.Addr().String()+"/app?sslmode=disable", "user:42")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.stderr, "the database has not answered for 5s")
	require.NotContains(t, got.stderr, "secret")
}

// Nor does a row that somebody else has locked.
func TestKeyEndsIfARowIsLocked(t *testing.T) {
	t.Parallel()
	pool := database(t)
	st, table := newTable(t, pool)
	chargeAll(t, st, "user:42")
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = tx.Exec(t.Context(), "SELECT FROM "+table+" FOR UPDATE")
	require.NoError(t, err)
	got := command(t, nil, "key", "-store", pool.Config().ConnString(), "-prefix", table, "-reset", "user:42")
	require.Equal(t, 1, got.code)
	require.Equal(t, listedRows, sorted(got.stdout))
	require.Contains(t, got.stderr, "the database has not answered for 5s")
	require.NoError(t, tx.Rollback(t.Context()))
	require.Equal(t, 6, rows(t, pool, table), "nothing was reset")
}
