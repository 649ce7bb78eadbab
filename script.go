package ratelimit

import (
	_ "embed"
	"strings"

	"github.com/ratelimit-go/ratelimit/store"
)

//go:embed scripts/common.lua
var commonLua string

//go:embed scripts/plain.lua
var plainLua string

//go:embed scripts/state.lua
var stateLua string

//go:embed scripts/driver.lua
var driverLua string

//go:embed scripts/decide.lua
var decideLua string

//go:embed scripts/joint.lua
var jointLua string

//go:embed scripts/batch.lua
var batchLua string

// script is a whole Redis script: what the scripts share, the parts of the algorithm, and the
// driver that runs it. The plain case of an algorithm may stand before it.
func script(algorithm ...string) string {
	return commonLua + strings.Join(algorithm, "") + driver()
}

// plainCase is that of an algorithm whose state is five numbers, and which takes this step.
func plainCase(step string) string { return strings.Replace(plainLua, "    STEP\n", step, 1) }

// driver is what follows the algorithm in a script for single calls.
func driver() string { return driverLua + decideLua + "return { ok and 1 or 0, x, y, z }\n" }

// own is the algorithm of rule's script, without its plain case.
func own(rule *store.Rule) string {
	_, general, _ := strings.Cut(rule.Script, commonLua)
	return strings.TrimSuffix(general, driver())
}

// batchScript is rule's script that makes many calls at once. In decider the parameter
// op hides that of commonLua.
func batchScript(rule *store.Rule) string {
	return commonLua + "\nlocal function decider(op)\n" + own(rule) +
		"\nreturn function(key, limit, now, callers, n, a)\n" + decideLua + "return ok and 1 or 0, x, y, z\nend\nend\n" + batchLua
}

// jointScript is the script that decides on keys of several rules at once.
func jointScript(rules []*store.Rule) string {
	var text strings.Builder
	text.WriteString(commonLua + "\nlocal rules = {}\n")
	for _, rule := range rules {
		text.WriteString("do\n" + own(rule) + "\nrules[#rules + 1] = { plan = plan, commit = commit }\nend\n")
	}
	return text.String() + jointLua
}
