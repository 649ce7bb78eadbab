// Server is a small API with limits: each client has its tier's, and two routes have one
// of their own. The answers report them. It runs in memory or, with REDIS_ADDR
// (host:port), shares its limits with all servers on the same Redis. While Redis is down
// it goes on alone. LISTEN is its address, ":8080" by default. Operators have another one,
// PRIVATE_LISTEN, "localhost:8081" by default: metrics for Prometheus, and the clients that
// are denied most. It logs as JSON.
//
//	cd examples/server && go run .
//	curl -i localhost:8080/v1/algorithms
//	curl -i -H 'X-API-Key: demo-pro' 'localhost:8080/v1/search?q=bucket'
//	curl -i -d user=demo -d password=guess localhost:8080/v1/login
//	curl localhost:8081/metrics
//	curl localhost:8081/limits
//
// Look at limits.go, which has the limits, at newServer, which puts them in front of the
// routes, and at watch.go, which shows them. Kill Redis, and see who decides then.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// config is how the server is set up.
type config struct {
	listen, private string        // host:port, for all and for operators
	redisAddr       string        // host:port; "" is limits in memory
	grace           time.Duration // for requests under way when the server ends
	log             *slog.Logger

	// Tests set these; the program leaves them to the stores.
	clock        func() time.Time
	redisTimeout time.Duration
}

func configOf(getenv func(string) string) config {
	return config{
		listen:    cmp.Or(getenv("LISTEN"), ":8080"),
		private:   cmp.Or(getenv("PRIVATE_LISTEN"), "localhost:8081"),
		redisAddr: getenv("REDIS_ADDR"),
		grace:     10 * time.Second,
		log:       slog.New(slog.NewJSONHandler(os.Stderr, nil)),
	}
}

// redisLog logs what go-redis says, mostly of connections that fail. By itself it writes plain text to stderr, between
// the lines of JSON.
type redisLog struct{ *slog.Logger }

func (l redisLog) Printf(ctx context.Context, format string, args ...any) {
	l.WarnContext(ctx, fmt.Sprintf(format, args...), "library", "go-redis")
}

const usage = `An API with limits. It takes no arguments; these variables of the environment set it up:

	LISTEN          host:port for all, ":8080" by default
	PRIVATE_LISTEN  host:port for operators, "localhost:8081" by default
	REDIS_ADDR      host:port of the Redis that keeps the limits, in memory by default
`

// arguments answers all arguments: help, and what is wrong. If there are none it serves.
func arguments(args []string, stdout, stderr io.Writer) (code int, serves bool) {
	switch {
	case len(args) == 0:
		return 0, true
	case slices.Contains([]string{"-h", "-help", "--help"}, args[0]):
		fmt.Fprintf(stdout, "%s", usage)
		return 0, false
	}
	fmt.Fprintf(stderr, "server: no argument %q\n\n%s", args[0], usage)
	return 2, false
}

func main() {
	if code, serves := arguments(os.Args[1:], os.Stdout, os.Stderr); !serves {
		os.Exit(code)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	cfg := configOf(os.Getenv)
	redis.SetLogger(redisLog{cfg.log})
	if err := listenAndRun(ctx, cfg); err != nil {
		cfg.log.Error("the server ends", "error", err)
		os.Exit(1)
	}
}

// listeners are for all and for operators.
type listeners struct{ public, private net.Listener }

func (l listeners) close() error { return errors.Join(l.public.Close(), l.private.Close()) }

func listenAndRun(ctx context.Context, cfg config) error {
	public, err := new(net.ListenConfig).Listen(ctx, "tcp", cfg.listen)
	if err != nil {
		return err
	}
	private, err := new(net.ListenConfig).Listen(ctx, "tcp", cfg.private)
	if err != nil {
		return errors.Join(err, public.Close())
	}
	cfg.log.Info("listening", "public", public.Addr().String(), "private", private.Addr().String())
	return run(ctx, listeners{public, private}, cfg)
}

// run serves until ctx is done, and returns when all that it started has ended. It
// returns nil if the requests under way were answered in time.
func run(ctx context.Context, l listeners, cfg config) error {
	handlers, closeStores, err := newServer(cfg)
	if err != nil {
		return errors.Join(err, l.close())
	}
	// Operators can look on until the last request is answered, and if one of the two fails
	// the other one ends.
	public, failed := context.WithCancel(ctx)
	private, ended := context.WithCancel(context.WithoutCancel(ctx))
	looking := make(chan error, 1)
	go func() {
		defer failed()
		looking <- serve(private, l.private, handlers.private, cfg.grace)
	}()
	err = serve(public, l.public, handlers.public, cfg.grace)
	ended()
	return errors.Join(err, <-looking, closeStores())
}

func serve(ctx context.Context, listener net.Listener, handler http.Handler, grace time.Duration) error {
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 5 * time.Second, // without timeouts a slow client keeps its connection for ever
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      20 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served: // the listener has failed
		return errors.Join(err, server.Close())
	case <-ctx.Done():
	}
	timed, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	err := server.Shutdown(timed)
	if err != nil {
		err = errors.Join(err, server.Close()) // closes what has used up its time
	}
	if ended := <-served; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}
	return err
}
