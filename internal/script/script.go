// Package script assembles the Lua scripts of rules for Redis from the files in scripts/.
package script

import (
	"io/fs"
	"strconv"
	"strings"

	"github.com/ratelimit-go/ratelimit/store"
)

// Files have the Lua of the rules, and what is around it.
type Files struct{ fs.FS }

// Text is that of a file. Without it there is no program: the files are embedded.
func (f Files) Text(name string) string {
	text, err := fs.ReadFile(f.FS, "scripts/"+name+".lua")
	if err != nil {
		panic(err)
	}
	return string(text)
}

// Rule is rule with its script, and with what makes others of that.
func (f Files) Rule(rule store.Rule, script string) store.Rule {
	rule.Script, rule.JointScript, rule.BatchScript = script, f.joint, f.batch
	return rule
}

// Of is a whole Redis script: what the scripts share, the files of the algorithm, and the
// driver that runs it. The plain case of an algorithm may stand before it.
func (f Files) Of(names ...string) string {
	var algorithm strings.Builder
	for _, name := range names {
		algorithm.WriteString(f.Text(name))
	}
	return f.Around(algorithm.String())
}

// Around is Of an algorithm in Lua.
func (f Files) Around(algorithm string) string { return f.Text("common") + algorithm + f.driver() }

// Plain is the plain case of an algorithm whose state is five numbers, and which takes the step in
// this file.
func (f Files) Plain(name string) string { return f.plainOf("plain", f.Text(name)) }

// plainOf is a script of a plain case with this step.
func (f Files) plainOf(name, step string) string {
	return strings.NewReplacer("  READ\n", f.Text("plain_state"), "      STEP\n", step, "    STEP\n", step).Replace(f.Text(name))
}

// plainStep is the step of rule's plain case, if it has one of this kind.
func (f Files) plainStep(rule *store.Rule) (step string, ok bool) {
	head, tail, _ := strings.Cut(f.plainOf("plain", "STEP\n"), "STEP\n")
	if step, ok = strings.CutPrefix(rule.Script, head); ok {
		step, _, ok = strings.Cut(step, tail)
	}
	return step, ok
}

// driver is what follows the algorithm in a script for single calls.
func (f Files) driver() string {
	return f.Text("driver") + f.Text("decide") + "return { ok and 1 or 0, x, y, z }\n"
}

// own is the algorithm of rule's script, without its plain case.
func (f Files) own(rule *store.Rule) string {
	_, general, _ := strings.Cut(rule.Script, f.Text("common"))
	return strings.TrimSuffix(general, f.driver())
}

// batch is rule's script that makes many calls at once. In decider the parameter op hides that
// of the common file.
func (f Files) batch(rule *store.Rule) string {
	plain := "local replies, run, done = {}, 3, 0\n"
	if step, ok := f.plainStep(rule); ok {
		plain += f.plainOf("batch_plain", step)
	}
	return plain + f.Text("common") + "\nlocal function decider(op)\n" + f.own(rule) +
		"\nreturn function(key, limit, now, callers, n, a)\n" + f.Text("decide") + "return ok and 1 or 0, x, y, z\nend\nend\n" + f.Text("batch")
}

// joint is the script that decides on keys of several rules at once.
func (f Files) joint(rules []*store.Rule) string {
	var text, steps strings.Builder
	plain := true
	for i, rule := range rules {
		step, ok := f.plainStep(rule)
		plain = plain && ok
		steps.WriteString("if rule == '" + strconv.Itoa(i+1) + "' then\n" + step + "end\n")
	}
	if plain {
		text.WriteString(f.plainOf("joint_plain", steps.String()))
	}
	text.WriteString(f.Text("common") + "\nlocal rules = {}\n")
	for _, rule := range rules {
		text.WriteString("do\n" + f.own(rule) + "\nrules[#rules + 1] = { plan = plan, commit = commit }\nend\n")
	}
	return text.String() + f.Text("joint")
}
