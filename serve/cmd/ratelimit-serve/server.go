package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"github.com/ratelimit-go/ratelimit/serve"
	"github.com/ratelimit-go/ratelimit/store"
)

// start runs the server until ctx ends.
func start(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	set, err := parse(args, stdout, stderr)
	if err != nil {
		return err
	}
	if set.version {
		_, err := fmt.Fprintln(stdout, versions())
		return err
	}
	log := set.logger(stderr)
	if err = set.start(ctx, log, stdout); err != nil && set.logs == "json" {
		log.Error("the server failed", "error", err)
		return errLogged
	}
	return err
}

// start runs the server with these settings until ctx ends.
func (set *settings) start(ctx context.Context, log *slog.Logger, stdout io.Writer) error {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP) // one that comes before the server listens would end it
	defer signal.Stop(hangups)
	files, err := serve.ReadFiles(set.config...)
	if err != nil {
		return err
	}
	parse := serve.Parse
	if set.merge {
		parse = serve.ParseMerged
	}
	rules, err := parse(files...)
	if err != nil {
		return err
	}
	if set.check {
		return set.checkRules(rules, len(files), log, stdout)
	}
	st, err := set.open()
	if err != nil {
		return err
	}
	defer func() { _ = st.Close() }()
	slog.SetDefault(log) // for the libraries
	for _, note := range rules.Notes() {
		log.Warn(note)
	}
	service, err := serve.New(st.Store, rules, set.options(log)...)
	if err != nil {
		return err
	}
	s := &server{settings: set, service: service, ready: st.Ready, log: log}
	if err := s.listen(ctx); err != nil {
		return err
	}
	return s.run(ctx, files, st, hangups)
}

// open makes the store, without connecting to it.
func (set *settings) open() (*serve.Stored, error) {
	if set.storeFile != "" {
		text, err := os.ReadFile(set.storeFile)
		if err != nil {
			return nil, err
		}
		set.store = strings.TrimSpace(string(text))
	}
	return serve.Open(set.store, set.prefix, set.timeout)
}

// checkRules prints what is wrong with rules that a server with these settings would accept, or returns
// why it would not. If no store is given, the files may be for a server with any.
func (set *settings) checkRules(rules *serve.Rules, files int, log *slog.Logger, stdout io.Writer) error {
	st, err := set.open()
	if err != nil {
		return err
	}
	defer func() { _ = st.Close() }()
	if !set.storeGiven && set.storeFile == "" {
		st.Store = anyStore{st.Store}
	}
	if _, err := serve.New(st.Store, rules, set.options(log)...); err != nil {
		return err
	}
	for _, note := range rules.Notes() {
		fmt.Fprintln(stdout, note)
	}
	_, err = fmt.Fprintf(stdout, "files: %d, errors: 0\n", files)
	return err
}

// anyStore is a store that is not recognized as one in memory, for which a store block is an error.
type anyStore struct{ store.Store }

func (set *settings) options(log *slog.Logger) []serve.Option {
	opts := []serve.Option{serve.WithLogger(log)}
	if set.headers {
		opts = append(opts, serve.WithHeaders(set.names))
	}
	if set.metadata {
		opts = append(opts, serve.WithMetadata())
	}
	if set.shadow {
		opts = append(opts, serve.WithShadow())
	}
	if set.topKeys != 0 {
		opts = append(opts, serve.WithTopKeys(set.topKeys))
	}
	if len(set.proxies) > 0 {
		opts = append(opts, serve.WithProxies(set.proxies...))
	}
	if set.fields != "" {
		opts = append(opts, serve.WithFields(set.fields))
	}
	return opts
}

// server has everything that listens.
type server struct {
	*settings
	service *serve.Service
	ready   func(context.Context) error // returns whether the store answers; nil for memory
	log     *slog.Logger

	grpcServer    *grpc.Server
	health        *health.Server
	httpServer    *http.Server
	privateServer *http.Server
	serving       []func() error // each returns at the end
	stopping      atomic.Bool
}

// listen opens all ports, or none.
func (s *server) listen(ctx context.Context) (err error) {
	var open []net.Listener
	defer func() {
		if err != nil {
			for _, l := range open {
				_ = l.Close()
			}
		}
	}()
	certificates, err := s.tls()
	if err != nil {
		return err
	}
	on := func(name, address string, serveOn func(net.Listener)) {
		if err != nil || address == "" {
			return
		}
		var l net.Listener
		if l, err = listenOn(ctx, address); err != nil {
			return
		}
		open = append(open, l)
		s.log.Info("listening", "for", name, "address", l.Addr().String())
		serveOn(bounded(l, name))
	}
	on("grpc", s.grpc, func(l net.Listener) {
		var opts []grpc.ServerOption
		if certificates != nil {
			opts = append(opts, grpc.Creds(credentials.NewTLS(certificates.config("h2"))))
		}
		s.newGRPC(opts...)
		s.serving = append(s.serving, func() error { return s.grpcServer.Serve(l) })
	})
	on("http", s.http, func(l net.Listener) {
		if certificates != nil {
			l = certificates.listener(l)
		}
		s.httpServer = s.serveHTTP(l, s.service.Handler())
	})
	on("private", s.private, func(l net.Listener) { s.privateServer = s.serveHTTP(l, s.unlessStopping(s.service.Private(s.ready))) })
	return err
}

// unlessStopping makes /readyz return 503 while the server stops. The other private paths work
// until the end.
func (s *server) unlessStopping(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.stopping.Load() && r.URL.Path == "/readyz" {
			http.Error(w, "stopping", http.StatusServiceUnavailable)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// newGRPC makes a server that limits the resources that a caller can use.
func (s *server) newGRPC(opts ...grpc.ServerOption) {
	opts = append(opts,
		grpc.ForceServerCodecV2(serve.Codec()),
		grpc.MaxRecvMsgSize(serve.MaxBody),
		grpc.MaxHeaderListSize(64<<10), // more than Envoy accepts from a client, whose tracestate it passes on
		grpc.MaxConcurrentStreams(1024),
		grpc.ConnectionTimeout(10*time.Second),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: s.age, MaxConnectionAgeGrace: s.drain, Time: time.Minute, Timeout: 20 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
	)
	s.grpcServer, s.health = grpc.NewServer(opts...), health.NewServer()
	pb.RegisterRateLimitServiceServer(s.grpcServer, s.service)
	healthpb.RegisterHealthServer(s.grpcServer, s.health)
	if s.ready != nil { // see checkStore
		s.health.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
	}
	if s.reflection {
		reflection.Register(s.grpcServer)
	}
}

func (s *server) serveHTTP(l net.Listener, h http.Handler) *http.Server {
	srv := &http.Server{
		Handler: h, ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelWarn), MaxHeaderBytes: 16 << 10,
		ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 20 * time.Second, WriteTimeout: 20 * time.Second, IdleTimeout: 2 * time.Minute,
	}
	s.serving = append(s.serving, func() error {
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	return srv
}

// run serves until ctx ends or a port fails. It reads the files again at each of hangups.
func (s *server) run(ctx context.Context, files []serve.File, st *serve.Stored, hangups <-chan os.Signal) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var all sync.WaitGroup
	for _, serving := range s.serving {
		all.Go(func() {
			if err := serving(); err != nil {
				stop(err)
			}
		})
	}
	again := make(chan struct{})
	all.Go(func() { s.service.Follow(ctx, files, s.every, again, s.config...) })
	all.Go(func() { s.checkStore(ctx, st) })
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-hangups:
			select {
			case again <- struct{}{}:
			case <-ctx.Done():
			}
		}
	}
	s.stop()
	all.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// checkStore connects to the store, retries until the store answers, and logs which settings of its
// servers are wrong.
func (s *server) checkStore(ctx context.Context, st *serve.Stored) {
	if st.Ready == nil {
		return
	}
	again := time.NewTicker(time.Second)
	defer again.Stop()
	for told := false; ; told = true {
		limited, cancel := context.WithTimeout(ctx, 2*time.Second) // because a client that hangs does not notice the end of ctx
		err := st.Ready(limited)
		cancel()
		if err == nil {
			break
		}
		if !told && ctx.Err() == nil {
			s.log.Warn("the store does not answer yet, retrying", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-again.C:
		}
	}
	s.service.Answered()
	if s.health != nil {
		s.health.SetServingStatus("", healthpb.HealthCheckResponse_SERVING)
	}
	findings, err := st.Check(ctx)
	for _, finding := range findings {
		s.log.Warn(finding)
	}
	if err != nil && ctx.Err() == nil {
		s.log.Warn("the settings of the store cannot be checked", "error", err)
	}
}

// stop waits for the requests in progress, releases leases, and closes the private port last.
func (s *server) stop() {
	s.stopping.Store(true)
	s.log.Info("stopping")
	ctx, cancel := context.WithTimeout(context.Background(), s.drain)
	defer cancel()
	var all sync.WaitGroup
	if s.grpcServer != nil {
		s.health.Shutdown()
		all.Go(func() {
			end := context.AfterFunc(ctx, s.grpcServer.Stop)
			defer end()
			s.grpcServer.GracefulStop()
		})
	}
	all.Go(func() { shutdown(ctx, s.httpServer) })
	all.Wait()
	late, cancel := context.WithTimeout(context.Background(), s.timeout) // even if requests took all of the time
	defer cancel()
	if err := s.service.Close(late); err != nil {
		s.log.Warn("leases could not be released", "error", err)
	}
	ended, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	shutdown(ended, s.privateServer)
}

// shutdown waits until ctx ends for the requests of a server, if there is one.
func shutdown(ctx context.Context, srv *http.Server) {
	if srv != nil && srv.Shutdown(ctx) != nil {
		_ = srv.Close()
	}
}
