package config

import (
	_ "embed" // schema.json
	"slices"
)

//go:generate go test -run TestTheSchemaIsFresh -update

//go:embed schema.json
var schema []byte

// Schema returns a JSON Schema (draft-07) of the texts that [Parse] reads, for editors and for
// checks in other languages. It refuses nothing that Parse takes. Parse knows more: what a number may
// be, and which limits go together.
//
// Editors with the YAML language server find it by a comment in the file:
//
//	# yaml-language-server: $schema=https://raw.githubusercontent.com/ratelimit-go/ratelimit/main/config/schema.json
func Schema() []byte { return slices.Clone(schema) }
