package grpclimit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

// KeyFunc names who a call is counted against. Keys of different kinds never meet:
// those of this package begin with their kind ("ip:", "user:"). An error refuses the
// call, or becomes what [WithKeyError] says; it wraps [ErrNoIdentity] if the
// function does not apply to the call, so that [First] asks the next one. It must be
// safe for concurrent use.
//
// Functions that are made of something unusable are nil, which [WithKey] refuses when
// the interceptor is made.
type KeyFunc func(ctx context.Context, fullMethod string) (string, error)

// Errors of key functions, for use with errors.Is. Texts name no value.
var (
	// ErrNoIdentity: a call says nothing of what a key function looks for.
	ErrNoIdentity = errors.New("grpclimit: no identity")
	// ErrAmbiguousIdentity: a call says several values where one was looked for.
	ErrAmbiguousIdentity = errors.New("grpclimit: more than one identity")
)

const (
	widestPrefix    = 32 // bits, what a provider has
	narrowestPrefix = 64 // bits, a single network
)

// PeerIP is the address of whoever has opened the connection: an IPv4 address,
// or the /64 network of an IPv6 address, since whoever has one address of it has all. (See
// [PeerPrefix] for wider ones.) IPv4 in IPv6 is IPv4, and zones do not count. A peer without an
// address, at a Unix socket, has no identity.
//
// Behind a proxy that is the proxy. Metadata such as x-forwarded-for says nothing that
// a client could not have written itself; use [User] if your proxy vouches for it.
func PeerIP(ctx context.Context, _ string) (string, error) {
	return peerKey(ctx, narrowestPrefix)
}

// PeerPrefix is [PeerIP] with IPv6 addresses grouped by so many bits, 32 to 64. It is
// nil if bits is none of these.
func PeerPrefix(bits int) KeyFunc {
	if bits < widestPrefix || bits > narrowestPrefix {
		return nil
	}
	return func(ctx context.Context, _ string) (string, error) { return peerKey(ctx, bits) }
}

func peerKey(ctx context.Context, bits int) (string, error) {
	p, ok := peer.FromContext(ctx)
	if !ok || p.Addr == nil {
		return "", fmt.Errorf("%w: no peer", ErrNoIdentity)
	}
	ip := addrOf(p.Addr).Unmap().WithZone("")
	switch {
	case !ip.IsValid():
		return "", fmt.Errorf("%w: the peer has no IP address", ErrNoIdentity)
	case ip.Is4():
		return "ip:" + ip.String(), nil
	}
	network, err := ip.Prefix(bits)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrNoIdentity, err)
	}
	return "ip:" + network.String(), nil
}

// addrOf is the address of a, invalid if it has none.
func addrOf(a net.Addr) netip.Addr {
	if tcp, ok := a.(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr()
	}
	text := a.String()
	if ap, err := netip.ParseAddrPort(text); err == nil {
		return ap.Addr()
	}
	ip, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Addr{}
	}
	return ip
}

// Metadata is what the call that a server received says in its metadata, such as an API key.
// It is taken for a secret: the key has its SHA-256. No value, or an empty one, is no
// identity, and several are [ErrAmbiguousIdentity], since another part of the server may
// believe another one of them. It is not verified here: put what authenticates before
// the limiter, or clients invent a new identity for each call.
//
// Upper case in the name is lower case. Metadata is nil if the name is not one
// that gRPC allows.
func Metadata(name string) KeyFunc {
	return metadataKey(name, metadata.ValueFromIncomingContext)
}

// OutgoingMetadata is [Metadata] of a call that a client is about to send.
func OutgoingMetadata(name string) KeyFunc {
	return metadataKey(name, metadata.ValueFromOutgoingContext)
}

func metadataKey(name string, valuesOf func(context.Context, string) []string) KeyFunc {
	name = strings.ToLower(name)
	if strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "" && name != ":authority" || name == "" {
		return nil
	}
	prefix := "metadata:" + name + ":"
	return func(ctx context.Context, _ string) (string, error) {
		values := valuesOf(ctx, name)
		switch {
		case len(values) > 1:
			return "", fmt.Errorf("%w: %d values of metadata %s", ErrAmbiguousIdentity, len(values), name)
		case len(values) == 0 || values[0] == "":
			return "", fmt.Errorf("%w: no metadata %s", ErrNoIdentity, name)
		}
		hash := sha256.Sum256([]byte(values[0]))
		return prefix + hex.EncodeToString(hash[:]), nil
	}
}

// Method is the full method of the call, "/package.Service/Method", so that each is
// limited for all callers together; with [Combined] for each caller. On a server with
// an UnknownServiceHandler clients choose it freely.
func Method(_ context.Context, fullMethod string) (string, error) {
	return "method:" + fullMethod, nil
}

// User is who f says, from what an interceptor before this one has put into ctx. An
// empty name, or false, is no identity. User is nil if f is.
func User(f func(ctx context.Context) (name string, ok bool)) KeyFunc {
	if f == nil {
		return nil
	}
	return func(ctx context.Context, _ string) (string, error) {
		name, ok := f(ctx)
		if !ok || name == "" {
			return "", fmt.Errorf("%w: no user", ErrNoIdentity)
		}
		return "user:" + name, nil
	}
}

// Global is one key for all calls.
func Global(context.Context, string) (string, error) { return "global", nil }

// Combined is the combination of what all of fs say, such as each method of each user. Each
// part has its length before it, so that no two combinations meet. If one has an error,
// so has the combination. It is nil if there are none, or one of them is.
func Combined(fs ...KeyFunc) KeyFunc {
	fs = usable(fs)
	if fs == nil {
		return nil
	}
	return func(ctx context.Context, fullMethod string) (string, error) {
		key := append(make([]byte, 0, 128), "all"...)
		for _, f := range fs {
			part, err := f(ctx, fullMethod)
			if err != nil {
				return "", err
			}
			key = append(key, ':')
			key = strconv.AppendInt(key, int64(len(part)), 10)
			key = append(key, ':')
			key = append(key, part...)
		}
		return string(key), nil
	}
}

// First is what the first of fs says that applies: the user, or else his address.
// Errors other than [ErrNoIdentity] end the search. It is nil if there are none, or
// one of them is.
//
// Functions of your own should begin their keys with a prefix of their own too.
func First(fs ...KeyFunc) KeyFunc {
	fs = usable(fs)
	if fs == nil {
		return nil
	}
	return func(ctx context.Context, fullMethod string) (key string, err error) {
		for _, f := range fs {
			if key, err = f(ctx, fullMethod); !errors.Is(err, ErrNoIdentity) {
				break
			}
		}
		return key, err
	}
}

// usable is a copy of fs, nil if it is empty or has a nil.
func usable(fs []KeyFunc) []KeyFunc {
	var all []KeyFunc
	for _, f := range fs {
		if f == nil {
			return nil
		}
		all = append(all, f)
	}
	return all
}
