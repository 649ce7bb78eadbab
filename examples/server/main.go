// Server is a small API with limits: each client has its tier's, and two routes have one
// of their own. The answers report them. It runs in memory or, with REDIS_ADDR
// (host:port), shares its limits with all servers on the same Redis. While Redis is down
// it goes on alone. LISTEN is its address, ":8080" by default.
//
//	go run ./examples/server
//	curl -i localhost:8080/v1/algorithms
//	curl -i -H 'X-API-Key: demo-pro' 'localhost:8080/v1/search?q=bucket'
//	curl -i -d user=demo -d password=guess localhost:8080/v1/login
//	curl localhost:8080/metrics
//
// Look at limits.go, which has the limits, and at newServer, which puts them in front of
// the routes. Kill Redis, and see in /metrics who decides then.
package main

import (
	"cmp"
	"context"
	"errors"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// config is how the server is set up.
type config struct {
	listen    string        // host:port
	redisAddr string        // host:port; "" is limits in memory
	grace     time.Duration // for requests under way when the server ends

	// Tests set these; the program leaves them to the stores.
	clock        func() time.Time
	redisTimeout time.Duration
}

func configOf(getenv func(string) string) config {
	return config{
		listen:    cmp.Or(getenv("LISTEN"), ":8080"),
		redisAddr: getenv("REDIS_ADDR"),
		grace:     10 * time.Second,
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	if err := listenAndRun(ctx, configOf(os.Getenv)); err != nil {
		log.Fatal(err)
	}
}

func listenAndRun(ctx context.Context, cfg config) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", cfg.listen)
	if err != nil {
		return err
	}
	log.Printf("listening on %v", listener.Addr())
	return run(ctx, listener, cfg)
}

// run serves until ctx is done, and returns when all that it started has ended. It
// returns nil if the requests under way were answered in time.
func run(ctx context.Context, listener net.Listener, cfg config) error {
	handler, closeStores, err := newServer(cfg)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	return errors.Join(serve(ctx, listener, handler, cfg.grace), closeStores())
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
