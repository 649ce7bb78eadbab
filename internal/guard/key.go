package guard

import (
	"errors"
	"net/netip"
	"strconv"
	"strings"
)

// Key makes the text by which calls are counted together.
type Key[C any] struct {
	Kind string                  // the beginning of the text; "" if Make returns all of it
	Make func(C) (string, error) // nil for the zero Key
	Addr func(C) netip.Addr      // of the client; nil if the Key does not know it
	Err  error                   // why the Key is invalid, or nil
}

// Of returns the text for a call, or the error of an invalid Key.
func (k *Key[C]) Of(call C) (string, error) {
	if err := k.Check(); err != nil {
		return "", err
	}
	return k.Text(call)
}

// Text is Of for a valid Key.
func (k *Key[C]) Text(call C) (string, error) {
	text, err := k.Make(call)
	if err == nil && k.Kind != "" {
		text = k.Kind + text
	}
	return text, err
}

// Check returns the error of an invalid Key.
func (k *Key[C]) Check() error {
	if k.Err == nil && k.Make == nil {
		return Invalid("the zero Key: make one with a constructor, such as PeerIP")
	}
	return k.Err
}

// KeyMaker makes the Keys of a transport, which has its own errors.
type KeyMaker[C any] struct {
	None      error // a call has nothing of what a Key looks for
	Ambiguous error // a call has several values where a Key looks for one
}

// Func returns the Key of a function.
func (m *KeyMaker[C]) Func(name string, f func(C) (string, error)) Key[C] {
	if strings.Contains(name, ":") || strings.Trim(name, "0123456789abcdefABCDEF") == "" {
		return Key[C]{Err: Invalid("KeyFunc(%q, f): want a name that is not empty, has no colon and is not a hexadecimal number", name)}
	}
	if f == nil {
		return Key[C]{Err: Invalid("KeyFunc(%q, nil)", name)}
	}
	return Key[C]{Kind: name + ":", Make: func(call C) (string, error) {
		text, err := f(call)
		if err == nil && text == "" {
			err = m.None
		}
		return text, err
	}}
}

// User returns the Key of a function that finds the user.
func (m *KeyMaker[C]) User(f func(C) string) Key[C] {
	if f == nil {
		return Key[C]{Err: Invalid("User(nil)")}
	}
	return m.Func("user", func(call C) (string, error) { return f(call), nil })
}

// Global returns the same key for all calls.
func (m *KeyMaker[C]) Global() Key[C] {
	return Key[C]{Make: func(C) (string, error) { return "global", nil }}
}

// Combined returns a Key that makes a netstring of each of keys. The arguments are the results of
// [Checked].
func (m *KeyMaker[C]) Combined(keys []Key[C], err error) Key[C] {
	return Key[C]{Err: err, Addr: addrOf(keys), Make: func(call C) (string, error) {
		var room [128]byte
		text := append(room[:0], "combined:"...)
		for i := range keys {
			k := &keys[i]
			part, err := k.Make(call)
			if err != nil {
				return "", err
			}
			text = strconv.AppendInt(text, int64(len(k.Kind)+len(part)), 10)
			text = append(text, ':')
			text = append(text, k.Kind...)
			text = append(text, part...)
			text = append(text, ',')
		}
		return string(text), nil
	}}
}

// First returns a Key that uses the first of keys whose error is not None. The arguments are the
// results of [Checked].
func (m *KeyMaker[C]) First(keys []Key[C], err error) Key[C] {
	return Key[C]{Err: err, Addr: addrOf(keys), Make: func(call C) (string, error) {
		for i := range keys {
			text, err := keys[i].Text(call)
			if !errors.Is(err, m.None) {
				return text, err
			}
		}
		return "", m.None
	}}
}

// addrOf returns the Addr of the first key that has one.
func addrOf[C any](keys []Key[C]) func(C) netip.Addr {
	for i := range keys {
		if keys[i].Addr != nil {
			return keys[i].Addr
		}
	}
	return nil
}

// Checked returns the Keys in the arguments of a constructor, or the error of an invalid one.
func Checked[K, C any](constructor string, of []K, inside func(K) Key[C]) ([]Key[C], error) {
	if len(of) == 0 {
		return nil, Invalid("%s: want at least one key", constructor)
	}
	keys := make([]Key[C], len(of))
	for i, k := range of {
		keys[i] = inside(k)
		if err := keys[i].Check(); err != nil {
			return nil, err
		}
	}
	return keys, nil
}
