package config

import (
	"fmt"
	"strings"

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
	if err := tooLarge(text); err != nil {
		p.FailAt(1, 1, err)
		return nil
	}
	return p.Document(text)
}

// tooLarge rejects a text that is longer, or has more signs, than any real one. The library would
// reject the signs too, but only after seconds and gigabytes.
func tooLarge(text []byte) error {
	if len(text) > maxText {
		return fmt.Errorf("the text has %d bytes, more than %d", len(text), maxText)
	}
	n := 0
	for _, c := range text {
		if strings.IndexByte(signs, c) >= 0 {
			n++
		}
	}
	if n > maxSigns {
		return fmt.Errorf("the text has %d of the characters %s, more than %d", n, signs, maxSigns)
	}
	return nil
}
