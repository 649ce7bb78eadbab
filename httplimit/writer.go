package httplimit

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"time"
)

// watcher is notified of what is done with a ResponseWriter.
type watcher interface {
	begin(status int)           // before the header is written
	wrote(status int)           // after it was written
	hijacked(net.Conn) net.Conn // the connection was taken over; returns what the handler gets
}

// writer is a ResponseWriter that is watched. It has an Unwrap method, but an
// [http.ResponseController] finds the methods that write or take over the connection here first.
type writer struct {
	http.ResponseWriter
	by watcher
}

// watched returns w, watched by by, with the same optional methods. It has more methods than w only
// if they can report that they are not supported: a Pusher, for example, may always return that
// error.
func watched(w http.ResponseWriter, by watcher) http.ResponseWriter {
	to := &writer{w, by}
	notifies, n := w.(http.CloseNotifier) //nolint:staticcheck // still looked for
	switch f, h := flushes(w), hijackable(w); {
	case f && h && n:
		return struct {
			*writer
			flush
			hijack
			http.CloseNotifier
		}{to, flush{to}, hijack{to}, notifies}
	case f && h:
		return struct {
			*writer
			flush
			hijack
		}{to, flush{to}, hijack{to}}
	case f && n:
		return struct {
			*writer
			flush
			http.CloseNotifier
		}{to, flush{to}, notifies}
	case h && n:
		return struct {
			*writer
			hijack
			http.CloseNotifier
		}{to, hijack{to}, notifies}
	case f:
		return struct {
			*writer
			flush
		}{to, flush{to}}
	case h:
		return struct {
			*writer
			hijack
		}{to, hijack{to}}
	case n:
		return struct {
			*writer
			http.CloseNotifier
		}{to, notifies}
	}
	return to
}

// flushes reports whether an [http.ResponseController] of w can flush.
func flushes(w http.ResponseWriter) bool {
	_, flushes := in[http.Flusher](w)
	_, tells := in[interface{ FlushError() error }](w)
	return flushes || tells
}

// hijackable reports whether an [http.ResponseController] of w can take over the connection. With
// HTTP/2 it cannot.
func hijackable(w http.ResponseWriter) bool {
	_, ok := in[http.Hijacker](w)
	return ok
}

// in returns what an [http.ResponseController] finds: w itself if it is a T, or the first wrapped
// ResponseWriter that is.
func in[T any](w http.ResponseWriter) (found T, ok bool) {
	for {
		if found, ok = w.(T); ok {
			return found, true
		}
		wrapper, wraps := w.(interface{ Unwrap() http.ResponseWriter })
		if !wraps {
			return found, false
		}
		w = wrapper.Unwrap()
	}
}

// writes is called before a part of the body, or the header alone, is written.
func (w *writer) writes() {
	w.by.begin(http.StatusOK)
	w.by.wrote(http.StatusOK)
}

func (w *writer) WriteHeader(status int) { // in this order, because net/http panics on invalid codes
	w.by.begin(status)
	w.ResponseWriter.WriteHeader(status)
	w.by.wrote(status)
}

func (w *writer) Write(b []byte) (int, error) {
	w.writes()
	return w.ResponseWriter.Write(b)
}

func (w *writer) WriteString(s string) (int, error) {
	w.writes()
	return io.WriteString(w.ResponseWriter, s)
}

func (w *writer) ReadFrom(src io.Reader) (int64, error) {
	to, ok := w.ResponseWriter.(io.ReaderFrom)
	if !ok {
		return io.Copy(struct{ io.Writer }{w}, src)
	}
	w.by.begin(http.StatusOK)
	n, err := to.ReadFrom(src)
	if n > 0 { // otherwise net/http has written no status yet, and the handler can
		w.by.wrote(http.StatusOK)
	}
	return n, err
}

// FlushError is what an [http.ResponseController] calls.
func (w *writer) FlushError() error {
	if !flushes(w.ResponseWriter) {
		return http.ErrNotSupported
	}
	w.writes()
	return w.control().Flush()
}

func (w *writer) Push(target string, opts *http.PushOptions) error {
	if p, ok := w.ResponseWriter.(http.Pusher); ok {
		return p.Push(target, opts)
	}
	return http.ErrNotSupported
}

func (w *writer) SetReadDeadline(t time.Time) error  { return w.control().SetReadDeadline(t) }
func (w *writer) SetWriteDeadline(t time.Time) error { return w.control().SetWriteDeadline(t) }
func (w *writer) EnableFullDuplex() error            { return w.control().EnableFullDuplex() }

// Unwrap is for an [http.ResponseController] and others that look for methods of the wrapped
// ResponseWriter.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *writer) control() *http.ResponseController {
	return http.NewResponseController(w.ResponseWriter)
}

type flush struct{ w *writer }

func (f flush) Flush() { _ = f.w.FlushError() }

type hijack struct{ w *writer }

func (h hijack) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffer, err := h.w.control().Hijack()
	if err == nil {
		conn = h.w.by.hijacked(conn)
	}
	return conn, buffer, err
}
