package grpclimit

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strings"

	"google.golang.org/grpc/metadata"

	"github.com/ratelimit-go/ratelimit"
)

// APIKeyOption sets what is optional about an [APIKey].
type APIKeyOption func(*apiKey) error

type apiKey struct {
	name   string // lower case
	kind   string // apikey:x-api-key:
	values func(ctx context.Context, name string) []string
	known  func(ctx context.Context, key string) bool
	secret []byte // of the HMAC; nil: SHA-256
}

// KnownKeys makes only the API keys count for which f returns true. Any other one is
// [ErrNoIdentity], so that [First] goes on. f must be safe for concurrent use.
func KnownKeys(f func(ctx context.Context, key string) bool) APIKeyOption {
	return func(a *apiKey) error {
		a.known = f
		return given(f != nil, "KnownKeys")
	}
}

// HashedWith makes the hash an HMAC-SHA-256 by secret, of at least 16 bytes. All servers
// that share a store need the same secret. A reader of the store cannot then find API keys
// by trying, even short ones.
func HashedWith(secret []byte) APIKeyOption {
	return func(a *apiKey) error {
		if len(secret) < 16 {
			return fmt.Errorf("%w: HashedWith: a secret of %d bytes: 16 or more are needed", ratelimit.ErrInvalidOption, len(secret))
		}
		a.secret = append([]byte(nil), secret...)
		return nil
	}
}

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
	a, err := newAPIKey(name, opts)
	switch {
	case err != nil:
		return "", err
	case key == "":
		return "", ErrNoIdentity
	}
	return a.hash(key), nil
}

func apiKeyIn(values func(context.Context, string) []string, name string, opts []APIKeyOption) Key {
	a, err := newAPIKey(name, opts)
	if err != nil {
		return Key{err: err}
	}
	a.values = values
	return Key{of: a.of}
}

func newAPIKey(name string, opts []APIKeyOption) (*apiKey, error) {
	name = strings.ToLower(name)
	if name == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "" {
		return nil, invalid("APIKey(%q): not a name of metadata", name).err
	}
	a := &apiKey{name: name, kind: "apikey:" + name + ":"}
	for _, opt := range opts {
		if opt == nil {
			return nil, invalid("APIKey(%q): an APIKeyOption is nil", name).err
		}
		if err := opt(a); err != nil {
			return nil, err
		}
	}
	return a, nil
}

func (a *apiKey) of(ctx context.Context, _ string) (string, error) {
	values := a.values(ctx, a.name)
	switch {
	case len(values) == 0:
		return "", ErrNoIdentity
	case len(values) > 1:
		return "", ErrAmbiguousIdentity
	}
	key := values[0]
	if a.name == "authorization" { // its scheme is in any case, before any number of spaces
		_, key, _ = strings.Cut(strings.TrimLeft(key, " "), " ")
		key = strings.Trim(key, " ")
	}
	if key == "" || a.known != nil && !a.known(ctx, key) {
		return "", ErrNoIdentity
	}
	return a.hash(key), nil
}

func (a *apiKey) hash(key string) string {
	sum := sha256.Sum256([]byte(key))
	hash := sum[:]
	if a.secret != nil {
		mac := hmac.New(sha256.New, a.secret)
		mac.Write([]byte(key))
		hash = mac.Sum(nil)
	}
	var room [128]byte
	return string(base64.RawURLEncoding.AppendEncode(append(room[:0], a.kind...), hash))
}
