package main

import (
	"context"
	"errors"

	"github.com/ratelimit-go/ratelimit/config"
)

const schemaText = `

Schema prints the JSON Schema of configuration files, with which editors complete names and
mark errors. Check finds more errors than the schema does. For the YAML language server, name a
copy of the schema in a comment of the file:

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
