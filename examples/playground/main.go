// Playground shows five algorithms on the same requests, in a browser. The page decides with
// the library itself, compiled to WebAssembly when this program starts. It is a module of its
// own, so run it in its folder:
//
//	cd examples/playground && go run .           # prints the address of the page
//	cd examples/playground && go run . -out dir  # writes a static site
//
// Look at the package simulation. It has all that the page does with the library, in plain
// Go. The page shows its counts, and the tests compare them with those of a native run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"

	"time"
)

func main() {
	listen := flag.String("listen", "localhost:8087", "`address` of the page")
	out := flag.String("out", "", "write the site into this `folder` and end")
	flag.Parse()
	if flag.NArg() > 0 {
		log.Fatalf("no argument %q: -out names the folder of a site", flag.Arg(0))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	run := func() error { return serve(ctx, *listen) }
	if *out != "" {
		run = func() error { return export(ctx, *out) }
	}
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

// export writes the site into dir, with a .br and a .gz beside each file.
func export(ctx context.Context, dir string) error {
	if err := build(ctx, dir); err != nil {
		return err
	}
	return compress(dir)
}

// serve builds the site in a folder of its own, and serves it until ctx is done.
func serve(ctx context.Context, address string) error {
	dir, err := os.MkdirTemp("", "playground")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a folder of the system's temporary ones may stay
	if err := build(ctx, dir); err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	fmt.Printf("http://%s/\n", listener.Addr())
	server := &http.Server{Handler: http.FileServer(http.Dir(dir)), ReadHeaderTimeout: 5 * time.Second}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })() // it has nothing to finish
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
