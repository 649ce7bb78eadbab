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

// signs are the bytes that structure a text: each node, directive and comment needs one. A
// node can take the library 4 KiB.
const signs = ",:-?[{#%&*!"

// root returns that of the text, or nil if it cannot be read. What would take the library long is not given to it.
func (p *parser) root(text []byte) *yaml.Node {
	if p.long(text) || p.crowded(text) || p.unreadable(text) {
		return nil
	}
	return p.Document(text)
}

func (p *parser) long(text []byte) bool {
	if len(text) > maxText {
		p.FailAt(1, 1, fmt.Errorf("the text has %d bytes, over %d", len(text), maxText))
	}
	return len(text) > maxText
}

// crowded notes a text with more signs than any real one. It would be refused later too,
// after seconds and gigabytes.
func (p *parser) crowded(text []byte) bool {
	n := 0
	for _, c := range text {
		if strings.IndexByte(signs, c) >= 0 {
			n++
		}
	}
	if n > maxSigns {
		p.FailAt(1, 1, fmt.Errorf("the text has %d of the signs %s, over %d", n, signs, maxSigns))
	}
	return n > maxSigns
}

// unreadable notes the first character that YAML does not allow, and where it is, which the
// library does not say. It also notes the first %TAG. The time that the library takes for
// these grows with the square of their number.
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
			p.FailAt(line, column, errors.New("directive %TAG: tags are not read"))
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
