//go:build linux

package docker

import (
	"net/netip"
	"os/exec"
	"strconv"
	"testing"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/jailtest"
	"github.com/clawjail/clawjail/internal/jail/jailtest/inside"
	"github.com/clawjail/clawjail/internal/testenv"
)

// TestAgents tries the promises of every driver about agents' jails, seen from inside.
func TestAgents(t *testing.T) {
	jailtest.RunAgents(t, func(t *testing.T) jailtest.Agents {
		h := newHost(t)
		if _, err := h.prepare(t.Context()); err != nil {
			t.Fatal(err)
		}
		gateway := netip.AddrPortFrom(h.Gateway(), h.o.Port)
		_, _ = listener(t, gateway.String())
		var closed []netip.AddrPort
		port, _ := listener(t, "0.0.0.0:0")
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil {
			t.Fatal(err)
		}
		closed = append(closed, netip.AddrPortFrom(h.Gateway(), uint16(n)))
		if host := hostAddress(t); host != "" {
			closed = append(closed, netip.AddrPortFrom(netip.MustParseAddr(host), uint16(n)))
		}
		return jailtest.Agents{Maker: h.Driver, Image: testImage, Workspaces: h.work, Gateway: gateway, Closed: closed, Resources: h.HostResources}
	})
}

// BenchmarkContainer is a container that is made, looked at and delivered.
func BenchmarkContainer(b *testing.B) {
	h := newHost(b)
	s := spec(jail.LifetimeOwner, inside.Argv()...)
	for b.Loop() {
		j, err := h.Create(b.Context(), s)
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		j.Stdio.Close()
		h.destroy(b, j.Name)
		b.StartTimer()
	}
}

// BenchmarkDockerRun is what the engine's own client takes for the same program, confined by its defaults.
func BenchmarkDockerRun(b *testing.B) {
	engine := sharedEngine(b)
	docker := testenv.Tool(b, "docker")
	for b.Loop() {
		out, err := exec.Command(docker, "-H", "unix://"+engine.Socket, "run", "--rm", "--network=none", testImage, "/bin/sh", "-c", ":").CombinedOutput()
		if err != nil {
			b.Fatalf("%v: %s", err, out)
		}
	}
}
