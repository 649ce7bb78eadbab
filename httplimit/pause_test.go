package httplimit_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/httplimit"
)

func TestAPauseIsToldWhenItBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		retryAfter := func(s string) answer { return answer{429, map[string]string{"Retry-After": s}} }
		sup := &supplier{answers: []answer{fine, retryAfter("30"), retryAfter("90"), {status: 429}, fine}}
		var told []string
		tr := transport(t, sup, plenty(t), httplimit.WithOnPause(func(key string, d time.Duration) {
			told = append(told, fmt.Sprint(key, " ", d))
		}))
		pauses := func() string { return fmt.Sprint(tr.Pauses()) }

		require.NoError(t, call(t, tr, "http://a.example/"))
		require.Empty(t, told)
		require.Equal(t, "0 0", pauses())
		require.NoError(t, call(t, tr, "http://a.example/"))
		require.Equal(t, []string{"host:a.example:80 30s"}, told)
		require.Equal(t, "1 1", pauses())
		require.NoError(t, call(t, tr, "http://b.example/"))
		require.Equal(t, "host:b.example:80 1m0s", told[1], "as long as the server is believed")
		require.Equal(t, "2 2", pauses())
		time.Sleep(30 * time.Second)
		require.Equal(t, "2 1", pauses(), "one is over")
		require.NoError(t, call(t, tr, "http://a.example/"))
		require.Equal(t, "2 1", pauses(), "a refusal without a time is no pause")
		time.Sleep(30 * time.Second)
		require.Equal(t, "2 0", pauses())
	})
}

func TestAPauseThatIsMadeLongerIsOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sup := &supplier{answers: []answer{{429, map[string]string{"Retry-After": "10"}}, {429, map[string]string{"Retry-After": "20"}}}}
		told := 0
		tr := transport(t, slow{sup, time.Second}, plenty(t), httplimit.WithOnPause(func(string, time.Duration) { told++ }))
		done := make(chan error, 2)
		for range 2 { // both are sent before the first answer
			go func() { done <- call(t, tr, "http://a.example/") }()
		}
		require.NoError(t, <-done)
		require.NoError(t, <-done)
		require.Equal(t, 1, told)
		begun, now := tr.Pauses()
		require.EqualValues(t, 1, begun)
		require.Equal(t, 1, now)
	})
}
