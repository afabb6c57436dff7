package egress

import (
	"slices"
	"testing"

	"github.com/clawjail/clawjail/internal/problem"
)

func TestMCPServersAreOfferedAsSettingsSay(t *testing.T) {
	w := newFixture(t)
	offered := func(tenant, agent string, want ...string) {
		t.Helper()
		if got := w.MCPServers(tenant, agent); !slices.Equal(got, want) {
			t.Errorf("%s of %s is offered %v, and not %v", agent, tenant, got, want)
		}
	}
	put := func(set func(Settings) (Settings, error), agent string, s Settings) {
		t.Helper()
		s.Tenant, s.Agent = "acme", agent
		if _, err := set(s); err != nil {
			t.Fatal(err)
		}
	}
	keep := func(s Settings) (Settings, error) { return w.PutSettings(w.ctx, w.operator, s) }
	declare := func(s Settings) (Settings, error) { return w.DeclareSettings(w.ctx, w.operator, s) }
	one := w.bot.ID
	offered("acme", one)
	put(keep, one, Settings{MCP: []string{"files"}})
	offered("acme", one, "files")
	offered("beta", one)
	offered("acme", "")
	put(keep, one, Settings{Hold: "5s"}) // of those who do not know of it
	offered("acme", one, "files")
	put(keep, "", Settings{MCP: []string{"search"}})
	offered("acme", one, "files")
	put(declare, one, Settings{})
	offered("acme", one, "search")
	put(keep, one, Settings{MCP: []string{}})
	offered("acme", one)
	for _, bad := range [][]string{{"a b"}, {""}, slices.Repeat([]string{"a"}, maxList+1)} {
		if _, err := keep(Settings{Meta: Meta{Tenant: "acme", Agent: one}, MCP: bad}); err == nil || problem.CodeOf(err) == problem.Internal {
			t.Errorf("%.20q: %v", bad, err)
		}
	}
}
