package clientip

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestProxiesThatTrustEveryoneAreRefused(t *testing.T) {
	for _, c := range []struct {
		want    bool // whether they are refused
		proxies []string
	}{
		{true, []string{"0.0.0.0/0"}},
		{true, []string{"::/0"}},
		{true, []string{"0.0.0.0/1", "128.0.0.0/1"}},
		{true, []string{"128.1.2.3/1", "10.0.0.0/8", "64.0.0.0/2", "0.0.0.0/2", "192.0.2.1"}},
		{true, []string{"unix", "10.0.0.7", "8000::/1", "::/2", "4000::/2"}},
		{true, []string{"::ffff:0.0.0.0/97", "128.0.0.0/1"}},
		{false, []string{"0.0.0.0/1", "0.0.0.0/1", "0.0.0.0/2", "10.0.0.0/8"}},
		{false, []string{"0.0.0.0/1", "8000::/1"}},
		{false, []string{"0.0.0.0/1", "128.0.0.0/2", "10.0.0.0/8", "unix", "::/1"}},
	} {
		_, err := ParseProxies(c.proxies)
		if require.Equal(t, c.want, err != nil, "%q", c.proxies); c.want {
			require.ErrorContains(t, err, "would trust every", "%q", c.proxies)
		}
	}
}

func TestTheShortWayToAnIPv4AddressFindsWhatTheLongOneDoes(t *testing.T) {
	check := func(s string) (short bool) {
		host, ok := ParseIPv4Host(s)
		if ok {
			addr, text, long := ParseAddr(s)
			require.True(t, long && addr.Is4(), "%q", s)
			require.Equal(t, text, host, "%q", s)
		}
		return ok
	}
	for _, s := range []string{"0.0.0.0:0", "192.0.2.1:1", "255.255.255.255:65535", "10.20.30.40:80"} {
		require.True(t, check(s), "%q", s)
	}
	for _, s := range []string{
		"", ":1", "192.0.2.1", "192.0.2:1", "192.0.2.1.:1", "192.0.2.1.1:1", ".192.0.2.1:1", "192..2.1:1", "192.0.2.:1",
		"192.0.2.256:1", "192.0.2.01:1", "192.0.2.00:1", "00.0.2.1:1", "192.0.2.1000:1", "192.0.2.1:", "192.0.2.1:x",
		"192.0.2.1%0:1", "192.0.2.1 :1", "[192.0.2.1]:1", "::ffff:192.0.2.1", "192.0.2.1:1:1",
	} {
		require.False(t, check(s), "%q", s)
	}
	const letters = "0012259..:x"
	random := rand.New(rand.NewPCG(1, 2))
	for range 200_000 {
		text := make([]byte, 7+random.IntN(12))
		for i := range text {
			text[i] = letters[random.IntN(len(letters))]
		}
		check(string(text))
	}
}
