package main

import (
	"context"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/ratelimit-go/ratelimit/serve/internal/testenv"
)

// process is a server in a process of its own.
type process struct {
	pb.RateLimitServiceClient
	cmd *exec.Cmd
}

func startProcess(t *testing.T, args ...string) *process {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	stderr := new(output)
	p := &process{cmd: exec.Command(self, append(args, "-grpc", "127.0.0.1:0", "-http", "", "-private", "")...)}
	p.cmd.Env, p.cmd.Stderr = append(os.Environ(), asProgram+"=1"), stderr
	require.NoError(t, p.cmd.Start())
	t.Cleanup(func() { _ = p.cmd.Process.Kill() })
	listening := regexp.MustCompile(`for=grpc address=(\S+)`)
	var address []string
	require.Eventually(t, func() bool {
		address = listening.FindStringSubmatch(stderr.String())
		return address != nil
	}, time.Minute, time.Millisecond, "%v", stderr)
	p.RateLimitServiceClient = pb.NewRateLimitServiceClient(dial(t, address[1], insecure.NewCredentials()))
	return p
}

// Servers are replaced under load, one after the other: each decision is told and counted once, and
// all servers together admit what the limit says.
func TestRestartsUnderLoad(t *testing.T) {
	t.Parallel()
	const few = 700
	args := []string{
		"-store", "redis://" + testenv.Redis(t), "-timeout", "1m", "-drain", "1m",
		"-config", writeFile(t, "limits.yaml", `domain: edge
descriptors:
  - {key: user, value: few, rate_limit: {unit: year, requests_per_unit: `+strconv.Itoa(few)+`}}
  - {key: user, rate_limit: {unit: year, requests_per_unit: 2000000000}}
`),
	}
	var now atomic.Pointer[process]
	now.Store(startProcess(t, args...))
	var admitted, retried, fewAdmitted atomic.Int64
	// ask asks until there is an answer. What was not decided may be asked again.
	ask := func(name string) bool {
		for {
			answer, err := now.Load().ShouldRateLimit(context.Background(), user(name))
			if err == nil {
				return answer.GetOverallCode() == pb.RateLimitResponse_OK
			}
			if status.Code(err) != codes.Unavailable {
				t.Errorf("%v", err)
				return false
			}
			retried.Add(1)
			time.Sleep(time.Millisecond)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var callers sync.WaitGroup
	for range 16 {
		callers.Go(func() {
			for ctx.Err() == nil {
				if ask("many") {
					admitted.Add(1)
				}
				if ask("few") {
					fewAdmitted.Add(1)
				}
			}
		})
	}
	for range testenv.Of(4, 60) {
		before, asked := admitted.Load(), retried.Load()
		require.Eventually(t, func() bool { return admitted.Load() > before+100 }, time.Minute, time.Millisecond)
		old, next := now.Load(), startProcess(t, args...)
		require.NoError(t, old.cmd.Process.Signal(syscall.SIGTERM))
		require.NoError(t, old.cmd.Wait()) // callers go on asking it
		require.Eventually(t, func() bool { return retried.Load() > asked }, time.Minute, time.Millisecond)
		now.Store(next)
	}
	cancel()
	callers.Wait()
	look := user("many")
	look.Descriptors[0].HitsAddend = wrapperspb.UInt64(0)
	answer, err := now.Load().ShouldRateLimit(t.Context(), look)
	require.NoError(t, err)
	require.EqualValues(t, admitted.Load(), 2_000_000_000-answer.GetStatuses()[0].GetLimitRemaining(), "each decision is told, and counted once")
	for ask("few") {
		fewAdmitted.Add(1)
	}
	require.EqualValues(t, few, fewAdmitted.Load())
	t.Logf("%d decisions, %d asked again", admitted.Load()+fewAdmitted.Load(), retried.Load())
}
