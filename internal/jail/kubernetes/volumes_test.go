package kubernetes

import (
	"slices"
	"testing"

	"github.com/clawjail/clawjail/internal/jail"
)

func TestVolumesAreOfOneTenant(t *testing.T) {
	d := &Driver{o: Options{Folder: 1 << 30}}
	of := func(tenant, name, folder string, shared ...string) jail.Spec {
		return jail.Spec{Kind: jail.KindAgent, Agent: &jail.Agent{Tenant: tenant, Name: name, State: 1 << 20}, Mounts: []jail.Mount{{Source: folder, Target: jail.WorkspaceDir, Make: shared}}}
	}
	names := func(s jail.Spec) (state, folder string) {
		all := d.volumes(s)
		if len(all) != 2 {
			t.Fatalf("there are %+v", all)
		}
		return all[0].claim, all[1].claim
	}
	state, folder := names(of("default", "one", "/srv/a", "one"))
	for name, c := range map[string]struct {
		spec                  jail.Spec
		sameState, sameFolder bool
	}{
		"itself":                              {of("default", "one", "/srv/a", "one"), true, true},
		"another agent with the folder":       {of("default", "two", "/srv/a", "two"), false, true},
		"another folder":                      {of("default", "one", "/srv/b"), true, false},
		"an agent of the name, of a tenant":   {of("team", "one", "/srv/a", "one"), false, false},
		"a tenant whose name has the agent's": {of("one", "default", "/srv/a"), false, false},
	} {
		if s, f := names(c.spec); (s == state) != c.sameState || (f == folder) != c.sameFolder {
			t.Errorf("%s: %s and %s, beside %s and %s", name, s, f, state, folder)
		}
	}
	if got := folders(of("default", "one", "/srv/a", "one")); !slices.Equal(got, []string{"/workspace/one"}) {
		t.Errorf("the folders are %q", got)
	}
}
