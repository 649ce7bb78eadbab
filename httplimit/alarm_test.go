package httplimit

import (
	"bytes"
	"context"
	"errors"
	"log"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Or else an error would be silent for as long as the wall clock was set back.
func TestAnAlarmIsSaidAlsoAfterTheClockHasSteppedBack(t *testing.T) {
	said := new(bytes.Buffer)
	server := &http.Server{ErrorLog: log.New(said, "", 0)}
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r = r.WithContext(context.WithValue(r.Context(), http.ServerContextKey, server))
	var a alarm
	a.next.Store(time.Now().Add(time.Hour).Unix())
	for range 2 {
		a.say(r, errors.New("down"))
	}
	require.Equal(t, "httplimit: down\n", said.String())
}
