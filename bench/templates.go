//go:build linux

package main

import (
	"context"
	"strings"
)

// templateRounds is how often a template is verified, each way.
const templateRounds = 5

// templatesPart times the command that shows a template to be unchanged, next to the same command that does nothing.
func (b *bench) templatesPart(ctx context.Context) error {
	x := b.boxes[cold]
	_, err := b.inTurn(templateRounds, 1, func(t times) error {
		for name, line := range map[string]string{"program that does nothing": "version", "verify --quick": "template verify browser --quick",
			"verify": "template verify browser"} {
			if err := t.timed("templates: "+name, func() error { _, err := x.Run(ctx, strings.Fields(line)...); return err }); err != nil {
				return err
			}
		}
		return nil
	})
	b.result.Beside("program that does nothing", "templates: program that does nothing", "templates: verify --quick", "templates: verify")
	return err
}
