//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"time"
)

// templateRounds is how often a template is verified, each way.
const templateRounds = 5

// hasTemplate says whether a template is there.
func (b *bench) hasTemplate(name string) bool {
	found, err := filepath.Glob(filepath.Join(b.templates, name, "template.json"))
	return err == nil && len(found) == 1
}

// templatesPart times the command that shows a template to be unchanged, next to the same command that does nothing.
func (b *bench) templatesPart(ctx context.Context) (err error) {
	x, err := b.start(ctx, 1_879_700_000, "warm_pool:\n  size: 0\n")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.end()) }()
	ways := []struct {
		name string
		cmd  func() *exec.Cmd
	}{
		{"program that does nothing", func() *exec.Cmd { return x.Command(ctx, "version") }},
		{"verify --quick", func() *exec.Cmd { return x.Command(ctx, "template", "verify", "browser", "--quick") }},
		{"verify", func() *exec.Cmd { return x.Command(ctx, "template", "verify", "browser") }},
	}
	each := map[string][]time.Duration{}
	for n := range templateRounds + 1 { // the first fills the caches
		for _, way := range ways {
			began := time.Now()
			if out, err := way.cmd().CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w: %.2000s", way.name, err, out)
			}
			if n > 0 {
				each[way.name] = append(each[way.name], time.Since(began))
			}
		}
	}
	for _, way := range ways {
		b.result.Times("templates: "+way.name, each[way.name])
	}
	for _, way := range ways[1:] {
		b.result.Beside("templates: "+way.name, "templates: "+ways[0].name, ways[0].name)
	}
	return nil
}
