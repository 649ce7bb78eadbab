package pgstore_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/inflight"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/pgstore"
)

var update = flag.Bool("update", false, "write testdata/layout.json")

const layoutFile = "testdata/layout.json"

// kept is a row that calls have written, and what must come of it.
type kept struct {
	Limit string // what has written it: see limiters
	User  string // the user's key
	Key   []byte
	Value []byte
	Ends  int64
	Next  string // what a call of 2 events gets a minute later
}

// limiters are what rows are kept of, by a text that says which.
var limiters = map[string]func(store.Store) (ratelimit.Limiter, error){
	"a ban after 2 denials": func(s store.Store) (ratelimit.Limiter, error) {
		none, err := ratelimit.NewFixedWindow(s, ratelimit.PerHour(0), ratelimit.WithName("none"))
		if err != nil {
			return nil, err
		}
		return ratelimit.NewBan(none, s, ratelimit.Penalty{Denials: 2, Within: time.Hour, For: time.Hour}, ratelimit.WithName("n"))
	},
	"10 slots": func(s store.Store) (ratelimit.Limiter, error) {
		return inflight.New(s, 10, time.Hour, ratelimit.WithName("n"))
	},
}

func init() {
	for algorithm, l := range map[string]ratelimit.Limit{
		"fixed_window": ratelimit.PerHour(10), "sliding_window": ratelimit.PerHour(10), "sliding_log": ratelimit.PerHour(10),
		"token_bucket": ratelimit.PerHour(10), "leaky_bucket": {Rate: 7, Period: time.Hour, Burst: 10},
	} {
		limiters[algorithm+" "+l.String()] = func(s store.Store) (ratelimit.Limiter, error) {
			return ratelimit.New(algorithm, s, l, ratelimit.WithName("n"))
		}
	}
}

// Rows outlive the build that has written them, and builds of two releases run side by side while a fleet is
// updated. So each algorithm keeps writing the rows that testdata/layout.json has, and decides on them as it did.
//
// To add cases, add to limiters and run go test -run StoredRowsStay -update, which never changes a row that is there. If
// one must change, give it a new form (the first byte of its value), and keep reading the old form.
// The command "ratelimit key" reads values too.
func TestStoredRowsStay(t *testing.T) {
	t.Parallel()
	var rows []kept
	text, err := os.ReadFile(layoutFile)
	if err == nil {
		require.NoError(t, json.Unmarshal(text, &rows))
	} else if !*update {
		require.NoError(t, err)
	}
	pool, name := shared(t), table()
	at := time.Date(2026, 3, 4, 5, 6, 7, 890123000, time.UTC)
	s := openAt(t, pool, name, pgstore.WithClock(func() time.Time { return at }))
	two := func(what, user string) string {
		l, err := limiters[what](s)
		require.NoError(t, err)
		r, err := l.AllowN(t.Context(), user, 2)
		require.NoError(t, err)
		return r.String()
	}
	for what := range limiters {
		for _, user := range []string{"user:42", "zero\x00" + fmt.Sprintf("%0200d", 7)} {
			_ = two(what, user)
			at = at.Add(30 * time.Second)
			_ = two(what, user)
			at = at.Add(-30 * time.Second)
			wrote := kept{Limit: what, User: user}
			require.NoError(t, pool.QueryRow(t.Context(), "DELETE FROM "+name+" WHERE key <> '' RETURNING key, value, ends").Scan(&wrote.Key, &wrote.Value, &wrote.Ends))
			at = at.Add(time.Minute)
			_, err := pool.Exec(t.Context(), "INSERT INTO "+name+" VALUES ($1, $2, $3)", wrote.Key, wrote.Value, wrote.Ends)
			require.NoError(t, err)
			wrote.Next = two(what, user)
			_, err = pool.Exec(t.Context(), "DELETE FROM "+name)
			require.NoError(t, err)
			at = at.Add(-time.Minute)
			known := false
			for _, row := range rows {
				if row.Limit == what && row.User == user {
					known = true
					require.Equal(t, row, wrote, "%s: %q", what, user)
				}
			}
			if !known {
				require.True(t, *update, "%s has no row in %s", what, layoutFile)
				rows = append(rows, wrote)
			}
		}
	}
	require.Len(t, rows, 2*len(limiters))
	if *update {
		text, err := json.MarshalIndent(rows, "", "\t")
		require.NoError(t, err)
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(layoutFile, append(text, '\n'), 0o644))
	}
}
