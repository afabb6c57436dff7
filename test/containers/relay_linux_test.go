//go:build linux

package containers

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/testenv"
)

// freeHost is an address in a network that this host does not use.
func freeHost(t *testing.T) netip.Addr {
	t.Helper()
	used, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for n := range 250 {
		addr := netip.AddrFrom4([4]byte{10, 202, byte(n), 1})
		free := true
		for _, a := range used {
			prefix, err := netip.ParsePrefix(a.String())
			free = free && err == nil && !prefix.Contains(addr)
		}
		if free {
			return addr
		}
	}
	t.Fatal("no network is free")
	return netip.Addr{}
}

// asStranger runs a command in a container of somebody else's on the agents' network, as root, and returns what it printed.
func (d *dock) asStranger(command string) (out string, status int) {
	d.T.Helper()
	text, err := engine.Post("/containers/create", map[string]any{"Image": "clawjail/clawbot:latest", "User": "0",
		"Entrypoint": []string{"/bin/sh", "-c", command}, "HostConfig": map[string]any{"NetworkMode": "sand_bed"}})
	if err != nil {
		d.T.Fatal(err)
	}
	var made struct{ ID string }
	if err := json.Unmarshal([]byte(text), &made); err != nil {
		d.T.Fatal(err)
	}
	defer func() {
		if _, err := engine.Ask(http.MethodDelete, "/containers/"+made.ID+"?force=1"); err != nil {
			d.T.Error(err)
		}
	}()
	if _, err := engine.Ask(http.MethodPost, "/containers/"+made.ID+"/start"); err != nil {
		d.T.Fatal(err)
	}
	text, err = engine.Ask(http.MethodPost, "/containers/"+made.ID+"/wait")
	if err != nil {
		d.T.Fatal(err)
	}
	var ended struct{ StatusCode int }
	if err := json.Unmarshal([]byte(text), &ended); err != nil {
		d.T.Fatal(err)
	}
	out, err = engine.Ask(http.MethodGet, "/containers/"+made.ID+"/logs?stdout=1&stderr=1")
	if err != nil {
		d.T.Fatal(err)
	}
	return out, ended.StatusCode
}

// relayed is what the engine says of the relay.
type relayed struct {
	ID    string
	State struct {
		Running bool
		Pid     int
	}
	Config     struct{ User string }
	HostConfig struct {
		ReadonlyRootfs bool
		CapDrop        []string
		SecurityOpt    []string
		Memory         int64
		PidsLimit      int64
	}
	Mounts          []struct{ Destination string }
	NetworkSettings struct {
		Networks map[string]struct{ IPAddress string }
	}
}

func (d *dock) relay() (r relayed, err error) {
	d.T.Helper()
	text, err := engine.Ask(http.MethodGet, "/containers/hermit_shell/json")
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal([]byte(text), &r)
}

// With `gateway.placement: container` agents reach the gateway through the container hermit_shell, and nothing else changes.
func TestTheGatewayIsReachedThroughItsContainer(t *testing.T) {
	listen := netip.AddrPortFrom(freeHost(t), 18793)
	d := newDock(t, "", fmt.Sprintf("gateway: {placement: container, relay: '%s'}\n", listen))
	d.Sync(`
clawbots:
  - name: one
  - name: two
`, "--driver", "docker")
	address := d.Running("one").Jail.Address
	d.Running("two")
	is, err := d.relay()
	if err != nil {
		t.Fatal(err)
	}

	// The agent is known by its address, although another one is what connects, and by its token.
	const ask = `curl -s --noproxy '*' --max-time 10 -o /dev/null -w '%{http_code}' `
	const token = `-H "Authorization: Bearer $(cat /run/hermit/token)" `
	testenv.Eventually(t, 20*time.Second, func() bool {
		out, err := d.In("one", ask+token+"http://gateway:3000/v1/sessions")
		return err == nil && out == "200"
	}, "the gateway does not answer through its relay:\n%s", fmt.Stringer(lazily(func() []string { return []string{d.Log()} })))
	for what, c := range map[string]struct{ command, want string }{
		"by the older name":    {ask + token + "http://hermit_shell:3000/v1/sessions", "200"},
		"by the proxy's way":   {`curl -s -x http://gateway:3000 --noproxy '' --max-time 10 -o /dev/null -w '%{http_code}' ` + token + "http://gateway:3000/v1/sessions", "200"},
		"without a token":      {ask + "http://gateway:3000/v1/sessions", "401"},
		"with somebody else's": {ask + `-H "Authorization: Bearer ` + strings.TrimSpace(d.MustIn("two", "cat /run/hermit/token")) + `" http://gateway:3000/v1/sessions`, "401"},
	} {
		if out, err := d.In("one", c.command); err != nil || out != c.want {
			t.Errorf("%s: %q, %v, want %s", what, out, err, c.want)
		}
	}
	bridge := netip.MustParseAddr(address)
	for what, to := range map[string]string{
		"the bridge's own address":   firstOf(bridge) + ":3000",
		"where the control plane is": listen.String(),
		"another port of the relay":  is.NetworkSettings.Networks["sand_bed"].IPAddress + ":3001",
	} {
		if out, err := d.In("one", "curl -s --noproxy '*' --max-time 3 http://"+to+"/"); err == nil {
			t.Errorf("%s answers: %q", what, out)
		}
	}

	// A container on the network that was not admitted reaches nothing.
	front := is.NetworkSettings.Networks["sand_bed"].IPAddress + ":3000"
	if out, status := d.asStranger("curl -sv --noproxy '*' --max-time 3 http://" + front + "/v1/sessions"); status == 0 || !strings.Contains(out, front[:len(front)-5]) {
		t.Errorf("a container of somebody else's reaches the relay: %d\n%s", status, out)
	}

	// Nor does who connects where the relay does: only who has the key is heard.
	c, err := net.DialTimeout("tcp", listen.String(), 5*time.Second)
	if err != nil {
		t.Fatalf("nobody listens for the relay: %v", err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(c, "GET /v1/sessions HTTP/1.1\r\nHost: gateway\r\n\r\n"+strings.Repeat("x", 100))
	if text, _ := io.ReadAll(c); strings.Contains(string(text), "HTTP") {
		t.Errorf("a stranger is answered: %.200q", text)
	}

	// It is confined, and has nothing but its key.
	h := is.HostConfig
	if is.Config.User == "" || strings.HasPrefix(is.Config.User, "0") || !h.ReadonlyRootfs || strings.Join(h.CapDrop, "") != "ALL" ||
		strings.Join(h.SecurityOpt, "") != "no-new-privileges:true" || h.Memory != 64<<20 || h.PidsLimit != 64 ||
		len(is.Mounts) != 1 || len(is.NetworkSettings.Networks) != 2 {
		t.Errorf("the relay is not confined as declared: %+v", is)
	}
	if strings.Contains(d.Log(), hostd.RelayKeyPath(d.Config)+":") {
		t.Error("something is wrong with the key")
	}

	// Killed or removed, it comes back, and agents work on.
	for _, how := range []string{"POST /containers/hermit_shell/kill", "DELETE /containers/hermit_shell?force=1"} {
		method, path, _ := strings.Cut(how, " ")
		if _, err := engine.Ask(method, path); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, 30*time.Second, func() bool {
			now, err := d.relay()
			if err != nil || !now.State.Running || now.ID == is.ID {
				return false
			}
			out, err := d.In("one", ask+token+"http://gateway:3000/v1/sessions")
			if err == nil && out == "200" {
				is = now
				return true
			}
			return false
		}, "%s: the relay does not come back", how)
	}

	// It runs on through a restart of both daemons, and is not made twice.
	if err := d.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := d.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 30*time.Second, func() bool {
		out, err := d.In("one", ask+token+"http://gateway:3000/v1/sessions")
		return err == nil && out == "200"
	}, "after a restart the gateway does not answer")
	if now, err := d.relay(); err != nil || now.State.Pid != is.State.Pid {
		t.Errorf("after a restart the relay is another one: %+v, %v", now.State, err)
	}

	// An agent is forgotten without delay or error, and what it had does not answer to the next.
	d.Sync("clawbots: [{name: two}]", "--driver", "docker", "--prune")
	if strings.Contains(d.Log(), "forget "+address) {
		t.Errorf("the gateway could not forget an agent:\n%s", d.Log())
	}
}

func firstOf(a netip.Addr) string {
	p, err := a.Prefix(20)
	if err != nil {
		return ""
	}
	return p.Masked().Addr().Next().String()
}
