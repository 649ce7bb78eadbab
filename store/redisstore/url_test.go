package redisstore_test

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/store"
	"github.com/ratelimit-go/ratelimit/store/redisstore"
)

// What a URL says is what the client has.
func TestTheClientOfAURL(t *testing.T) {
	t.Parallel()
	open := func(address string) redis.UniversalClient {
		client, err := redisstore.NewClient(address)
		require.NoError(t, err, address)
		t.Cleanup(func() { _ = client.Close() })
		return client
	}
	for address, want := range map[string]redis.Options{
		"redis://h":  {Addr: "h:6379"},
		"h:1":        {Addr: "h:1"},
		"h:65535":    {Addr: "h:65535"},
		"redis:6379": {Addr: "redis:6379"}, // as in a file of compose
		"[::1]:1":    {Addr: "[::1]:1"},
		"redis://ann:p%2F%3F%23%40%25@h:1/2?protocol=2": {Addr: "h:1", Username: "ann", Password: "p/?#@%", DB: 2, Protocol: 2},
		"redis://:secret@h:1/":                          {Addr: "h:1", Password: "secret"},
		"unix://ann:secret@/run/redis@1.sock?db=3":      {Addr: "/run/redis@1.sock", Network: "unix", Username: "ann", Password: "secret", DB: 3},
	} {
		o := open(address).(*redis.Client).Options()
		require.Equal(t, []any{want.Addr, want.Username, want.Password, want.DB}, []any{o.Addr, o.Username, o.Password, o.DB}, address)
		require.True(t, o.ContextTimeoutEnabled, address)
		require.Nil(t, o.TLSConfig, address)
	}
	require.Equal(t, "h", open("rediss://h/").(*redis.Client).Options().TLSConfig.ServerName)
	require.Equal(t, "FailoverClient", open("redis://:secret@h:26379/1?master_name=m&addr=i:26379&password=p").(*redis.Client).Options().Addr)
	cluster := open("rediss+cluster://ann:secret@h:1/?addr=i:2&addr=j:3").(*redis.ClusterClient).Options()
	require.Equal(t, []string{"h:1", "i:2", "j:3"}, cluster.Addrs)
	require.Equal(t, "secret", cluster.Password)
	require.NotNil(t, cluster.TLSConfig)
}

// A URL with a slip is refused, and no part of it is repeated: all of these have a secret, which may stand
// anywhere after a slip.
func TestURLsThatAreRefused(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"redis://:/secret@h": "it has no host", "redis://:?secret@h": "it has no host", "redis://:#secret@h:1": "it contains a #",
		"redis://:secret@":              "it has no host",
		"redis://secret":                "", // which is one
		"redis://":                      "it has no host",
		"redis:///0":                    "it has no host",
		"redis://:6379":                 "it has no host",
		"redis:h:1":                     "must begin with redis://",
		"redis:secret@h:1":              "must begin with redis://",
		"secret@h:1":                    "must begin with redis://",
		"secret":                        "must begin with redis://",
		"":                              "must begin with redis://",
		":1":                            "must begin with redis://",
		"h:redis":                       "must begin with redis://",
		"http://:secret@h":              "must begin with redis://",
		"secret://h":                    "must begin with redis://",
		"unix+cluster:///secret":        "must begin with redis://",
		"redis://u:se/cret@h":           "it cannot be parsed",
		"redis://h:99999":               "its port is not a number from 1 to 65535",
		"redis://:secret@h:0":           "its port is not a number from 1 to 65535",
		"redis://u:123456":              "its port is not a number from 1 to 65535",
		"redis://u:123456/secret@h":     "its port is not a number from 1 to 65535",
		"rediss+cluster://h:65536":      "its port is not a number from 1 to 65535",
		"redis://h:65536?master_name=m": "its port is not a number from 1 to 65535",
		"h:65536":                       "its port is not a number from 1 to 65535",
		"h:-1":                          "it cannot be parsed",
		"redis+cluster://:secret@h?addr=i:1&addr=j:65536": "the port of the parameter addr is not a number from 1 to 65535",
		"redis+cluster://h?addr=i:secret":                 "the port of the parameter addr is not a number from 1 to 65535",
		"redis://h?master_name=m&addr=i:0":                "the port of the parameter addr is not a number from 1 to 65535",
		"redis://u:1/secret@h":                            "its path is not the number of a database",
		"redis://u:1?secret@h":                            "the name of a parameter must be letters and _",
		"redis://u:1#secret@h":                            "it contains a #",
		"redis://h/#":                                     "it contains a #",
		"redis://u:%secret@h":                             "it cannot be parsed",
		"redis://h1:1,h2:secret":                          "it cannot be parsed",
		"redis://h/secret":                                "its path is not",
		"redis://h/-1":                                    "its path is not",
		"redis://h/1/2":                                   "its path is not",
		"redis://h?secret":                                "a parameter has no value",
		"redis://h?x=secret":                              "the parameter x is unknown",
		"redis://h?password=secret":                       "the parameter password is unknown",
		"redis://h?protocol=secret":                       "the parameter protocol is unknown, or its value is invalid",
		"redis://h?dial_timeout=secret":                   "the parameter dial_timeout",
		"redis://h?db=1&db=2":                             "the parameter db is repeated",
		"redis://h/1?db=2":                                "it has a path and the parameter db",
		"redis://h?db=-1":                                 "the parameter db is unknown, or its value is invalid",
		"unix:///x?db=-1":                                 "the parameter db",
		"redis://h?pool_size=-1":                          "the parameter pool_size",
		"redis://h?pool_size=3000000000":                  "the parameter pool_size",
		"redis://h?min_idle_conns=-1":                     "the parameter min_idle_conns",
		"redis://h?max_active_conns=-1":                   "the parameter max_active_conns",
		"redis+cluster://h?max_concurrent_dials=-1":       "the parameter max_concurrent_dials",
		"redis+cluster://h?pool_size=-1":                  "the parameter pool_size",
		"redis://h?master_name=m&pipeline_pool_size=-1":   "the parameter pipeline_pool_size",
		"redis://h/1?master_name=m&db=2":                  "it has a path and the parameter db",
		"redis://h?dialer_retries=5":                      "the parameter dialer_retries has no effect",
		"redis://h?skip_verify=true":                      "the parameter skip_verify",
		"redis://h?addr=i:1":                              "the parameter addr",
		"redis://h?a;secret":                              "its parameters cannot be parsed",
		"redis://h?a=%secret":                             "its parameters cannot be parsed",
		"redis://h?master_name=":                          "a parameter has no value",
		"redis://h?master_name=m&addr=x":                  "the parameter addr",
		"redis://h?master_name=m&addr=:1&password=secret": "the parameter addr",
		"redis://h?master_name=m&read_only=secret":        "the parameter read_only",
		"redis+cluster://h/3":                             "it must not have a path",
		"redis+cluster://h?master_name=m":                 "the parameter master_name",
		"redis+cluster://h?db=1":                          "the parameter db",
		"redis+cluster://:secret@":                        "it has no host",
		"unix://secret/x":                                 "it has no socket path",
		"unix://":                                         "it has no socket path",
	} {
		client, err := redisstore.NewClient(address)
		if want == "" {
			require.NoError(t, err, address)
			_ = client.Close()
			continue
		}
		require.ErrorIs(t, err, store.ErrInvalidOption, address)
		require.ErrorContains(t, err, want, address)
		require.NotContains(t, err.Error(), "secret", address)
		require.False(t, len(address) > 8 && strings.Contains(err.Error(), address), address)
		require.Nil(t, client)
	}
}
