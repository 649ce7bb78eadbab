package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

const sample = `192.0.2.1 - - [17/May/2015:10:05:00 +0000] "GET / HTTP/1.1" 200 10
192.0.2.1 - - [17/May/2015:10:05:01 +0000] "GET /a HTTP/1.1" 200 10
192.0.2.9 - - [17/May/2015:12:05:02 +0200] "GET / HTTP/1.1" 200 10
192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET /b HTTP/1.1" 200 10
192.0.2.1 - - [17/May/2015:10:06:40 +0000] "GET /b HTTP/1.1" 200 10
`

func TestReplay(t *testing.T) {
	var out strings.Builder
	require.NoError(t, replay(t.Context(), ratelimit.PerMinute(2), strings.NewReader(sample), &out))
	require.Equal(t, "2015-05-17 10:05:03  192.0.2.1  denied for 27s\n2/m denies 1 of 5 requests\n", out.String())
}

// The name of a user is what a client has sent.
func TestReplayOfAUserWithABracket(t *testing.T) {
	client, at, err := parse(`192.0.2.1 - [a] [17/May/2015:10:05:00 +0000] "GET /[b] HTTP/1.1" 200 10`)
	require.NoError(t, err)
	require.Equal(t, "192.0.2.1 2015-05-17 10:05:00", client+" "+at.UTC().Format(time.DateTime))
}

func TestReplayFails(t *testing.T) {
	require.Error(t, replay(t.Context(), ratelimit.PerMinute(2), strings.NewReader("no log\n"), new(strings.Builder)))
	require.Error(t, replay(t.Context(), ratelimit.PerMinute(2), strings.NewReader(strings.Repeat("a", 1<<20)), new(strings.Builder)))
	require.Error(t, replay(t.Context(), ratelimit.Limit{}, strings.NewReader(sample), new(strings.Builder)))
}

// The name of a log is no log: nothing would be denied of the nothing in standard input.
func TestTheNameOfALogIsRefused(t *testing.T) {
	if os.Getenv("REPLAY") == "1" {
		os.Args = []string{os.Args[0], "access.log"}
		main()
		return
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestTheNameOfALogIsRefused$")
	cmd.Env = append(os.Environ(), "REPLAY=1")
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), `no argument "access.log": the log is read from standard input`)
}
