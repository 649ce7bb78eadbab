package redisstore

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/store"
)

func TestALabelIsPrintable(t *testing.T) {
	client := redis.NewClient(&redis.Options{})
	defer client.Close()
	for _, label := range []string{"", strings.Repeat("x", 65), "a\nb", "\xff", "a\x00"} {
		_, err := New(client, WithLabel(label))
		require.ErrorIs(t, err, store.ErrInvalidOption, "%q", label)
	}
	for _, label := range []string{"x", strings.Repeat("x", 64), "night shift: café"} {
		s, err := New(client, WithLabel(label))
		require.NoError(t, err)
		require.True(t, strings.HasSuffix(s.holder(), ":"+strconv.Itoa(os.Getpid())+":"+label), s.holder())
	}
	s, err := New(client)
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(s.holder(), ":"), "no label")
}

func TestAHostNameIsShortAndPlain(t *testing.T) {
	for host, want := range map[string]string{
		"web-3.example":               "web-3.example",
		"a b:c\n\xff":                 "a-b-c--",
		strings.Repeat("x", 65):       strings.Repeat("x", 64),
		strings.Repeat("x", 63) + "é": strings.Repeat("x", 63),
		"":                            "",
	} {
		require.Equal(t, want, hostName(host))
	}
}
