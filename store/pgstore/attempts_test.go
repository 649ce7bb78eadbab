package pgstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/pgstore/internal/pgtest"
)

// How far away the server is, is learned from transactions that took one attempt.
func TestATransactionKnowsWhetherItTookSeveralAttempts(t *testing.T) {
	t.Parallel()
	var meanwhile func()
	s := newSession(t, "attempts", same, WithClock(func() time.Time {
		if f := meanwhile; f != nil {
			meanwhile = nil
			f()
		}
		return time.Now()
	}))
	q := ofLog(t, ratelimit.PerMinute(50))
	at := func(key string) store.Request { q.Key = key; return q }
	conn, err := s.pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	race := func() { exec(t, `UPDATE attempts SET value = '' WHERE key <> ''`) }
	insert := func() {
		exec(t, fmt.Sprintf(`INSERT INTO attempts VALUES ('\x%x', '', 0)`, address(q.Namespace, "inserted")))
	}
	of := func(what string, want bool, others func(), requests ...store.Request) {
		meanwhile = others
		twice, err := s.decide(conn, []*call{newCall(requests)}, true)
		require.NoError(t, err, what)
		require.Equal(t, want, twice, what)
	}
	of("a new key", false, nil, at("key"))
	of("a key", false, nil, at("key"))
	of("keys", false, nil, at("key"), at("other"))
	of("a key that others change", true, race, at("key"))
	of("a key that others insert", true, insert, at("inserted"))
	exec(t, `DELETE FROM attempts`)
	of("keys that others insert", true, insert, at("key"), at("inserted"))
	fails(t, "attempts", deadlockDetected)
	for _, requests := range [][]store.Request{{at("key")}, {at("key"), at("other")}} {
		twice, err := s.decide(conn, []*call{newCall(requests)}, true)
		require.Equal(t, deadlockDetected, codeOf(err))
		require.Equal(t, len(requests) > 1, twice, "a call that is alone comes again with others")
	}
}

// A round trip is not thought to be long because others have changed a row meanwhile.
func TestARaceIsNoLongRoundTrip(t *testing.T) {
	t.Parallel()
	var meanwhile func()
	s := newSession(t, "race_is_no_trip", same, WithClock(func() time.Time {
		if f := meanwhile; f != nil {
			meanwhile = nil
			f()
		}
		return time.Now()
	}))
	take := func() {
		s.take(t)
		require.Eventually(t, func() bool { return s.carrier.Stats().Trips == 0 }, time.Minute, time.Millisecond) // it has learned what it does
	}
	take() // which makes the connection
	require.Zero(t, s.Stats().RoundTrip)
	meanwhile = func() { exec(t, `UPDATE race_is_no_trip SET value = '' WHERE key <> ''`) }
	take()
	require.Nil(t, meanwhile)
	require.Zero(t, s.Stats().RoundTrip)
	take()
	require.Positive(t, s.Stats().RoundTrip)
}

// closing is a connection that knows whether it was closed.
type closing struct {
	net.Conn
	closed bool
}

func (c *closing) Close() error {
	c.closed = true
	return c.Conn.Close()
}

// A pool does not say why it makes no connection while calls wait for one. The store finds out as the pool would connect.
func TestWhyNoConnectionCanBeMade(t *testing.T) {
	t.Parallel()
	config, err := pgxpool.ParseConfig(pgtest.Shared(t).URL())
	require.NoError(t, err)
	var made []*closing
	dials := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dials(ctx, network, addr)
		made = append(made, &closing{Conn: conn})
		return made[len(made)-1], err
	}
	require.NoError(t, dial(t.Context(), config))
	require.Len(t, made, 1)
	require.True(t, made[0].closed)

	config.ConnConfig.User = "stranger"
	require.ErrorContains(t, dial(t.Context(), config), "stranger")
	config.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
		c.User = "postgres"
		return nil
	}
	require.NoError(t, dial(t.Context(), config))
	require.Equal(t, "stranger", config.ConnConfig.User)
	noPassword := errors.New("there is no password")
	config.BeforeConnect = func(context.Context, *pgx.ConnConfig) error { return noPassword }
	require.ErrorIs(t, dial(t.Context(), config), noPassword)
}

// The carrier keeps places of the pool free of dials that hang, and takes no pool that others use up for such dials.
func TestWhatTheCarrierKnowsOfThePool(t *testing.T) {
	t.Parallel()
	s := newSession(t, "knows", func(c *pgxpool.Config) { c.MaxConns, c.ConnConfig.ConnectTimeout = 3, 7*time.Second }, WithTimeout(30*time.Second))
	pool := s.pool.Config()
	pool.ConnConfig.User = "stranger"
	of := s.config(s.pool, pool)
	require.Equal(t, 3, of.Conns)
	require.Equal(t, 7*time.Second, of.DialTimeout)
	require.Equal(t, 30*time.Second, of.Timeout)
	require.Equal(t, 30*time.Second, of.Slack, "for a commit that waits for the disk")
	conn, err := s.pool.Acquire(t.Context())
	require.NoError(t, err)
	idle, total := of.Pool()
	require.Zero(t, idle)
	require.Equal(t, 1, total)
	conn.Release()
	require.Eventually(t, func() bool { idle, total = of.Pool(); return idle == 1 && total == 1 }, time.Minute, time.Millisecond)
	require.ErrorContains(t, of.Dial(t.Context()), "stranger")
}

// Rows that have ended leave the whole table even if no process lasts until it has swept all of it.
func TestEachStoreSweepsFromAnotherPage(t *testing.T) {
	t.Parallel()
	s := newSession(t, "another_page", same)
	other, err := New(s.pool)
	require.NoError(t, err)
	require.NotEqual(t, other.page.Load(), s.page.Load())
}
