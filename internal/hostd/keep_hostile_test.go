package hostd

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// An agent that was declared while its template was good is not started of one that was changed since, however it comes to
// be started again.
func TestNoAgentIsStartedOfATemplateThatWasChanged(t *testing.T) {
	var bad atomic.Bool
	f := newFixture(t, func(o *Options) {
		has := o.HasTemplate
		o.HasTemplate = func(ctx context.Context, name string) error {
			if bad.Load() {
				return problem.New(problem.BadTemplate, "build it again", "the template %s is not as it was built", name)
			}
			return has(ctx, name)
		}
	})
	c := NewClient(f.socket, nil)
	k := keptSpec("bot", "exec cat")
	first := keep(t, c, k)
	bad.Store(true)
	if s := keptStatus(t, c, "bot"); s.Jail != first.Jail {
		t.Fatalf("the jail that runs is left alone, and it is %s instead of %s", s.Jail, first.Jail)
	}
	if err := c.RestartKept(t.Context(), "default", "bot"); problem.CodeOf(err) != problem.BadTemplate {
		t.Errorf("restart: %v", err)
	}
	errs, err := c.CheckKept(t.Context(), []jail.Kept{k})
	if err != nil || len(errs) != 1 || problem.CodeOf(errs[0]) != problem.BadTemplate {
		t.Errorf("check: %v, %v", errs, err)
	}
	if _, err := f.client(t).Create(t.Context(), spec("exec cat")); problem.CodeOf(err) != problem.BadTemplate {
		t.Errorf("create: %v", err)
	}
	if s := keptStatus(t, c, "bot"); s.Jail != "" || s.Phase != jail.PhaseFailed || s.Code != problem.BadTemplate {
		t.Errorf("it stands at %+v", s)
	}
	bad.Store(false)
	testenv.Eventually(t, patience, func() bool { return keptStatus(t, c, "bot").Phase == jail.PhaseRunning }, "it is not started again")
}

// Hostile declarations of a control plane that was taken over are refused before anything is made.
func TestHostileDeclarationsAreRefused(t *testing.T) {
	f := newFixture(t, nil)
	c := NewClient(f.socket, nil)
	mount := func(source, target string, make ...string) func(*jail.Kept) {
		return func(k *jail.Kept) { k.Spec.Mounts = []jail.Mount{{Source: source, Target: target, Make: make}} }
	}
	files := func(n int, path string) func(*jail.Kept) {
		return func(k *jail.Kept) {
			for i := range n {
				k.Spec.HomeFiles = append(k.Spec.HomeFiles, jail.File{Path: fmt.Sprintf(path, i)})
			}
		}
	}
	name := func(tenant, name string) func(*jail.Kept) {
		return func(k *jail.Kept) { k.Spec.Agent.Tenant, k.Spec.Agent.Name = tenant, name }
	}
	cases := map[string]func(*jail.Kept){
		"a mount onto the root":              mount("/srv/x", "/"),
		"a mount onto proc":                  mount("/srv/x", "/proc"),
		"a mount onto the token":             mount("/srv/x", jail.TokenDir),
		"a mount onto the state":             mount("/srv/x", jail.StateDir),
		"a mount onto the staged files":      mount("/srv/x", jail.StageDir),
		"a mount onto what holds others":     mount("/srv/x", "/mnt"),
		"a mount out of the workspace":       mount("/srv/x", jail.WorkspaceDir+"/../etc"),
		"a mount beside the workspace":       mount("/srv/x", jail.WorkspaceDir+"2"),
		"a relative target":                  mount("/srv/x", "workspace"),
		"a target with a newline":            mount("/srv/x", jail.WorkspaceDir+"/a\nb"),
		"a source that climbs":               mount("/srv/../etc", jail.WorkspaceDir),
		"a source with a NUL":                mount("/srv/a\x00b", jail.WorkspaceDir),
		"the root as a source":               mount("/", jail.WorkspaceDir),
		"a folder to be made above":          mount("/srv/x", jail.WorkspaceDir, ".."),
		"a folder to be made below another":  mount("/srv/x", jail.WorkspaceDir, "a/b"),
		"a name that climbs":                 name("default", "../../etc"),
		"a name with a dot":                  name("default", "other.bot"),
		"a tenant that climbs":               name("..", "bot"),
		"an empty tenant":                    name("", "bot"),
		"a name with a slash":                name("default", "a/b"),
		"a name with a newline":              name("default", "a\nb"),
		"a name that is too long":            name("default", strings.Repeat("a", 41)),
		"a root that climbs":                 func(k *jail.Kept) { k.Spec.Template, k.Spec.Root = "", "/srv/../etc" },
		"a root and a template":              func(k *jail.Kept) { k.Spec.Root = "/srv/jail" },
		"more files than any program needs":  files(jail.MaxHomeFileCount+1, "f%d"),
		"a file that climbs":                 files(1, "a/../../%d"),
		"a state of no end":                  func(k *jail.Kept) { k.Spec.Agent.State = jail.MaxState + 1 },
		"a negative state":                   func(k *jail.Kept) { k.Spec.Agent.State = -1 },
		"tasks without a limit":              func(k *jail.Kept) { k.Spec.Limits.Tasks = 0 },
		"an environment that ends its quote": func(k *jail.Kept) { k.Spec.Program.Env = map[string]string{"A='; id; B": "x"} },
		"a kind that is none":                func(k *jail.Kept) { k.Spec.Kind = "root" },
		"a browser's kind":                   func(k *jail.Kept) { k.Spec.Kind = jail.KindBrowser },
		"a lifetime of an owner's":           func(k *jail.Kept) { k.Spec.Lifetime = jail.LifetimeOwner },
		"a revision that is two lines":       func(k *jail.Kept) { k.Revision = "a\nb" },
		"a policy that is none":              func(k *jail.Kept) { k.Restart = "forever" },
	}
	if errs, err := c.CheckKept(t.Context(), []jail.Kept{keptSpec("bot", "exec cat")}); err != nil || errs[0] != nil {
		t.Fatalf("what is in order is refused, so that a refusal shows nothing: %v, %v", errs, err)
	}
	for what, change := range cases {
		k := keptSpec("bot", "exec cat")
		change(&k)
		if err := c.Keep(t.Context(), k, agentToken); err == nil {
			t.Errorf("%s was taken", what)
		}
		if errs, err := c.CheckKept(t.Context(), []jail.Kept{k}); err == nil && errs[0] == nil {
			t.Errorf("%s has nothing in its way", what)
		}
	}
	for _, token := range []string{"a\nb", "a b", "a\x00b", "\u00e9", strings.Repeat("a", 4097)} {
		if err := c.Keep(t.Context(), keptSpec("bot", "exec cat"), token); problem.CodeOf(err) != problem.BadRequest {
			t.Errorf("the token %.20q: %v", token, err)
		} else if strings.Contains(err.Error(), token) {
			t.Errorf("the token is in the error: %v", err)
		}
	}
	if _, all, err := c.Kept(t.Context(), 0, false); err != nil || len(all) != 0 {
		t.Errorf("kept is %+v, %v", all, err)
	}
	f.empty(t)
	// And what speaks of agents and jails that are somebody else's, or of none.
	for _, bad := range []string{"", "..", "a/b", "../journal/x", "atest0000", "atest000001", "btest0000x", "xtest00001", "aelse00001", "atest00001\n"} {
		if _, err := c.ExecIn(t.Context(), jail.Name(bad), jail.Program{Argv: []string{"/bin/true"}, Wire: jail.WireStdio}); problem.CodeOf(err) != problem.BadName {
			t.Errorf("exec in %q: %v", bad, err)
		}
		if _, err := c.DialIn(t.Context(), jail.Name(bad), 8000); problem.CodeOf(err) != problem.BadName {
			t.Errorf("dial in %q: %v", bad, err)
		}
	}
	for _, bad := range []string{"", "..", "../x", "a.b", "a\nb", "A"} {
		for what, call := range map[string]func() error{
			"drop":    func() error { return c.Drop(t.Context(), "default", bad, jail.DropOptions{}) },
			"restart": func() error { return c.RestartKept(t.Context(), bad, "bot") },
			"token":   func() error { return c.SetToken(t.Context(), "default", bad, agentToken) },
			"type":    func() error { _, err := c.Type(t.Context(), "default", bad, []byte("x")); return err },
			"log": func() error {
				_, err := c.ReadLog(t.Context(), jail.LogRequest{Tenant: "default", Name: bad, Stream: jail.Stdout})
				return err
			},
		} {
			if err := call(); problem.CodeOf(err) != problem.BadName {
				t.Errorf("%s of %q: %v", what, bad, err)
			}
		}
	}
	for _, stream := range []jail.Stream{"", "stdin", "../stdout", "stdout/0"} {
		if _, err := c.ReadLog(t.Context(), jail.LogRequest{Tenant: "default", Name: "bot", Stream: stream}); problem.CodeOf(err) != problem.BadRequest {
			t.Errorf("stream %q: %v", stream, err)
		}
	}
}

// Callers that ask for large pieces of logs and do not take them cannot fill the memory of the host daemon.
func TestPiecesOfLogsInMemoryAreBounded(t *testing.T) {
	f := newFixture(t, func(o *Options) { o.Patience, o.Keep.LogBytes = time.Minute, 16<<20 })
	c := NewClient(f.socket, nil)
	keep(t, c, keptSpec("bot", "head -c 1000000 /dev/zero; exec cat"))
	ask := jail.LogRequest{Tenant: "default", Name: "bot", Stream: jail.Stdout, Limit: 1 << 20}
	testenv.Eventually(t, patience, func() bool { chunk, err := c.ReadLog(t.Context(), ask); return err == nil && chunk.End == 1000000 }, "it prints nothing")
	var slow []net.Conn
	for range maxReads {
		conn := f.raw(t, fmt.Sprintf(`{"protocol":%d,"op":"read_log","args":{"tenant":"default","name":"bot","stream":"stdout","offset":0,"limit":1048576}}`, protocolVersion))
		if _, err := conn.Read(make([]byte, 1)); err != nil { // the answer has begun
			t.Fatal(err)
		}
		slow = append(slow, conn)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if chunk, err := c.ReadLog(ctx, ask); err == nil {
		t.Errorf("one more has %d bytes", len(chunk.Data))
	}
	ask.Wait = 10 * time.Millisecond
	ask.Offset = 1 << 40
	answered := make(chan error, 1)
	go func() { _, err := c.ReadLog(t.Context(), ask); answered <- err }()
	_ = slow[0].Close() // the place is free again
	if err := <-answered; err != nil {
		t.Error(err)
	}
}
