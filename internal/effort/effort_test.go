package effort_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/effort"
)

func TestLongIsFullAndFullIsMoreThanPlain(t *testing.T) {
	for _, c := range []struct {
		full, long         string
		wantFull, wantLong bool
		of, ofThree        int
	}{
		{"", "", false, false, 1, 1},
		{"0", "0", false, false, 1, 1},
		{"1", "", true, false, 2, 2},
		{"", "1", true, true, 2, 3},
		{"1", "1", true, true, 2, 3},
	} {
		t.Setenv("RATELIMIT_FULL", c.full)
		t.Setenv("RATELIMIT_LONG", c.long)
		require.Equal(t, c.wantFull, effort.Full())
		require.Equal(t, c.wantLong, effort.Long())
		require.Equal(t, c.of, effort.Of(1, 2))
		require.Equal(t, c.ofThree, effort.Of(1, 2, 3))
		for _, need := range []struct {
			run  bool
			test func(testing.TB)
		}{{c.wantFull, effort.NeedFull}, {c.wantLong, effort.NeedLong}} {
			ran := false
			t.Run("", func(t *testing.T) {
				need.test(t)
				ran = true
			})
			require.Equal(t, need.run, ran)
		}
	}
}
