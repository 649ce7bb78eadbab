package guard

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

// Otherwise, an error would not be logged for as long as the wall clock was set back.
func TestAnAlarmIsDueAlsoAfterTheClockHasSteppedBack(t *testing.T) {
	var a Alarm
	a.next.Store(time.Now().Add(time.Hour).Unix())
	require.True(t, a.Due())
	require.False(t, a.Due(), "it was a moment ago")
}

// due is a context with a deadline whose timer is late.
type due struct {
	context.Context
	deadline time.Time
}

func (d due) Deadline() (time.Time, bool) { return d.deadline, true }

func TestACallHasEndedWithItsDeadline(t *testing.T) {
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	past, later := due{t.Context(), time.Now()}, due{t.Context(), time.Now().Add(time.Hour)}
	down := errors.New("down")
	for _, c := range []struct {
		ctx       context.Context
		err, want error
	}{
		{canceled, context.Canceled, context.Canceled},
		{canceled, context.DeadlineExceeded, context.Canceled},
		{canceled, down, nil},
		{past, context.DeadlineExceeded, context.DeadlineExceeded},
		{past, down, nil},
		{later, ratelimit.ErrWouldExceedDeadline, nil},
		{t.Context(), context.Canceled, nil},
	} {
		require.Equal(t, c.want, Ended(c.ctx, c.err), "%v, %v", c.ctx, c.err)
	}
}
