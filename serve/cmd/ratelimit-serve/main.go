// Ratelimit-serve decides on rate limits for proxies and for programs in other languages. See
// [serve.md].
//
// [serve.md]: https://github.com/ratelimit-go/ratelimit/blob/main/docs/serve.md
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/ratelimit-go/ratelimit/serve"
)

const usage = `Ratelimit-serve decides on rate limits over gRPC, for Envoy, and over HTTP.

usage: ratelimit-serve -config limits.yaml [flags]
       ratelimit-serve ask [flags] domain key=value[,key=value]...

It reads the files of github.com/envoyproxy/ratelimit. Limits are in memory, or with
-store on Redis or Postgres. Files are read again when they change, and on SIGHUP.

"ask" sends one request to a server, with a descriptor for each argument, and prints the response.

`

func main() {
	adoptLibraries()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process immediately
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// errUsage means that the arguments are invalid. The reason has been printed.
var errUsage = errors.New("usage")

// errLogged means that a server failed. The log has the reason.
var errLogged = errors.New("logged")

// run returns the exit code: 0, 1 if something fails, or 2 for invalid usage.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	command := start
	if len(args) > 0 && args[0] == "ask" {
		command, args = ask, args[1:]
	}
	err := command(ctx, args, stdout, stderr)
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	case errors.Is(err, errUsage):
		return 2
	case !errors.Is(err, errLogged):
		fmt.Fprintf(stderr, "ratelimit-serve: %v\n", err)
	}
	return 1
}

// texts is a flag that can be given several times.
type texts []string

func (t *texts) String() string { return strings.Join(*t, ",") }

func (t *texts) Set(s string) error {
	*t = append(*t, strings.Split(s, ",")...)
	return nil
}

// settings are set by the flags.
type settings struct {
	config, proxies          texts
	fields                   string
	merge, check             bool
	store, storeFile, prefix string
	storeGiven               bool // whether the flag -store is given
	timeout                  time.Duration
	grpc, http, private      string
	headers, metadata        bool
	names                    serve.Headers
	shadow, reflection       bool
	version                  bool
	topKeys                  int
	every, age, drain        time.Duration
	cert, key, clients, logs string
}

func parse(args []string, stdout, stderr io.Writer) (*settings, error) {
	var set settings
	flags := newFlags("ratelimit-serve", stderr)
	flags.Var(&set.config, "config", "`file` of limits, or a directory of .yaml files; can be given several times")
	flags.BoolVar(&set.merge, "merge-domain-config", false, "merge files with the same domain, in the order of their names")
	flags.BoolVar(&set.check, "check", false, "only check the files, for the store of -store or -store-file if one is given, and print what is wrong in them")
	flags.StringVar(&set.store, "store", "memory:", "`URL` of the store: memory:, redis://host:6379, rediss:// with TLS, redis+cluster://, redis://…?master_name=m of Sentinels, or postgres://host/database")
	flags.StringVar(&set.storeFile, "store-file", "", "`file` with the URL of the store, in place of -store: others can see the arguments of a process, and a URL may have a password")
	flags.StringVar(&set.prefix, "prefix", "rl", "`prefix` of all keys on Redis, or the table on Postgres, where rl stands for ratelimit")
	flags.DurationVar(&set.timeout, "timeout", time.Second, "the longest time that a call to the store may take; always at most four fifths of a request's own deadline")
	flags.StringVar(&set.grpc, "grpc", "localhost:8081", "`address` for gRPC, or unix:/path of a socket; empty for none")
	flags.StringVar(&set.http, "http", "localhost:8080", "`address` for HTTP, or unix:/path of a socket; empty for none")
	flags.StringVar(&set.private, "private", "localhost:6070", "`address` for operators, or unix:/path of a socket: /metrics, /healthz, /readyz, /rules, /limits; empty for none")
	flags.Var(&set.proxies, "proxies", "`networks` of proxies, whose X-Forwarded-For and -fields are trusted in /check, such as 10.0.0.0/8; or unix")
	flags.StringVar(&set.fields, "fields", "", "`family` of fields in which the proxies report method, path and host in /check: original (X-Original-*) or forwarded (X-Forwarded-*)")
	flags.BoolVar(&set.headers, "headers", false, "add header fields for clients to responses over gRPC")
	flags.StringVar(&set.names.Limit, "header-limit", "", "`name` of the field with the limit over gRPC, RateLimit-Limit by default")
	flags.StringVar(&set.names.Remaining, "header-remaining", "", "`name` of the field with what is left over gRPC, RateLimit-Remaining by default")
	flags.StringVar(&set.names.Reset, "header-reset", "", "`name` of the field with the seconds over gRPC, RateLimit-Reset by default")
	flags.BoolVar(&set.metadata, "metadata", false, "add dynamic metadata to responses")
	flags.BoolVar(&set.shadow, "shadow", false, "answer OK to all requests; only statuses, logs and metrics show what would be denied")
	flags.BoolVar(&set.reflection, "reflection", true, "describe the gRPC services to tools such as grpcurl")
	flags.IntVar(&set.topKeys, "top-keys", 0, "`entries` per domain, 16 to 65536, to track the keys that are denied most and that ask most, and show them at /limits; 0 for none")
	flags.DurationVar(&set.every, "reload", 5*time.Second, "how often files are read; a change takes effect when two consecutive reads have seen the same")
	flags.DurationVar(&set.age, "max-connection-age", 30*time.Minute, "time after which a gRPC connection is asked to end, so that load moves to new servers")
	flags.DurationVar(&set.drain, "drain", 10*time.Second, "how long to wait at the end for requests in progress; a second signal ends the process immediately")
	flags.StringVar(&set.cert, "tls-cert", "", "`file` of the certificate, for gRPC and HTTP; it is read again when it changes")
	flags.StringVar(&set.key, "tls-key", "", "`file` of its key")
	flags.StringVar(&set.clients, "tls-clients", "", "`file` of the certificate authorities of clients, which must then present a certificate")
	flags.StringVar(&set.logs, "log", "text", "`form` of the log: text or json")
	flags.BoolVar(&set.version, "version", false, "print the versions of this command, of the library and of Go")
	if err := parseFlags(flags, args, stdout, stderr); err != nil {
		return nil, err
	}
	if set.version {
		return &set, nil
	}
	flags.Visit(func(f *flag.Flag) { set.storeGiven = set.storeGiven || f.Name == "store" })
	if reason := set.wrong(flags.NArg()); reason != "" {
		fmt.Fprintf(stderr, "ratelimit-serve: %s\n", reason)
		return nil, errUsage
	}
	return &set, nil
}

// wrong returns what is wrong with the flags, or "".
func (set *settings) wrong(more int) string {
	for _, flaw := range []struct {
		is  bool
		why string
	}{
		{more > 0, "unexpected arguments after the flags"},
		{len(set.config) == 0, "-config is missing"},
		{set.grpc == "" && set.http == "", "-grpc and -http are both empty, so nothing could be asked"},
		{slices.ContainsFunc([]string{set.grpc, set.http, set.private}, unfinished), "-grpc, -http and -private: an address has no port, or no path after unix: (0 is any free port)"},
		{set.timeout <= 0 || set.every <= 0 || set.age <= 0 || set.drain < 0, "-timeout, -reload and -max-connection-age must be above 0, and -drain 0 or more"},
		{set.storeGiven && set.storeFile != "", "-store and -store-file cannot be combined"},
		{(set.cert == "") != (set.key == ""), "-tls-cert and -tls-key must be given together"},
		{set.clients != "" && set.cert == "", "-tls-clients has no effect without -tls-cert"},
		{!set.headers && set.names != (serve.Headers{}), "-header-limit, -header-remaining and -header-reset have no effect without -headers"},
		{set.grpc == "" && (set.headers || set.metadata), "-headers and -metadata have no effect without -grpc"},
		{set.http == "" && len(set.proxies) > 0, "-proxies has no effect without -http"},
		{slices.Contains(set.proxies, "unix") && !strings.HasPrefix(set.http, "unix:"), "-proxies unix has no effect, because -http is not a Unix socket"},
		{set.fields != "" && len(set.proxies) == 0, "-fields has no effect without -proxies"},
		{set.private == "" && set.topKeys != 0, "-top-keys has no effect without -private"},
		{set.logs != "text" && set.logs != "json", "-log: want text or json"},
	} {
		if flaw.is {
			return flaw.why
		}
	}
	return ""
}

// unfinished reports whether an address ends where its port or path should be, as :$PORT does if the variable is not set. The
// system would choose one that nobody knows.
func unfinished(address string) bool {
	return strings.HasSuffix(address, ":") || address == "unix://"
}

func (set *settings) logger(w io.Writer) *slog.Logger {
	if set.logs == "json" {
		return slog.New(slog.NewJSONHandler(w, nil))
	}
	return slog.New(slog.NewTextHandler(w, nil))
}

// versions returns the versions of this command, of the library and of Go.
func versions() string {
	own, library := "unknown", "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		own = cmp.Or(info.Main.Version, own)
		for _, m := range info.Deps {
			switch {
			case m.Path != "github.com/ratelimit-go/ratelimit":
			case m.Replace != nil: // as in this repository
				library = cmp.Or(m.Replace.Version, "(devel)")
			default:
				library = m.Version
			}
		}
	}
	return fmt.Sprintf("ratelimit-serve %s, library %s, %s %s/%s", own, library, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

func newFlags(name string, stderr io.Writer) *flag.FlagSet {
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	flags.SetOutput(stderr)
	return flags
}

// parseFlags reads the flags. Help that was requested is printed to stdout, and is not an error.
func parseFlags(flags *flag.FlagSet, args []string, stdout, stderr io.Writer) error {
	var printed strings.Builder
	flags.SetOutput(&printed)
	flags.Usage = func() {
		fmt.Fprintf(flags.Output(), "%s", usage)
		flags.PrintDefaults()
	}
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintf(stdout, "%s", &printed)
		return err
	case err != nil:
		fmt.Fprintf(stderr, "%s", &printed)
		return errUsage
	}
	return nil
}
