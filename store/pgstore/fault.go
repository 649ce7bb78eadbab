package pgstore

import (
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/puddle/v2"

	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/carrier"
)

// Codes of errors that the server answers (SQLSTATE).
const (
	serializationFailure = "40001"
	deadlockDetected     = "40P01"
	lockNotAvailable     = "55P03"
	readOnly             = "25006"
	notSupported         = "0A000" // for example, an unlogged table on a standby
	queryCanceled        = "57014" // by a statement_timeout, for example
)

// unwritten is an error of a connection over which nothing that charges was written.
type unwritten struct{ error }

func (u unwritten) Unwrap() error { return u.error }

// unknown is an error after which it is not known whether the server has committed.
type unknown struct{ error }

func (u unknown) Unwrap() error { return u.error }

var (
	errRaced = errors.New("another transaction has inserted the row")
	errHeld  = errors.New("another transaction holds the row")
)

// codeOf returns the code of the server's answer, or "" if err is not an answer.
func codeOf(err error) string {
	var answer *pgconn.PgError
	if errors.As(err, &answer) {
		return answer.Code
	}
	return ""
}

// refused reports whether err is an answer that says that the statement had no effect and that the connection works.
func refused(err error) bool {
	var answer *pgconn.PgError
	return errors.As(err, &answer) && (answer.SeverityUnlocalized == "ERROR" || answer.SeverityUnlocalized == "" && answer.Severity == "ERROR")
}

// beforeWriting marks err, which occurred before anything that charges was written, as unwritten.
func beforeWriting(err error) error {
	if err == nil || refused(err) || errors.Is(err, errRaced) || errors.Is(err, store.ErrStore) {
		return err
	}
	return unwritten{err}
}

// whileWriting marks err, an error of statements that end with a commit, as unknown, unless it is an ERROR.
func whileWriting(err error) error {
	if err == nil || refused(err) {
		return err
	}
	return unknown{err}
}

// meaning returns the [carrier.Meaning] of an error of a trip, or of a call in it.
func meaning(err error) carrier.Meaning {
	var u unwritten
	var k unknown
	var c *pgconn.ConnectError
	switch {
	case errors.As(err, &k), errors.As(err, &c):
		return carrier.Unknown
	case errors.As(err, &u):
		return carrier.Unsent
	case errors.Is(err, puddle.ErrClosedPool):
		return carrier.Closed
	case codeOf(err) != "", errors.Is(err, store.ErrStore), errors.Is(err, errHeld), errors.Is(err, errRaced):
		return carrier.Answered
	}
	return carrier.Unknown
}

// failureOf returns the failure for err, the error of a call without a reply.
func failureOf(err error) *carrier.Failure {
	var f *carrier.Failure
	if errors.As(err, &f) {
		var connect *pgconn.ConnectError
		if errors.As(f.Err, &connect) && codeOf(connect) != "" { // the server refuses this client
			f = &carrier.Failure{What: f.What, Err: f.Err}
			f.Class, f.Again = classOf(codeOf(connect))
		}
		return f
	}
	f = &carrier.Failure{Class: store.ErrStore, Err: err}
	switch code := codeOf(err); {
	case code != "":
		f.Class, f.Again = classOf(code)
	case errors.Is(err, store.ErrCorrupt):
		f.Class, f.Err = store.ErrCorrupt, errors.New(strings.TrimPrefix(err.Error(), store.ErrCorrupt.Error()+": "))
	case errors.Is(err, errHeld), errors.Is(err, errRaced):
		f.Class, f.Again = store.ErrUnavailable, true
	}
	return f
}

// classOf returns the class of an answer after which nothing is charged, and whether another attempt may succeed.
func classOf(code string) (class error, again bool) {
	switch code {
	case serializationFailure, deadlockDetected, lockNotAvailable, readOnly, notSupported:
		return store.ErrUnavailable, true
	case queryCanceled:
		return store.ErrUnavailable, false
	case "53100", "53200": // disk full, out of memory
		return store.ErrOutOfMemory, false
	}
	switch code[:2] {
	case "57", "08", "53": // the server starts or stops; the connection failed; too many connections
		return store.ErrUnavailable, true
	}
	return store.ErrStore, false
}
