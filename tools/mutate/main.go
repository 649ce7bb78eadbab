// Mutate checks the tests: it breaks the code on purpose, one token at a time, and reports
// each mutant that no test notices.
//
//	go run .                                # everything
//	go run . -group lease,queue             # some groups of files
//	go run . -only scripts/tokenbucket.lua  # one file
//	go run . -only tokenbucket.go:62 -v     # one line
//	go run . -max 20 -seed 7                # a random sample of each file
//	go run . -list                          # run nothing
//
// It breaks Go and Lua: comparisons, arithmetic, logic, integers, min and max, ceil and floor,
// whole statements, fields of literals. files.go says which files, and which packages' tests
// judge them. A mutant is killed if a test fails, or panics, or takes too long. One that does
// not compile is invalid and does not count.
//
// All mutants of functions of a group are in one build, and the environment says which of them
// a test binary is. A mutant of a declaration outside of functions has a build of its own. A
// script is read from a file. Profiles of coverage say which tests reach a mutant: only those
// run, and once more with RATELIMIT_FULL=1 those of the nearest packages.
//
// A mutant that behaves like the original cannot be killed. It is listed in
// equivalent.txt with the reason, and not run.
//
// The exit code is 1 if more mutants survive than -open says, none by default, or an entry of
// equivalent.txt is out of date.
// It is 2 if the check was not possible.
//
// There are about 12,800 mutants. One takes 4 to 8 s of the processor on average, what is built
// for all of a group included: most that are killed far less, one that survives up to a minute.
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
	"slices"
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
	flags := flag.NewFlagSet("mutate", flag.ContinueOnError)
	flags.Usage = func() {
		fmt.Fprintln(flags.Output(), "usage: mutate [flags]")
		flags.PrintDefaults()
	}
	only := flags.String("only", "", "comma-separated `files` to break, each as path or path:line")
	of := flags.String("group", "", "comma-separated `groups` of files to break; all of them if empty")
	limit := flags.Int("max", 0, "mutants of a file, chosen at random; 0 for all")
	number := flags.Uint64("seed", 1, "of the random choice")
	list := flags.Bool("list", false, "print the mutants and run nothing")
	all := flags.Bool("all", false, "also run the mutants of equivalent.txt")
	percent := flags.Int("open", 0, "how many percent of a group's mutants may survive")
	jobs := flags.Int("j", 1, "mutants tested at the same time")
	most := flags.Duration("for", 24*time.Hour, "how long to try mutants; the rest is not run")
	verbose := flags.Bool("v", false, "print the fate of each mutant, with the test that killed it")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected %q", flags.Args())
	}
	if err := limitMemory(maxMemory); err != nil {
		return err
	}

	listed, err := parseEquivalents(equivalentText)
	if err != nil {
		return err
	}
	var rep report
	var known []string // files
	for _, g := range groups {
		files, err := g.filesOf(root)
		if err != nil {
			return err
		}
		known = append(known, files...)
		for _, file := range files {
			lines, ok := selected(file, *only)
			if !ok || *of != "" && !slices.Contains(strings.Split(*of, ","), g.name) {
				continue
			}
			mutants, err := mutantsOf(root, file)
			if err != nil {
				return err
			}
			rep.stale = append(rep.stale, listed.mark(file, mutants)...)
			rep.add(g.name, file, mutants, lines, *limit, *number)
		}
	}
	rep.stale = append(rep.stale, listed.astray(known)...)
	if len(rep.files) == 0 {
		return fmt.Errorf("nothing is chosen: there are %s", strings.Join(known, ", "))
	}
	if *list {
		rep.list(out)
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, *most)
	defer cancel()
	for _, g := range groups {
		mutants, files := rep.pending(g.name, *all)
		if len(mutants) == 0 {
			continue
		}
		s := suite{group: &g, verbose: *verbose}
		if err = s.try(ctx, mutants, files, *jobs); err != nil {
			err = fmt.Errorf("%s: %w", g.name, err)
			break
		}
	}
	rep.print(out) // what is known so far
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if rep.failed(*percent) {
		return errSurvivors
	}
	return nil
}

// selected reports whether only names the file, and which lines of it; none is all.
func selected(file, only string) (lines []int, ok bool) {
	if only == "" {
		return nil, true
	}
	for part := range strings.SplitSeq(only, ",") {
		if part == file {
			return nil, true
		}
		if number, found := strings.CutPrefix(part, file+":"); found {
			if line, err := strconv.Atoi(number); err == nil {
				lines = append(lines, line)
			}
		}
	}
	return lines, lines != nil
}
