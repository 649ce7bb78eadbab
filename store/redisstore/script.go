package redisstore

import (
	"context"
	"crypto/sha1" //nolint:gosec // Redis names scripts by their SHA-1
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit/store"
)

const (
	eval    = "eval"
	evalsha = "evalsha"
)

// script is a script and its name on the server, both boxed once for all calls.
type script struct{ text, sha any }

func newScript(text string) *script {
	sum := sha1.Sum([]byte(text)) //nolint:gosec // as above
	return &script{text: text, sha: hex.EncodeToString(sum[:])}
}

func (s *Store) script(rule *store.Rule) *script {
	if sc, ok := s.scripts.Load(rule); ok {
		return sc.(*script)
	}
	sc, _ := s.scripts.LoadOrStore(rule, newScript(rule.Script))
	return sc.(*script)
}

// run runs a script with args, a whole EVALSHA command, within ctx's deadline and
// the store's timeout.
func (s *Store) run(ctx context.Context, sc *script, args []any) (store.Reply, error) {
	if err := ctx.Err(); err != nil {
		return store.Reply{}, err
	}
	limited := ctx
	if end, ok := ctx.Deadline(); !ok || time.Until(end) > s.timeout {
		var cancel context.CancelFunc
		limited, cancel = context.WithTimeout(ctx, s.timeout)
		defer cancel()
	}

	cmd := newCommand(limited, args)
	err := s.process(limited, cmd)
	if err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
		// Nothing ran, and EVAL never answers NOSCRIPT.
		args = slices.Clone(args)
		args[0], args[1] = eval, sc.text
		cmd = newCommand(limited, args)
		err = s.process(limited, cmd)
	}
	if err != nil && !errors.Is(err, redis.Nil) {
		return store.Reply{}, s.failure(ctx, err)
	}
	return parse(cmd.Val())
}

// parse reads a script's reply, four integers.
func parse(val any) (store.Reply, error) {
	list, ok := val.([]any)
	if !ok || len(list) != 4 {
		return store.Reply{}, fmt.Errorf("%w: reply is %T of %d elements, not a list of 4", store.ErrStore, val, len(list))
	}
	var v [4]int64
	for i := range v {
		if v[i], ok = list[i].(int64); !ok {
			return store.Reply{}, fmt.Errorf("%w: element %d of the reply is %T, not an integer", store.ErrStore, i, list[i])
		}
	}
	if v[0] != 0 && v[0] != 1 {
		return store.Reply{}, fmt.Errorf("%w: reply begins with %d, not with 0 or 1", store.ErrStore, v[0])
	}
	return store.Reply{OK: v[0] == 1, X: v[1], Y: v[2], Z: v[3]}, nil
}

// failure is the error of a call with ctx that err ended.
func (s *Store) failure(ctx context.Context, err error) error {
	if cause := ctx.Err(); cause != nil {
		return cause
	}
	if end, ok := ctx.Deadline(); ok && !time.Now().Before(end) {
		return context.DeadlineExceeded // the socket's timer was faster than ctx's
	}
	var answer redis.Error
	what := fmt.Sprintf("no reply (timeout %v), the outcome is unknown", s.timeout)
	switch {
	case errors.As(err, &answer):
		return fmt.Errorf("%w: %w", store.ErrStore, err)
	case unsent(err):
		what = "nothing was sent"
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		// Not the caller's context ended, so its errors must not show.
		return fmt.Errorf("%w: %s: %v", store.ErrStore, what, err) //nolint:errorlint // on purpose
	}
	return fmt.Errorf("%w: %s: %w", store.ErrStore, what, err)
}

// unsent reports whether err proves that the command never left the process.
// redis.ErrClosed does not: an AutoPipeliner that is closed may have sent it.
func unsent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial" ||
		errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted) ||
		errors.Is(err, redis.ErrAutoPipelineQueueFull)
}
