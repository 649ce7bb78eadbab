package config

import (
	"encoding/json"
	"flag"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

var update = flag.Bool("update", false, "write schema.json again")

func TestTheSchemaIsFresh(t *testing.T) {
	want, err := json.MarshalIndent(newSchema(), "", "  ")
	require.NoError(t, err)
	if *update {
		require.NoError(t, os.WriteFile("schema.json", append(want, '\n'), 0o644))
		return
	}
	require.Equal(t, string(want)+"\n", string(Schema()), "run go generate ./config")
}

func TestTheSchemaHasTheFieldsThatAreRead(t *testing.T) {
	require.ElementsMatch(t, limiterFields, slices.Collect(maps.Keys(limiterProperties())))
	require.ElementsMatch(t, banFields, slices.Collect(maps.Keys(banProperties())))
	require.ElementsMatch(t, storeFields, slices.Collect(maps.Keys(storeProperties())))
}

// object is one of JSON.
type object = map[string]any

// Patterns of limits. The ranges of their numbers are left to ParseLimit.
const (
	anyRate     = `[0-9]+ ?/ ?`
	anyUnits    = `ms|milliseconds?|s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?`
	anyPeriod   = `([0-9]* ?(` + anyUnits + `)|([0-9]*\.?[0-9]*(ns|us|µs|μs|ms|s|m|h))+)`
	anyBurst    = `( burst [0-9]+)?`
	anyCalendar = `(1 ?)?(d|days?|weeks?|months?)( from [0-9a-z]+)?( in [A-Za-z0-9_+/-]+)?`
)

func newSchema() object {
	return object{
		"$schema":              "http://json-schema.org/draft-07/schema#",
		"$id":                  "https://raw.githubusercontent.com/ratelimit-go/ratelimit/main/config/schema.json",
		"title":                "Limiters of github.com/ratelimit-go/ratelimit",
		"description":          "See https://github.com/ratelimit-go/ratelimit/blob/main/docs/config.md",
		"type":                 "object",
		"required":             []string{"limiters"},
		"additionalProperties": false,
		"properties": object{
			"limiters": object{
				"description":          "The limiters by name. The name is also the limiter's name in the store.",
				"type":                 "object",
				"minProperties":        1,
				"propertyNames":        object{"minLength": 1, "maxLength": maxName, "pattern": "^[^{}]*$"},
				"additionalProperties": object{"$ref": "#/definitions/limiter"},
			},
		},
		"definitions": object{
			"limiter": limiterSchema(),
			"limit": object{
				"description": "Events per period: 100/s, 5/15m, 10/s burst 20, 10000/month from 31 in America/Sao_Paulo, unlimited.",
				"type":        "string",
				"maxLength":   128,
			},
			"plain":    object{"pattern": "^(unlimited|" + anyRate + anyPeriod + ")$"},
			"bucket":   object{"pattern": "^(unlimited|" + anyRate + anyPeriod + anyBurst + ")$"},
			"calendar": object{"pattern": "^(unlimited|" + anyRate + anyPeriod + "|" + anyRate + anyCalendar + ")$"},
		},
	}
}

func limiterSchema() object {
	var byAlgorithm []object
	for _, algorithm := range ratelimit.PerSecond(1).Algorithms() {
		byAlgorithm = append(byAlgorithm, object{
			"if":   object{"properties": object{"algorithm": object{"const": algorithm}}, "required": []string{"algorithm"}},
			"then": limitsLike(kindOf(algorithm)),
		})
	}
	return object{
		"type":                 "object",
		"additionalProperties": false,
		"properties":           limiterProperties(),
		"oneOf": []object{
			{"required": []string{"algorithm", "limit"}},
			{"required": []string{"algorithm", "limits"}},
			{"required": []string{"in_flight"}, "properties": object{"algorithm": false, "limit": false, "limits": false}},
			{"required": []string{"shares"}},
		},
		"dependencies": object{
			"tiers": []string{"limit"}, "instances": []string{"on_failure"}, "life": []string{"in_flight"},
			"ban": object{"properties": object{"store": false, "in_flight": false}}, "in_flight": object{"properties": object{"store": false, "reserved": false}},
			"shares":   object{"properties": object{"algorithm": false, "limit": false, "limits": false, "in_flight": false}},
			"reserved": object{"properties": object{"store": object{"properties": object{"coalescing": object{"const": false}, "lease": false}}}},
		},
		"allOf": append(byAlgorithm, object{
			"if":   object{"properties": object{"on_failure": object{"const": failLocal}}, "required": []string{"on_failure"}},
			"then": object{"required": []string{"instances"}},
			"else": object{"properties": object{"instances": false}},
		}, object{
			"if":   object{"required": []string{"limits"}},
			"then": object{"properties": object{"store": object{"properties": object{"deny_cache": object{"const": false}}}}},
		}),
	}
}

// kindOf is which limits an algorithm takes.
func kindOf(algorithm string) string {
	l := ratelimit.PerDay(2)
	if ratelimit.PerMonth(1).ValidateFor(algorithm) == nil {
		return "calendar"
	}
	if l.Burst = 1; l.ValidateFor(algorithm) == nil {
		return "bucket"
	}
	return "plain"
}

// limitsLike says that all limits of a limiter are of that kind.
func limitsLike(kind string) object {
	ref := object{"$ref": "#/definitions/" + kind}
	return object{"properties": object{
		"limit": ref, "limits": object{"items": ref}, "tiers": object{"additionalProperties": ref},
	}}
}

func limiterProperties() object {
	limit := object{"$ref": "#/definitions/limit"}
	return object{
		"algorithm": object{"description": "How events are counted.", "enum": ratelimit.PerSecond(1).Algorithms()},
		"limit":     limit,
		"limits": object{
			"description": "Limits that must all admit. No two of them have the same period.",
			"type":        "array", "items": limit, "minItems": 1, "maxItems": maxLimits,
		},
		"tiers": object{
			"description": "Limits by tier, which the program looks up for each key. Other keys have limit.",
			"type":        "object", "minProperties": 1, "additionalProperties": limit,
		},
		"shares": object{
			"description": "The name of another limiter, with whose limits it shares the counts.",
			"type":        "string", "minLength": 1, "maxLength": maxName, "pattern": "^[^{}]*$",
		},
		"reserved": object{
			"description": "A call is admitted only if this many events remain, for limiters that share the counts and reserve fewer.",
			"type":        "integer", "minimum": 1, "maximum": math.MaxInt32,
		},
		"in_flight": object{
			"description": "How many calls per key may run at the same time.",
			"type":        "integer", "minimum": 1, "maximum": math.MaxInt32,
		},
		"life": object{
			"description": "How long a slot of in_flight is held after its process has died. The default is 1m.",
			"type":        "string", "pattern": `^([0-9]*\.?[0-9]*(ns|us|µs|μs|ms|s|m|h))+$`,
		},
		"ban": object{
			"description": "Bans a key that is denied too often. Each further ban lasts twice as long.",
			"type":        "object", "required": []string{"denials", "for"}, "additionalProperties": false, "properties": banProperties(),
		},
		"store": object{
			"description": "Caches in front of the store, if it is not in memory.",
			"type":        "object", "minProperties": 1, "additionalProperties": false, "properties": storeProperties(),
			"if":   object{"required": []string{"lease"}},
			"then": object{"properties": object{"deny_cache": object{"const": false}, "coalescing": object{"const": false}}},
		},
		"on_failure": object{
			"description": "What decides while the store fails. The default is error.",
			"enum":        failures,
		},
		"instances": object{
			"description": "How many processes share the store. With on_failure: local, each takes its share of the limit while the store fails.",
			"type":        "integer", "minimum": 1, "maximum": math.MaxInt32,
		},
	}
}

func banProperties() object {
	const duration = `^([0-9]*\.?[0-9]*(ns|us|µs|μs|ms|s|m|h))+$`
	return object{
		"denials": object{"description": "How many denials in which time start a ban: 3/10m.", "type": "string", "pattern": "^" + anyRate + anyPeriod + "$"},
		"for":     object{"description": "How long the first ban lasts, in whole seconds: 15m.", "type": "string", "pattern": duration},
		"most":    object{"description": "The longest ban. The default is the value of for.", "type": "string", "pattern": duration},
	}
}

func storeProperties() object {
	return object{
		"deny_cache": object{"description": "Repeat the store's denials in this process.", "type": "boolean"},
		"coalescing": object{"description": "Combine concurrent calls for one key.", "type": "boolean"},
		"lease": object{
			"description": "The lifetime of leases, such as 50ms. Most decisions are made in memory, and may be this old.",
			"type":        "string", "pattern": `^([0-9]*\.?[0-9]*(ns|us|µs|μs|ms|s|m|h))+$`,
		},
	}
}

// A text that Parse takes must not be refused by a pattern: each unit has one.
func TestThePatternsHaveTheUnits(t *testing.T) {
	for unit := range strings.SplitSeq("ms millisecond milliseconds s second seconds sec secs m minute minutes min mins h hour hours hr hrs d day days", " ") {
		_, err := ratelimit.ParseLimit("5/" + unit)
		require.NoError(t, err)
		require.Regexp(t, "^"+anyRate+anyPeriod+"$", "5/"+unit)
	}
}
