package jail

import (
	"errors"
	"slices"
	"testing"
)

func TestAJailWithoutFoldersIsMadeWhileNobodyKnowsWhichThereAre(t *testing.T) {
	configured := []string{"/srv/ws"}
	asked := 0
	added := func() ([]string, error) {
		asked++
		return []string{"/home/ada/w"}, nil
	}
	for tenant, want := range map[string][]string{DefaultTenant: {"/srv/ws", "/home/ada/w"}, "acme": {"/srv/ws"}, "": {"/srv/ws"}} {
		if got, err := RootsFor(tenant, configured, added); err != nil || !slices.Equal(got, want) {
			t.Errorf("tenant %q: %v, %v", tenant, got, err)
		}
	}
	if asked != 1 {
		t.Errorf("the folders that were added were asked for %d times", asked)
	}
	broken := func() ([]string, error) { return nil, errors.New("not root's") }
	spec := Spec{Agent: &Agent{Tenant: DefaultTenant, Name: "a"}}
	if _, err := spec.Roots(configured, broken); err != nil {
		t.Errorf("without folders: %v", err)
	}
	spec.Mounts = []Mount{{Source: "/srv/ws/a", Target: WorkspaceDir}}
	if _, err := spec.Roots(configured, broken); err == nil {
		t.Error("with one it is made")
	}
}
