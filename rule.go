package ratelimit

import (
	"context"
	"embed"
	"fmt"
	"strconv"
	"strings"

	"github.com/ratelimit-go/ratelimit/store"
)

// Custom is a limiter by another algorithm than the five, such as that of package inflight.
type Custom struct{ limiter }

// NewCustom returns a limiter by rule, which [NewRule] has made.
func NewCustom(rule *store.Rule, s store.Store, l Limit, opts ...Option) (*Custom, error) {
	if rule == nil || rule.Name == "" || rule.Step == nil || rule.Script == "" {
		return nil, fmt.Errorf("%w: a rule is made by NewRule, of a store.Rule with a Name and a Step", ErrInvalidOption)
	}
	for i := range kinds {
		if kinds[i].rule.Name == rule.Name {
			return nil, fmt.Errorf("%w: another rule has the name %q", ErrInvalidOption, rule.Name)
		}
	}
	return built(new(Custom), rule, s, l, opts)
}

// Allow implements [Limiter].
func (c *Custom) Allow(ctx context.Context, key string) (res Result, err error) {
	err = c.decide(ctx, key, 1, take, nil, &res)
	return res, err
}

// AllowN implements [Limiter].
func (c *Custom) AllowN(ctx context.Context, key string, n int) (res Result, err error) {
	err = c.decide(ctx, key, n, take, nil, &res)
	return res, err
}

// Renew asks again for one event that charged has admitted. The rule sees when that was in the
// Before of its Limit. Observers are not told.
func (c *Custom) Renew(ctx context.Context, key string, charged Result) (res Result, err error) {
	if charged.n == 0 || charged.together() != nil {
		return res, errNothingCharged
	}
	if key, err = c.keyOf(ctx, key, 1); err != nil {
		return res, err
	}
	l, err := c.limitOf(ctx, key)
	if err != nil {
		return res, err
	}
	if l.Rate <= 0 { // for now: what is charged keeps its place
		l = store.Limit{Rate: int64(charged.rate), Period: c.integers.Period, Burst: int64(charged.rate)}
	}
	l = l.TurnBefore(charged.at)
	err = c.decide(ctx, key, 1, take, &l, &res)
	return res, err
}

// ChargedAt is the Before of a Renew: when charged was charged, in Unix µs, or what the rule says
// in its place; 0 if nothing was.
func (c *Custom) ChargedAt(charged Result) int64 {
	if charged.n == 0 || charged.together() != nil {
		return 0
	}
	return charged.at
}

// NewRule returns rule with its scripts for Redis, made of its transition in Lua: plan, commit,
// available and refund, as in scripts/slidinglog.lua.
func NewRule(rule store.Rule, lua string) *store.Rule {
	rule = withScript(rule, around("\n"+lua))
	return &rule
}

// withScript is rule with its script, and with what makes others of that.
func withScript(rule store.Rule, script string) store.Rule {
	rule.Script, rule.JointScript, rule.BatchScript = script, jointScript, batchScript
	return rule
}

//go:embed scripts/*.lua
var scripts embed.FS

// lua is a file of scripts.
func lua(name string) string { return string(Must(scripts.ReadFile("scripts/" + name + ".lua"))) }

// script is a whole Redis script: what the scripts share, the files of the algorithm, and the
// driver that runs it. The plain case of an algorithm may stand before it.
func script(names ...string) string {
	var algorithm strings.Builder
	for _, name := range names {
		algorithm.WriteString(lua(name))
	}
	return around(algorithm.String())
}

func around(algorithm string) string { return lua("common") + algorithm + driver() }

// plainCase is that of an algorithm whose state is five numbers, and which takes this step.
func plainCase(step string) string { return plainOf(lua("plain"), step) }

// plainOf is a script of a plain case with this step.
func plainOf(text, step string) string {
	return strings.NewReplacer("  READ\n", lua("plain_state"), "      STEP\n", step, "    STEP\n", step).Replace(text)
}

// plainStep is the step of rule's plain case, if it has one of this kind.
func plainStep(rule *store.Rule) (step string, ok bool) {
	head, tail, _ := strings.Cut(plainCase("STEP\n"), "STEP\n")
	if step, ok = strings.CutPrefix(rule.Script, head); ok {
		step, _, ok = strings.Cut(step, tail)
	}
	return step, ok
}

// driver is what follows the algorithm in a script for single calls.
func driver() string { return lua("driver") + lua("decide") + "return { ok and 1 or 0, x, y, z }\n" }

// own is the algorithm of rule's script, without its plain case.
func own(rule *store.Rule) string {
	_, general, _ := strings.Cut(rule.Script, lua("common"))
	return strings.TrimSuffix(general, driver())
}

// batchScript is rule's script that makes many calls at once. In decider the parameter
// op hides that of lua("common").
func batchScript(rule *store.Rule) string {
	plain := "local replies, run, done = {}, 3, 0\n"
	if step, ok := plainStep(rule); ok {
		plain += plainOf(lua("batch_plain"), step)
	}
	return plain + lua("common") + "\nlocal function decider(op)\n" + own(rule) +
		"\nreturn function(key, limit, now, callers, n, a)\n" + lua("decide") + "return ok and 1 or 0, x, y, z\nend\nend\n" + lua("batch")
}

// jointScript is the script that decides on keys of several rules at once.
func jointScript(rules []*store.Rule) string {
	var text, steps strings.Builder
	plain := true
	for i, rule := range rules {
		step, ok := plainStep(rule)
		plain = plain && ok
		steps.WriteString("if rule == '" + strconv.Itoa(i+1) + "' then\n" + step + "end\n")
	}
	if plain {
		text.WriteString(plainOf(lua("joint_plain"), steps.String()))
	}
	text.WriteString(lua("common") + "\nlocal rules = {}\n")
	for _, rule := range rules {
		text.WriteString("do\n" + own(rule) + "\nrules[#rules + 1] = { plan = plan, commit = commit }\nend\n")
	}
	return text.String() + lua("joint")
}

// afterY and afterZ are the two after functions: a reply counts spend in Y, or in Z.
func afterY(r store.Reply, n int64) store.Reply {
	r.Y += n
	return r
}

func afterZ(r store.Reply, n int64) store.Reply {
	r.Z += n
	return r
}

// spentY and spentZ are the two spent functions.
func spentY(r store.Reply) int64 { return r.Y }
func spentZ(r store.Reply) int64 { return r.Z }
