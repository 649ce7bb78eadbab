package guard

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Otherwise, an error would not be logged for as long as the wall clock was set back.
func TestAnAlarmIsDueAlsoAfterTheClockHasSteppedBack(t *testing.T) {
	var a Alarm
	a.next.Store(time.Now().Add(time.Hour).Unix())
	require.True(t, a.Due())
	require.False(t, a.Due(), "it was a moment ago")
}
