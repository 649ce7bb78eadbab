package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/ratelimit-go/ratelimit/config"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

const checkText = `[flags] limits.yaml...

Check reads configuration files, in YAML or JSON, as package config does. It prints the errors,
with line and column, or the names of the limiters. The exit code is 1 if there is an error.
The file - is standard input.

With -explain, check describes each limiter: the most that a key is admitted, by the bounds of
docs/promises.md, how long a key is remembered, what leases and bans do, what is decided while
the store fails, the series in /metrics, and what can never happen.
`

// check is the command check.
func (p *program) check(_ context.Context, args []string) error {
	flags := p.newFlags("check", checkText)
	explained := flags.Bool("explain", false, "explain what each limiter will do")
	if err := p.parse(flags, args); err != nil {
		return err
	}
	if flags.NArg() == 0 {
		return p.misuse(flags, errors.New("which file? Give at least one"))
	}
	var failed error
	for _, name := range flags.Args() {
		text, err := p.readFile(name)
		if err != nil {
			return err
		}
		valid, err := p.checkText(name, text)
		if err == nil && valid && *explained {
			err = explain(p.stdout, text)
		}
		if err != nil {
			return err
		}
		if !valid {
			failed = errFindings
		}
	}
	return failed
}

func (p *program) readFile(name string) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(p.stdin)
	}
	return os.ReadFile(name)
}

// checkText prints the errors in a text, or its limiters, and reports whether the text is valid.
func (p *program) checkText(name string, text []byte) (valid bool, err error) {
	c, flaw := config.Parse(text)
	if flaw != nil {
		for _, one := range split(flaw) {
			if _, err = fmt.Fprintln(p.stdout, located(name, one)); err != nil {
				break
			}
		}
		return false, err
	}
	names, flaw := limiterNames(c)
	if flaw != nil {
		_, err = fmt.Fprintf(p.stdout, "%s: %v\n", name, flaw)
		return false, err
	}
	_, err = fmt.Fprintf(p.stdout, "%s: limiters %s\n", name, printable(names...))
	return true, err
}

func limiterNames(c *config.Config) ([]string, error) {
	mem, err := memstore.New()
	if err != nil {
		return nil, err
	}
	noTier := func(context.Context, string) (string, error) { return "", nil }
	limiters, err := c.Build(elsewhere{mem}, config.WithTierFunc(noTier))
	if err != nil {
		return nil, err
	}
	return limiters.Names(), limiters.Close(context.Background())
}

// elsewhere is a store that is not recognized as one in memory, for which a store block has no
// effect.
type elsewhere struct{ store.Store }

// split returns the errors that were joined.
func split(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}

// located returns the text of an error with its position, in the form that editors recognize.
func located(name string, err error) string {
	if at, ok := errors.AsType[*config.Error](err); ok {
		return fmt.Sprintf("%s:%d:%d: %v", name, at.Line, at.Column, at.Err)
	}
	return fmt.Sprintf("%s: %v", name, err)
}
