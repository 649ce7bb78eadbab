package pgstore

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
)

func TestWhatIsFoundOfAServer(t *testing.T) {
	t.Parallel()
	began := time.Unix(1_700_000_000, 0)
	at := func(clock, trip time.Duration) server {
		return server{version: "16.2 (Debian 16.2-1)", readOnly: "off", synchronous: "on", autovacuum: "on",
			us: began.Add(clock).UnixMicro(), began: began, ended: began.Add(trip)}
	}
	of := func(change func(*server)) server {
		s := at(0, 0)
		change(&s)
		return s
	}
	const timeout = time.Second
	for name, of := range map[string]struct {
		server
		blocking, other string
	}{
		"good":      {server: at(0, 10*time.Millisecond)},
		"oldest":    {server: of(func(s *server) { s.version = "14.0" })},
		"next":      {server: of(func(s *server) { s.version = "19devel" })},
		"old":       {server: of(func(s *server) { s.version = "13.18" }), blocking: "Postgres 13.18 is too old: the store needs 14 or later."},
		"replica":   {server: of(func(s *server) { s.recovery, s.readOnly = true, "on" }), blocking: isReplica},
		"read-only": {server: of(func(s *server) { s.readOnly = "on" }), blocking: onlyReads},
		"slack":     {server: at(110*time.Millisecond, 10*time.Millisecond)},
		"slack -":   {server: at(-100*time.Millisecond, 10*time.Millisecond)},
		"ahead":     {server: at(time.Minute+10*time.Millisecond, 10*time.Millisecond), other: "the server's clock is 1m0s ahead of"},
		"little":    {server: at(111*time.Millisecond, 10*time.Millisecond), other: "the server's clock is 101ms ahead of"},
		"behind":    {server: at(-time.Hour, 10*time.Millisecond), other: "the server's clock is -1h0m0s ahead of"},
		"near":      {server: at(0, timeout/2)},
		"far":       {server: at(0, timeout/2+time.Millisecond), other: "a round trip takes 501ms, and a call, which takes two to four, has 1s. Set WithTimeout to at least 4.008s."},
		"forgets":   {server: of(func(s *server) { s.synchronous = "off" }), other: "synchronous_commit is off"},
		"grows":     {server: of(func(s *server) { s.autovacuum = "off" }), other: "autovacuum is off"},
	} {
		var f findings
		(&Store{timeout: timeout}).judge(&of.server, &f)
		for want, got := range map[*string][]string{&of.blocking: f.blocking, &of.other: f.others} {
			if *want == "" {
				require.Empty(t, got, name)
				continue
			}
			require.Len(t, got, 1, name)
			require.Contains(t, got[0], *want, name)
		}
		if of.us != began.UnixMicro() {
			f = findings{}
			(&Store{timeout: timeout, clock: time.Now}).judge(&of.server, &f)
			require.Empty(t, f.others, "no decision is made by that clock")
		}
	}
}

func TestWhatIsFoundOfATableAndOfCalls(t *testing.T) {
	t.Parallel()
	s := newSession(t, "found", func(*pgxpool.Config) {})
	found := func() string {
		found, err := s.Check(t.Context())
		require.NoError(t, err)
		text := ""
		for _, finding := range found {
			text += finding + "\n"
		}
		return text
	}
	_ = s.within(t.Context(), func(ctx context.Context) error {
		end, ok := ctx.Deadline()
		require.True(t, ok)
		require.LessOrEqual(t, time.Until(end), 5*time.Second)
		return nil
	})
	conn, err := s.pool.Acquire(t.Context())
	require.NoError(t, err)
	from := time.Now()
	of, err := askServer(t.Context(), conn)
	require.NoError(t, err)
	conn.Release()
	require.NotEmpty(t, of.version)
	require.False(t, of.began.Before(from))
	require.False(t, of.ended.Before(of.began))
	none := found()
	require.NotContains(t, none, "calls had less time")
	require.NotContains(t, none, "no fillfactor")
	require.NotContains(t, none, "unlogged")
	require.NotContains(t, none, "the server's clock")
	require.NotContains(t, none, "a round trip")
	for _, setting := range []string{"fillfactor", "autovacuum_vacuum_scale_factor"} {
		_, err := s.pool.Exec(t.Context(), "ALTER TABLE found RESET ("+setting+")")
		require.NoError(t, err)
		require.Contains(t, found(), "the table has no fillfactor or no settings of autovacuum", setting)
		_, err = s.pool.Exec(t.Context(), "ALTER TABLE found SET ("+setting+" = 50)")
		require.NoError(t, err)
		require.NotContains(t, found(), "no fillfactor")
	}
	s.carrier.Warmed(1, time.Minute)
	for s.Stats().TooShort == 0 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		_, err := s.limiter.Allow(ctx, "key")
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded)
	}
	require.Contains(t, found(), "1 calls had less time than a round trip takes, and were not sent.")
}

// It makes no more connections than there may be, leaves none in use or in a transaction, and waits for none.
func TestReadyMakesTheConnections(t *testing.T) {
	t.Parallel()
	for most, want := range map[int32]int32{1: 1, 3: 3, 18: 16} {
		made := func() bool {
			s := newSession(t, "ready", func(c *pgxpool.Config) { c.MaxConns = most })
			require.NoError(t, s.Ready(t.Context()))
			for range 1000 {
				if s.pool.Stat().AcquiredConns() == 0 {
					break
				}
				time.Sleep(time.Millisecond)
			}
			of := s.pool.Stat()
			return of.AcquiredConns() == 0 && of.IdleConns() == want && of.NewConnsCount() == int64(want) && of.CanceledAcquireCount() == 0
		}
		for tries := 1; !made(); tries++ {
			require.Less(t, tries, 10, most) // a busy machine does not make all of them within a second
		}
	}
}
