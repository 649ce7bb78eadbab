package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCheckPrintsWhatIsWrongAndWhere(t *testing.T) {
	good := command(t, nil, "check", "testdata/good.yaml")
	require.Equal(t, result{0, "testdata/good.yaml: limiters api, login\n", ""}, good)

	bad := command(t, nil, "check", "testdata/bad.yaml", "testdata/good.yaml")
	require.Equal(t, 1, bad.code)
	require.Empty(t, bad.stderr)
	golden(t, "check.txt", bad.stdout)
}

func TestCheckReadsStandardInput(t *testing.T) {
	got := command(t, strings.NewReader(`{"limiters": {"api": {"algorithm": "sliding_window", "limit": "1/m"}}}`), "check", "-")
	require.Equal(t, result{0, "-: limiters api\n", ""}, got)
	got = command(t, strings.NewReader(""), "check", "-")
	require.Equal(t, 1, got.code)
	got = command(t, strings.NewReader(strings.Repeat("#", 1<<20+1)), "check", "-")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.stdout, "-:1:1: the text has")
}

func TestCheckOfAFileThatIsNotThereFails(t *testing.T) {
	got := command(t, nil, "check", "testdata/none.yaml")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.stderr, "none.yaml: no such file")
	require.Empty(t, got.stdout)
}
