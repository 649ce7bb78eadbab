package rested_test

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/rested"
)

// layer is a connection over another one, like that of crypto/tls.
type layer struct{ net.Conn }

func (l layer) NetConn() net.Conn { return l.Conn }

// dial returns a watched connection to a server, and the server's end.
func dial(t *testing.T) (client, server net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	socket, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	server, err = l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = socket.Close(), server.Close() })
	return rested.Watch(layer{socket}), server
}

// read reads this text.
func read(t *testing.T, client net.Conn, text string) {
	t.Helper()
	got := make([]byte, len(text))
	_, err := io.ReadFull(client, got)
	require.NoError(t, err)
	require.Equal(t, text, string(got))
}

func write(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	_, err := conn.Write([]byte(text))
	require.NoError(t, err)
}

func TestNothingIsWrittenToAConnectionThatWasClosedWhileItRested(t *testing.T) {
	if !rested.CanLook {
		t.Skip("sockets cannot be looked at here")
	}
	require.Eventually(t, func() bool { // the end of a connection may arrive too late
		client, server := dial(t)
		write(t, server, "a reply")
		read(t, client, "a reply")
		write(t, client, "a call")
		write(t, server, "its reply")
		read(t, client, "its reply")
		read(t, server, "a call") // what was not read would reset the connection
		require.NoError(t, server.Close())
		_, err := client.Write([]byte("a call"))
		return errors.Is(err, rested.ErrClosed)
	}, 10*time.Second, time.Millisecond)
}

// What comes without being asked for is no end, and the next Read has it.
func TestDataThatArrivesOnAnIdleConnectionIsKept(t *testing.T) {
	client, server := dial(t)
	write(t, server, "a reply")
	read(t, client, "a reply")
	write(t, server, "news")
	write(t, client, "a call")
	read(t, server, "a call")
	write(t, server, ", and its reply")
	read(t, client, "news, and its reply")
}
