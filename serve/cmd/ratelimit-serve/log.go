package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc/grpclog"
)

// libraries logs what go-redis and grpc-go have to say in the form of the server's own lines. One line of another form
// breaks what reads a log of JSON.
type libraries struct{ grpclog.LoggerV2 }

// adoptLibraries makes them log by [slog.Default].
func adoptLibraries() {
	l := libraries{grpclog.NewLoggerV2(io.Discard, io.Discard, os.Stderr)} // errors alone, as by default
	redis.SetLogger(l)
	grpclog.SetLoggerV2(l)
}

// Printf is for go-redis, most of whose lines are failures.
func (libraries) Printf(ctx context.Context, format string, args ...any) {
	slog.WarnContext(ctx, fmt.Sprintf(format, args...), "library", "go-redis")
}

// Error is for grpc-go, and so are the others.
func (libraries) Error(args ...any) { slog.Error(fmt.Sprint(args...), "library", "grpc-go") }

func (l libraries) Errorln(args ...any) {
	l.Error(strings.TrimSuffix(fmt.Sprintln(args...), "\n"))
}

func (l libraries) Errorf(format string, args ...any) { l.Error(fmt.Sprintf(format, args...)) }
