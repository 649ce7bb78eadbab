// Mutate checks the test suite: it breaks the algorithms on purpose, one token at a time,
// and reports each mutant that no test notices.
//
//	go run .                                # everything
//	go run . -only scripts/tokenbucket.lua  # one file
//	go run . -only tokenbucket.go:62 -v     # one line
//	go run . -max 20                        # a sample of each file
//	go run . -list                          # run nothing
//
// It breaks the Go transitions and their twins in Lua: comparisons, arithmetic, logic,
// integers, min and max, ceil and floor, whole statements, fields of literals. Files are
// found by pattern: see files.go. Each mutant is tried in a copy of the module, with
// redis-server required and all tests. It is killed if a test fails, crashes or exceeds
// the timeout. A mutant that does not compile is invalid and does not count.
//
// A mutant that behaves like the original cannot be killed. It is listed in
// equivalent.txt with the reason, and not run.
//
// The exit code is 1 if a mutant survives or an entry of equivalent.txt is out of date.
// It is 2 if the check was not possible, most likely because the suite fails without a
// mutant.
//
// There are about 2,300 mutants. One that is killed takes 1 to 3 s, and one that survives
// takes as long as the suite. On two idle cores -max 20 takes a quarter of an hour, and
// all mutants five times as long.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// root is the module that is broken.
var root = filepath.Join("..", "..")

// maxMemory, in bytes, is for each process: a mutant may allocate without end.
const maxMemory = 4 << 30

var errSurvivors = errors.New("mutate: the suite misses mutants, or equivalent.txt is out of date")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
	case errors.Is(err, errSurvivors):
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	case err != nil:
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(2)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	var s suite
	flags := flag.NewFlagSet("mutate", flag.ContinueOnError)
	flags.Usage = func() {
		fmt.Fprintln(flags.Output(), "usage: mutate [flags] [packages to test, instead of those that matter]")
		flags.PrintDefaults()
	}
	only := flags.String("only", "", "comma-separated `files` to break, each as path or path:line")
	limit := flags.Int("max", 0, "mutants of a file, spread evenly; 0 for all")
	list := flags.Bool("list", false, "print the mutants and run nothing")
	all := flags.Bool("all", false, "also run the mutants of equivalent.txt")
	jobs := flags.Int("j", 2, "mutants tested at the same time")
	pattern := flags.String("run", "", "run only tests that match `regexp`, of the packages given or else of the module's root")
	flags.BoolVar(&s.short, "short", false, "run the tests with -short")
	flags.DurationVar(&s.timeout, "timeout", 2*time.Minute, "for the tests of one package; a mutant that takes longer is killed")
	flags.BoolVar(&s.verbose, "v", false, "print the fate of each mutant, with the test that killed it")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if s.quick = *pattern == "" && flags.NArg() == 0; s.quick {
		s.steps = everything
	} else {
		s.steps = []step{{*pattern, flags.Args()}}
	}
	if err := limitMemory(maxMemory); err != nil {
		return err
	}

	files, err := filesOf(root)
	if err != nil {
		return err
	}
	listed, err := parseEquivalents(equivalentText)
	if err != nil {
		return err
	}
	rep := report{stale: listed.astray(files)}
	for _, file := range files {
		line, ok := selected(file, *only)
		if !ok {
			continue
		}
		mutants, err := mutantsOf(root, file)
		if err != nil {
			return err
		}
		rep.stale = append(rep.stale, listed.mark(file, mutants)...)
		rep.add(file, mutants, line, *limit)
	}
	if len(rep.files) == 0 {
		return fmt.Errorf("-only %s: there are %s", *only, strings.Join(files, ", "))
	}
	if *list {
		rep.list(out)
		return nil
	}
	err = s.try(ctx, root, rep.pending(*all), *jobs)
	if err == nil || s.done > 0 { // report what is known so far
		rep.print(out)
	}
	if err != nil {
		return err
	}
	if rep.failed() {
		return errSurvivors
	}
	return nil
}

// selected reports whether only names the file, and which line of it; 0 is all.
func selected(file, only string) (line int, ok bool) {
	if only == "" {
		return 0, true
	}
	for part := range strings.SplitSeq(only, ",") {
		if part == file {
			return 0, true
		}
		if number, found := strings.CutPrefix(part, file+":"); found {
			if line, err := strconv.Atoi(number); err == nil {
				return line, true
			}
		}
	}
	return 0, false
}
