package redisstore

import (
	"context"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit/store"
)

// Together implements [store.Store]. On a single server all keys are together. Keys of
// one user key always are, because it is their hash tag. On a cluster, a ring, and behind
// an unknown client, no others are.
func (s *Store) Together(key, other string) bool {
	if s.link == nil {
		return key == other
	}
	_, single := s.link.client.(*redis.Client)
	return single || key == other
}

// maxRules is the most different rules in one script.
const maxRules = 8

// ruleSet is the rules of a script, in its order.
type ruleSet [maxRules]*store.Rule

// TakeAll implements [store.Store]. It runs one script with all the rules of the
// requests.
func (s *Store) TakeAll(ctx context.Context, requests []store.Request, replies []store.Reply) error {
	b, err := s.admit(ctx, false)
	if err != nil {
		return err
	}
	defer s.leave(&b)
	set, numbers, err := rulesOf(requests)
	if err != nil {
		return err
	}
	sc := s.jointScript(set)
	args := make([]any, 0, keyArg+7*len(requests)+2)
	args = append(args, nil, nil, len(requests))
	for i := range requests {
		args = append(args, s.key(requests[i].Namespace, requests[i].Key))
	}
	c := call{script: sc, key: args[keyArg].(string), task: task{op: "take"}, at: len(args)}
	if ctx.Done() != nil { // the caller may leave, and use requests again
		c.requests = slices.Clone(requests)
	}
	args = append(args, nil)
	for i := range requests {
		l := &requests[i].Limit
		var n any = requests[i].N
		switch { // see joint.lua
		case requests[i].Gate:
			n = "0.5"
		case requests[i].Shadow:
			n = -requests[i].N
		}
		period := s.period(l)
		if requests[i].Namespace.Rule.Held {
			period = heldPeriod(*l, s.holder())
		}
		args = append(args, numbers[i], l.Rate, period, l.Burst, n)
	}
	if slices.ContainsFunc(requests, func(r store.Request) bool { return r.Limit.Before() > 0 }) {
		c.task.op = "within"
		for i := range requests {
			args = append(args, requests[i].Limit.Before())
		}
	}
	if s.clock != nil {
		now, err := s.now()
		if err != nil {
			return err
		}
		args = append(args, now)
	}
	c.args = args
	return s.run(b, &c, replies)
}

// rulesOf returns the rules of requests, each once, and for each request the number of
// its rule, from 1.
func rulesOf(requests []store.Request) (set ruleSet, numbers []int, err error) {
	numbers = make([]int, len(requests))
	used := set[:0]
	for i := range requests {
		rule := requests[i].Namespace.Rule
		n := slices.Index(used, rule)
		if n < 0 {
			if n = len(used); n == maxRules || rule.JointScript == nil {
				return set, nil, fmt.Errorf("%w: no script for these rules together", store.ErrStore)
			}
			used = append(used, rule)
		}
		numbers[i] = n + 1
	}
	return set, numbers, nil
}

// jointScript returns the script of the rules in set.
func (s *Store) jointScript(set ruleSet) *script {
	if sc, ok := s.joint.Load(set); ok {
		return sc.(*script)
	}
	rules := slices.DeleteFunc(set[:], func(r *store.Rule) bool { return r == nil })
	sc, _ := s.joint.LoadOrStore(set, newScript(rules[0].JointScript(slices.Clone(rules))))
	return sc.(*script)
}
