package agent

import (
	"errors"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/identity"
)

// oneIn is a file of one agent with a workspace.
func oneIn(name, workspace string) string {
	return "clawbots: [{name: " + name + ", workspace: " + workspace + "}]"
}

func inTenant(tenant string) func(*SyncRequest) { return func(r *SyncRequest) { r.Tenant = tenant } }

func TestAFolderThatRootAddedIsTheDefaultTenantsAndAskedForEachTime(t *testing.T) {
	var added []string
	var broken error
	l := newLand(t, func(o *Options) { o.AddedRoots = func() ([]string, error) { return added, broken } })
	l.operator("acme", identity.RoleAdmin)
	const dir = "/home/ada/bots/workspaces"
	refused := func(what string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "workspace_roots") {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err := l.sync(oneIn("bot", dir+"/x"))
	refused("before it was added", err)
	added = []string{dir}
	p, err := l.sync(oneIn("bot", dir+"/x"))
	l.want("added", p, err, "create bot")
	// Another tenant has nothing of it, not even the folder of its name.
	_, err = l.sync(oneIn("theirs", dir+"/acme"), inTenant("acme"))
	refused("in another tenant", err)
	// An operator of the default tenant only may use the folder of that name alone.
	by := l.operator("default", identity.RoleAdmin)
	_, err = l.Sync(l.ctx, by, SyncRequest{Source: "f", Text: oneIn("third", dir+"/y"), Dir: "/"}, nil)
	if err == nil || !strings.Contains(err.Error(), "you may not give") {
		t.Errorf("an operator of the default tenant: %v", err)
	}
	broken = errors.New("the file belongs to user 1000")
	if _, err = l.sync(oneIn("fourth", "/srv/bots/x")); err == nil || !strings.Contains(err.Error(), "user 1000") {
		t.Errorf("with a file that is not root's: %v", err)
	}
}

func TestNoTwoTenantsMeetInTheDefaultFolder(t *testing.T) {
	const common = "/var/lib/clawjail/workspaces"
	for _, c := range []struct{ what, first, second string }{
		{"the folder of the tenant's name", common + "/acme", common + "/acme/x"},
		{"a folder in it", common + "/acme/x", common + "/acme/x"},
		{"a folder above", common + "/acme/x/y", common + "/acme/x"},
		{"the whole folder", common, common + "/acme/x"},
	} {
		l := newLand(t, func(o *Options) { o.Agents.WorkspaceRoots, o.Workspaces = []string{common}, common })
		l.operator("acme", identity.RoleAdmin)
		_, err := l.sync(oneIn("bot", c.first))
		l.must(err)
		_, err = l.sync(oneIn("theirs", c.second), inTenant("acme"))
		if err == nil || !strings.Contains(err.Error(), "one of another tenant's agents") {
			t.Errorf("%s: %v", c.what, err)
		}
		if c.first != common && c.first != common+"/acme" {
			p, err := l.sync(oneIn("theirs", common+"/acme/free"), inTenant("acme"))
			l.want(c.what+", and one that is free", p, err, "create theirs")
		}
		// The other way round.
		l = newLand(t, func(o *Options) { o.Agents.WorkspaceRoots, o.Workspaces = []string{common}, common })
		l.operator("acme", identity.RoleAdmin)
		_, err = l.sync(oneIn("theirs", c.second), inTenant("acme"))
		l.must(err)
		if _, err = l.sync(oneIn("bot", c.first)); err == nil || !strings.Contains(err.Error(), "one of another tenant's agents") {
			t.Errorf("%s, the other way: %v", c.what, err)
		}
		// In a folder that the configuration names an admin may still share one on purpose.
		l = newLand(t, func(o *Options) { o.Agents.WorkspaceRoots, o.Workspaces = []string{common}, "" })
		l.operator("acme", identity.RoleAdmin)
		_, err = l.sync(oneIn("theirs", c.second), inTenant("acme"))
		l.must(err)
		if _, err = l.sync(oneIn("bot", c.first)); err != nil {
			t.Errorf("%s, without the rule: %v", c.what, err)
		}
	}
}
