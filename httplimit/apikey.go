package httplimit

import (
	"net/http"
	"strings"

	"github.com/ratelimit-go/ratelimit/internal/guard"
)

// APIKeyOption configures an [APIKey].
type APIKeyOption func(*apiKey) error

type apiKey = guard.APIKey[*http.Request]

// KnownKeys accepts only the API keys for which f returns true. For any other key the error is
// [ErrNoIdentity], so that [First] continues. f must be safe for concurrent use.
func KnownKeys(f func(r *http.Request, key string) bool) APIKeyOption { return guard.KnownKeys(f) }

// HashedWith uses HMAC-SHA-256 with secret, at least 16 bytes, as the hash. All servers that share
// a store need the same secret. With it, someone who can read the store cannot find API keys by
// trying, even short ones.
func HashedWith(secret []byte) APIKeyOption { return guard.HashedWith[*http.Request](secret) }

// APIKey identifies clients by the API key in the header field with that name, such as X-API-Key.
// In Authorization, the API key is what follows the scheme. Because API keys are secrets, the
// resulting key contains only the SHA-256 hash in base64, or the HMAC of [HashedWith].
//
// If there is no value or an empty one, the error is [ErrNoIdentity]. If there are several, it is
// [ErrAmbiguousIdentity], because another part of the server may use a different one of them.
//
// A client that invents an API key for each request has a new limit each time. Put authentication
// in front of the limiter, or use [KnownKeys] to accept only keys that you issued.
//
// The hash does not reveal its owner's tier. For [ratelimit.WithTiers], keep a table of tiers by
// [HashedAPIKey], or put the tier into the request's context.
func APIKey(name string, opts ...APIKeyOption) Key {
	a, err := newAPIKey(name, opts)
	return Key{requestKey{Make: a.Of, Err: err}}
}

// HashedAPIKey returns the key that an [APIKey] with this name and these options makes of an API
// key: apikey:x-api-key: and its hash. Use it to find the owner of a hash, to keep a table of your
// keys' tiers for [ratelimit.WithTiers], or to reset a key. It returns
// [ratelimit.ErrInvalidOption], or [ErrNoIdentity] for an empty key.
func HashedAPIKey(name, key string, opts ...APIKeyOption) (string, error) {
	a, err := newAPIKey(name, opts)
	if err != nil {
		return "", err
	}
	return a.Hashed(key)
}

func newAPIKey(name string, opts []APIKeyOption) (*apiKey, error) {
	if name == "" || strings.ContainsAny(name, ": \t\r\n") {
		return nil, guard.Invalid("APIKey(%q): not the name of a header field", name)
	}
	field := http.CanonicalHeaderKey(name)
	return guard.NewAPIKey(maker, name, func(r *http.Request) []string { return r.Header[field] }, opts)
}
