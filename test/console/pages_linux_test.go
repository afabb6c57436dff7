//go:build linux

package console

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/test/testkit"
)

// pagesLimit bounds a script that looks at every page.
const pagesLimit = 10 * time.Minute

// script runs a script against the console, as somebody.
func (f *furnished) script(t *testing.T, name, key string, more map[string]string) []testkit.Report {
	t.Helper()
	env := map[string]string{"CONSOLE": f.URL() + "/console/", "KEY": key, "CHROMIUM": testenv.Chromium(t), "MORE": "/console/agents/default/buyer /console/agents/default/buyer/log /console/sessions?open=yes /console/refresh /console/agents/plan"}
	if testenv.IsLong() {
		env["ALIKE"] = "4"
	}
	maps.Copy(env, more)
	out := testkit.ScriptWithin(t, pagesLimit, name, env)
	if t.Failed() {
		t.Logf("log of the instance:\n%s", f.Log())
	}
	return out
}

// TestEveryPageOfTheConsole looks at all pages of a full instance with the eyes of everybody who has to.
func TestEveryPageOfTheConsole(t *testing.T) {
	testkit.Clients(t)
	testenv.Chromium(t)
	f := newFurnished(t, "")
	t.Run("is whole, light, accessible and safe", func(t *testing.T) { f.script(t, "console_pages.mjs", f.Key(), nil) })
	t.Run("works without JavaScript", func(t *testing.T) { f.script(t, "console_plain.mjs", f.Key(), nil) })
	t.Run("offers a viewer nothing to change", func(t *testing.T) {
		f.script(t, "console_viewer.mjs", f.keys["viewer"], map[string]string{"ADMIN": f.keys["admin"]})
		f.didNothing(t, f.keys["viewer"])
	})
}

// didNothing compares what an operator did, by the log, with what everybody may.
func (f *furnished) didNothing(t *testing.T, key string) {
	t.Helper()
	own, err := client.Call(t.Context(), f.as(key), op.ListSignIns(), op.None{})
	if err != nil || len(own.SignIns) == 0 {
		t.Fatalf("%d sign-ins, %v", len(own.SignIns), err)
	}
	query := op.AuditQuery{AuditFilter: op.AuditFilter{Actor: own.SignIns[0].Actor}, Limit: 1000}
	found, err := client.Call(t.Context(), f.API, op.ListAudit(), query)
	if err != nil || len(found.Rows) == 0 {
		t.Fatalf("%d records, %v", len(found.Rows), err)
	}
	for _, row := range found.Rows {
		if row.Result != string(audit.Refused) && !strings.HasPrefix(row.Action, "console.") {
			t.Errorf("a viewer did %s: %s %s", row.Action, row.Target, row.Result)
		}
	}
}
