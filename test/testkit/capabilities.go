//go:build linux

package testkit

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/testenv"
)

// AsUnit has an instance run with the capabilities alone that the unit of the host daemon has, without those that are named.
func (b *Installation) AsUnit(t *testing.T, without ...string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(testenv.Repository(t), "packaging/systemd/clawjail-hostd.service"))
	if err != nil {
		t.Fatal(err)
	}
	set := "-all"
	for line := range strings.Lines(string(text)) {
		names, _ := strings.CutPrefix(strings.TrimSpace(line), "CapabilityBoundingSet=")
		if names == strings.TrimSpace(line) {
			continue
		}
		for name := range strings.FieldsSeq(names) {
			if name = strings.ToLower(strings.TrimPrefix(name, "CAP_")); !slices.Contains(without, name) {
				set += ",+" + name
			}
		}
	}
	if set == "-all" {
		t.Fatal("the unit says of no capability that the host daemon may have it")
	}
	program := filepath.Join(filepath.Dir(b.ConfigFile), "as-unit") // the folder goes when nothing runs any more
	script := fmt.Sprintf("#!/bin/sh\nexec %s --bounding-set %s --inh-caps=-all -- %s \"$@\"\n", testenv.Tool(t, "setpriv"), set, b.Binary)
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	b.Binary = program
}
