package config

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
)

const (
	maxText  = 1 << 20 // bytes
	maxSigns = 1 << 16 // bytes of signs
)

// signs are the bytes that structure a text: each node, directive and comment needs one. The
// library can use 4 KiB per node.
const signs = ",:-?[{#%&*!"

// root returns the root of the text, or nil if it cannot be read. Texts that would take the library
// long are rejected first.
func (p *parser) root(text []byte) *yaml.Node {
	if p.long(text) || p.crowded(text) || p.unreadable(text) {
		return nil
	}
	return p.Document(text)
}

func (p *parser) long(text []byte) bool {
	if len(text) > maxText {
		p.FailAt(1, 1, fmt.Errorf("the text has %d bytes, more than %d", len(text), maxText))
	}
	return len(text) > maxText
}

// crowded rejects a text with more signs than any real one has. The library would reject it too,
// but only after seconds and gigabytes.
func (p *parser) crowded(text []byte) bool {
	n := 0
	for _, c := range text {
		if strings.IndexByte(signs, c) >= 0 {
			n++
		}
	}
	if n > maxSigns {
		p.FailAt(1, 1, fmt.Errorf("the text has %d of the characters %s, more than %d", n, signs, maxSigns))
	}
	return n > maxSigns
}

// unreadable reports the first character that YAML does not allow, with its place, which the
// library does not report. It also reports the first %TAG, because the library's time for tags
// grows with the square of their number.
func (p *parser) unreadable(text []byte) bool {
	line, column := 1, 1
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRune(text[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			p.FailAt(line, column, fmt.Errorf("byte %#02x is not UTF-8", text[i]))
			return true
		case r < ' ' && r != '\t' && r != '\n' && r != '\r', r == '\uFFFE', r == '\uFFFF':
			p.FailAt(line, column, fmt.Errorf("character %U is not allowed", r))
			return true
		case column == 1 && bytes.HasPrefix(text[i:], []byte("%TAG")):
			p.FailAt(line, column, errors.New("directive %TAG: tags are not supported"))
			return true
		case r == '\n' || r == '\r' && !bytes.HasPrefix(text[i+1:], []byte("\n")), r == '\u0085', r == '\u2028', r == '\u2029':
			line, column = line+1, 1
		case r == '\uFEFF' && i == 0:
		default:
			column++
		}
		i += size
	}
	return false
}
