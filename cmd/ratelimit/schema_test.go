package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"

	"github.com/ratelimit-go/ratelimit/config"
)

// validator validates against the schema that the command prints.
func validator(t *testing.T) func(text string) error {
	t.Helper()
	got := command(t, nil, "schema")
	require.Zero(t, got.code, got.stderr)
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(got.stdout))
	require.NoError(t, err)
	c := jsonschema.NewCompiler()
	require.NoError(t, c.AddResource("schema.json", doc))
	schema, err := c.Compile("schema.json")
	require.NoError(t, err)
	return func(text string) error {
		var value any
		if err := yaml.Unmarshal([]byte(text), &value); err != nil {
			return err
		}
		return schema.Validate(value)
	}
}

var yamlBlock = regexp.MustCompile("(?ms)^```yaml\n(.*?limiters:\n.*?)^```$")

func TestTheSchemaTakesTheFilesThatAreGood(t *testing.T) {
	validate := validator(t)
	good := map[string]string{}
	pages, err := filepath.Glob("../../docs/*.md")
	require.NoError(t, err)
	for _, file := range append(pages, "testdata/good.yaml") {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		if filepath.Ext(file) == ".yaml" {
			good[file] = string(text)
		}
		for _, m := range yamlBlock.FindAllSubmatch(text, -1) {
			good[file] = string(m[1])
		}
	}
	require.GreaterOrEqual(t, len(good), 2)
	for _, limit := range []string{
		"100/s", "5/15m", "1000/day", "5 / 15 minutes", "5/1h30m", "5/1.5h", "0/m", "unlimited",
		"1000/month", "100/1 week from sunday", "10000/month from 31 in America/Sao_Paulo", "100/day in UTC", "1/d in Etc/GMT+1",
	} {
		good[limit] = "limiters: {a: {algorithm: fixed_window, limit: " + limit + "}}"
	}
	for name, fields := range map[string]string{
		"burst":     "algorithm: leaky_bucket, limit: 10/second burst 20",
		"one of":    "algorithm: sliding_log, limits: [1/s]",
		"tiers":     "algorithm: token_bucket, limit: 1/s, tiers: {a: unlimited, b: 1/s burst 2}",
		"failure":   "algorithm: token_bucket, limit: 1/s, on_failure: error",
		"local":     "algorithm: token_bucket, limit: 4/s, on_failure: local, instances: 4",
		"off":       "algorithm: token_bucket, limits: [1/s, 9/m], store: {deny_cache: false}",
		"slots":     "in_flight: 8, life: 30s, on_failure: local, instances: 4",
		"and rates": "algorithm: fixed_window, limits: [1/s, 9/m], in_flight: 8",
		"shared":    "algorithm: token_bucket, limit: 9/s}, b: {shares: a, reserved: 5, on_failure: open, store: {deny_cache: true}",
		"reserved":  "algorithm: fixed_window, limits: [6/s, 9/m], reserved: 5",
		"lease off": "algorithm: fixed_window, limit: 100000/s, store: {lease: 50ms, coalescing: false}",
		"leases":    "algorithm: fixed_window, limits: [100000/s, 9/m], store: {lease: 50ms}",
		"together":  "algorithm: fixed_window, limits: [1/s, 9/m], store: {coalescing: true}",
	} {
		good[name] = "limiters: {a: {" + fields + "}}"
	}
	for name, text := range good {
		_, err := config.Parse([]byte(text))
		require.NoError(t, err, name)
		require.NoError(t, validate(text), name)
	}
}

func TestTheSchemaRefusesWhatParseRefuses(t *testing.T) {
	validate := validator(t)
	bad := map[string]string{
		"empty": "{}", "no limiters": "limiters: {}", "another field": "limiters: {a: {algorithm: fixed_window, limit: 1/s}}\nlimits: 1",
		"no name": `limiters: {"": {algorithm: fixed_window, limit: 1/s}}`, "braces": `limiters: {"{a}": {algorithm: fixed_window, limit: 1/s}}`,
		"a list": "limiters: [a]", "a number": "limiters: {a: 5}",
	}
	for name, fields := range map[string]string{
		"no algorithm":           "limit: 1/s",
		"an unknown one":         "algorithm: bucket, limit: 1/s",
		"no limit":               "algorithm: fixed_window",
		"two kinds":              "algorithm: fixed_window, limit: 1/s, limits: [1/m]",
		"a typo":                 "algorithm: fixed_window, limit: 1/s, tier: {a: 1/s}",
		"no slash":               "algorithm: fixed_window, limit: 100 per minute",
		"a number for a limit":   "algorithm: fixed_window, limit: 100",
		"a burst of a window":    "algorithm: sliding_window, limit: 1/s burst 2",
		"a burst in a list":      "algorithm: sliding_log, limits: [1/s burst 2]",
		"a burst of a tier":      "algorithm: sliding_log, limit: 1/s, tiers: {a: 1/s burst 2}",
		"a calendar of a bucket": "algorithm: token_bucket, limit: 100/month",
		"no limits":              "algorithm: fixed_window, limits: []",
		"too many":               "algorithm: fixed_window, limits: [" + strings.Repeat("1/s, ", 17) + "]",
		"no tiers":               "algorithm: fixed_window, limit: 1/s, tiers: {}",
		"tiers of several":       "algorithm: fixed_window, limits: [1/s], tiers: {a: 1/s}",
		"another failure":        "algorithm: fixed_window, limit: 1/s, on_failure: ignore",
		"local alone":            "algorithm: fixed_window, limit: 1/s, on_failure: local",
		"instances alone":        "algorithm: fixed_window, limit: 1/s, instances: 4",
		"instances of open":      "algorithm: fixed_window, limit: 1/s, on_failure: open, instances: 4",
		"no instances":           "algorithm: fixed_window, limit: 1/s, on_failure: local, instances: 0",
		"instances as text":      `algorithm: fixed_window, limit: 1/s, on_failure: local, instances: "4"`,
		"an empty store":         "algorithm: fixed_window, limit: 1/s, store: {}",
		"another store":          "algorithm: fixed_window, limit: 1/s, store: {cache: true}",
		"a flag as text":         `algorithm: fixed_window, limit: 1/s, store: {deny_cache: "true"}`,
		"a lease of nothing":     "algorithm: fixed_window, limit: 100000/s, store: {lease: 50}",
		"a lease and a cache":    "algorithm: fixed_window, limit: 100000/s, store: {lease: 50ms, deny_cache: true}",
		"no slots":               "in_flight: 0",
		"slots as text":          `in_flight: "5"`,
		"a life alone":           "algorithm: fixed_window, limit: 1/s, life: 30s",
		"an algorithm of slots":  "algorithm: fixed_window, in_flight: 5",
		"tiers of slots":         "in_flight: 5, tiers: {a: 1/s}",
		"slots and a store":      "in_flight: 5, store: {deny_cache: true}",
		"slots and a ban":        "in_flight: 5, ban: {denials: 3/1m, for: 1m}",
		"reserved slots":         "in_flight: 5, reserved: 2",
		"nothing reserved":       "algorithm: fixed_window, limit: 9/s, reserved: 0",
		"a lease of a reserve":   "algorithm: fixed_window, limit: 9/s, reserved: 1, store: {lease: 50ms}",
		"a reserve coalesced":    "algorithm: fixed_window, limit: 9/s, reserved: 1, store: {coalescing: true}",
		"shares and a limit":     "shares: b, limit: 9/s}, b: {algorithm: fixed_window, limit: 9/s",
		"shares and tiers":       "shares: b, tiers: {a: 9/s}}, b: {algorithm: fixed_window, limit: 9/s",
		"shares and slots":       "shares: b, in_flight: 9}, b: {algorithm: fixed_window, limit: 9/s",
		"a cache of several":     "algorithm: fixed_window, limits: [1/s], store: {deny_cache: true}",
	} {
		bad[name] = "limiters: {a: {" + fields + "}}"
	}
	file, err := os.ReadFile("testdata/bad.yaml")
	require.NoError(t, err)
	bad["bad.yaml"] = string(file)
	for name, text := range bad {
		_, err := config.Parse([]byte(text))
		require.Error(t, err, name)
		require.Error(t, validate(text), name)
	}
}

func TestSchemaPrintsTheFileOfTheRepository(t *testing.T) {
	file, err := os.ReadFile("../../config/schema.json")
	require.NoError(t, err)
	require.Equal(t, string(file), command(t, nil, "schema").stdout)
	require.True(t, bytes.HasSuffix(file, []byte("}\n")))
	require.Equal(t, 2, command(t, nil, "schema", "limits.yaml").code)
}
