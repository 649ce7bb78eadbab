// Ratelimit tries limits on past traffic, checks configuration files, and shows the state that
// Redis or Postgres holds of a key. See [README.md].
//
// [README.md]: https://github.com/ratelimit-go/ratelimit/tree/main/cmd/ratelimit
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
)

const usage = `Ratelimit tries limits on past traffic, and inspects limits in use.

usage: ratelimit <command> [flags] [arguments]

	replay   reads an access log and reports which clients a limit would have denied
	suggest  reads an access log and suggests limits that deny only a few clients
	check    reports the errors in a configuration file, and explains its limits
	schema   prints the JSON Schema of configuration files, for editors
	key      lists the limiters on Redis or Postgres that hold a key, and can reset it
	version  prints the versions of this command, of the library and of Go

"ratelimit <command> -h" lists the flags of a command.
The exit code is 0, 1 if a check or the command itself fails, or 2 for wrong usage.
`

func main() {
	p := &program{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, progress: isTerminal(os.Stderr)}
	os.Exit(p.run(context.Background(), os.Args[1:]))
}

// program is a run of the command.
type program struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	progress       bool // show on stderr how far a log has been read
}

// errUsage means that the arguments are wrong. The reason has been printed.
var errUsage = errors.New("usage")

// errFindings means that a check has failed. The findings have been printed.
var errFindings = errors.New("findings")

// run runs the command, and returns the exit code.
func (p *program) run(ctx context.Context, args []string) int {
	commands := map[string]func(context.Context, []string) error{
		"replay": p.replay, "suggest": p.suggest, "check": p.check, "schema": p.schema, "key": p.key,
		"version": p.version, "-version": p.version, "--version": p.version,
	}
	name := ""
	if len(args) > 0 {
		name = args[0]
	}
	command, found := commands[name]
	if !found {
		return p.help(name)
	}
	err := command(ctx, args[1:])
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	case errors.Is(err, errUsage):
		return 2
	case !errors.Is(err, errFindings):
		fmt.Fprintf(p.stderr, "ratelimit: %v\n", err)
	}
	return 1
}

// help handles a name that is not a command. It returns the exit code.
func (p *program) help(name string) int {
	switch name {
	case "help", "-h", "-help", "--help":
		fmt.Fprintf(p.stdout, "%s", usage)
		return 0
	case "":
	default:
		fmt.Fprintf(p.stderr, "ratelimit: no command %q\n\n", name)
	}
	fmt.Fprintf(p.stderr, "%s", usage)
	return 2
}

// version is the command version.
func (p *program) version(_ context.Context, args []string) error {
	flags := p.newFlags("version", "\n\nVersion prints the versions of this command, of the library and of Go.\n")
	if err := p.parse(flags, args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return p.misuse(flags, errors.New("it takes no arguments"))
	}
	const library = "github.com/ratelimit-go/ratelimit"
	own, lib := "unknown", "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		own = cmp.Or(info.Main.Version, own)
		for _, m := range info.Deps {
			switch {
			case m.Path != library:
			case m.Replace != nil: // as in this repository
				lib = cmp.Or(m.Replace.Version, "(devel)")
			default:
				lib = m.Version
			}
		}
	}
	_, err := fmt.Fprintf(p.stdout, "ratelimit %s, library %s, %s %s/%s\n", own, lib, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}

// newFlags returns the flags of a command. text describes the command, and begins with its
// arguments.
func (p *program) newFlags(name, text string) *flag.FlagSet {
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	flags.SetOutput(p.stderr)
	flags.Usage = func() {
		fmt.Fprintf(flags.Output(), "usage: ratelimit %s %s\n", name, text)
		flags.PrintDefaults()
	}
	return flags
}

// parse parses the flags, which come before all other arguments. After "--" there are no flags. If
// help was asked for, parse prints it to stdout.
func (p *program) parse(flags *flag.FlagSet, args []string) error {
	var printed strings.Builder
	flags.SetOutput(&printed)
	err := flags.Parse(args)
	flags.SetOutput(p.stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintf(p.stdout, "%s", &printed)
		return err
	case err != nil:
		fmt.Fprintf(p.stderr, "%s", &printed)
		return errUsage
	}
	if before := args[:len(args)-flags.NArg()]; len(before) > 0 && before[len(before)-1] == "--" {
		return nil
	}
	for _, arg := range flags.Args() {
		if len(arg) > 1 && arg[0] == '-' {
			return p.misuse(flags, fmt.Errorf("%s comes after %s: flags come first, and after them -- if an argument begins with -", arg, flags.Arg(0)))
		}
	}
	return nil
}

// misuse prints what is wrong about the arguments, and returns errUsage.
func (p *program) misuse(flags *flag.FlagSet, err error) error {
	fmt.Fprintf(p.stderr, "ratelimit %s: %s\n", flags.Name(), strings.TrimPrefix(err.Error(), "ratelimit: "))
	flags.Usage()
	return errUsage
}

func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
