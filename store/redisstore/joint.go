package redisstore

import (
	"context"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit/store"
)

var _ store.Joint = (*Store)(nil)

// Together implements [store.Joint]. On a server of its own all keys are together. On
// a cluster, a ring, and behind a client that does not say, those of one user key are,
// since it is their hash tag.
func (s *Store) Together(key, other string) bool {
	if s.link == nil {
		return key == other
	}
	_, single := s.link.client.(*redis.Client)
	return single || key == other
}

// maxRules is how many different rules a script of several can have.
const maxRules = 8

// ruleSet is the rules of a script, in its order.
type ruleSet [maxRules]*store.Rule

// TakeAll implements [store.Joint]: one script, of all the rules that the claims
// have.
func (s *Store) TakeAll(ctx context.Context, claims []store.Claim, replies []store.Reply) error {
	if s.link == nil {
		return errNotMade
	}
	set, numbers, err := rulesOf(claims)
	if err != nil {
		return err
	}
	sc := s.jointScript(set)
	args := make([]any, 0, keyArg+6*len(claims)+2)
	args = append(args, evalsha, sc.sha, len(claims))
	for i := range claims {
		args = append(args, s.key(claims[i].Space, claims[i].Key))
	}
	op := operation{"take", len(args)}
	args = append(args, nil)
	for i := range claims {
		l := &claims[i].Limit
		args = append(args, numbers[i], l.Rate, l.Period, l.Burst, claims[i].N)
	}
	if s.clock != nil {
		now, err := s.now()
		if err != nil {
			return err
		}
		args = append(args, now)
	}
	return s.run(s.budget(ctx), sc, op, args, replies)
}

// rulesOf is the rules of claims, each once, and the number of each claim's from 1.
func rulesOf(claims []store.Claim) (set ruleSet, numbers []int, err error) {
	numbers = make([]int, len(claims))
	used := set[:0]
	for i := range claims {
		rule := claims[i].Space.Rule
		n := slices.Index(used, rule)
		if n < 0 {
			if n = len(used); n == maxRules || rule.Joint == nil {
				return set, nil, fmt.Errorf("%w: no script for these rules together", store.ErrStore)
			}
			used = append(used, rule)
		}
		numbers[i] = n + 1
	}
	return set, numbers, nil
}

// jointScript is the script of the rules in set.
func (s *Store) jointScript(set ruleSet) *script {
	if sc, ok := s.joint.Load(set); ok {
		return sc.(*script)
	}
	rules := slices.DeleteFunc(set[:], func(r *store.Rule) bool { return r == nil })
	sc, _ := s.joint.LoadOrStore(set, newScript(rules[0].Joint(slices.Clone(rules))))
	return sc.(*script)
}
