package config

import (
	_ "embed" // schema.json
	"slices"
)

//go:generate go test -run TestTheSchemaIsFresh -update

//go:embed schema.json
var schema []byte

// Schema returns a JSON Schema (draft-07) for the texts that [Parse] reads, for editors and for
// checks in other languages. The schema accepts everything that Parse accepts. Parse also checks
// the range of numbers and which limits can be combined.
//
// Editors with the YAML language server find it by a comment in the file:
//
//	# yaml-language-server: $schema=https://raw.githubusercontent.com/ratelimit-go/ratelimit/main/config/schema.json
func Schema() []byte { return slices.Clone(schema) }
