package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// ask sends one request to a server, without TLS, and prints the response.
func ask(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := newFlags("ratelimit-serve ask", stderr)
	address := flags.String("grpc", "localhost:8081", "`address` of the server")
	hits := flags.Uint64("hits", 1, "how many events; 0 looks without charging")
	back := flags.Bool("back", false, "refund the events")
	timeout := flags.Duration("timeout", 5*time.Second, "how long to wait")
	if err := parseFlags(flags, args, stdout, stderr); err != nil {
		return err
	}
	if flags.NArg() < 2 {
		fmt.Fprintln(stderr, "ratelimit-serve ask: want a domain and a descriptor such as path=/login,user=ann")
		return errUsage
	}
	ended := len(args) > flags.NArg() && args[len(args)-flags.NArg()-1] == "--"
	for _, text := range flags.Args() {
		if strings.HasPrefix(text, "-") && !ended { // it would be a descriptor, and the others would be charged
			fmt.Fprintf(stderr, "ratelimit-serve ask: %s comes after %s: flags come first, and after them -- if an argument begins with -\n", text, flags.Arg(0))
			return errUsage
		}
	}
	req := &pb.RateLimitRequest{Domain: flags.Arg(0)}
	for _, text := range flags.Args()[1:] {
		d := &common.RateLimitDescriptor{HitsAddend: wrapperspb.UInt64(*hits), IsNegativeHits: *back}
		for entry := range strings.SplitSeq(text, ",") {
			key, value, _ := strings.Cut(entry, "=")
			d.Entries = append(d.Entries, &common.RateLimitDescriptor_Entry{Key: key, Value: value})
		}
		req.Descriptors = append(req.Descriptors, d)
	}
	conn, err := grpc.NewClient(*address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	answer, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, req)
	if err != nil {
		return err
	}
	for i, st := range answer.GetStatuses() {
		if st.GetCurrentLimit() == nil && st.GetLimitRemaining() == 0 { // LimitRemaining is the largest number if it is unlimited
			fmt.Fprintf(stderr, "ratelimit-serve ask: no limit counts %s; the private port lists all rules at /rules\n", flags.Arg(1+i))
		}
	}
	_, err = fmt.Fprintln(stdout, protojson.MarshalOptions{Multiline: true}.Format(answer))
	return err
}
