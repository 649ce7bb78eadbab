package clientaddr_test

import (
	"context"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/clientaddr"
)

func from(ctx context.Context) string {
	addr, ok := clientaddr.FromContext(ctx)
	if !ok {
		return ""
	}
	return addr.String()
}

func TestTheAddressOfAContext(t *testing.T) {
	type other struct{}
	said := func(ctx context.Context, text string) context.Context {
		return clientaddr.NewContext(ctx, netip.MustParseAddr(text))
	}
	found := func(ctx context.Context, text string) context.Context {
		return clientaddr.NewContextFunc(ctx, text, func(s string) netip.Addr {
			addr, _ := netip.ParseAddr(s)
			return addr
		})
	}
	none := context.WithValue(t.Context(), other{}, "else")
	require.Empty(t, from(none))
	require.Equal(t, "192.0.2.1", from(said(none, "192.0.2.1")))
	require.Equal(t, "192.0.2.2", from(said(said(none, "192.0.2.1"), "192.0.2.2")))
	require.Equal(t, "192.0.2.3", from(found(none, "192.0.2.3")))
	require.Equal(t, "192.0.2.4", from(found(found(none, "192.0.2.3"), "192.0.2.4")), "the innermost")
	require.Equal(t, "192.0.2.1", from(found(said(none, "192.0.2.1"), "192.0.2.3")), "what was said overrides what is found")
	require.Equal(t, "192.0.2.1", from(found(found(said(none, "192.0.2.1"), "192.0.2.3"), "192.0.2.4")))
	require.Equal(t, "192.0.2.1", from(said(found(none, "192.0.2.3"), "192.0.2.1")))
	require.Empty(t, from(found(found(none, "192.0.2.3"), "")), "a middleware that finds none does not fall back to another one's")
	require.Empty(t, from(clientaddr.NewContext(found(none, "192.0.2.3"), netip.Addr{})), "said to be not known")
	require.Equal(t, "else", found(none, "192.0.2.3").Value(other{}))
}

func TestAnAddressIsFoundOnce(t *testing.T) {
	text := "192.0.2.1"
	ctx := clientaddr.NewContextFunc(t.Context(), &text, func(s *string) netip.Addr { return netip.MustParseAddr(*s) })
	text = "192.0.2.2"
	require.Equal(t, "192.0.2.2", from(ctx), "when it is first asked for")
	text = "192.0.2.3"
	require.Equal(t, "192.0.2.2", from(ctx))
}

func TestAnAddressIsIPv4HoweverItIsWritten(t *testing.T) {
	for text, want := range map[string]string{
		"192.0.2.1":                 "192.0.2.1",
		"::ffff:192.0.2.1":          "192.0.2.1",
		"::ffff:192.0.2.1%eth0":     "192.0.2.1",
		"64:ff9b::192.0.2.1":        "192.0.2.1",
		"64:ff9b::192.0.2.1%eth0":   "192.0.2.1",
		"64:ff9b:0:0:0:1:c000:0201": "64:ff9b::1:c000:201",
		"fe80::1%eth0":              "fe80::1",
		"2001:db8::1":               "2001:db8::1",
	} {
		addr := netip.MustParseAddr(text)
		require.Equal(t, want, clientaddr.Unmap(addr).String())
		require.Equal(t, want, from(clientaddr.NewContext(t.Context(), addr)))
	}
	require.Equal(t, netip.Addr{}, clientaddr.Unmap(netip.Addr{}))
}

func TestHandingAnAddressOnCostsOneAllocation(t *testing.T) {
	ctx, addr := t.Context(), netip.MustParseAddr("2001:db8::1")
	find := func(a *netip.Addr) netip.Addr { return *a }
	var kept context.Context
	require.LessOrEqual(t, testing.AllocsPerRun(100, func() { kept = clientaddr.NewContextFunc(ctx, &addr, find) }), 1.0)
	require.Zero(t, testing.AllocsPerRun(100, func() { clientaddr.FromContext(kept) }))
}
