package ratelimit

import (
	_ "embed"
	"strings"

	"github.com/ratelimit-go/ratelimit/store"
)

//go:embed scripts/common.lua
var commonLua string

//go:embed scripts/state.lua
var stateLua string

//go:embed scripts/driver.lua
var driverLua string

//go:embed scripts/joint.lua
var jointLua string

//go:embed scripts/batch.lua
var batchLua string

// script is a whole Redis script: what the scripts share, the parts of the
// algorithm, and the driver that runs it.
func script(algorithm ...string) string {
	return commonLua + strings.Join(algorithm, "") + driverLua
}

// batchScript is rule's script that makes many calls at once.
func batchScript(rule *store.Rule) string {
	return strings.TrimSuffix(rule.Script, driverLua) + batchLua
}

// jointScript is the script that decides on keys of several rules at once.
func jointScript(rules []*store.Rule) string {
	var text strings.Builder
	text.WriteString(commonLua + "\nlocal rules = {}\n")
	for _, rule := range rules {
		own := strings.TrimSuffix(strings.TrimPrefix(rule.Script, commonLua), driverLua)
		text.WriteString("do\n" + own + "\nrules[#rules + 1] = { plan = plan, commit = commit }\nend\n")
	}
	return text.String() + jointLua
}
