//go:build linux

package containers

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/clawbots"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/docker"
	"github.com/clawjail/clawjail/internal/jail/linux"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/test/testkit"
)

// Containers that docker-compose makes of our file are confined as those that a sync makes, by the same comparison.
func TestTheFileForDockerComposeIsConfinedInTheSameWay(t *testing.T) {
	testenv.Root(t)
	tool := testenv.Tool(t, "docker-compose")
	subnet := freeNetwork(t)
	d := newDock(t, fmt.Sprintf(", compose: true, subnet: %s", subnet), "")
	const agents = `
clawbots:
  - name: alone
    command: [/bin/sh, -c, 'trap "exit 0" TERM; echo "a $ sign"; while :; do sleep 1 & wait $!; done']
    limits: {memory: 64MiB, cpu: 0.2, tasks: 16}
    env: {PRICE: "$5", GREETING: "it's"}
  - name: reader
    workspace: ./workspaces/read
    unix_sockets: true
    workspace_mode: ro
  - name: writer
    workspace: ./workspaces/write
    unix_sockets: true
`
	path := d.File(agents)
	file := filepath.Join(d.Dir, "docker-compose.clawbots.yml")
	if out, err := d.Run(t.Context(), "agent", "compose", "-f", path, "-o", file); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	declared, err := clawbots.Parse(path, []byte(agents), d.Dir)
	if err != nil {
		t.Fatal(err)
	}
	// These steps are the ones that the head of the file wants done by hand.
	tokens := map[string]string{}
	for _, a := range declared.Agents {
		out, err := d.Run(t.Context(), "agent", "create", a.Name)
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		tokens[a.Name] = strings.TrimSpace(out)
		token := filepath.Join(d.Dir, ".clawbots", a.Name, "token")
		proxy := fmt.Sprintf("HTTP_PROXY=http://agent:%[1]s@gateway:%[2]d\nhttp_proxy=http://agent:%[1]s@gateway:%[2]d\n", tokens[a.Name], d.Config.Gateway.Port)
		err = errors.Join(os.MkdirAll(filepath.Dir(token), 0o755), os.WriteFile(token, []byte(tokens[a.Name]), 0o600), os.Chown(token, 1000, 1000),
			os.WriteFile(filepath.Join(filepath.Dir(token), "env"), []byte(proxy), 0o600))
		if a.Workspace != "" {
			err = errors.Join(err, os.MkdirAll(a.Workspace, 0o755), os.Chown(a.Workspace, 1000, 1000))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	of := func(file, project string, args ...string) (string, error) {
		cmd := exec.Command(tool, append([]string{"-f", file, "-p", project}, args...)...)
		cmd.Dir = d.Dir
		cmd.Env = append(os.Environ(), "DOCKER_HOST=unix://"+engine.Socket)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	compose := func(args ...string) (string, error) { return of(file, "clawbots", args...) }
	in := func(container, command string) (string, error) {
		return ask(t, "exec", container, "/bin/sh", "-c", command)
	}
	if out, err := compose("up", "-d"); err != nil {
		t.Fatalf("bring it up: %v\n%s", err, out)
	}
	t.Cleanup(func() {
		if out, err := compose("down", "-v", "-t", "2"); err != nil {
			t.Errorf("take it down: %v\n%s", err, out)
		}
		if got := d.containers(); len(got) > 0 {
			t.Errorf("it left %v", got)
		}
	})
	for _, a := range declared.Agents {
		t.Run(a.Name, func(t *testing.T) {
			c := d.composed(a.Name)
			if c.Config.User != "1000:1000" || c.HostConfig.Privileged || len(c.Mounts) == 0 || c.Config.Labels["clawjail.agent"] != a.Name {
				t.Errorf("it is %+v", c)
			}
			proc, err := linux.FindProcess(c.State.Pid)
			if err != nil {
				t.Fatal(err)
			}
			profile := docker.ProfileFor(specOf(a), jail.Lease{UID: jail.AgentUID})
			diff, err := docker.Differences(t.Context(), proc, profile, jail.Lease{Addr: netip.MustParseAddr(c.address())})
			if err != nil {
				t.Fatal(err)
			}
			if len(diff) > 0 {
				t.Errorf("it is not confined as declared: %s", strings.Join(diff, "; "))
			}
			// The comparison sees more than nothing.
			profile.Limits.Tasks, profile.Limits.Memory = 1, 1<<20
			if diff, err := docker.Differences(t.Context(), proc, profile, jail.Lease{Addr: netip.MustParseAddr(c.address())}); err != nil || len(diff) < 2 {
				t.Errorf("of a profile that it has not, the comparison says %q, %v", diff, err)
			}
		})
	}
	if out, err := in("clawbots_alone_1", `echo "$PRICE $GREETING"; cat /run/hermit/token; echo; id -u`); err != nil || out != "$5 it's\n"+tokens["alone"]+"\n1000\n" {
		t.Errorf("in the container: %q, %v", out, err)
	}
	if out, err := compose("logs", "--no-color", "alone"); err != nil || !strings.Contains(out, "a $ sign") {
		t.Errorf("its log is %q, %v", out, err)
	}
	for _, command := range []string{"echo x > /workspace/x", "echo x > /etc/x", "echo x > /run/hermit/token", "cp /bin/true /tmp/x && /tmp/x"} {
		if out, err := in("clawbots_reader_1", command); err == nil {
			t.Errorf("%s succeeds: %s", command, out)
		}
	}
	if out, err := in("clawbots_writer_1", "echo x > /workspace/x && echo x > /state/x"); err != nil {
		t.Errorf("a writer does not write: %v\n%s", err, out)
	}

	// The gateway is open to them by their address and their token together.
	u := testkit.NewUpstream(t)
	for _, name := range []string{"alone", "reader"} {
		if out, err := d.Run(t.Context(), "rules", "add", "allow", "http://site.test:"+u.Port(), "--agent", name, "--address", "127.0.0.1"); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	gateway := fmt.Sprintf("gateway:%d", d.Config.Gateway.Port)
	fetch := func(name, options string) (status string, reached int) {
		u.Taken()
		out, _ := in("clawbots_"+name+"_1", "curl -s -o /dev/null --max-time 20 -w '%{http_code}' "+options) // the status says it
		return out, len(u.Taken())
	}
	site := " http://site.test:" + u.Port() + "/"
	testenv.Eventually(t, 30*time.Second, func() bool { status, n := fetch("alone", site); return status == "200" && n == 1 },
		"an agent of docker-compose does not reach the site:\n%s", d.Log())
	for what, c := range map[string]struct {
		name, options, status string
		reached               int
	}{
		"its own token":                     {"reader", site, "200", 1},
		"no token":                          {"alone", "-x http://" + gateway + site, "407", 0},
		"a wrong one":                       {"alone", "-x http://agent:" + tokens["alone"][:len(tokens["alone"])-6] + "AAAAAA@" + gateway + site, "407", 0},
		"another agent's":                   {"alone", "-x http://agent:" + tokens["reader"] + "@" + gateway + site, "407", 0},
		"no rule":                           {"writer", site, "403", 0},
		"the API with its own token":        {"alone", "--noproxy '*' -H 'Authorization: Bearer " + tokens["alone"] + "' http://" + gateway + "/v1/sessions", "200", 0},
		"the API without":                   {"alone", "--noproxy '*' http://" + gateway + "/v1/sessions", "407", 0},
		"the API with the token of another": {"alone", "--noproxy '*' -H 'Authorization: Bearer " + tokens["reader"] + "' http://" + gateway + "/v1/sessions", "407", 0},
	} {
		if status, n := fetch(c.name, c.options); status != c.status || n != c.reached {
			t.Errorf("%s: status %s, %d requests at the site; want %s and %d", what, status, n, c.status, c.reached)
		}
	}
	// A container that nobody says is an agent's reaches nothing, with whichever token, also at the address that an agent had. One
	// that could take the address of another is taken off the network, whatever it is called.
	stranger := filepath.Join(d.Dir, "stranger.yml")
	const text = "version: '2.4'\nservices: {other: {image: 'clawjail/clawbot:latest', entrypoint: [/bin/sleep, '1000'], networks: [sand_bed], " +
		"extra_hosts: ['gateway:%s']%s}}\nnetworks: {sand_bed: {external: true, name: sand_bed}}\n"
	const labels, drop = ", labels: {clawjail.compose: '1', clawjail.tenant: default, clawjail.agent: alone}", ", cap_drop: [ALL]"
	for what, c := range map[string]struct {
		more       string
		stays, let bool
		long       bool // it is one of a kind that another stands for
	}{
		"without labels":                  {drop, true, false, false},
		"without labels, with NET_RAW":    {"", false, false, true},
		"with labels":                     {labels + drop, true, true, false},
		"with labels and NET_RAW":         {labels, false, false, false},
		"with labels, NET_RAW given back": {labels + drop + ", cap_add: [NET_RAW]", false, false, true},
		"with labels, privileged":         {labels + drop + ", privileged: true", false, false, true},
	} {
		if c.long && !testenv.IsLong() {
			continue
		}
		if err := os.WriteFile(stranger, fmt.Appendf(nil, text, subnet.Addr().Next(), c.more), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := of(stranger, "stranger", "up", "-d"); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		there := func() bool {
			out, err := in("stranger_other_1", "grep -c eth0 /proc/net/dev")
			return err == nil && strings.TrimSpace(out) == "1"
		}
		reaches := func() bool {
			out, _ := in("stranger_other_1", "curl -s -o /dev/null --max-time 5 -w '%{http_code}' -x http://agent:"+tokens["alone"]+"@"+gateway+site)
			return out == "200"
		}
		if c.let {
			testenv.Eventually(t, 20*time.Second, reaches, "a container %s does not reach the gateway", what)
		} else if reaches() {
			t.Errorf("a container %s reaches the gateway", what)
		}
		if c.stays && !there() {
			t.Errorf("a container %s was taken off the network", what)
		}
		if !c.stays {
			testenv.Eventually(t, 20*time.Second, func() bool { return !there() }, "a container %s is still on the network", what)
		}
		if out, err := of(stranger, "stranger", "down", "-t", "1"); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	if out, err := compose("down", "-v", "-t", "2"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := os.WriteFile(stranger, fmt.Appendf(nil, text, subnet.Addr().Next(), drop), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := of(stranger, "stranger", "up", "-d"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err := in("stranger_other_1", "true"); err != nil {
		t.Fatalf("it does not run: %v\n%s", err, out)
	}
	u.Taken()
	out, err := in("stranger_other_1", "curl -s --max-time 5 -x http://agent:"+tokens["alone"]+"@"+gateway+site)
	if n := len(u.Taken()); err == nil || n > 0 {
		t.Errorf("when the agents are gone, a container without labels reaches the gateway: %q, %d requests", out, n)
	}
	if out, err := of(stranger, "stranger", "down", "-t", "1"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// specOf is the jail that a sync would make of an agent, as far as its confinement goes.
func specOf(a clawbots.Agent) jail.Spec {
	limits := jail.Limits{Memory: 512 << 20, MilliCPU: 500, Tasks: 64, Disk: 100 << 20, SharedMemory: 100 << 20, Files: 4096, WallClock: jail.MaxWallClock}
	if a.Limits.Memory != 0 {
		limits.Memory, limits.MilliCPU, limits.Tasks = int64(a.Limits.Memory), int(a.Limits.CPU*1000), a.Limits.Tasks
	}
	s := jail.Spec{Kind: jail.KindAgent, Limits: limits, Agent: &jail.Agent{Tenant: "default", Name: a.Name, State: 1 << 30, Token: true}}
	if a.Workspace != "" {
		s.Mounts = []jail.Mount{{Source: a.Workspace, Target: jail.WorkspaceDir, ReadOnly: a.WorkspaceMode == clawbots.ReadOnly}}
	}
	return s
}

// composed is a container as the engine shows it.
type composed struct {
	State  struct{ Pid int }
	Config struct {
		User   string
		Labels map[string]string
	}
	HostConfig      struct{ Privileged bool }
	Mounts          []struct{ Destination string }
	NetworkSettings struct {
		Networks map[string]struct{ IPAddress string }
	}
}

func (c composed) address() string {
	for _, n := range c.NetworkSettings.Networks {
		return n.IPAddress
	}
	return ""
}

func (d *dock) composed(agent string) (c composed) {
	d.T.Helper()
	text, err := engine.Ask(http.MethodGet, "/containers/clawbots_"+agent+"_1/json")
	if err == nil {
		err = json.Unmarshal([]byte(text), &c)
	}
	if err != nil {
		d.T.Fatal(err)
	}
	return c
}

// freeNetwork is one that nothing on the host uses now.
func freeNetwork(t *testing.T) netip.Prefix {
	t.Helper()
	var last error
	for n := range 200 {
		p := netip.MustParsePrefix(fmt.Sprintf("10.203.%d.0/24", (os.Getpid()+n)%256))
		if last = linux.CheckSubnet(t.Context(), "none", p); last == nil {
			return p
		}
	}
	t.Fatalf("no network is free: %v", last)
	return netip.Prefix{}
}
