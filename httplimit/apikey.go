package httplimit

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"

	"github.com/ratelimit-go/ratelimit"
)

// APIKeyOption sets what is optional about an [APIKey].
type APIKeyOption func(*apiKey) error

type apiKey struct {
	header string // canonical
	known  func(r *http.Request, key string) bool
	secret []byte // of the HMAC; nil: SHA-256
}

// KnownKeys says which API keys count: those of which f is true. Any other is as none,
// so that [First] goes on to what comes next. f must be safe for concurrent use.
func KnownKeys(f func(r *http.Request, key string) bool) APIKeyOption {
	return func(a *apiKey) error {
		if f == nil {
			return fmt.Errorf("%w: KnownKeys(nil)", ratelimit.ErrInvalidOption)
		}
		a.known = f
		return nil
	}
}

// HashedWith makes the hash an HMAC-SHA-256 by secret, of 16 bytes and more, which all
// instances that share a store must have in common. Whoever reads the store cannot find
// out API keys by trying then, even if those are short.
func HashedWith(secret []byte) APIKeyOption {
	return func(a *apiKey) error {
		if len(secret) < 16 {
			return fmt.Errorf("%w: HashedWith: a secret of %d bytes: 16 or more are needed", ratelimit.ErrInvalidOption, len(secret))
		}
		a.secret = append([]byte(nil), secret...)
		return nil
	}
}

// APIKey is the API key in a header field such as X-API-Key, or that after the scheme
// in Authorization. Of several fields it is the first, as of [http.Header.Get]. It is
// never part of a key itself, only as its SHA-256 in base64 ([HashedWith]: HMAC).
//
// A client that invents a new API key with each request has a new bucket with each. So
// let the middleware stand behind the authentication, or say by [KnownKeys] which keys
// count.
//
// From the hash nobody can tell the tier of its owner: for [ratelimit.WithTiers] take
// [User], or put the tier into the request's context.
func APIKey(header string, opts ...APIKeyOption) Key {
	if header == "" || strings.ContainsAny(header, ": \t\r\n") {
		return invalid("APIKey(%q): no name of a header field", header)
	}
	a := &apiKey{header: http.CanonicalHeaderKey(header)}
	for _, opt := range opts {
		if opt == nil {
			return invalid("APIKey(%q): an APIKeyOption is nil", header)
		}
		if err := opt(a); err != nil {
			return Key{err: err}
		}
	}
	return Key{name: a.header, of: a.of}
}

func (a *apiKey) of(r *http.Request) (string, error) {
	key := r.Header.Get(a.header)
	if a.header == "Authorization" { // whose scheme is in any case, with any spaces
		_, key, _ = strings.Cut(strings.TrimLeft(key, " "), " ")
		key = strings.Trim(key, " ")
	}
	if key == "" || a.known != nil && !a.known(r, key) {
		return "", ErrNoIdentity
	}
	return a.hash(key), nil
}

func (a *apiKey) hash(key string) string {
	sum := sha256.Sum256([]byte(key))
	if a.secret != nil {
		mac := hmac.New(sha256.New, a.secret)
		mac.Write([]byte(key))
		mac.Sum(sum[:0])
	}
	return base64.RawURLEncoding.EncodeToString(sum[:])
}
