package guard

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"strings"

	"github.com/ratelimit-go/ratelimit/internal/options"
)

// APIKey describes one kind of API keys.
type APIKey[C any] struct {
	maker  *KeyMaker[C]
	kind   string           // apikey:x-api-key:
	values func(C) []string // the values in a call
	scheme bool             // whether a scheme comes before the key
	known  func(call C, key string) bool
	secret []byte // of the HMAC; nil for SHA-256
}

// KnownKeys is the option with that name.
func KnownKeys[C any](f func(call C, key string) bool) func(*APIKey[C]) error {
	return options.Checked(options.Given("KnownKeys", f != nil), func(a *APIKey[C]) { a.known = f })
}

// HashedWith is the option with that name.
func HashedWith[C any](secret []byte) func(*APIKey[C]) error {
	return func(a *APIKey[C]) error {
		if len(secret) < 16 {
			return Invalid("HashedWith: the secret has %d bytes, want 16 or more", len(secret))
		}
		a.secret = append([]byte(nil), secret...)
		return nil
	}
}

// NewAPIKey returns the kind of API keys in the field with this name. values returns the field's
// values in a call.
func NewAPIKey[C any, O ~func(*APIKey[C]) error](maker *KeyMaker[C], name string, values func(C) []string, opts []O) (*APIKey[C], error) {
	lower := strings.ToLower(name)
	a := &APIKey[C]{maker: maker, kind: "apikey:" + lower + ":", values: values, scheme: lower == "authorization"}
	for _, opt := range opts {
		if opt == nil {
			return nil, Invalid("APIKey(%q): an APIKeyOption is nil", name)
		}
		if err := opt(a); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// Of returns the key of a call.
func (a *APIKey[C]) Of(call C) (string, error) {
	values := a.values(call)
	if len(values) > 1 {
		return "", a.maker.Ambiguous
	}
	key := strings.Join(values, "")
	if a.scheme { // in upper or lower case, followed by any number of spaces
		_, key, _ = strings.Cut(strings.TrimLeft(key, " "), " ")
		key = strings.Trim(key, " ")
	}
	if key == "" || a.known != nil && !a.known(call, key) {
		return "", a.maker.None
	}
	return a.hashed(key), nil
}

// Hashed returns the key for an API key.
func (a *APIKey[C]) Hashed(key string) (string, error) {
	if key == "" {
		return "", a.maker.None
	}
	return a.hashed(key), nil
}

func (a *APIKey[C]) hashed(key string) string {
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
