package inventory

import "testing"

// A process that looks into a folder of the installation, or is another installation's, was not left behind by this one.
func TestProcessesAreAnInstallationsByMoreThanTheirArguments(t *testing.T) {
	s := Scope{Installation: "zzt1", Data: "/var/lib/clawjail", Run: "/run/clawjail", UIDBase: 5000, UIDs: 100}
	for what, c := range map[string]struct {
		uid    uint64
		groups string
		args   []string
		own    bool
	}{
		"of a jail's user":               {5007, "0::/user.slice", []string{"sleep", "60"}, true},
		"in a jail's group":              {0, "0::/clawjail-zzt1/bzzt100001", []string{"sleep", "60"}, true},
		"in a group of version 1":        {0, "3:cpu:/\n2:pids:/a/clawjail-zzt1/bzzt100001\n", []string{"sleep"}, true},
		"a runtime for a jail":           {0, "0::/", []string{"crun", "--root", "/run/clawjail/runtime", "delete", "bzzt100001"}, true},
		"a runtime of another's":         {0, "0::/", []string{"crun", "--root", "/run/clawjail/runtime", "delete", "bzzt200001"}, false},
		"somebody who looks":             {1000, "0::/user.slice", []string{"tail", "-f", "/run/clawjail/jails/bzzt100001/log"}, false},
		"a folder whose end is the same": {0, "0::/", []string{"crun", "--root", "/srv/b/run/clawjail/runtime", "run", "bzzt100001"}, false},
		"another's with the same number": {5007, "0::/clawjail-zzt2/bzzt200001", []string{"sleep", "60"}, false},
		"another's inside of a jail":     {0, "0::/clawjail-zzt1/azzt100001/clawjail-zzt2/bzzt200001", []string{"sleep", "60"}, true},
		"a service":                      {0, "0::/system.slice/clawjail-hostd.service", []string{"clawjail", "hostd"}, false},
	} {
		if got := s.ownsProcess(c.uid, c.groups, c.args); got != c.own {
			t.Errorf("%s: %t", what, got)
		}
	}
}
