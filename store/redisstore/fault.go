package redisstore

// Calls without a reply for their caller: the class of their failure, and the refund if the reply arrives after the
// caller has left.

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit/internal/redisview"
	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/carrier"
)

// fault is a failed call, as the caller sees it.
type fault = carrier.Failure

// faultOf returns err, the error of a call without a reply, as a fault.
func faultOf(err error) *fault {
	var f *fault
	switch {
	case !errors.As(err, &f):
		return answered(err)
	case errors.Is(f.Err, errReading):
		return &fault{Class: store.ErrStore, Err: f.Err}
	case errors.Is(f.Class, store.ErrTimeout) && unreadable(f.Err):
		f.What = "the reply cannot be parsed, so the outcome is unknown"
	}
	return f
}

// answeredBy reports whether err is a server's answer on a good connection.
func answeredBy(err error) bool { return err == nil || isAnswer(err) }

func isAnswer(err error) bool {
	var answer redis.Error
	return errors.As(err, &answer) && !redisview.Unnamed(err)
}

// timedOut reports whether err is a timeout, of a context or of a socket.
func timedOut(err error) bool {
	var n net.Error
	return errors.Is(err, context.Canceled) || errors.As(err, &n) && n.Timeout() // as context.DeadlineExceeded is
}

// refusing has the answers of a server that cannot work now and has changed nothing. A value is true if another node has
// the key, or will have it. READONLY and NOREPLICAS are among them, because a script that gets them at its first write
// has written nothing.
var refusing = map[string]bool{
	"LOADING": false, "READONLY": true, "TRYAGAIN": true, "CLUSTERDOWN": true, "MASTERDOWN": false, "NOREPLICAS": false,
	"BUSY": false, "MOVED": true, "ASK": true,
}

// elsewhere reports whether err is the answer of a cluster's node that another node has the key, or
// will have it.
func elsewhere(err error) bool {
	var answer redis.Error
	return errors.As(err, &answer) && refusing[codeOf(answer.Error())]
}

// answered returns the fault of a server's answer.
func answered(err error) *fault {
	answer := err.Error()
	code := codeOf(answer)
	switch _, refuses := refusing[code]; {
	case refuses, strings.Contains(answer, "max number of clients"):
		return &fault{Class: store.ErrUnavailable, Err: err, Again: true}
	case code == "MISCONF": // it cannot save to its disk, and so refuses writes
		return &fault{Class: store.ErrUnavailable, Err: err}
	case code == "OOM":
		return &fault{Class: store.ErrOutOfMemory, Err: err}
	case code == "WRONGTYPE", strings.Contains(answer, "ratelimit: the value of the key"):
		return &fault{Class: store.ErrCorrupt, Err: err}
	case strings.Contains(answer, "ratelimit: the clocks of server and"):
		return &fault{Class: store.ErrClock, Err: err}
	}
	return &fault{Class: store.ErrStore, Err: err}
}

// codeOf returns the first word of an answer. For a command within a script, Redis before
// 7 puts a prefix before it: "ERR Error running script (call to f_…): @user_script:3: ".
// Some answers then have "@user_script: 3: " once more, and a minus.
func codeOf(answer string) string {
	answer = strings.TrimPrefix(answer, "ERR ")
	if strings.HasPrefix(answer, "Error running script") {
		_, answer, _ = strings.Cut(answer, "): ")
		for strings.HasPrefix(answer, "@user_script:") {
			_, answer, _ = strings.Cut(answer[len("@user_script:"):], ": ")
		}
		answer = strings.TrimPrefix(answer, "-")
	}
	code, _, _ := strings.Cut(answer, " ")
	return code
}

var errReply = errors.New("the reply is not that of a limiter script")

// unreadable reports whether err is about a reply that is not a list of integers. The client has no
// type for such errors.
func unreadable(err error) bool {
	var number *strconv.NumError
	return errors.Is(err, errReply) || errors.As(err, &number) || strings.HasPrefix(err.Error(), "redis: can't parse")
}

// busy reports whether the client's own queue rejected the command.
func busy(err error) bool {
	return errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted) ||
		errors.Is(err, redis.ErrAutoPipelineQueueFull) || errors.Is(err, redis.ErrAutoPipelineTimeout)
}

// A caller leaves when its context ends. If its call had been sent, the decision arrives when nobody is
// there to use it, so its charge is refunded. The charge of a call that ends by the store's own timeout
// stays, because its caller may continue with the answer of a fallback.

// left is the error of a call whose caller has left while the client is still making the call.
type left struct {
	error
	wait func(ctx context.Context) (ended bool, err error) // until the client has ended the call, or ctx ends
}

func (l left) Unwrap() error { return l.error }

// ended reports whether the client has ended the call by now.
func (l left) ended() bool {
	ended, _ := l.wait(gone)
	return ended
}

// lateOf returns a function that waits for the values of cmd, which has ended in err for its caller. It is nil if there
// is nothing to wait for.
func lateOf(cmd redis.Cmder, err error) func() ([]int64, error) {
	var l left
	if !errors.As(err, &l) {
		return nil
	}
	return func() ([]int64, error) {
		if _, err := l.wait(context.Background()); err != nil {
			return nil, err
		}
		return valuesOf(cmd)
	}
}

// giveBack refunds what c has charged.
func (s *Store) giveBack(c call) {
	go func() {
		defer func() { _ = recover() }() // a hook or the clock has panicked, and there is no caller to panic for
		if c.late != nil {
			var err error
			if c.values, err = c.late(); err != nil {
				return
			}
		}
		for _, r := range s.refunds(&c, c.values) {
			for pause := time.Millisecond; ; pause *= 8 {
				err := s.giveBackBy(r)
				if err == nil || errors.Is(err, store.ErrTimeout) || pause > time.Second { // after a timeout, the refund may have run
					break
				}
				time.Sleep(pause)
			}
		}
	}()
}

func (s *Store) giveBackBy(r *call) error {
	b, v, err := s.admit(context.Background(), true, r.first.key)
	if err != nil {
		return err
	}
	defer b.Leave()
	var reply [1]store.Reply
	return s.decide(b, v, r, reply[:])
}

// refunds returns the calls that refund what c has charged according to its reply.
func (s *Store) refunds(c *call, values []int64) (list []*call) {
	replies := make([]store.Reply, c.size())
	if parse(values, replies) != nil {
		return nil
	}
	for from, to := 0, 0; from < c.size(); from = to {
		to = from + c.alternative(from)
		denied := false
		for i := from; i < to; i++ {
			denied = denied || c.request(i).votes() && !replies[i].OK()
		}
		for i := from; i < to && !denied; i++ {
			r := c.request(i)
			n := r.charged(replies[i])
			if n < 1 || r.rule.Report == nil {
				continue
			}
			back := &call{first: *r}
			back.first.op, back.first.n = refund(replies[i].Receipt(r.rule, r.limit, n, n)), n
			list = append(list, back)
		}
	}
	return list
}

// votes reports whether a denial of r keeps all other requests from being charged.
func (r *request) votes() bool { return r.is("take") || r.is("gate") || r.is("upto") }

// is reports whether the operation of r has this name.
func (r *request) is(name string) bool {
	op, _, _ := strings.Cut(r.op, " ")
	return op == name
}

// charged returns how many events of reply can be refunded, provided that all requests that vote are OK. The events
// of a Charge have already happened, and the renewal of a slot charges nothing.
func (r *request) charged(reply store.Reply) int64 {
	renews := r.rule.Held && strings.Contains(r.op, " ") // the number of the slot follows
	switch {
	case !reply.OK() || renews:
	case r.is("upto"):
		return max(1, min(r.n, reply.Available(r.rule, r.limit)-r.reserved))
	case r.is("take"), r.is("shadow"):
		return r.n
	}
	return 0
}
