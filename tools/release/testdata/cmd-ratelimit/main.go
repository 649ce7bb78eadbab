// The command as a tool of another module: it finds what is wrong in a configuration file.
package main

import (
	"errors"
	"log"
	"os/exec"
	"strings"
)

func main() {
	cmd := exec.Command("go", "tool", "ratelimit", "check", "-")
	cmd.Stdin = strings.NewReader(`{"limiters": {"api": {"algorithm": "sliding_window", "limit": "1/m"}}}`)
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "-: limiters api\n" {
		log.Fatalf("%s%v", out, err)
	}
	cmd = exec.Command("go", "tool", "ratelimit", "check", "-")
	cmd.Stdin = strings.NewReader(`{"limiters": {"api": {"algorithm": "sliding_window", "limit": "1"}}}`)
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 1 {
		log.Fatalf("%s%v", out, err)
	}
}
