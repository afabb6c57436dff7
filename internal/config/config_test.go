package config

import (
	"bufio"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/clawjail/clawjail/internal/config/yamldoc"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// sameConfig compares configurations; addresses are compared as values.
var sameConfig = cmp.Options{cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{})}

// linuxRoot is the environment that the documentation speaks of.
func linuxRoot() Environment {
	return Environment{GOOS: "linux", Root: true, User: "root", Home: "/root", Getenv: func(string) string { return "" }}
}

func variables(pairs map[string]string) func(string) string {
	return func(name string) string { return pairs[name] }
}

func example(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(testenv.Repository(t), "packaging", "clawjail.yml"))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestDefaultsAreValid(t *testing.T) {
	for _, goos := range []string{"linux", "freebsd", "darwin"} {
		e := linuxRoot()
		e.GOOS = goos
		if err := e.Default().Validate(); err != nil {
			t.Errorf("%s: %v", goos, err)
		}
	}
}

func TestExampleSaysTheDefaults(t *testing.T) {
	got, err := linuxRoot().Parse("clawjail.yml", []byte(example(t)))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(linuxRoot().Default(), got, sameConfig); diff != "" {
		t.Errorf("packaging/clawjail.yml is not the defaults (-default +file):\n%s", diff)
	}
}

// uncommented is the example with its "#key:" lines switched on.
func uncommented(text string) string {
	return regexp.MustCompile(`(?m)^( *)#([a-z_]+:)`).ReplaceAllString(text, "$1$2")
}

func TestExampleIsValidWithEveryLineSwitchedOn(t *testing.T) {
	got, err := linuxRoot().Parse("clawjail.yml", []byte(uncommented(example(t))))
	if err != nil {
		t.Fatal(err)
	}
	if got.Node == "" || !got.NodeListen.IsValid() || !got.Database.HasPassword() || got.Vault.KeyFile == "" || len(got.Logins) != 1 {
		t.Errorf("a commented example was not switched on: %+v", got)
	}
	got.Node, got.NodeListen, got.Database, got.Vault, got.Logins = "", netip.AddrPort{}, "", Vault{}, nil
	if !got.TLS.Set() || len(got.BehindProxy) != 1 || got.PublicURL == "" || len(got.ExtraCA) != 1 || len(got.Gateway.PrivateDestinations) != 1 {
		t.Errorf("a commented example was not switched on: %+v", got)
	}
	if got.HostBrowser.Executable == "" || !got.HostBrowser.Remote.On() || !got.HostBrowser.Remote.TLS.Set() || got.HostBrowser.Remote.Token == "" {
		t.Errorf("a commented example was not switched on: %+v", got)
	}
	got.HostBrowser.Executable, got.HostBrowser.Remote = "", RemoteBrowser{}
	if got.Gateway.RelayTo == "" {
		t.Errorf("a commented example was not switched on: %+v", got)
	}
	got.Gateway.RelayTo = ""
	if len(got.Agents.WorkspaceRoots) != 2 || len(got.Agents.JailRoots) != 1 {
		t.Errorf("a commented example was not switched on: %+v", got)
	}
	got.Agents.WorkspaceRoots, got.Agents.JailRoots = []string{"/var/lib/clawjail/workspaces"}, nil
	if len(got.MCPServers) != 1 || len(got.MCPServers[0].Secrets) != 1 || len(got.MCPServers[0].Mounts) != 1 {
		t.Errorf("a commented example was not switched on: %+v", got)
	}
	got.MCPServers = nil
	if k := got.Kubernetes; !k.On() || !k.Address.IsValid() || len(k.Images) != 1 || k.RuntimeClass == "" || k.StorageClass == "" || k.SharedStorageClass == "" || len(k.Unreachable) != 2 || k.Server == "" || k.Authority == "" || k.Token == "" {
		t.Errorf("a commented example was not switched on: %+v", got)
	}
	got.Kubernetes = defaultKubernetes()
	if got.ZFSDataset == "" {
		t.Errorf("a commented example was not switched on: %+v", got)
	}
	got.ZFSDataset = ""
	got.PublicURL = ""
	got.TLS, got.BehindProxy, got.ExtraCA, got.Gateway.PrivateDestinations = TLS{}, nil, nil, nil
	if diff := cmp.Diff(linuxRoot().Default(), got, sameConfig); diff != "" {
		t.Errorf("a commented path is not the default (-default +file):\n%s", diff)
	}
}

// An example with every key has no room for a key that is not in it: dropping a line must change what is known.
func TestExampleHasEveryKey(t *testing.T) {
	text := uncommented(example(t))
	keys := 0
	var look func(reflect.Value)
	look = func(of reflect.Value) {
		yamldoc.Walk(of, func(path string, at reflect.Value, _ reflect.StructTag) {
			for key := range strings.SplitSeq(path, ".") {
				keys++
				if !regexp.MustCompile(`(?m)(^ *|[{ ])` + key + `:`).MatchString(text) {
					t.Errorf("packaging/clawjail.yml does not show %s", path)
				}
			}
			if at.Kind() == reflect.Slice && at.Type().Elem().Kind() == reflect.Struct {
				look(reflect.Zero(at.Type().Elem()))
			}
		})
	}
	look(reflect.ValueOf(Config{}))
	look(reflect.ValueOf(AgentRoots{}))
	if keys < 90 {
		t.Errorf("there are only %d keys", keys)
	}
}

func TestEveryKeyIsRead(t *testing.T) {
	const text = `
data_dir: /d
run_dir: /r
templates_dir: /t
user: u
node: n-1
database: postgres://u:p@db.example/c
vault: {key_file: /v}
grants: {ttl: 5s, max_ttl: 6s}
audit: {keep: 2d}
logins: [{domain: a.example, probe_url: "https://a.example/", urls: ["https://a.example/in*"], selector: "#in"}]
listen: 192.0.2.1:99
tls: {cert: /c, key: /k}
behind_proxy: [10.0.0.0/8, "fd00::/8"]
public_url: https://p.example:8443
subnet: 10.90.0.0/18
uid_base: 200000
runtime: /opt/runc
storage: btrfs
apparmor: off
extra_ca: [/a.pem, /b.pem]
gateway: {port: 3001, placement: container, relay: 10.9.0.1:77, relay_to: "h:78", silence: 2h, private_destinations: [{host: a.example, address: 10.0.0.1, ports: [80, 443]}]}
sessions: {max: 7, ttl: 1m, max_ttl: 2m, idle: 3m, wall_clock: 1h30m, dialog_wait: 6s}
quotas: {tenant: 30%, agent: 100%, recordings: 1GiB, memory: 2GiB}
warm_pool: {size: 0, max_age: 4m, browser: full}
network_slots: {ready: 5}
workspace_roots: [/w, /x]
jail_roots: [/j]
allow_host_network: true
agents: {driver: docker, log: 2MiB, limits: {memory: 64MiB, cpu: 2, tasks: 9, tmp: 2MiB, state: 16MiB, files: 99}}
docker: {socket: /s, subnet: 10.91.0.0/24, image: i}
kubernetes: {namespace: jails, address: 10.244.1.7, port: 77, images: {browser: "i:1"}, account: a, seccomp: p/c.json, runtime_class: r, warm: 3, folder: 1GiB, storage_class: s, shared_storage_class: t, unreachable: ["10.96.0.10:53"],
  server: "https://10.1.2.3:6443", authority: /ca, token: /tk}
mcp_servers:
  one: {command: [/a, b], tenants: [t, "*"], template: x, env: {A: b}, secrets: {F: {secret: s}, E: {secret: u, as: env}}, tools: [r*], limits: {memory: 32MiB,
    cpu: 1, tasks: 8, tmp: 2MiB, files: 70}, network: gateway, allow: [a.example], idle: 1m, shared: true, mounts: [{source: /s, target: /mnt/t, read_only: true}]}
  two: {command: [/c], agent: bot, tools: []}
limits: {memory: 1GiB, cpu: 0.5, tasks: 100, tmp: 2MiB, shm: 1024KiB, files: 65}
browser: {enabled: false, control_url: "http://[::1]:9000", color: "#010203", headless: true, attach_only: true, executable: /opt/b, listen: "192.0.2.7:9443", tls: {cert: /b.crt, key: /b.key}, token: /b.token}
console: {enabled: false, accent: "#010204", idle: 3m, life: 4h}
metrics: {open: true}
log: {level: debug, format: json}
`
	want := Config{
		DataDir: "/d", RunDir: "/r", TemplatesDir: "/t", User: "u",
		Node: "n-1", Database: "postgres://u:p@db.example/c",
		Vault:       Vault{KeyFile: "/v"},
		Grants:      Grants{TTL: 5 * time.Second, MaxTTL: 6 * time.Second},
		Audit:       Audit{Keep: 48 * time.Hour},
		Logins:      []Login{{Domain: "a.example", ProbeURL: "https://a.example/", URLs: []string{"https://a.example/in*"}, Selector: "#in"}},
		Listen:      netip.MustParseAddrPort("192.0.2.1:99"),
		TLS:         TLS{Cert: "/c", Key: "/k"},
		PublicURL:   "https://p.example:8443",
		BehindProxy: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")},
		Subnet:      netip.MustParsePrefix("10.90.0.0/18"),
		UIDBase:     200000,
		Runtime:     "/opt/runc",
		Storage:     StorageBtrfs,
		AppArmor:    AppArmorOff,
		ExtraCA:     []string{"/a.pem", "/b.pem"},
		Gateway: Gateway{Port: 3001, Placement: PlacementContainer, Relay: netip.MustParseAddrPort("10.9.0.1:77"), RelayTo: "h:78", Silence: 2 * time.Hour, PrivateDestinations: []PrivateDestination{
			{Host: "a.example", Address: netip.MustParseAddr("10.0.0.1"), Ports: []uint16{80, 443}},
		}},
		Sessions:     Sessions{Max: 7, TTL: time.Minute, MaxTTL: 2 * time.Minute, Idle: 3 * time.Minute, WallClock: 90 * time.Minute, DialogWait: 6 * time.Second},
		Quotas:       Quotas{Tenant: 30, Agent: 100, Recordings: GiB, Memory: 2 * GiB},
		WarmPool:     WarmPool{Size: 0, MaxAge: 4 * time.Minute, Browser: BrowserFull},
		NetworkSlots: NetworkSlots{Ready: 5},
		Limits:       Limits{Memory: GiB, CPU: 0.5, Tasks: 100, Tmp: 2 * MiB, SHM: MiB, Files: 65},
		Agents: Agents{Driver: AgentDriverDocker, AgentRoots: AgentRoots{[]string{"/w", "/x"}, []string{"/j"}, true}, Log: 2 * MiB,
			Limits: AgentLimits{Memory: 64 * MiB, CPU: 2, Tasks: 9, Tmp: 2 * MiB, State: 16 * MiB, Files: 99}},
		Docker: Docker{Socket: "/s", Subnet: netip.MustParsePrefix("10.91.0.0/24"), Image: "i"},
		Kubernetes: Kubernetes{Namespace: "jails", Address: netip.MustParseAddr("10.244.1.7"), Port: 77, Images: map[string]string{"browser": "i:1"}, Account: "a",
			Seccomp: "p/c.json", RuntimeClass: "r", Warm: 3, Folder: GiB, StorageClass: "s", SharedStorageClass: "t", Unreachable: []netip.AddrPort{netip.MustParseAddrPort("10.96.0.10:53")},
			Server: "https://10.1.2.3:6443", Authority: "/ca", Token: "/tk"},
		MCPServers: []MCPServer{
			{Name: "one", Command: []string{"/a", "b"}, Tenants: []string{"t", "*"}, Template: "x", Env: map[string]string{"A": "b"},
				Secrets: []ServerSecret{{Name: "F", Secret: "s"}, {Name: "E", Secret: "u", Env: true}}, Tools: []string{"r*"},
				Limits:  AgentLimits{Memory: 32 * MiB, CPU: 1, Tasks: 8, Tmp: 2 * MiB, Files: 70},
				Network: ServerNetworkGateway, Allow: []string{"a.example"}, Idle: time.Minute, Shared: true, Mounts: []ServerMount{{Source: "/s", Target: "/mnt/t", ReadOnly: true}}},
			{Name: "two", Command: []string{"/c"}, Agent: "bot", Tools: []string{}},
		},
		Console: Console{Accent: "#010204", Idle: 3 * time.Minute, Life: 4 * time.Hour},
		HostBrowser: HostBrowser{ControlURL: "http://[::1]:9000", Color: "#010203", Headless: HeadlessYes,
			AttachOnly: true, Executable: "/opt/b",
			Remote: RemoteBrowser{Listen: netip.MustParseAddrPort("192.0.2.7:9443"), TLS: TLS{Cert: "/b.crt", Key: "/b.key"}, Token: "/b.token"}},
		Metrics: Metrics{Open: true},
		Log:     Log{Level: "debug", Format: "json"},
	}
	got, err := linuxRoot().Parse("c.yml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, sameConfig); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The files of testdata/invalid are what people get wrong; beside each is what they are told.
func TestInvalidFilesAreExplained(t *testing.T) {
	files, err := filepath.Glob("testdata/invalid/*.yml")
	if err != nil || len(files) < 10 {
		t.Fatalf("found %d files, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			_, err = linuxRoot().Parse("clawjail.yml", data)
			if err == nil {
				t.Fatal("is accepted")
			}
			var many *problem.ValidationError
			if !errors.As(err, &many) || problem.CodeOf(err) != problem.BadConfig {
				t.Errorf("is a %T with the code %q", err, problem.CodeOf(err))
			}
			testenv.Golden(t, strings.TrimSuffix(file, ".yml")+".golden", err.Error()+"\n")
		})
	}
}

func TestEveryFlawOfAFileHasItsPlace(t *testing.T) {
	files, err := filepath.Glob("testdata/invalid/*.golden")
	if err != nil || len(files) < 10 {
		t.Fatalf("found %d files, %v", len(files), err)
	}
	place := regexp.MustCompile(`^clawjail\.yml:[0-9]+:[0-9]+: `)
	for _, file := range files {
		if filepath.Base(file) == "not-utf8.golden" { // there are no lines in what is not text
			continue
		}
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		for lines := bufio.NewScanner(f); lines.Scan(); {
			if !place.MatchString(lines.Text()) {
				t.Errorf("%s: %q has no line and column", file, lines.Text())
			}
		}
		f.Close()
	}
}

func TestListenBeyondLoopbackNeedsProtection(t *testing.T) {
	tests := []struct {
		text string
		ok   bool
	}{
		{"listen: 127.0.0.1:1", true},
		{"listen: 127.9.9.9:1", true},
		{"listen: '[::1]:1'", true},
		{"listen: 10.0.0.1:1", false},
		{"listen: '[::]:1'", false},
		{"listen: '[::ffff:127.0.0.1]:1'", false},
		{"listen: 10.0.0.1:1\ntls: {cert: /c, key: /k}", true},
		{"listen: 10.0.0.1:1\ntls: {cert: /c}", false},
		{"listen: 10.0.0.1:1\nbehind_proxy: [10.0.0.2/32]", true},
		{"listen: 10.0.0.1:1\nbehind_proxy: [0.0.0.0/0]", false},
	}
	for _, tt := range tests {
		if _, err := linuxRoot().Parse("c.yml", []byte(tt.text)); (err == nil) != tt.ok {
			t.Errorf("%q: %v", tt.text, err)
		}
	}
}

func TestPrivateDestinationIsNeverMetadata(t *testing.T) {
	for address, ok := range map[string]bool{
		"10.0.0.1": true, "fd00::1": true, "127.0.0.1": true,
		"169.254.169.254": false, "fe80::1": false, "0.0.0.0": false, "'::'": false, "224.0.0.1": false, "'fd00::1%eth0'": false,
	} {
		text := "gateway: {private_destinations: [{host: a.example, address: " + address + ", ports: [80]}]}"
		if !strings.Contains(address, "'") {
			text = strings.Replace(text, address, "'"+address+"'", 1)
		}
		if _, err := linuxRoot().Parse("c.yml", []byte(text)); (err == nil) != ok {
			t.Errorf("%s: %v", address, err)
		}
	}
}

// Jails of this machine have addresses of its subnet, and pods those of a cluster.
func TestThereAreNoMoreSessionsThanAddresses(t *testing.T) {
	for text, ok := range map[string]bool{
		"sessions: {max: 3900}":                                  true,
		"sessions: {max: 10000}":                                 false,
		"sessions: {max: 10000}\nkubernetes: {namespace: jails}": true,
		"sessions: {max: 300}\nsubnet: 10.90.0.0/24":             false,
		"sessions: {max: 10000}\nsubnet: 10.90.0.0/17":           true,
		"sessions: {max: 100}\nsubnet: 10.90.0.0/24":             true,
	} {
		if _, err := linuxRoot().Parse("c.yml", []byte(text)); (err == nil) != ok {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestTheRelayHasAPlaceThatContainersReach(t *testing.T) {
	for text, want := range map[string]string{
		"": "host.docker.internal:18793",
		"placement: container, relay: '10.215.0.1:18793'":    "10.215.0.1:18793",
		"placement: container, relay_to: 'a.example:9'":      "a.example:9",
		"relay: '[fd00::1]:1'":                               "[fd00::1]:1",
		"placement: jail":                                    "",
		"placement: container, relay: '10.215.0.1:0'":        "",
		"placement: container, relay: '0.0.0.0:18793'":       "",
		"placement: container, relay: '192.0.2.1:18793'":     "",
		"placement: container, relay: '[::ffff:10.0.0.1]:1'": "",
		"relay_to: 'a.example'":                              "",
		"relay_to: 'a.example:0'":                            "",
		"relay_to: 'a b:1'":                                  "",
	} {
		c, err := linuxRoot().Parse("c.yml", []byte("gateway: {"+text+"}"))
		if (err == nil) != (want != "") || err == nil && c.Gateway.RelayTarget() != want {
			t.Errorf("%q: %s, %v", text, c.Gateway.RelayTarget(), err)
		}
	}
	if runtime.GOOS == "linux" {
		if _, err := linuxRoot().Parse("c.yml", []byte("gateway: {placement: container}")); err == nil {
			t.Error("an address that containers do not reach is accepted")
		}
	}
}

// A password in a file that everybody can read is no secret.
func TestPasswordInTheOpenIsRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "clawjail.yml")
	for _, c := range []struct {
		database string
		mode     os.FileMode
		ok       bool
	}{
		{"postgres://u:hunter2hunter2@db.example/c", 0o644, false},
		{"postgres://u@db.example/c?password=hunter2hunter2", 0o644, false},
		{"postgres://u:hunter2hunter2@db.example/c", 0o640, true},
		{"postgres://u@db.example/c", 0o644, true},
	} {
		if err := os.WriteFile(file, []byte("database: "+c.database+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(file, c.mode); err != nil {
			t.Fatal(err)
		}
		got, err := linuxRoot().Load(file)
		if (err == nil) != c.ok || err != nil && problem.CodeOf(err) != problem.BadConfig {
			t.Errorf("%s with mode %o: %v", c.database, c.mode, err)
		}
		for _, text := range []string{fmt.Sprint(err), fmt.Sprintf("%v %+v %#v %q", got, got, got, got.Database)} {
			if strings.Contains(text, "hunter2") {
				t.Errorf("the password is in %s", text)
			}
		}
	}
}

func FuzzParseNeverPanics(f *testing.F) {
	files, err := filepath.Glob("testdata/invalid/*.yml")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range append(files, "../../packaging/clawjail.yml") {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := linuxRoot().Parse("c.yml", data)
		if err == nil {
			err = c.Validate()
			if err != nil {
				t.Errorf("accepted, and then not valid: %v", err)
			}
			return
		}
		if problem.CodeOf(err) != problem.BadConfig || err.Error() == "" {
			t.Errorf("code %q, text %q", problem.CodeOf(err), err)
		}
	})
}

func TestAgentsHaveOneFolderByDefaultAndNoneWhenTheListIsEmpty(t *testing.T) {
	e := Environment{GOOS: "linux", Root: true, Getenv: func(string) string { return "" }}
	for text, want := range map[string][]string{
		"":                                {"/var/lib/clawjail/workspaces"},
		"data_dir: /d":                    {"/d/workspaces"},
		"workspace_roots: []":             nil,
		"workspace_roots: [/srv/a]":       {"/srv/a"},
		"workspace_roots: [/srv/a, /d/b]": {"/srv/a", "/d/b"},
		"data_dir: /d\nworkspace_roots: [/srv/a, /d/workspaces]": {"/srv/a", "/d/workspaces"},
	} {
		c, err := e.Parse("clawjail.yml", []byte(text))
		if err != nil || !slices.Equal(c.Agents.WorkspaceRoots, want) {
			t.Errorf("%q: %v, %v; want %v", text, c.Agents.WorkspaceRoots, err, want)
		}
	}
	for _, text := range []string{
		"data_dir: /d\nworkspace_roots: [/d/workspaces/x]", "data_dir: /d\nworkspace_roots: [/d/work]", "data_dir: /d\njail_roots: [/d/workspaces]",
		"data_dir: /d\ntemplates_dir: /d/workspaces/t", "data_dir: /d\nrun_dir: /d/workspaces",
	} {
		if c, err := e.Parse("clawjail.yml", []byte(text)); err == nil {
			t.Errorf("%q is accepted: %v", text, c.Agents)
		}
	}
}

func TestAFolderIsAddedByTheRulesOfTheFile(t *testing.T) {
	e := Environment{GOOS: "linux", Root: true, Getenv: func(string) string { return "" }}
	c, err := e.Parse("clawjail.yml", []byte("jail_roots: [/srv/jails]"))
	if err != nil {
		t.Fatal(err)
	}
	for path, good := range map[string]bool{
		"/home/ada/bots/workspaces": true, "/srv/work": true, "/": false, "work": false, "/srv/../etc": false, "/srv/a\nb": false, "": false,
		"/srv": false, "/srv/jails/x": false, "/var/lib/clawjail": false, "/var/lib": false, "/var/lib/clawjail/state": false, "/run/clawjail/x": false,
	} {
		if err := CheckWorkspaceRoot(c, path); (err == nil) != good {
			t.Errorf("%q: %v", path, err)
		}
	}
}
