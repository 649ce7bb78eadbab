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

// libraries logs the messages of go-redis and grpc-go in the format of the server's own log,
// because a line in another format breaks readers of a JSON log.
type libraries struct{ grpclog.LoggerV2 }

// adoptLibraries makes both libraries log to [slog.Default].
func adoptLibraries() {
	l := libraries{grpclog.NewLoggerV2(io.Discard, io.Discard, os.Stderr)} // only errors, as by default
	redis.SetLogger(l)
	grpclog.SetLoggerV2(l)
}

// Printf is for go-redis. Most of its messages are failures.
func (libraries) Printf(ctx context.Context, format string, args ...any) {
	slog.WarnContext(ctx, fmt.Sprintf(format, args...), "library", "go-redis")
}

// Error and the methods below are for grpc-go.
func (libraries) Error(args ...any) { slog.Error(fmt.Sprint(args...), "library", "grpc-go") }

func (l libraries) Errorln(args ...any) {
	l.Error(strings.TrimSuffix(fmt.Sprintln(args...), "\n"))
}

func (l libraries) Errorf(format string, args ...any) { l.Error(fmt.Sprintf(format, args...)) }
