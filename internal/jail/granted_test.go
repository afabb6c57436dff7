package jail

import (
	"testing"

	"github.com/clawjail/clawjail/internal/problem"
)

func TestATenantHasFoldersBeneathItsNameOnly(t *testing.T) {
	roots := []string{"/srv/ws", "/home/x"}
	for _, tt := range []struct {
		tenant, path string
		may          bool
	}{
		{"a", "/srv/ws/a", true}, {"a", "/srv/ws/a/b", true}, {"a", "/home/x/a", true},
		{"a", "/srv/ws", false}, {"a", "/srv/ws/b/a", false}, {"a", "/srv/ws/ab", false}, {"a", "/srv", false}, {"a", "/etc/a", false},
		{"", "/srv/ws/a", false}, {"..", "/srv/ws/..", false}, {"a/b", "/srv/ws/a/b", false},
		{DefaultTenant, "/srv/ws/project", true}, {DefaultTenant, "/srv/ws/default/project", true}, {DefaultTenant, "/etc", false},
	} {
		_, err := GrantFor("workspace_roots", roots, tt.tenant, tt.path)
		if (err == nil) != tt.may {
			t.Errorf("%q may have %s: %v", tt.tenant, tt.path, err)
		}
		if code := problem.CodeOf(err); err != nil && code != problem.Forbidden && code != problem.BadName {
			t.Errorf("%q, %s: %v", tt.tenant, tt.path, err)
		}
	}
}
