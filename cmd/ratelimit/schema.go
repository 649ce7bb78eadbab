package main

import (
	"context"
	"errors"

	"github.com/ratelimit-go/ratelimit/config"
)

const schemaText = `

Schema prints the JSON Schema of configuration files, for editors: they complete names, and
mark what is wrong. Check knows more. With the YAML language server a comment in the file
names a copy of it:

	# yaml-language-server: $schema=limits.schema.json
`

// schema is the command schema.
func (p *program) schema(_ context.Context, args []string) error {
	flags := p.newFlags("schema", schemaText)
	if err := p.parse(flags, args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return p.misuse(flags, errors.New("it takes no arguments"))
	}
	_, err := p.stdout.Write(config.Schema())
	return err
}
