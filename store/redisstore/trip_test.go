package redisstore

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/store"
)

// replied returns n calls after a script of them all has answered reply.
func replied(n int, reply string) []call {
	calls := make([]call, n)
	g := group{several: true, op: operation{sending: new(sending)}}
	for i := range calls {
		g.calls = append(g.calls, &calls[i])
	}
	cmd := newMixed(context.Background(), nil, n)
	cmd.reply.WriteString(reply)
	g.end(cmd)
	return calls
}

// A server or a proxy may answer anything. What is not a reply of this script is an error of each call, and no more.
func TestAReplyThatIsNotOneIsAnError(t *testing.T) {
	const number = ":7\r\n"
	elements := []string{
		"+OK\r\n", ":\r\n", ":x\r\n", ":1.5\r\n", ":99999999999999999999\r\n", ",1\r\n", "#t\r\n", "_\r\n", "*1\r\n", "!5\r\nERR a\r\n",
		"$0\r\n\r\n", "$-1\r\n", "$-9223372036854775808\r\n", "$9223372036854775807\r\n", "$9223372036854775806\r\n", "$99\r\nE\r\n", "$x\r\n",
	}
	for at := range 8 {
		for _, element := range append(elements, "$5\r\nERR a\r\n") {
			reply := "*8\r\n"
			for i := range 8 {
				if i == at {
					reply += element
				} else {
					reply += number
				}
			}
			if at%4 == 0 && element[0] == '$' && element[1] == '5' {
				continue // that is one
			}
			for _, c := range replied(2, reply) {
				require.ErrorIs(t, c.err, errReply, "%q", reply)
			}
		}
	}
	for _, reply := range append(elements, "", "\r\n", "*8\r\n", "*-1\r\n", "*4\r\n:0\r\n:0\r\n:0\r\n:0\r\n", "*10\r\n", "*2\r\n", ":8\r\n"+number+number+number+number+number+number+number+number) {
		for _, c := range replied(2, reply) {
			require.ErrorIs(t, c.err, errReply, "%q", reply)
			if reply != "*8\r\n" {
				require.ErrorContains(t, c.err, "not a list of 8:")
			}
		}
	}
}

// A reply that go-redis takes for one may have a length that no text has.
func TestALengthThatNoTextHasIsNoPanic(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", Dialer: func(context.Context, string, string) (net.Conn, error) {
		ours, conn := net.Pipe()
		go func() {
			defer conn.Close()
			for in := bufio.NewReader(conn); ; {
				var words, size int
				if _, err := fmt.Fscanf(in, "*%d\r\n", &words); err != nil {
					return
				}
				reply := "-ERR unknown command\r\n"
				for range words {
					fmt.Fscanf(in, "$%d\r\n", &size)
					word := make([]byte, size+2)
					if _, _ = io.ReadFull(in, word); string(word) == "evalsha\r\n" {
						reply = "*4\r\n$9223372036854775807\r\n:0\r\n:0\r\n:0\r\n"
					}
				}
				_, _ = io.WriteString(conn, reply)
			}
		}()
		return ours, nil
	}})
	defer client.Close()
	s, err := New(client)
	require.NoError(t, err)
	b := s.Batch(store.NewNamespace(&store.Rule{Name: "one", BatchScript: func(*store.Rule) string { return "several" }}, "test"))
	b.Take("k", store.Limit{Rate: 1, Period: 1, Burst: 1}, 1)
	_, errs, _ := b.Make()
	require.ErrorIs(t, errs[0], store.ErrTimeout)
	require.ErrorContains(t, errs[0], "a reply that cannot be read")
}
