package httplimit

import (
	"net/http"
	"strings"

	"github.com/ratelimit-go/ratelimit/internal/guard"
)

// APIKeyOption sets what is optional about an [APIKey].
type APIKeyOption func(*apiKey) error

type apiKey = guard.APIKey[*http.Request]

// KnownKeys makes only the API keys count for which f returns true. Any other one is
// [ErrNoIdentity], so that [First] goes on. f must be safe for concurrent use.
func KnownKeys(f func(r *http.Request, key string) bool) APIKeyOption { return guard.KnownKeys(f) }

// HashedWith makes the hash an HMAC-SHA-256 by secret, of at least 16 bytes. All servers
// that share a store need the same secret. A reader of the store cannot then find API keys
// by trying, even short ones.
func HashedWith(secret []byte) APIKeyOption { return guard.HashedWith[*http.Request](secret) }

// APIKey is the API key in the header field of that name, such as X-API-Key. Of
// Authorization it is what follows the scheme. It is a secret: the key has only its SHA-256
// in base64, or the HMAC of [HashedWith].
//
// No value or an empty one is [ErrNoIdentity]. Several are [ErrAmbiguousIdentity], since
// another part of the server may believe another one of them.
//
// A client that invents an API key with each request has a new limit with each. So put
// authentication in front of the limiter, or say with [KnownKeys] which ones count.
//
// The hash does not reveal the tier of its owner. For [ratelimit.WithTiers] keep a table by
// [HashedAPIKey], or put the tier into the request's context.
func APIKey(name string, opts ...APIKeyOption) Key {
	a, err := newAPIKey(name, opts)
	return Key{requestKey{Make: a.Of, Err: err}}
}

// HashedAPIKey returns the key that [APIKey] with this name and these options makes of an API
// key: apikey:x-api-key: and its hash. It is for tables of the keys that you have issued, such
// as their tiers for [ratelimit.WithTiers], or to reset one. Its errors are
// [ratelimit.ErrInvalidOption], and [ErrNoIdentity] for an empty key.
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
