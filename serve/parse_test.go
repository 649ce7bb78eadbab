package serve_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ratelimit-go/ratelimit/serve"
	"github.com/ratelimit-go/ratelimit/serve/internal/testenv"
)

// Each error has the place of the mistake.
func TestErrorsOfAFileHaveTheirPlace(t *testing.T) {
	t.Parallel()
	const one = "domain: d\ndescriptors:\n- key: a\n  "
	for file, want := range map[string]string{
		"":                                     "1:1: the file is empty",
		"# nothing":                            "1:1: the file is empty",
		"descriptors: []":                      "1:1: the file has no domain: add one",
		"domain: ''":                           "1:1: the file has no domain: add one",
		"domain: d\n---\ndomain: e":            "2:1: a second document begins",
		"domain: [":                            "2:1: while parsing a flow node",
		"'''":                                  "1:4: while scanning a quoted scalar",
		"domain: d\nstore:\n\tlease: 1s":       "3:1: a tab: indent YAML with spaces",
		"domain: d\ndomains: e":                `2:1: file: unknown field "domains"`,
		"0.25: d":                              `1:1: file: "0.25": want a name`,
		"domain: d\ndomain: e":                 `2:1: file: "domain" is already set in line 1`,
		"- a":                                  "1:1: file: a list of 1: want a mapping",
		"domain: {a: b}":                       "1:9: domain: a mapping: want a text",
		"domain: d\ndescriptors: a":            `2:14: descriptors: "a": want a list`,
		"domain: d\ndescriptors: [a]":          `2:15: descriptor: "a": want a mapping`,
		"domain: d\ndescriptors: [{value: a}]": "2:15: the descriptor has no key",
		one + "value: b\n- key: a\n  value: b": `5:3: descriptor "d/a=b" is already at f.yaml:3:3`,
		one + "descriptors: [{key: b}, {key: b}]":                                                     `4:27: descriptor "d/a/b" is already at f.yaml:4:17`,
		one + "ratelimit: {}":                                                                         `4:3: descriptor: unknown field "ratelimit"`,
		one + "share_threshold: true":                                                                 "4:3: share_threshold: needs a value with a *",
		one + "shadow_mode: 1":                                                                        `4:16: shadow_mode: "1": want true or false`,
		one + "shadow_mode: 'true'":                                                                   `4:16: shadow_mode: "true": want true or false`,
		"domain: d\ndescriptors: [{key: a*}]":                                                         `2:21: key "a*": a * is allowed only in a value`,
		one + "rate_limit: {requests_per_unit: 1}":                                                    "4:15: rate_limit: no unit: add one, such as minute",
		one + "rate_limit: {unit: fortnight, requests_per_unit: 1}":                                   `4:22: unit: "fortnight": want second,`,
		one + "rate_limit: {unit: unknown, requests_per_unit: 1}":                                     `4:22: unit: "unknown"`,
		one + "rate_limit: {unit: day, requests_per_unit: -1}":                                        `4:46: requests_per_unit: "-1": want a number from 0 to 2147483647`,
		one + "rate_limit: {unit: day, requests_per_unit: 1.5}":                                       `4:46: requests_per_unit: "1.5"`,
		one + "rate_limit: {unit: day, requests_per_unit: '1'}":                                       `4:46: requests_per_unit: "1"`,
		one + "rate_limit: {unit: day, requests_per_unit: 2147483648}":                                "4:46: requests_per_unit: 2147483648 is more than 2147483647: use unlimited",
		one + "rate_limit: {unit: day, requestsperunit: 1}":                                           `4:27: rate_limit: unknown field "requestsperunit"`,
		one + "rate_limit: {unlimited: true, unit: day}":                                              "4:15: rate_limit: unlimited cannot be combined with another limit",
		one + "rate_limit: {unlimited: true, algorithm: token_bucket}":                                "4:15: rate_limit: unlimited cannot be combined with another limit",
		one + "rate_limit: {unlimited: true, charge_over_limit: true}":                                "4:15: rate_limit: unlimited cannot be combined with another limit",
		one + "rate_limit: {limit: 1/s, charge_over_limit: always}":                                   `4:47: charge_over_limit: "always": want true or false`,
		one + "rate_limit: {limit: 1/s}\n  metadata: {ratelimit: {charge_over_limit: 1}}":             `5:45: charge_over_limit: "1": want true or false`,
		"domain: d\ncharge_over_limit: 1":                                                             `2:20: charge_over_limit: "1": want true or false`,
		one + "rate_limit: {limit: 1/s, unit: second}":                                                "4:16: limit: cannot be combined with unit",
		one + "rate_limit: {limit: unlimited}":                                                        "4:23: limit: unlimited: use the field",
		one + "rate_limit: {limit: 1/x}":                                                              "4:23: limit: ",
		one + "rate_limit: {limit: 1/s burst 2}":                                                      "4:23: limit: ",
		one + "rate_limit: {limit: 1/s, algorithm: bucket}":                                           "4:39: algorithm: ",
		one + "rate_limit: {limit: 1/month, algorithm: token_bucket}":                                 "4:23: limit: ",
		one + "rate_limit: {unit: day, name: n, replaces: [{name: n}]}":                               `4:47: replaces: a rule cannot replace itself: "n"`,
		one + "rate_limit: {unit: day, replaces: [{name: }]}":                                         "4:38: replaces: an entry has no name",
		one + "rate_limit: {unit: day, replaces: [n]}":                                                `4:38: replaces: "n": want a mapping`,
		one + "metadata: {ratelimit: {limit: 1/s}}":                                                   "4:3: metadata: ratelimit: needs a rate_limit",
		one + "rate_limit: {unit: day}\n  metadata: {ratelimit: {x: 1}}":                              `5:26: metadata: ratelimit: unknown field "x"`,
		one + "rate_limit: {unlimited: true}\n  metadata: {ratelimit: {limit: 1/s}}":                  "4:15: rate_limit: unlimited cannot be combined",
		"domain: d\non_failure: maybe":                                                                `2:13: on_failure: "maybe": want open, closed, local or error`,
		"domain: d\non_failure: local":                                                                "2:13: on_failure: local: needs instances, the number of processes that share the store",
		one + "rate_limit: {limit: 1/s, in_flight: 8}":                                                "4:28: rate_limit: in_flight: a proxy never reports when a request ends",
		one + "rate_limit: {in_flight: 8, life: 30s}":                                                 "4:16: rate_limit: in_flight: a proxy never",
		one + "rate_limit: {limit: 1/s}\n  metadata: {ratelimit: {in_flight: 8}}":                     "5:26: metadata: ratelimit: in_flight: a proxy never",
		"domain: d\ninstances: 2":                                                                     "2:1: instances: needs on_failure: local",
		"domain: d\non_failure: local\ninstances: 0":                                                  `3:12: instances: "0": want a number from 1 to 2147483647`,
		"instances: 8\non_failure: local\n" + one + "rate_limit: {limit: 7/month}":                    "6:23: limit: on_failure: local: ",
		"instances: 11\non_failure: local\n" + one + "rate_limit: {unit: year, requests_per_unit: 1}": "6:15: limit: on_failure: local: ",
		"domain: d\nstore: {lease: soon}":                                                             `2:16: lease: "soon": want the lifetime`,
		"domain: d\nstore: {lease: 1s, deny_cache: true}":                                             "2:9: lease: cannot be combined with deny_cache",
		"domain: d\nchecks: {a: []}":                                                                  "2:13: check \"a\": want a list of 1 to 16",
		"domain: d\nchecks: {a: [{}]}":                                                                "2:14: check: the descriptor has no entries",
		"domain: d\nchecks: {a: [{b: cookie}]}":                                                       `2:18: b: "cookie": want address, method, path, host or header NAME`,
		"domain: d\nchecks: {a: [{b: header}]}":                                                       `2:18: b: "header": want`,
		"domain: d\nchecks: {a: [{b: header X Y}]}":                                                   `2:18: b: "header X Y": want`,
		"domain: d\nchecks: {a: [{b: header Host}]}":                                                  `2:18: b: "header Host": want address, method, path, host`, // which Go takes out of the fields
		"domain: d\nchecks: {a/b: [{b: path}]}":                                                       `2:10: check "a/b": want a name that can be part of a URL's path`,
		"domain: d\nchecks: {.: [{b: path}]}":                                                         `2:10: check ".": want a name that can be part`,
		"domain: d\nchecks: {..: [{b: path}]}":                                                        `2:10: check "..": want a name that can be part`, // which clients take out of a path
		"a: &a [*a]":                                                                                  `1:1: file: unknown field "a"`,
		"domain: d\n# Gr\xf6sse\n":                                                                    "2:5: byte 0xf6 is not UTF-8", // in Latin-1
		"domain: d\n# \a\n":                                                                           "2:3: character U+0007 is not allowed",
	} {
		_, err := serve.Parse(serve.File{Name: "f.yaml", Text: []byte(file)})
		require.Error(t, err, file)
		require.Contains(t, err.Error(), "f.yaml:"+want, file)
		_, ok := errors.AsType[*serve.Error](err)
		require.True(t, ok)
	}
	_, err := serve.Parse()
	require.ErrorContains(t, err, "no file")
	_, err = serve.Parse(serve.File{Name: "a", Text: []byte("domain: d")}, serve.File{Name: "b", Text: []byte("domain: d")})
	require.ErrorContains(t, err, `b:1:9: domain "d" is already at a:1:9: a domain must be one file, unless domains are merged`)
	_, err = serve.Parse(serve.File{Name: "a", Text: make([]byte, 9<<20)})
	require.ErrorContains(t, err, "a:1:1: the file has more than")
	_, err = serve.Parse(serve.File{Name: "a", Text: []byte("domain: d\ndescriptors:\n" + strings.Repeat("- {}\n", 100))})
	require.ErrorContains(t, err, "80 more errors follow, the first of them: the descriptor has no key")
}

// Files of one domain are one, in their order. A setting of the domain may stand in any of them.
func TestDomainsThatAreMerged(t *testing.T) {
	t.Parallel()
	const first = `domain: edge
checks: {client: [{address: address}]}
descriptors:
	- {key: user, value: a*, rate_limit: {unit: day, requests_per_unit: 1}}
	- {key: path, value: /a, descriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 2}}]}
`
	const second = `domain: edge
on_failure: local
instances: 2
descriptors:
	- {key: user, value: a*b, rate_limit: {unit: day, requests_per_unit: 3}}
	- {key: user, rate_limit: {unit: day, requests_per_unit: 4}}
	- {key: address, rate_limit: {unit: day, requests_per_unit: 5}}
`
	files := []serve.File{{Name: "1", Text: []byte(text(first))}, {Name: "x", Text: []byte("domain: other")}, {Name: "2", Text: []byte(text(second))}}
	r, err := serve.ParseMerged(files...)
	require.NoError(t, err)
	require.Equal(t, []string{`x:1:9: domain "other" has no rate_limit: it admits everything`}, r.Notes(), "the check has a rule, in the other file")
	s, err := serve.New(memory(t), r)
	require.NoError(t, err)
	require.Equal(t, "OK, OK 0/1 24h0m0s, OK 1/2 24h0m0s, OK 3/4 24h0m0s", withoutTime(ask(t, s, "user=ab", "path=/a,user=x", "user=x")))
	require.Contains(t, get(t, s.Private(nil), "/rules"), `"file":"2"`)
	require.Contains(t, get(t, s.Private(nil), "/rules"), `"file":"1"`)

	files[0], files[2] = files[2], files[0]
	r, err = serve.ParseMerged(files...)
	require.NoError(t, err)
	s, err = serve.New(memory(t), r)
	require.NoError(t, err)
	require.Equal(t, "OK, OK 2/3 24h0m0s", withoutTime(ask(t, s, "user=ab")), "the first pattern")

	for file, want := range map[string]string{
		"descriptors: [{key: path, value: /a, descriptors: [{key: other}]}]": `3:2:15: descriptor "edge/path=/a" is already at 1:5:5`,
		"on_failure: open": `3:2:1: on_failure: domain "edge" already sets it at 2:2:1`,
		"charge_over_limit: true\ncharge_over_limit: true": `3:3:1: file: "charge_over_limit" is already set in line 2`,
		"instances: 2":                  `3:2:1: instances: needs on_failure: local`,
		"on_failure: local":             `3:2:13: on_failure: local: needs instances, the number of processes that share the store`,
		"checks: {client: [{a: path}]}": `3:2:10: check "client" is already defined in 1`,
		"descriptors: [{key: k, rate_limit: {limit: 1/month}}]": `3:2:44: limit: on_failure: local: `,
	} {
		_, err := serve.ParseMerged(append(files[:3:3], serve.File{Name: "3", Text: []byte("domain: edge\n" + file)})...)
		require.ErrorContains(t, err, want)
	}
	early := serve.File{Name: "0", Text: []byte("domain: edge\ndescriptors: [{key: k, rate_limit: {limit: 1/month}}]")}
	_, err = serve.ParseMerged(append([]serve.File{early}, files...)...)
	require.ErrorContains(t, err, "0:2:44: limit: on_failure: local: ", "which comes later")
}

// withoutTime is an answer in short, in which all of a day is left.
func withoutTime(r *pb.RateLimitResponse) string {
	for _, st := range r.GetStatuses() {
		st.DurationUntilReset = durationpb.New(24 * time.Hour)
	}
	return short(r)
}

// The size of a file with its aliases is bounded, and so is its depth.
func TestFilesThatGrow(t *testing.T) {
	t.Parallel()
	var bomb strings.Builder
	bomb.WriteString("domain: d\ndescriptors:\n- &a0 {key: x}\n")
	for i := range 30 {
		fmt.Fprintf(&bomb, "- &a%d {key: k%d, descriptors: [{key: l, descriptors: [*a%d]}, {key: r, descriptors: [*a%d]}]}\n", i+1, i, i, i)
	}
	_, err := serve.Parse(serve.File{Name: "a", Text: []byte(bomb.String())})
	require.ErrorContains(t, err, "the file has more than 262144 values")
	deep := "domain: d\ndescriptors: " + strings.Repeat("[{key: a, descriptors: ", 1000) + strings.Repeat("}]", 1000)
	_, err = serve.Parse(serve.File{Name: "a", Text: []byte(deep)})
	require.Error(t, err)
}

// Aliases, merges, and what YAML 1.1 takes for true are read, as the original does.
func TestFilesThatTheOriginalReadsAreRead(t *testing.T) {
	t.Parallel()
	r := rules(t, `domain: edge
descriptors:
	- key: 404
	  value: true
	  shadow_mode: Yes
	  rate_limit: &limit {unit: MINUTE, requests_per_unit: 0x10}
	- key: b
	  rate_limit: *limit
	- key: c
	  rate_limit: {<<: *limit, requests_per_unit: 1_000}
	  detailed_metric: on
	- key: d
	  rate_limit: {unit: hour}
	- key: e
	  value:
	  descriptors:
	  detailed_metric: on
`)
	require.Len(t, r.Notes(), 2)
	require.Contains(t, r.Notes()[0]+r.Notes()[1], "f0.yaml:17:5: detailed_metric: it has no effect without")
	require.Contains(t, r.Notes()[0]+r.Notes()[1], "the rule denies everything")
	s, err := serve.New(memory(t), r)
	require.NoError(t, err)
	require.Equal(t, "OK, OK 15/16 1m0s, OK 15/16 1m0s, OK 999/1000 1m0s", short(ask(t, s, "404=true", "b=1", "c=1")))
	require.Equal(t, "OVER, OVER 0/0 1h0m0s", short(ask(t, s, "d=1")))
}

// A field that has no effect is told, where the original accepts it.
func TestFieldsWithoutAnEffect(t *testing.T) {
	t.Parallel()
	const one, limit = "domain: d\ndescriptors:\n- key: a\n  ", "rate_limit: {unit: day, requests_per_unit: 5}"
	const below, beside = "\n  descriptors: [{key: b, " + limit + "}]", "\n- {key: b, " + limit + "}"
	const replaces, named = "rate_limit: {unit: day, requests_per_unit: 5, replaces: [{name: b}]}\n- ", "{key: b, rate_limit: {unit: day, requests_per_unit: 5, name: b}}"
	for file, want := range map[string]string{
		"shadow_mode: true" + below:                              ":4:3: shadow_mode: it has no effect without a rate_limit",
		"quota_mode: true" + below:                               ":4:3: quota_mode: it has no effect without a rate_limit",
		"metadata: {a: b}" + below:                               ":4:3: metadata: it has no effect without a rate_limit",
		"rate_limit: {unlimited: true}\n  shadow_mode: true":     ":5:3: shadow_mode: it has no effect beside unlimited",
		"rate_limit: {unlimited: true}\n  quota_mode: true":      ":5:3: quota_mode: it has no effect beside unlimited",
		"rate_limit: {unlimited: true}\n  metadata: {a: b}":      ":5:3: metadata: it has no effect beside unlimited",
		"rate_limit: {unlimited: true, requests_per_unit: 5}":    ":4:33: requests_per_unit: it has no effect beside unlimited",
		"value_to_metric: true" + beside:                         ":4:3: value_to_metric: it has no effect without a rate_limit",
		"share_parent: true" + beside:                            ":4:3: share_parent: it has no effect without a rate_limit",
		"value: x*\n  share_threshold: true" + beside:            ":5:3: share_threshold: it has no effect without a rate_limit",
		replaces + "{key: b}":                                    `: descriptor "d/a": replaces: it has no effect, because no rule of the domain has the name "b"`,
		replaces + named:                                         "",
		"value_to_metric: true" + below:                          "",
		"share_parent: true" + below:                             "",
		"shadow_mode: false" + below:                             "",
		"rate_limit: {unlimited: true}\n  value_to_metric: true": "",
	} {
		notes := strings.Join(rules(t, one+file).Notes(), "\n")
		if want != "" {
			want = "f0.yaml" + want
		}
		require.Equal(t, want, notes, file)
	}
}

// A check that no rule counts is told: it would let everything through.
func TestChecksThatNothingCounts(t *testing.T) {
	t.Parallel()
	r := rules(t, `domain: edge
descriptors:
	- {key: address, rate_limit: {unit: minute, requests_per_unit: 1}}
	- {key: free, rate_limit: {unlimited: true}}
	- {key: listed}
	- key: path
	  value: /a*
	  descriptors: [{key: user, value: ann}, {key: user, value: ben, rate_limit: {unit: minute, requests_per_unit: 1}}]
checks:
	good: [{address: address}, {free: method}, {path: path, user: header X-User}]
	bad:
		- {addr: address}
		- {listed: host}
		- {path: path}
		- {address: address, path: path}
`)
	var places []string
	for _, note := range r.Notes() {
		place, found := strings.CutSuffix(note, ": check: no rule in the files has these keys, so nothing counts the descriptor")
		require.True(t, found, note)
		places = append(places, place)
	}
	require.Equal(t, []string{"f0.yaml:12:7", "f0.yaml:13:7", "f0.yaml:14:7", "f0.yaml:15:7"}, places)
}

// A file without any limit is told: one that a template has left empty limits nothing.
func TestFilesWithoutALimit(t *testing.T) {
	t.Parallel()
	for file, told := range map[string]bool{
		"domain: d": true, "domain: d\ndescriptors: []": true, "domain: d\ndescriptors: [{key: a, descriptors: [{key: b}]}]": true,
		"domain: d\ndescriptors: [{key: a, descriptors: [{key: b, rate_limit: {unit: day, requests_per_unit: 1}}]}]": false,
		"domain: d\ndescriptors: [{key: a, rate_limit: {unlimited: true}}]":                                          false, // which says so
	} {
		r := rules(t, file)
		require.Equal(t, told, len(r.Notes()) == 1 && strings.Contains(r.Notes()[0], `f0.yaml:1:9: domain "d" has no rate_limit`), "%s: %v", file, r.Notes())
	}
}

// A named pipe is refused, and not waited for: neither by its name nor in a directory.
func TestFilesThatAreNone(t *testing.T) {
	t.Parallel()
	pipe := testenv.Pipe(t)
	for _, path := range []string{pipe, filepath.Dir(pipe), os.DevNull} {
		_, err := serve.ReadFiles(path)
		require.ErrorContains(t, err, "want a regular file")
	}
}

func TestFilesOfADirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, err := serve.ReadFiles(dir)
	require.ErrorContains(t, err, "no .yaml or .yml file")
	for _, name := range []string{"b.yaml", "a.yml", "c.txt", ".d.yaml"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("domain: "+name), 0o600))
	}
	files, err := serve.ReadFiles(dir, filepath.Join(dir, "c.txt"))
	require.NoError(t, err)
	var names []string
	for _, f := range files {
		names = append(names, filepath.Base(f.Name)+" "+string(f.Text))
	}
	require.Equal(t, []string{"a.yml domain: a.yml", "b.yaml domain: b.yaml", "c.txt domain: c.txt"}, names)
	_, err = serve.ReadFiles(filepath.Join(dir, "none.yaml"))
	require.ErrorIs(t, err, os.ErrNotExist)
}
