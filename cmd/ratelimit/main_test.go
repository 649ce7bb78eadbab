package main

import (
	"bytes"
	"compress/gzip"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the files in testdata/golden again")

// result is what a run of the program printed and returned.
type result struct {
	code           int
	stdout, stderr string
}

func command(t *testing.T, stdin io.Reader, args ...string) result {
	t.Helper()
	var stdout, stderr strings.Builder
	p := &program{stdin: stdin, stdout: &stdout, stderr: &stderr}
	code := p.run(t.Context(), args)
	return result{code, stdout.String(), stderr.String()}
}

// golden compares text with a file in testdata/golden.
func golden(t *testing.T, name, text string) {
	t.Helper()
	file := filepath.Join("testdata", "golden", name)
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), text)
}

func zip(t *testing.T, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := io.WriteString(w, text)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return b.Bytes()
}

func TestTheUsageOfEachCommand(t *testing.T) {
	for _, args := range [][]string{{"help"}, {"-h"}, {"--help"}} {
		require.Equal(t, result{0, usage, ""}, command(t, nil, args...))
	}
	require.Equal(t, result{2, "", usage}, command(t, nil))
	require.Equal(t, result{2, "", "ratelimit: no command \"play\"\n\n" + usage}, command(t, nil, "play"))
	for _, name := range []string{"replay", "suggest", "check", "schema", "key"} {
		require.Contains(t, usage, "\n\t"+name+" ")
		for _, flag := range []string{"-h", "-help", "--help"} {
			got := command(t, nil, name, flag)
			require.Zero(t, got.code)
			require.Empty(t, got.stderr, "help that was asked for is the output")
			golden(t, "usage-"+name+".txt", got.stdout)
		}
	}
}

func TestTheVersion(t *testing.T) {
	require.Contains(t, usage, "\n\tversion ")
	for _, args := range [][]string{{"version"}, {"-version"}, {"--version"}} {
		got := command(t, nil, args...)
		require.Zero(t, got.code)
		require.Empty(t, got.stderr)
		require.Regexp(t, `^ratelimit \S+, library \(devel\), go1\.\d+\S* \w+/\w+\n$`, got.stdout)
	}
	require.Equal(t, 2, command(t, nil, "version", "x").code)
}

func TestArgumentsThatMakeNoSense(t *testing.T) {
	for args, reason := range map[string]string{
		"replay":                               "want -limit or -config",
		"replay -limit 10":                     `invalid limit: "10"`,
		"replay -limit 10/100y":                "100y",
		"replay -limit 10/m -limit 10/1m":      "10/m is repeated",
		"replay -limit 10/m -algorithm bucket": `unknown algorithm "bucket"`,
		"replay -limit 10/m·burst·20 -algorithm sliding_log":        "cannot have a burst",
		"replay -limit 1/3650d·burst·1000 -algorithm token_bucket":  "100 years",
		"replay -config testdata/good.yaml -limit 1/s":              "-config cannot be combined with",
		"replay -config testdata/good.yaml -algorithm sliding_log":  "-config cannot be combined with",
		"replay -config testdata/good.yaml -algorithm token_bucket": "-config cannot be combined with",
		"replay -config testdata/good.yaml -out csv":                "-config cannot be combined with",
		"replay -config testdata/good.yaml -svg a.svg":              "-config cannot be combined with",
		"replay -rate 10":                                             "-rate",
		"replay -limit 10/m -out xml":                                 `unknown output "xml"`,
		"replay -limit 10/m -svg a.log":                               "-svg a.log: the name must end in .svg",
		"replay -limit 10/m -format xml":                              `unknown format "xml"`,
		"replay -limit 10/m -format json -line (?P<key>.)(?P<time>.)": "-format cannot be combined with -line",
		"replay -limit 10/m -key agent":                               `unknown field "agent"`,
		"replay -limit 10/m -line (":                                  "missing closing )",
		"replay -limit 10/m -line (?P<key>.)":                         "no group named time",
		"replay -limit 10/m -line (?P<time>.)":                        "none named key",
		"replay -limit 10/m -key a -line (?P<key>.)(?P<time>.)":       "none named a",
		"replay -limit 10/m a.log -top 3":                             "-top comes after a.log: flags come first",
		"suggest -quantile 0":                                         "-quantile 0, want",
		"suggest -quantile 1.1":                                       "-quantile 1.1, want",
		"suggest -quantile NaN":                                       "-quantile NaN, want",
		"suggest -periods 1s,,1h":                                     `"" is not a period`,
		"suggest -periods 100y":                                       `"100y" is not a period`,
		"suggest -periods month":                                      "a sliding_log cannot count by calendar",
		"check":                                                       "which file?",
		"key":                                                         "which key?",
		"key a b":                                                     "which key?",
		"key user:42 -reset":                                          "flags come first",
		"key -store http://localhost user:42":                         "must begin with redis://",
	} {
		t.Run(args, func(t *testing.T) {
			words := strings.Fields(args)
			for i := range words {
				words[i] = strings.ReplaceAll(words[i], "·", " ")
			}
			got := command(t, strings.NewReader(""), words...)
			require.Equal(t, 2, got.code)
			require.Empty(t, got.stdout)
			require.Equal(t, 1, strings.Count(got.stderr, "usage: ratelimit "+words[0]), got.stderr)
			before, _, _ := strings.Cut(got.stderr, "usage:")
			require.Contains(t, before, reason, "the reason comes first")
		})
	}
}

// The arguments are right, but a file is not. The usage would only hide what is wrong.
func TestAFileThatCannotBeUsedIsNoMisuse(t *testing.T) {
	for args, reason := range map[string]string{
		"replay -config testdata/bad.yaml testdata/access.log":  "testdata/bad.yaml:4:12: limiter",
		"replay -config testdata/none.yaml testdata/access.log": "none.yaml: no such file",
		"replay -limit 1/s testdata/none.log":                   "none.log: no such file",
		"check testdata/none.yaml":                              "none.yaml: no such file",
		"key -store-file testdata/none user:42":                 "none: no such file",
	} {
		got := command(t, nil, strings.Fields(args)...)
		require.Equal(t, 1, got.code, args)
		require.Contains(t, got.stderr, reason)
		require.NotContains(t, got.stderr, "usage", args)
	}
}

// A key, or a file, may begin with -.
func TestAfterTwoDashesNothingIsAFlag(t *testing.T) {
	for _, args := range [][]string{{"key", "-store", "127.0.0.1:1", "--", "-42"}, {"check", "--", "-42"}} {
		got := command(t, nil, args...)
		require.Equal(t, 1, got.code, got.stderr)
		require.NotContains(t, got.stderr, "usage")
	}
}

// The commands of README.md print what it shows.
func TestReadmeShowsWhatCommandsPrint(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	require.LessOrEqual(t, len(bytes.Fields(readme)), 600)
	shown := 0
	for _, block := range strings.Split(string(readme), "```console\n")[1:] {
		block, _, _ = strings.Cut(block, "```")
		for _, step := range strings.Split("\n"+block, "\n$ ratelimit ")[1:] {
			line, want, _ := strings.Cut(step, "\n")
			args := strings.Fields(line)
			if args[0] == "key" {
				continue // it needs a server
			}
			got := command(t, nil, args...)
			require.Equal(t, strings.TrimSpace(want), strings.TrimSpace(got.stdout), line)
			shown++
		}
	}
	require.GreaterOrEqual(t, shown, 3)
}

func TestAnOutputThatFailsIsAnError(t *testing.T) {
	file, err := os.Open(os.DevNull) // for reading
	require.NoError(t, err)
	defer file.Close()
	for _, args := range []string{"replay -limit 1/m", "replay -limit 1/m -out json", "replay -limit 1/m -out csv", "suggest", "check testdata/good.yaml", "check -explain testdata/good.yaml", "schema", "version"} {
		p := &program{stdin: strings.NewReader(sample), stdout: file, stderr: io.Discard}
		require.Equal(t, 1, p.run(t.Context(), strings.Fields(args)), args)
	}
}
