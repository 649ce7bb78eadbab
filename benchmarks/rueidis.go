package main

import (
	"context"
	"strconv"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/store"
)

// onRueidis is a store for a token bucket alone, by github.com/redis/rueidis. It runs the very
// script of redisstore, on the same keys. rueidis has no deadline here. It sends the calls of
// all callers over a few connections, as they come.
type onRueidis struct {
	store.Store // nil: there is nothing but what follows
	client      rueidis.Client
	script      *rueidis.Lua
}

func (s *onRueidis) Prepare(rule *store.Rule, _ store.Limit, _ bool) error {
	s.script = rueidis.NewLuaScript(rule.Script([]*store.Rule{rule}))
	return nil
}

func (s *onRueidis) Take(ctx context.Context, ns *store.Namespace, key string, l store.Limit, n int64) (store.Reply, error) {
	args := []string{
		"take", strconv.FormatInt(l.Rate, 10), strconv.FormatInt(l.Period, 10), strconv.FormatInt(l.Burst, 10), strconv.FormatInt(n, 10),
	}
	v, err := s.script.Exec(ctx, s.client, []string{"rl:2:" + ns.Rule.Name + ":" + ns.Name + ":{=" + key + "}"}, args).AsIntSlice()
	if err != nil {
		return store.Reply{}, err
	}
	return store.Reply{Outcome: store.AdmittedIf(v[0] == 1), X: v[1], Y: v[2], Z: v[3]}, nil
}

// loadRueidis is the loader of a token bucket on rueidis.
func loadRueidis(_ *redis.Client, l *load) (func(context.Context, string) error, func(context.Context) error, error) {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{l.Addr}, DisableCache: true})
	if err != nil {
		return nil, nil, err
	}
	lim, err := ratelimit.NewTokenBucket(&onRueidis{client: client}, ratelimit.PerMinute(1_000_000), ratelimit.WithName("overload"))
	return func(ctx context.Context, key string) error {
		_, err := lim.Allow(ctx, key)
		return err
	}, func(ctx context.Context) error { return client.Do(ctx, client.B().Ping().Build()).Error() }, err
}
