// Package script assembles the Lua scripts of rules for Redis from the files in scripts/.
package script

import (
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/ratelimit-go/ratelimit/store"
)

// Files has the Lua of the rules, and the common parts.
type Files struct{ fs.FS }

// Text returns the text of a file. It panics if there is none, because the files are embedded.
func (f Files) Text(name string) string {
	text, err := fs.ReadFile(f.FS, "scripts/"+name+".lua")
	if err != nil {
		panic(err)
	}
	return string(text)
}

// Rule returns rule with its Lua, for the plain case and for the algorithm.
func (f Files) Rule(rule store.Rule, plain, lua string) store.Rule {
	rule.Plain, rule.Lua, rule.Script = plain, lua, f.groups
	return rule
}

// Of returns the Lua of an algorithm that consists of several files.
func (f Files) Of(names ...string) string {
	var text strings.Builder
	for _, name := range names {
		text.WriteString(f.Text(name))
	}
	return text.String()
}

// Plain returns the plain case of an algorithm whose state is five numbers, from the named file.
func (f Files) Plain(name string) string {
	return strings.Replace(f.Text("plain_state"), "  OWN\n", f.Text(name), 1)
}

// groups returns the script that decides on groups of requests of these rules.
func (f Files) groups(rules []*store.Rule) string {
	var text strings.Builder
	step := "plain = false\n" // for a rule that has no plain case
	for i, rule := range slices.Backward(rules) {
		if rule.Plain != "" {
			step = "if rule == '" + strconv.Itoa(i+1) + "' then\n" + rule.Plain + "else\n" + step + "end\n"
		}
	}
	write := func(name, step string) {
		text.WriteString(strings.NewReplacer("STEP\n", step, "WRITE\n", f.Text("plain_write")).Replace(f.Text(name)))
	}
	if len(rules) == 1 && rules[0].Plain != "" {
		write("plain", rules[0].Plain)
	}
	write("groups_plain", step)
	text.WriteString(f.Text("common") + "\nlocal rules = {}\n")
	for _, rule := range rules {
		text.WriteString("rules[#rules + 1] = function(op)\n" + rule.Lua +
			"\nreturn plan, commit, available, refund\nend\n")
	}
	return text.String() + f.Text("groups")
}
