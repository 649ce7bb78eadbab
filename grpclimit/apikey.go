package grpclimit

import (
	"context"
	"strings"

	"google.golang.org/grpc/metadata"

	"github.com/ratelimit-go/ratelimit/internal/guard"
)

// APIKeyOption sets what is optional about an [APIKey].
type APIKeyOption func(*apiKey) error

type apiKey = guard.APIKey[call]

// KnownKeys makes only the API keys count for which f returns true. Any other one is
// [ErrNoIdentity], so that [First] goes on. f must be safe for concurrent use.
func KnownKeys(f func(ctx context.Context, key string) bool) APIKeyOption {
	if f == nil {
		return guard.KnownKeys[call](nil)
	}
	return guard.KnownKeys(func(c call, key string) bool { return f(c.ctx, key) })
}

// HashedWith makes the hash an HMAC-SHA-256 by secret, of at least 16 bytes. All servers
// that share a store need the same secret. A reader of the store cannot then find API keys
// by trying, even short ones.
func HashedWith(secret []byte) APIKeyOption { return guard.HashedWith[call](secret) }

// APIKey is the API key in the metadata of that name, such as x-api-key, of a call that a
// server has received. Of authorization it is what follows the scheme. It is a secret: the
// key has only its SHA-256 in base64, or the HMAC of [HashedWith].
//
// No value or an empty one is [ErrNoIdentity]. Several are [ErrAmbiguousIdentity], since
// another part of the server may believe another one of them.
//
// A client that invents an API key with each call has a new limit with each. So put
// authentication in front of the limiter, or say with [KnownKeys] which ones count.
//
// The hash does not reveal the tier of its owner. For [ratelimit.WithTiers] keep a table by
// [HashedAPIKey], or put the tier into the call's context.
func APIKey(name string, opts ...APIKeyOption) Key {
	return apiKeyIn(metadata.ValueFromIncomingContext, name, opts)
}

// OutgoingAPIKey is [APIKey] of a call that a client is about to make.
func OutgoingAPIKey(name string, opts ...APIKeyOption) Key {
	return apiKeyIn(func(ctx context.Context, name string) []string {
		md, _ := metadata.FromOutgoingContext(ctx)
		return md[name]
	}, name, opts)
}

// HashedAPIKey returns the key that [APIKey] with this name and these options makes of an API
// key: apikey:x-api-key: and its hash. It is for tables of the keys that you have issued, such
// as their tiers for [ratelimit.WithTiers], or to reset one. Its errors are
// [ratelimit.ErrInvalidOption], and [ErrNoIdentity] for an empty key.
func HashedAPIKey(name, key string, opts ...APIKeyOption) (string, error) {
	a, err := newAPIKey(nil, name, opts)
	if err != nil {
		return "", err
	}
	return a.Hashed(key)
}

func apiKeyIn(values func(context.Context, string) []string, name string, opts []APIKeyOption) Key {
	a, err := newAPIKey(values, name, opts)
	return Key{callKey{Make: a.Of, Err: err}}
}

func newAPIKey(values func(context.Context, string) []string, name string, opts []APIKeyOption) (*apiKey, error) {
	name = strings.ToLower(name)
	if name == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "" {
		return nil, guard.Invalid("APIKey(%q): not a name of metadata", name)
	}
	return guard.NewAPIKey(maker, name, func(c call) []string { return values(c.ctx, name) }, opts)
}
