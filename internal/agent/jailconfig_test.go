package agent

import (
	"maps"
	"net/netip"
	"testing"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jailspawn/spawntest"
)

// The other columns of the table are TestOnASimulatedHostEveryWayPassesAllAndLeavesNothing of package jailspawn.
func TestEveryKeyOfAJailConfig(t *testing.T) {
	l, d := newPrograms(t)
	l.keepOne("writer", nil)
	known := false
	d.begins = func(addr netip.Addr) { _, known = l.gate.at(addr) }
	place := spawntest.Place{Named: "writer", Root: "/srv/root", Folder: "/srv/jails/scratch", User: "agent"}
	for _, row := range spawntest.Rows(place, "exit 0") {
		d.specs, d.entered, d.last, known = nil, nil, jail.Program{}, false
		k := row.Jail
		_, running, err := l.Run(l.ctx, l.admin, "", "writer", ProcessRequest{Argv: row.Program.Argv, Env: row.Program.Env, Dir: row.Program.Dir,
			Jail: &JailConfig{Name: k.Name, Path: k.Path, RootPath: k.RootPath, User: k.User, IP4: k.IP4}})
		if code := row.Refused[spawntest.Hostd]; code != "" {
			if l.wantCode(row.What, err, code); running != nil || len(d.specs)+len(d.entered) > 0 {
				t.Errorf("%s: it runs", row.What)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", row.What, err)
			continue
		}
		if _, err := running.Wait(t.Context()); err != nil {
			t.Errorf("%s: %v", row.What, err)
		}
		running.Stdio.Close()
		maps.DeleteFunc(d.last.Env, func(name, _ string) bool { return row.Program.Env[name] == "" }) // what all have
		if !maps.Equal(d.last.Env, row.Program.Env) || d.last.Dir != row.Program.Dir {
			t.Errorf("%s: the program is %+v", row.What, d.last)
		}
		switch {
		case k.Name != "":
			if len(d.entered) != 1 || len(d.specs) > 0 {
				t.Errorf("%s: it runs elsewhere: %+v", row.What, d.specs)
			}
		case len(d.specs) != 1 || d.specs[0].Root != k.Path || (d.specs[0].Template == "") != (k.Path != ""):
			t.Errorf("%s: its jail is %+v", row.What, d.specs)
		case d.specs[0].Admit == row.Isolated || known == row.Isolated:
			t.Errorf("%s: it is let through by the firewall: %v, by the gateway: %v", row.What, d.specs[0].Admit, known)
		}
	}
	if left := d.left(); len(left) > 0 {
		t.Errorf("%q are left", left)
	}
}
