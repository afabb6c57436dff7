package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/audit/checkpoint"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/store"
)

func TestMain(m *testing.M) {
	simulate()
	testscript.Main(leakFree{m}, map[string]func(){
		"clawjail": func() { os.Exit(Main(context.Background(), "v1.2.3", os.Args[1:], os.Stdout, os.Stderr)) },
	})
}

// leakFree runs the tests and then looks for goroutines that they left.
type leakFree struct{ m *testing.M }

func (l leakFree) Run() int {
	status := l.m.Run()
	if err := goleak.Find(); err != nil && status == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return status
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: filepath.Join("testdata", "script"),
		Setup: func(e *testscript.Env) error {
			e.Setenv("CLAWJAIL_CONFIG", filepath.Join(e.WorkDir, "clawjail.yml"))
			e.Setenv("TZ", "UTC")
			e.Values[fixtureKey{}] = new(fixture)
			return writeSettings(filepath.Join(e.WorkDir, "clawjail.yml"), e.WorkDir)
		},
		Condition: func(name string) (bool, error) {
			if name == "root" {
				return os.Geteuid() == 0, nil
			}
			return false, fmt.Errorf("unknown condition %q", name)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"controlplane": startControlPlane, "elsewhere": startElsewhere, "status": wantStatus, "pick": pick, "edit": edit, "noted": noted,
			"tides": writeTides, "ask": askForAccess, "printed": agentPrinted, "typed": wantTyped, "losehost": loseHost, "edit-ages": editAges,
			"began": programBegan, "gone": programGone, "signedout": signedOut,
		},
	})
}

// wantStatus is `status N clawjail …`: the command must end with that status.
func wantStatus(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: status N clawjail …")
	}
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		var exit interface{ ExitCode() int }
		if !errors.As(err, &exit) {
			ts.Fatalf("run %s: %v", args[1], err)
		}
		got = exit.ExitCode()
	}
	if fmt.Sprint(got) != args[0] {
		ts.Fatalf("it ended with status %d, want %s", got, args[0])
	}
}

// pick is `pick NAME REGEXP`: the variable becomes what the first group matches in what was printed last.
func pick(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: pick NAME REGEXP")
	}
	found := regexp.MustCompile("(?m)" + args[1]).FindStringSubmatch(ts.ReadFile("stdout"))
	if len(found) < 2 {
		ts.Fatalf("%s matches nothing of what was printed", args[1])
	}
	ts.Setenv(args[0], found[1])
}

// editAges is `edit-ages FILE`: what changes from run to run (ages, sizes, counts of records) becomes a letter, in FILE.aged.
func editAges(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: edit-ages FILE")
	}
	text := ts.ReadFile(args[0])
	for _, r := range [][2]string{
		{`\d+[dhms]\d\d[hms]|\b\d+s\b`, "AGE"}, {`(database:.*), [0-9.]+ [KMG]iB`, "$1, SIZE"}, {`\d+ rows, (no checkpoint yet|checkpoint AGE ago)(, \d+ not covered yet)?`, "N rows, NOTED"},
	} {
		text = regexp.MustCompile(r[0]).ReplaceAllString(text, r[1])
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]+".aged"), []byte(text), 0o600))
}

// edit is `edit FILE OLD NEW`: a text in a file becomes another one, once.
func edit(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: edit FILE OLD NEW")
	}
	before := ts.ReadFile(args[0])
	after := strings.Replace(before, args[1], args[2], 1)
	if after == before {
		ts.Fatalf("%s does not have %q", args[0], args[1])
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(after), 0o600))
}

// noted is `noted N`: it waits until there is a checkpoint of row N of the audit log, and sets ASOF to when it was
// signed.
func noted(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 1 {
		ts.Fatalf("usage: noted N")
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		for n, err := range checkpoint.ReadFile(ts.MkAbs("data/audit/checkpoints")) {
			if err == nil && strconv.FormatInt(n.Seq, 10) == args[0] {
				ts.Setenv("ASOF", n.Time.Format(time.RFC3339Nano))
				return
			}
		}
		if time.Now().After(deadline) {
			ts.Fatalf("there is no checkpoint of row %s", args[0])
		}
	}
}

// startControlPlane is `controlplane`: a control plane whose sessions have no jails, until the script ends.
func startControlPlane(ts *testscript.TestScript, _ bool, _ []string) {
	w, end, err := start(ts.MkAbs("data"))
	ts.Check(err)
	ts.Defer(func() { ts.Check(end()) })
	ts.Setenv("CLAWJAIL_URL", w.url)
	ts.Setenv("CLAWJAIL_KEY", w.key)
	*ts.Value(fixtureKey{}).(*fixture) = *w
}

// signedOut is `signedout DOMAIN REASON`: a session of the default tenant has seen that the domain's account is signed out.
func signedOut(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: signedout DOMAIN REASON")
	}
	now := time.Now()
	ts.Check(ts.Value(fixtureKey{}).(*fixture).store.MarkSignedOut(context.Background(), store.DefaultTenant, args[0], store.SignedOut{Opened: now, At: now, By: args[1]}))
}

// fixtureKey is under what a script has its control plane.
type fixtureKey struct{}

// writeTides is `tides`: the audit log gets what a gateway writes about some requests of the agent writer and of a session.
func writeTides(ts *testscript.TestScript, _ bool, _ []string) {
	w := ts.Value(fixtureKey{}).(*fixture)
	ctx := context.Background()
	c := client.New(must(url.Parse(w.url)), w.key)
	defer c.CloseIdle()
	all, err := client.Call(ctx, c, op.ListAgents(), op.OfTenant{})
	ts.Check(err)
	agents := all.Agents
	actor := "agent:" + agents[0].ID
	for _, e := range []audit.Event{
		{Action: "gateway.connect", Actor: actor, Target: "api.example.com:443", Result: audit.OK,
			Detail: audit.NewDetail(audit.Fields{"method": "CONNECT", "scheme": "https", "allowed": true, "rule": "another", "agent": agents[0].ID})},
		{Action: "gateway.connect", Actor: actor, Target: "api.example.com:443", Result: audit.OK,
			Detail: audit.NewDetail(audit.Fields{"method": "CONNECT", "scheme": "https", "allowed": true, "rule": "another", "agent": agents[0].ID})},
		{Action: "gateway.forward", Actor: actor, Target: "other.test:8080", Result: audit.Refused,
			Detail: audit.NewDetail(audit.Fields{"method": "GET", "scheme": "http", "path": "/a", "allowed": false, "code": "host_denied"})},
		{Action: "gateway.connect", Actor: "admin", Session: "s_1", Target: "2001:db8::1:8443", Result: audit.Refused,
			Detail: audit.NewDetail(audit.Fields{"method": "CONNECT", "scheme": "https", "allowed": false, "code": "host_denied"})},
		// Rows that no policy decided, that are of nobody, and that are damaged.
		{Action: "gateway.connect", Actor: actor, Target: "slow.test:443", Result: audit.Refused,
			Detail: audit.NewDetail(audit.Fields{"method": "CONNECT", "scheme": "https", "allowed": false, "code": "rate_limited"})},
		{Action: "gateway.connect", Actor: "agent:gone", Target: "gone.test:443", Result: audit.OK,
			Detail: audit.NewDetail(audit.Fields{"method": "CONNECT", "scheme": "https", "allowed": true})},
		{Action: "gateway.forward", Actor: actor, Target: "nowhere", Result: audit.OK, Detail: audit.NewDetail(audit.Fields{"allowed": "perhaps"})},
		{Action: "gateway.llm", Actor: actor, Target: "models.test:443", Result: audit.OK, Detail: audit.NewDetail(audit.Fields{"allowed": true})},
	} {
		e.Tenant = "default"
		ts.Check(w.log.Event(ctx, e))
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// askForAccess is `ask TOKEN KIND TARGET REASON`: an agent asks for access.
func askForAccess(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 4 {
		ts.Fatalf("usage: ask TOKEN KIND TARGET REASON")
	}
	w := ts.Value(fixtureKey{}).(*fixture)
	c := client.New(must(url.Parse(w.url)), args[0])
	defer c.CloseIdle()
	_, err := client.Call(context.Background(), c, op.AskForAccess(), op.NewAccess{Body: op.With(op.AccessQuestion{Kind: egress.AccessKind(args[1]), Target: args[2], Reason: args[3]})})
	ts.Check(err)
}

// startElsewhere is `elsewhere`: a server that is not a control plane, and sends whoever asks it somewhere else. It
// writes the key that it is sent there to the file stolen.
func startElsewhere(ts *testscript.TestScript, _ bool, _ []string) {
	stolen := ts.MkAbs("stolen")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/elsewhere" {
			_ = os.WriteFile(stolen, []byte(r.Header.Get("Authorization")), 0o600) // the script looks for it
			return
		}
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
	})}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	ts.Defer(func() {
		ts.Check(server.Close())
		<-served
	})
	ts.Setenv("CLAWJAIL_URL", "http://"+listener.Addr().String())
	ts.Setenv("CLAWJAIL_KEY", "cjadm_1234")
}
