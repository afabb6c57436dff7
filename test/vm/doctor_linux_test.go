//go:build vm && guests

package vm

import (
	"encoding/json"
	"strings"
)

// diagnosis is one check of the doctor.
type diagnosis struct{ Name, Status, Message, Hint string }

// swift is a configuration without templates, with which the doctor starts no browser: that alone takes half a minute here.
const swift = "/run/doctor.yml"

// doctor examines the guest, without a browser.
func (m *machine) doctor() map[string]diagnosis {
	m.t.Helper()
	m.put(swift, "templates_dir: /run/no-templates\n", 0o644)
	r := m.try("clawjail doctor --config " + swift + " --json")
	var report struct{ Checks []diagnosis }
	if err := json.Unmarshal(r.Stdout, &report); err != nil {
		m.t.Fatalf("%v\n%s%s", err, r.Stdout, r.Stderr)
	}
	out := map[string]diagnosis{}
	for _, c := range report.Checks {
		out[c.Name] = c
	}
	return out
}

// finds wants a failure of one check of the doctor, with these words and a hint.
func (m *machine) finds(all map[string]diagnosis, check, says, advises string) {
	m.t.Helper()
	c := all[check]
	if c.Status != "fail" || !strings.Contains(c.Message, says) || c.Hint == "" || !strings.Contains(c.Hint, advises) {
		m.t.Errorf("the doctor's %s: %+v, want a failure with %q and a hint with %q", check, c, says, advises)
		return
	}
	m.t.Logf("%s: %s (%s)", check, c.Message, strings.ReplaceAll(c.Hint, "\n", "; "))
}

// satisfied wants that a check of the doctor is ok.
func (m *machine) satisfied(all map[string]diagnosis, checks ...string) {
	m.t.Helper()
	for _, name := range checks {
		if c := all[name]; c.Status != "ok" {
			m.t.Errorf("the doctor's %s: %+v", name, c)
		}
	}
}

// refuses wants that a unit does not start, and that the journal says why, with the hint.
func (m *machine) refuses(unit string, words ...string) {
	m.t.Helper()
	since := m.sh("date +%s")
	if r := m.try("timeout 60 systemctl restart " + unit); r.Status == 0 {
		m.t.Errorf("%s starts", unit)
	}
	log := m.sh("journalctl --no-pager --output cat --since @" + since + " -u " + unit)
	for _, w := range words {
		if !strings.Contains(log, w) {
			m.t.Errorf("%s does not say %q:\n%s", unit, w, log)
		}
	}
	m.sh("systemctl stop " + unit) // it would be tried again and again
}
