package mcpserver

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"github.com/clawjail/clawjail/internal/audit/audittest"
	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store/sqlite"
	"github.com/clawjail/clawjail/internal/vault"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// said is what a client sent, as a server of these tests reads it.
type said struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Error  json.RawMessage `json:"error"`
}

func (s said) tool() string {
	var p struct{ Name string }
	_ = json.Unmarshal(s.Params, &p)
	return p.Name
}

func (s said) token() string {
	var p struct {
		Meta struct {
			Token string `json:"progressToken"`
		} `json:"_meta"`
	}
	_ = json.Unmarshal(s.Params, &p)
	return p.Meta.Token
}

// peer is a server of these tests: what stands behind the pipes of a jail.
type peer struct {
	t      *testing.T
	in     *bufio.Scanner
	out    *os.File
	err    *os.File
	killed chan struct{}
	once   sync.Once
	files  []*os.File
	mu     sync.Mutex
	// lists are its answers to questions about what it offers, as JSON, by the method.
	lists map[string]string
	// can is what it says of itself when it is asked first.
	can  string
	seen []said
	// oneByOne makes serve read a call when it has answered the one before.
	oneByOne bool
}

func (p *peer) exit() { p.once.Do(func() { close(p.killed) }) }

func (p *peer) setTools(list string) { p.set("tools/list", list) }

func (p *peer) set(method, answer string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lists[method] = answer
}

func (p *peer) say(format string, a ...any) {
	_, _ = fmt.Fprintf(p.out, format+"\n", a...) // whoever has gone hears nothing
}

func (p *peer) result(to said, result string) {
	p.say(`{"jsonrpc":"2.0","id":%s,"result":%s}`, to.ID, strings.ReplaceAll(result, "\n", " "))
}

func (p *peer) text(to said, text string) {
	p.result(to, fmt.Sprintf(`{"content":[{"type":"text","text":%q}]}`, text))
}

// times is how often a message of a method has come.
func (p *peer) times(method string) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.seen {
		if s.Method == method {
			n++
		}
	}
	return n
}

// heard says whether a message of a method has come.
func (p *peer) heard(method string) bool { return p.times(method) > 0 }

const someTools = `{"tools":[{"name":"echo","description":"Says it again","inputSchema":{"type":"object","properties":{"text":{"type":"string"}}}},
	{"name":"other","inputSchema":{"type":"object"}}]}`

// serve answers until its input ends. calls answers the calls of tools and what else is not in its lists, each in a goroutine of
// its own, or one before the next is read.
func (p *peer) serve(calls func(p *peer, s said)) {
	var work sync.WaitGroup
	defer work.Wait()
	for p.in.Scan() {
		var s said
		if json.Unmarshal(p.in.Bytes(), &s) != nil {
			continue
		}
		p.mu.Lock()
		p.seen = append(p.seen, s)
		list, isList := p.lists[s.Method]
		p.mu.Unlock()
		switch {
		case s.Method == "initialize":
			p.result(s, `{"protocolVersion":"2025-06-18","capabilities":`+p.can+`,"serverInfo":{"name":"peer","version":"7"}}`)
		case isList && list != "": // an empty one is not answered
			p.result(s, list)
		case s.Method == "ping":
			p.result(s, `{}`)
		case s.Method == "tools/call" || !isList && s.Method != "" && len(s.ID) > 0:
			if p.oneByOne {
				calls(p, s)
			} else {
				work.Go(func() { calls(p, s) })
			}
		}
	}
}

// echo answers every call with its tool.
func echo(p *peer, s said) { p.text(s, "called "+s.tool()) }

// fixture is a service with fakes around it, whose jails are goroutines.
type fixture struct {
	*Service
	t *testing.T

	mu    sync.Mutex
	peers []*peer
	made  int
	specs []jail.Spec
	// knownFirst counts the jails that the gateway knew before anything ran in them.
	knownFirst int
	jails      map[jail.Name]*peer
	ended      []jail.Name
	log        audittest.Log
	admits     map[netip.Addr]gateway.Caller
	opened     []jail.Name // admitted by the driver
	given      []string    // what agents may use
	noJail     error
	held       map[*int]hold // for owners of instances
	// behave is what a server does after it was started; nil is (*peer).serve with echo.
	behave func(p *peer)
}

type hold struct {
	who    identity.Principal
	cancel context.CancelCauseFunc
}

func newFixture(t *testing.T, servers ...config.MCPServer) *fixture {
	t.Helper()
	w := &fixture{t: t, held: map[*int]hold{}, jails: map[jail.Name]*peer{}, admits: map[netip.Addr]gateway.Caller{}, given: []string{"files"}}
	db, err := sqlite.Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(Options{Driver: w, Gateway: door{w}, Vault: w, Store: db, Identity: w, Audit: &w.log, ServersOf: func(string, string) []string { return w.given },
		Servers: servers, Limits: config.Default().Agents.Limits, Proxy: "http://gateway:3000", Version: "1", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	s.pace.first = time.Millisecond
	w.Service = s
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
		w.mu.Lock()
		if len(w.held) > 0 {
			t.Error("somebody is held whose instance has ended")
		}
		for _, p := range w.jails {
			t.Error("a jail is left")
			p.exit()
		}
		w.mu.Unlock()
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// AuthorizeWith implements Authority with the real table.
func (w *fixture) AuthorizeWith(_ context.Context, p identity.Principal, op identity.Operation, object identity.Object) error {
	return identity.CanWith(p, op, object)
}

// WatchValidity implements Authority.
func (w *fixture) WatchValidity(_ context.Context, p identity.Principal, cancel context.CancelCauseFunc) (func(), error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	id := new(int)
	w.held[id] = hold{p, cancel}
	return func() { w.mu.Lock(); defer w.mu.Unlock(); delete(w.held, id) }, nil
}

// revoke ends what is held for somebody.
func (w *fixture) revoke(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, h := range w.held {
		if h.who.ID == id {
			h.cancel(problem.New(problem.Unauthorized, "", "revoked"))
		}
	}
}

// UseSecret implements Vault.
func (w *fixture) UseSecret(_ context.Context, n vault.SecretName, _ vault.Destination, use func(secret.Value) error) error {
	v := secret.New([]byte("value-of-" + n.Tenant + "-" + n.Service))
	defer v.Wipe()
	return use(v)
}

// MarkUsed implements Vault.
func (w *fixture) MarkUsed(context.Context, vault.SecretName, time.Time) error { return nil }

// CreateWith implements Driver.
func (w *fixture) CreateWith(_ context.Context, spec jail.Spec, ready func(jail.Name, jail.Lease) error) (*jail.Jail, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.noJail != nil {
		return nil, w.noJail
	}
	// The secrets are wiped when the jail was made.
	kept := spec
	kept.HomeFiles = nil
	for _, f := range spec.HomeFiles {
		kept.HomeFiles = append(kept.HomeFiles, jail.File{Path: f.Path, Data: append([]byte(nil), f.Data...)})
	}
	w.specs = append(w.specs, kept)
	n := w.made
	w.made++
	name, err := jail.NewName(jail.KindAgent, "test", n)
	if err != nil {
		return nil, err
	}
	lease := jail.Lease{Index: n, Addr: netip.AddrFrom4([4]byte{10, 9, 0, byte(n + 1)})}
	w.mu.Unlock()
	err = ready(name, lease)
	w.mu.Lock()
	if err != nil {
		return nil, err
	}
	if _, known := w.admits[lease.Addr]; known {
		w.knownFirst++
	}
	if spec.Admit {
		w.opened = append(w.opened, name)
	}
	p, stdio, err := w.run()
	if err != nil {
		return nil, err
	}
	w.jails[name] = p
	return &jail.Jail{Name: name, Lease: lease, Stdio: stdio}, nil
}

// run runs a server behind pipes. The caller has the lock.
func (w *fixture) run() (*peer, *jail.Stdio, error) {
	var ends [6]*os.File
	for n := 0; n < 6; n += 2 {
		r, wr, err := os.Pipe()
		if err != nil {
			return nil, nil, err
		}
		ends[n], ends[n+1] = r, wr
	}
	p := &peer{t: w.t, in: bufio.NewScanner(ends[0]), out: ends[3], err: ends[5], killed: make(chan struct{}), files: []*os.File{ends[0], ends[3], ends[5]},
		lists: map[string]string{"tools/list": someTools}, can: `{"tools":{"listChanged":true}}`}
	p.in.Buffer(nil, 8<<20)
	behave := w.behave
	go func() {
		if behave == nil {
			p.serve(echo)
		} else {
			behave(p)
		}
		p.exit()
	}()
	go func() {
		<-p.killed
		for _, f := range p.files {
			_ = f.Close()
		}
	}()
	w.peers = append(w.peers, p)
	return p, &jail.Stdio{In: ends[1], Out: ends[2], Err: ends[4]}, nil
}

// Kept implements Keeper: one agent runs.
func (w *fixture) Kept(context.Context, uint64, bool) (uint64, []jail.KeptStatus, error) {
	one := jail.KeptStatus{Jail: "atest00000", Phase: jail.PhaseRunning}
	one.Spec.Agent = &jail.Agent{Tenant: "default", Name: "bot"}
	return 1, []jail.KeptStatus{one}, nil
}

// ExecIn implements Keeper.
func (w *fixture) ExecIn(context.Context, jail.Name, jail.Program) (*jail.Running, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p, stdio, err := w.run()
	if err != nil {
		return nil, err
	}
	return &jail.Running{Stdio: stdio, End: p.exit, Wait: func(ctx context.Context) (jail.Exit, error) {
		select {
		case <-p.killed:
			return jail.Exit{}, context.Canceled
		case <-ctx.Done():
			return jail.Exit{}, ctx.Err()
		}
	}}, nil
}

func (w *fixture) admitted() []jail.Name {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]jail.Name(nil), w.opened...)
}

// Wait implements Driver.
func (w *fixture) Wait(ctx context.Context, name jail.Name) (jail.Exit, error) {
	w.mu.Lock()
	p := w.jails[name]
	w.mu.Unlock()
	if p == nil {
		return jail.Exit{}, jail.ErrNotFound
	}
	select {
	case <-p.killed:
		return jail.Exit{Code: 3, Cause: jail.CauseExited}, nil
	case <-ctx.Done():
		return jail.Exit{}, ctx.Err()
	}
}

// Destroy implements Driver.
func (w *fixture) Destroy(_ context.Context, name jail.Name) error {
	w.mu.Lock()
	p := w.jails[name]
	delete(w.jails, name)
	w.ended = append(w.ended, name)
	w.mu.Unlock()
	if p != nil {
		p.exit()
	}
	return nil
}

// door is the gateway of a fixture.
type door struct{ w *fixture }

// Admit implements Gateway.
func (d door) Admit(addr netip.Addr, who gateway.Caller) error {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	d.w.admits[addr] = who
	return nil
}

// Forget implements Gateway.
func (d door) Forget(addr netip.Addr, jail string) error {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	if jail == "" || d.w.admits[addr].Jail == jail {
		delete(d.w.admits, addr)
	}
	return nil
}

func (w *fixture) running() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.jails)
}

func (w *fixture) started() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.peers)
}

func (w *fixture) peer(n int) *peer {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.peers[n]
}

func files() config.MCPServer {
	return config.MCPServer{Name: "files", Command: []string{"/usr/bin/server"}}
}

func agent() identity.Principal {
	return identity.Principal{Kind: identity.KindAgent, ID: "a_1", Name: "bot", Tenant: "default", TokenID: "t"}
}

func operator() identity.Principal {
	return identity.Principal{Kind: identity.KindOperator, ID: "o_1", Tenant: "default", Role: identity.RoleOperator, TokenID: "o_1"}
}

func admin() identity.Principal {
	return identity.Principal{Kind: identity.KindAdmin, ID: "admin", Role: identity.RoleAdmin, TokenID: "admin"}
}

func (w *fixture) names(by identity.Principal) []string {
	out := []string{}
	offers, _ := w.OffersFor(w.t.Context(), by, Tools)
	for _, tool := range offers.Tools {
		out = append(out, tool.Name)
	}
	return out
}

// calls a tool and returns the text of its answer, or the error.
func (w *fixture) call(by identity.Principal, name string) (string, error) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 30*time.Second)
	defer cancel()
	out, err := w.Call(ctx, by, name, nil, nil)
	if err != nil {
		return "", err
	}
	return textOf(out), nil
}

func textOf(out *sdk.CallToolResult) string {
	var texts []string
	for _, c := range out.Content {
		if t, ok := c.(*sdk.TextContent); ok {
			texts = append(texts, t.Text)
		}
	}
	return strings.Join(texts, "\n")
}
