//go:build linux

package linux

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/jailtest"
	"github.com/clawjail/clawjail/internal/testenv"
)

func TestAgentsJailsKeepTheirPromisesWithCrun(t *testing.T) { agentsConform(t, RuntimeCrun) }
func TestAgentsJailsKeepTheirPromisesWithRunc(t *testing.T) { agentsConform(t, RuntimeRunc) }

// agentsConform runs the table with all five parts, on a host of its own.
func agentsConform(t *testing.T, runtime string) {
	testenv.Tool(t, runtime)
	if !onOwnHost(t) {
		return
	}
	root := t.TempDir()
	h, _ := newAgentHost(t, func(o *Options) { o.Runtime = runtime })
	h.storage.o.WorkspaceRoots = []string{root}
	i := install(t, h.o.Installation, "10.213.0.0/20", 0)
	gateway := netip.AddrPortFrom(i.pool.Gateway(), gatewayPort)
	closed := []netip.AddrPort{netip.AddrPortFrom(i.pool.Gateway(), 8080)}
	answerTCP(t, gateway.String())
	answerTCP(t, "0.0.0.0:8080")
	life, err := jail.NewLifecycle(t.Context(), jail.Options{
		Installation: h.o.Installation, Pool: i.pool, Log: h.o.Log,
		Parts:   jail.Parts{Storage: h.storage, Network: i.network, Firewall: i.firewall, Runtime: h.runtime, Limiter: h.limiter, Means: h.runtime.Means()},
		Journal: jailtest.NewMemory(jailtest.NewHost()).Options().Journal,
	})
	must(t, err)
	t.Cleanup(life.Close)
	n := 0
	jailtest.RunAgents(t, func(t *testing.T) jailtest.Agents {
		n++
		dir := filepath.Join(root, num(uint64(n)))
		must(t, os.Mkdir(dir, 0o755))
		return jailtest.Agents{Maker: life, Template: "tiny", Workspaces: dir, Gateway: gateway, Closed: closed,
			Resources: func(ctx context.Context) ([]jail.HostResource, error) { return life.HostResources(ctx) }}
	})
}
