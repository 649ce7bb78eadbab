// Package redisview shows package redischeck what a store of package redisstore is made of.
package redisview

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// View is a store as redischeck sees it.
type View struct {
	Client any              // as passed to New
	Prefix string           // as set by WithPrefix
	Keys   string           // the beginning of all keys
	Clock  func() time.Time // as set by WithClock, or nil

	// Servers returns a client for each server, or none if they are not known.
	Servers func(context.Context) ([]*redis.Client, error)
	// Owner returns the client of the server that has a key, without I/O. Owner is nil if the client has one server,
	// or if its servers are not known.
	Owner func(key string) (*redis.Client, error)
	// Ask runs a command on the server of c or, if c is nil, on one that the store's client chooses. ctx must have a
	// deadline, and Ask keeps to it.
	Ask func(ctx context.Context, c *redis.Client, args ...any) (any, error)
}

// Shown is embedded in the store.
type Shown struct{ view *View }

// Show returns what the store embeds.
func Show(v View) Shown { return Shown{&v} }

func (s *Shown) shown() *View { return s.view }

// Of returns the view of a store, or nil if the store was not made by New.
func Of(s interface{ shown() *View }) *View { return s.shown() }

// Unauthenticated reports whether err is the answer to a wrong or missing password.
func Unauthenticated(err error) bool {
	answer := Answer(err)
	return strings.Contains(answer, "WRONGPASS") || strings.Contains(answer, "NOAUTH") || strings.Contains(answer, "invalid password")
}

// Answer returns the text of err if err is a server's answer, and "" otherwise.
func Answer(err error) string {
	var answer redis.Error
	if errors.As(err, &answer) && !errors.Is(err, redis.Nil) && !Unnamed(err) {
		return answer.Error()
	}
	return ""
}

// Unnamed reports whether no Sentinel has named a master. The error wraps what Sentinels answer, but no server was reached.
func Unnamed(err error) bool { return strings.Contains(err.Error(), "redis: all sentinels specified") }
