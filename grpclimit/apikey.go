package grpclimit

import (
	"context"
	"strings"

	"google.golang.org/grpc/metadata"

	"github.com/ratelimit-go/ratelimit/internal/guard"
)

// APIKeyOption configures an [APIKey].
type APIKeyOption func(*apiKey) error

type apiKey = guard.APIKey[call]

// KnownKeys accepts only the API keys for which f returns true. For any other key the error is
// [ErrNoIdentity], so that [First] continues. f must be safe for concurrent use.
func KnownKeys(f func(ctx context.Context, key string) bool) APIKeyOption {
	if f == nil {
		return guard.KnownKeys[call](nil)
	}
	return guard.KnownKeys(func(c call, key string) bool { return f(c.ctx, key) })
}

// HashedWith uses HMAC-SHA-256 with secret, at least 16 bytes, as the hash. All servers that share
// a store need the same secret. With it, someone who can read the store cannot find API keys by
// trying, even short ones.
func HashedWith(secret []byte) APIKeyOption { return guard.HashedWith[call](secret) }

// APIKey identifies clients by the API key in the metadata with that name, such as x-api-key, of a
// call that a server has received. In authorization, the API key is what follows the scheme.
// Because API keys are secrets, the resulting key contains only the SHA-256 hash in base64, or the
// HMAC of [HashedWith].
//
// If there is no value or an empty one, the error is [ErrNoIdentity]. If there are several, it is
// [ErrAmbiguousIdentity], because another part of the server may use a different one of them.
//
// A client that invents an API key for each call has a new limit each time. Put authentication in
// front of the limiter, or use [KnownKeys] to accept only keys that you issued.
//
// The hash does not reveal its owner's tier. For [ratelimit.WithTiers], keep a table of tiers by
// [HashedAPIKey], or put the tier into the call's context.
func APIKey(name string, opts ...APIKeyOption) Key {
	return apiKeyIn(metadata.ValueFromIncomingContext, name, opts)
}

// OutgoingAPIKey is like [APIKey], for a call that a client is about to make.
func OutgoingAPIKey(name string, opts ...APIKeyOption) Key {
	return apiKeyIn(func(ctx context.Context, name string) []string {
		md, _ := metadata.FromOutgoingContext(ctx)
		return md[name]
	}, name, opts)
}

// HashedAPIKey returns the key that an [APIKey] with this name and these options makes of an API
// key: apikey:x-api-key: and its hash. Use it to find the owner of a hash, to keep a table of your
// keys' tiers for [ratelimit.WithTiers], or to reset a key. It returns
// [ratelimit.ErrInvalidOption], or [ErrNoIdentity] for an empty key.
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
		return nil, guard.Invalid("APIKey(%q): want the name of a metadata key, made of letters, digits, -, _ and .", name)
	}
	return guard.NewAPIKey(maker, name, func(c call) []string { return values(c.ctx, name) }, opts)
}
