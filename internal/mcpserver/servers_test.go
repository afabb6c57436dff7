package mcpserver

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/policy/hostport"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

func TestServersAreAddedReplacedAndRemoved(t *testing.T) {
	w := newFixture(t, files())
	added := config.MCPServer{Name: "more", Command: []string{"/one"}}
	if _, err := w.Add(t.Context(), admin(), added); err != nil {
		t.Fatal(err)
	}
	if _, err := w.call(operator(), "more__echo"); err != nil {
		t.Fatal(err)
	}
	added.Command = []string{"/two"}
	if _, err := w.Add(t.Context(), admin(), added); err != nil {
		t.Fatal(err)
	}
	if _, err := w.call(operator(), "more__echo"); err != nil || w.specs[1].Program.Argv[0] != "/two" {
		t.Errorf("%v: the new one runs %v", err, w.specs)
	}
	list, err := w.List(t.Context(), operator(), "")
	if err != nil || len(list) != 2 || list[0].Source != SourceFile || list[1].Source != SourceAdded || list[1].State != StateRunning || list[1].Tools != 2 {
		t.Errorf("listed are %+v, %v", list, err)
	}
	for tenant, want := range map[string][]string{"default": {"files", "more"}, "other": nil} {
		if names, err := w.Names(t.Context(), tenant); err != nil || !slices.Equal(names, want) {
			t.Errorf("%s: %v, %v", tenant, names, err)
		}
	}
	if err := w.Remove(t.Context(), admin(), "more"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.call(operator(), "more__echo"); problem.CodeOf(err) != problem.NotFound {
		t.Errorf("what was removed: %v", err)
	}
	if err := w.Remove(t.Context(), admin(), "more"); problem.CodeOf(err) != problem.NotFound {
		t.Errorf("removed twice: %v", err)
	}
}

// Whoever has read the servers before one is removed or replaced starts nothing of its old declaration afterwards, which may have
// secrets. A change of another server keeps nobody from theirs.
func TestAServerThatIsRemovedOrReplacedMeanwhileIsNotStartedOnceMore(t *testing.T) {
	old := config.MCPServer{Name: "more", Command: []string{"/old"}}
	add := func(w *fixture, name, program string) error {
		_, err := w.Add(t.Context(), admin(), config.MCPServer{Name: name, Command: []string{program}})
		return err
	}
	for what, test := range map[string]struct {
		change func(w *fixture) error
		runs   string // afterwards
	}{
		"removed":  {func(w *fixture) error { return w.Remove(t.Context(), admin(), old.Name) }, ""},
		"replaced": {func(w *fixture) error { return add(w, old.Name, "/new") }, "/new"},
		"another":  {func(w *fixture) error { return add(w, "another", "/another") }, "/old"},
	} {
		for how, begins := range map[string]func(w *fixture) bool{
			"called": func(w *fixture) bool { _, err := w.call(agent(), "more__echo"); return err == nil },
			"listed": func(w *fixture) bool { return len(w.names(agent())) > 0 },
		} {
			w := newFixture(t)
			if _, err := w.Add(t.Context(), admin(), old); err != nil {
				t.Fatal(err)
			}
			read := 0
			w.o.ServersOf = func(string, string) []string { // asked when they have been read
				if read++; read == 1 {
					if err := test.change(w); err != nil {
						t.Error(err)
					}
				}
				return []string{old.Name}
			}
			if began := begins(w); began != (test.runs != "") {
				t.Errorf("%s when it is %s: an answer of it is %v", what, how, began)
			}
			var ran []string
			for _, spec := range w.specs {
				ran = append(ran, spec.Program.Argv[0])
			}
			if strings.Join(ran, " ") != test.runs {
				t.Errorf("%s when it is %s: %v ran, want %q", what, how, ran, test.runs)
			}
		}
	}
}

func TestServersOfTheFileAreChangedThere(t *testing.T) {
	w := newFixture(t, files())
	if _, err := w.Add(t.Context(), admin(), files()); problem.CodeOf(err) != problem.Conflict {
		t.Errorf("added: %v", err)
	}
	err := w.Remove(t.Context(), admin(), "files")
	if p, ok := problem.As(err); !ok || p.Code != problem.Conflict || !strings.Contains(p.Hint, "mcp_servers") {
		t.Errorf("removed: %v", err)
	}
}

func TestOnlyAdminsOfTheInstallationChangeServers(t *testing.T) {
	w := newFixture(t, files())
	own := operator()
	own.Role = identity.RoleAdmin // of a tenant
	for _, by := range []identity.Principal{operator(), own, agent(), {}} {
		_, err := w.Add(t.Context(), by, config.MCPServer{Name: "x", Command: []string{"/x"}})
		if problem.CodeOf(err) != problem.Forbidden {
			t.Errorf("%s adds: %v", by.Actor(), err)
		}
		if err := w.Remove(t.Context(), by, "files"); problem.CodeOf(err) != problem.Forbidden {
			t.Errorf("%s removes: %v", by.Actor(), err)
		}
		if _, err := w.Test(t.Context(), by, "", "files"); problem.CodeOf(err) != problem.Forbidden {
			t.Errorf("%s tests: %v", by.Actor(), err)
		}
	}
	if _, err := w.List(t.Context(), agent(), ""); problem.CodeOf(err) != problem.Forbidden {
		t.Errorf("an agent lists: %v", err)
	}
	if w.started() != 0 {
		t.Error("something was started")
	}
}

func TestBadServersAreRefusedWithEverythingAtOnce(t *testing.T) {
	w := newFixture(t)
	_, err := w.Add(t.Context(), admin(), config.MCPServer{Name: "Bad", Command: []string{"relative"}, Allow: []string{"example.com"}})
	if problem.CodeOf(err) != problem.BadRequest {
		if many, ok := err.(*problem.ValidationError); !ok || many.Code != problem.BadRequest || len(many.Flaws) != 3 {
			t.Errorf("%v", err)
		}
	}
	if rows, err := w.o.Store.ListEntries(t.Context(), kindServer); err != nil || len(rows) != 0 {
		t.Errorf("%v, %v", rows, err)
	}
}

// Entries of the database are checked like those that people write.
func TestDamagedEntriesAreLeftOut(t *testing.T) {
	w := newFixture(t, files())
	now := w.o.Now()
	for n, body := range []string{`{`, `{"name":"other","command":["/x"]}`, `{"name":"bad2","command":["x"]}`, `{"name":"bad3","command":["/x"],"mounts":[{"source":"/","target":"/etc"}]}`} {
		err := w.o.Store.CreateEntry(t.Context(), store.Entry{ID: newID(), Kind: kindServer, Name: fmt.Sprintf("bad%d", n), Body: []byte(body), CreatedAt: now, UpdatedAt: now})
		if err != nil && n > 0 {
			t.Fatal(err)
		}
	}
	if names, err := w.Names(t.Context(), "default"); err != nil || !slices.Equal(names, []string{"files"}) {
		t.Errorf("%v, %v", names, err)
	}
}

func TestAServerHasTheJailThatIsDeclared(t *testing.T) {
	server := config.MCPServer{Name: "full", Command: []string{"/usr/bin/x", "-a"}, Template: "mine", Env: map[string]string{"A": "b"},
		Secrets: []config.ServerSecret{{Name: "TOKEN", Secret: "github"}, {Name: "KEY", Secret: "other", Env: true}},
		Limits:  config.AgentLimits{Memory: 64 * config.MiB, Tasks: 9}, Mounts: []config.ServerMount{{Source: "/srv/x", Target: "/mnt/x", ReadOnly: true}}}
	w := newFixture(t, server)
	if _, err := w.call(operator(), "full__echo"); err != nil {
		t.Fatal(err)
	}
	s := w.specs[0]
	if s.Kind != jail.KindAgent || s.Lifetime != jail.LifetimeOwner || s.Template != "mine" || s.Agent.Name != "mcp-full" || s.Agent.Token ||
		s.Limits.Memory != 64<<20 || s.Limits.Tasks != 9 || s.Limits.MilliCPU != 500 {
		t.Errorf("the jail is %+v", s)
	}
	if diff := cmp.Diff([]jail.Mount{{Source: "/srv/x", Target: "/mnt/x", ReadOnly: true}}, s.Mounts); diff != "" {
		t.Error(diff)
	}
	// The secrets are in files, and in nothing else: the host keeps the rest of a description.
	want := []jail.File{{Path: ".secrets/TOKEN", Data: []byte("value-of-default-github")}, {Path: ".secrets/KEY", Data: []byte("value-of-default-other")}}
	if diff := cmp.Diff(want, s.HomeFiles); diff != "" {
		t.Error(diff)
	}
	s.HomeFiles = nil
	if text := fmt.Sprintf("%+v", s); strings.Contains(text, "value-of") {
		t.Errorf("a secret is in the description: %s", text)
	}
	if s.Program.Env["TOKEN_FILE"] != "/state/.secrets/TOKEN" || s.Program.Env["KEY_FILE"] != "" || s.Program.Env["A"] != "b" || s.Program.Env["HTTP_PROXY"] != "" {
		t.Errorf("the environment is %v", s.Program.Env)
	}
	// Without a network nobody is told of the jail.
	if len(w.admits) != 0 || len(w.admitted()) != 0 {
		t.Errorf("admitted are %v and %v", w.admits, w.admitted())
	}
}

func TestAServerReachesWhatIsAllowed(t *testing.T) {
	server := config.MCPServer{Name: "net", Command: []string{"/x"}, Network: config.ServerNetworkGateway, Allow: []string{"example.com", "*.test.example:8443"}}
	w := newFixture(t, server)
	if _, err := w.call(operator(), "net__echo"); err != nil {
		t.Fatal(err)
	}
	if len(w.admits) != 1 || len(w.admitted()) != 1 || w.knownFirst != 1 {
		t.Fatalf("admitted are %v and %v", w.admits, w.admitted())
	}
	if w.specs[0].Program.Env["HTTPS_PROXY"] != "http://gateway:3000" {
		t.Errorf("the environment is %v", w.specs[0].Program.Env)
	}
	for _, who := range w.admits {
		if who.Tenant != "default" || who.Agent != "" || who.Session == "" || !who.Confined {
			t.Errorf("the gateway knows it as %+v", who)
		}
		compiled, err := policy.Compile(who.Policy)
		if err != nil {
			t.Fatal(err)
		}
		for target, want := range map[string]bool{"example.com:443": true, "example.com:80": true, "example.com:22": false, "a.example.com:443": false,
			"a.test.example:8443": true, "a.test.example:443": false, "other.example:443": false} {
			name, port, _ := strings.Cut(target, ":")
			host, err := hostport.ParseHost(name)
			if err != nil {
				t.Fatal(err)
			}
			var n uint16
			_, _ = fmt.Sscan(port, &n)
			if got := compiled.Decide(policy.Request{Scheme: policy.HTTPS, Host: host, Port: n, Method: policy.Connect}).Allowed; got != want {
				t.Errorf("%s: allowed is %t", target, got)
			}
		}
	}
	if err := w.Close(t.Context()); err != nil || len(w.admits) != 0 {
		t.Errorf("after the end: %v, %v", err, w.admits)
	}
}

func TestATestSaysWhatItFound(t *testing.T) {
	server := files()
	server.Tools = []string{"echo"}
	w := newFixture(t, server)
	r, err := w.Test(t.Context(), admin(), "", "files")
	if err != nil || r.Problem != "" || r.Title != "peer" || r.Version != "7" || r.Protocol != "2025-06-18" || len(r.Tools) != 1 || r.Left != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	if w.running() != 0 {
		t.Error("its jail is left")
	}
	w.behave = func(p *peer) { _, _ = p.err.WriteString("no module x\n") }
	if r, err = w.Test(t.Context(), admin(), "", "files"); err != nil || r.Code != problem.JailFailed || !strings.Contains(r.Problem, "status 3") || r.Stderr != "no module x\n" {
		t.Errorf("%+v, %v", r, err)
	}
	w.noJail = problem.New(problem.TemplateMissing, "build it", "there is no template")
	if r, err = w.Test(t.Context(), admin(), "", "files"); err != nil || r.Code != problem.TemplateMissing || r.Hint != "build it" {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := w.Test(t.Context(), admin(), "acme", "files"); problem.CodeOf(err) != problem.Conflict {
		t.Errorf("for another tenant: %v", err)
	}
	if _, err := w.Test(t.Context(), admin(), "", "none"); problem.CodeOf(err) != problem.NotFound {
		t.Errorf("what is not there: %v", err)
	}
}

func TestOptionsSayEverythingThatIsMissing(t *testing.T) {
	err := Options{Log: slog.New(slog.DiscardHandler), Servers: []config.MCPServer{{Name: "x"}}}.Validate()
	for _, want := range []string{"driver", "gateway", "vault", "store", "identity", "audit log", "agents may use", "command"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s is not in %v", want, err)
		}
	}
}
