package compose

import (
	"bytes"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/clawjail/clawjail/internal/clawbots"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

func options() Options {
	return Options{Tenant: "default", Image: "clawjail/clawbot:latest", Limits: config.Default().Agents.Limits, Subnet: netip.MustParsePrefix("10.214.0.0/24"),
		Port: 3000, Tokens: "./.clawbots"}
}

func written(t *testing.T, text string, o Options) string {
	t.Helper()
	f, err := clawbots.Parse("clawbots.yml", []byte(text), "/srv/agents")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := Write(&out, f, o); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// origin is the file of the document that agents come from.
const origin = `clawbots:
  - name: dev-bot
  - name: archive-bot
    workspace: ./workspaces/archive
    unix_sockets: true
    workspace_mode: ro
  - name: researcher-bot
    workspace: ./workspaces/project-x
    unix_sockets: true
  - name: writer-bot
    workspace: ./workspaces/project-x
    unix_sockets: true
  - name: reviewer-bot
    workspace: ./workspaces/project-x
    unix_sockets: true
    workspace_mode: ro
`

// full uses every key that becomes something else here.
const full = `clawbots:
  - name: small
    image: registry.example:5000/team/agent:1.2
    command: [/bin/sh, -c, "echo \"$HOME\" 'it''s' && sleep 1d"]
    workspace: "/srv/it's a $HOME: {x}"
    unix_sockets: true
    restart: never
    env: {MODE: "a $b #c", EMPTY: ""}
    limits: {memory: 64MiB, cpu: 0.25, tasks: 32, tmp: 8MiB, state: 64MiB, files: 256}
  - name: templated
    template: pi
    restart: on-failure
`

func TestWhatIsWritten(t *testing.T) {
	other := options()
	other.Tenant, other.Tokens = "acme", "/var/lib/tokens"
	for name, test := range map[string]struct {
		text string
		o    Options
	}{"origin.yml": {origin, options()}, "full.yml": {full, other}} {
		testenv.Golden(t, filepath.Join("testdata", name), written(t, test.text, test.o))
	}
}

// The engine's own list of system calls allows UNIX sockets, so that an agent with a workspace has to say that it may use them.
func TestAnAgentWhoseSocketsStayOpenHasToSaySo(t *testing.T) {
	for text, fine := range map[string]bool{
		"clawbots: [{name: a}]": true,
		"clawbots: [{name: a, workspace: /srv/a, unix_sockets: true}]": true,
		"clawbots: [{name: a, workspace: /srv/a}]":                     false,
		"clawbots: [{name: a, workspace: /srv/a, workspace_mode: ro}]": false,
	} {
		f, err := clawbots.Parse("clawbots.yml", []byte(text), "/srv")
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := Write(&out, f, options()); fine != (err == nil) || !fine && (problem.CodeOf(err) != problem.Unsupported || out.Len() > 0) {
			t.Errorf("%s: %v, and %d bytes are written", text, err, out.Len())
		}
	}
}

type readMount struct {
	Type, Source, Target string
	ReadOnly             bool `yaml:"read_only"`
}

type readService struct {
	Image, User, Hostname, IPC, Restart string
	Privileged                          bool
	Ports, Devices, CapAdd              []string
	ReadOnly                            bool     `yaml:"read_only"`
	CapDrop                             []string `yaml:"cap_drop"`
	SecurityOpt                         []string `yaml:"security_opt"`
	Tmpfs, Networks, Entrypoint, DNS    []string
	ExtraHosts                          []string `yaml:"extra_hosts"`
	Mem                                 int64    `yaml:"mem_limit"`
	Swap                                int64    `yaml:"memswap_limit"`
	CPUs                                float64
	Pids                                int `yaml:"pids_limit"`
	Volumes                             []readMount
	Environment, Labels                 map[string]string
}

type readFile struct {
	Services map[string]readService
	Networks map[string]struct {
		Internal, External bool
		Name               string
		Opts               map[string]string `yaml:"driver_opts"`
	}
	Volumes map[string]struct{ Name string }
}

func read(t *testing.T, text string) (out readFile) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(text), &out); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return out
}

// The file says of every container what the profile of the jail says.
func TestContainersAreConfinedAsJailsAre(t *testing.T) {
	for _, text := range []string{origin, full} {
		file := read(t, written(t, text, options()))
		if n := file.Networks[Network]; !n.External || n.Name != Network {
			t.Errorf("the network is %+v", n)
		}
		for name, s := range file.Services {
			p := jail.ProfileFor(jail.Spec{Kind: jail.KindAgent, Limits: jail.Limits{Memory: s.Mem, MilliCPU: int(s.CPUs * 1000), Tasks: s.Pids},
				Agent: &jail.Agent{State: 1 << 20, Token: true}}, jail.Lease{})
			if s.User != "1000:1000" || !s.ReadOnly || strings.Join(s.CapDrop, ",") != "ALL" || strings.Join(s.SecurityOpt, ",") != "no-new-privileges:true" ||
				strings.Join(s.Networks, ",") != Network || s.Mem < 16<<20 || s.Swap != s.Mem || s.CPUs <= 0 || s.Pids <= 0 || s.Privileged ||
				len(s.Ports)+len(s.Devices)+len(s.CapAdd) > 0 || s.Hostname != name || s.IPC != "private" {
				t.Errorf("%s is %+v", name, s)
			}
			if strings.Join(s.ExtraHosts, ",") != "gateway:10.214.0.1,hermit_shell:10.214.0.1" || strings.Join(s.DNS, ",") != "10.214.0.1" {
				t.Errorf("%s knows the hosts %v, and asks %v", name, s.ExtraHosts, s.DNS)
			}
			for _, want := range p.Binds {
				found := false
				for _, v := range s.Volumes {
					found = found || v.Target == want.Path && v.ReadOnly == want.ReadOnly
				}
				if !found {
					t.Errorf("%s has %+v, and not %+v", name, s.Volumes, want)
				}
			}
			tmp := strings.Join(s.Tmpfs, " ")
			if !strings.Contains(tmp, "/tmp:rw,nosuid,nodev,size=") || !strings.Contains(tmp, ",noexec") || strings.Contains(tmp, "/state") {
				t.Errorf("%s has the tmpfs %v", name, s.Tmpfs)
			}
			if s.Environment["SHELL_URL"] != "http://gateway:3000" || s.Environment["AGENT_NAME"] != name {
				t.Errorf("%s has the environment %v", name, s.Environment)
			}
			for key, value := range s.Environment {
				if strings.Contains(strings.ToLower(key), "token") || proxies(key) || strings.Contains(value, "/run/clawjail") {
					t.Errorf("%s has %s=%s", name, key, value)
				}
			}
		}
	}
}

func TestWorkspacesAreAsInJails(t *testing.T) {
	file := read(t, written(t, origin, options()))
	for name, want := range map[string]struct {
		home  string
		mount *readMount
	}{
		"dev-bot":        {"/state", nil},
		"archive-bot":    {"/workspace", &readMount{"bind", "/srv/agents/workspaces/archive", "/workspace", true}},
		"researcher-bot": {"/workspace/researcher-bot", &readMount{"bind", "/srv/agents/workspaces/project-x", "/workspace", false}},
		"reviewer-bot":   {"/workspace/reviewer-bot", &readMount{"bind", "/srv/agents/workspaces/project-x", "/workspace", true}},
	} {
		s := file.Services[name]
		if s.Environment["AGENT_HOME"] != want.home {
			t.Errorf("%s is at home in %s", name, s.Environment["AGENT_HOME"])
		}
		var got *readMount
		for _, v := range s.Volumes {
			if v.Target == jail.WorkspaceDir {
				got = &v
			}
		}
		if (got == nil) != (want.mount == nil) || got != nil && *got != *want.mount {
			t.Errorf("%s sees %+v", name, got)
		}
		if v := s.Volumes[0]; v.Type != "volume" || v.Source != "hermit_state_"+name || file.Volumes[v.Source].Name != v.Source {
			t.Errorf("%s keeps its state in %+v", name, v)
		}
	}
}

// docker-compose replaces variables in every value.
func TestNothingInATextIsTakenForSomethingElse(t *testing.T) {
	s := read(t, written(t, full, options())).Services["small"]
	back := func(text string) string { return strings.ReplaceAll(text, "$$", "$") }
	if got := back(s.Volumes[2].Source); got != "/srv/it's a $HOME: {x}" || strings.Contains(strings.ReplaceAll(s.Volumes[2].Source, "$$", ""), "$") {
		t.Errorf("the workspace is %q", s.Volumes[2].Source)
	}
	if got := back(s.Environment["MODE"]); got != "a $b #c" {
		t.Errorf("the variable is %q", got)
	}
	if v, ok := s.Environment["EMPTY"]; !ok || v != "" {
		t.Errorf("an empty variable is %q, %t", v, ok)
	}
	if len(s.Entrypoint) != 3 || back(s.Entrypoint[2]) != `echo "$HOME" 'it'`+`'s' && sleep 1d` && back(s.Entrypoint[2]) != `echo "$HOME" 'it''s' && sleep 1d` {
		t.Errorf("the command is %q", s.Entrypoint)
	}
}

func TestEveryNameOfAnAgentIsAName(t *testing.T) {
	for _, name := range []string{"1", "no", "null", "1e3", "-a", "0x1f"} {
		if s, ok := read(t, written(t, "clawbots: [{name: \""+name+"\"}]", options())).Services[name]; !ok || s.Hostname != name {
			t.Errorf("%s is none", name)
		}
	}
}

func TestOptionsThatMakeNoSenseAreAllReported(t *testing.T) {
	f := clawbots.File{Source: "x", Agents: []clawbots.Agent{{Name: "a"}}}
	err := Write(&bytes.Buffer{}, f, Options{Tenant: "A", Image: "-", Subnet: netip.MustParsePrefix("8.8.8.0/24"), Tokens: "../x"})
	for _, want := range []string{"tenant", "image", "subnet", "port", "tokens"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("nothing is said of %s: %v", want, err)
		}
	}
	o := options()
	o.Limits = config.AgentLimits{} // zero is never unlimited
	if err := Write(&bytes.Buffer{}, f, o); problem.CodeOf(err) == "" || err == nil {
		t.Error("an agent without limits was written")
	}
	if err := Write(&bytes.Buffer{}, clawbots.File{Source: "x"}, options()); err == nil {
		t.Error("a file without agents was written")
	}
	f.Agents = nil
	for n := range maxAgents + 1 {
		f.Agents = append(f.Agents, clawbots.Agent{Name: fmt.Sprintf("b%d", n)})
	}
	if err := Write(&bytes.Buffer{}, f, options()); err == nil {
		t.Error("more agents than addresses were written")
	}
	f.Agents = f.Agents[1:]
	if err := Write(&bytes.Buffer{}, f, options()); err != nil {
		t.Errorf("as many as there are: %v", err)
	}
}

func FuzzQuoted(f *testing.F) {
	for _, seed := range []string{"", "a", "$HOME", "${X:-y}", "a: b #c", "\"'", "\x00\x7f", "\u0085\u2028\ufeff", "\uffff\ufffe\x9f", "<&>", "\n\t", "é😀", "{a: b}", "yes", "1e3"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		text = strings.ToValidUTF8(text, "")
		d := &document{}
		d.comment(text)
		d.pair(0, "key", text)
		d.list(0, "list", text, "x")
		d.line(0, "mounts:")
		d.mount("bind", text, text, true)
		var got struct {
			Key    string
			List   []string
			Mounts []readMount
		}
		if err := yaml.Unmarshal([]byte(d.String()), &got); err != nil {
			t.Fatalf("%q: %v\n%s", text, err, d)
		}
		want := strings.ReplaceAll(text, "$", "$$")
		if got.Key != want || len(got.List) != 2 || got.List[0] != want || len(got.Mounts) != 1 || got.Mounts[0].Source != want || got.Mounts[0].Target != want {
			t.Errorf("%q is read as %+v", text, got)
		}
	})
}
