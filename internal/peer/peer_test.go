package peer

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/store"
)

// database is one that lists nodes.
type database struct {
	mu    sync.Mutex
	nodes map[string]store.Node
	asked int
	away  error
}

func (d *database) list(context.Context) (out []store.Node, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked++
	for _, n := range d.nodes {
		out = append(out, n)
	}
	return out, d.away
}

// sessions are those of one node. They are for admins.
type sessions []session.Session

func (s sessions) List(_ context.Context, by identity.Principal, _ string, _ bool) ([]session.Session, error) {
	if by.Role != identity.RoleAdmin {
		return nil, problem.New(problem.Forbidden, "", "not for you")
	}
	return s, nil
}

func key(of byte) secret.Value { return secret.New(bytes.Repeat([]byte{of}, 32)) }

// node makes one, which answers others with its name and has one session.
func (d *database) node(t *testing.T, name string, of secret.Value, now func() time.Time) *Peers {
	t.Helper()
	p, err := New(Options{Node: name, Secret: of, Nodes: d.list, Log: slog.New(slog.DiscardHandler), Now: now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0), Handler: p.Handler(sessions{{ID: "s_" + store.NodeTag(name) + "aaaaaaaaaaa"}}, http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/v1/silent":
				<-r.Context().Done()
			case "/v1/endless":
				_, _ = io.WriteString(w, "begun")
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
			case "/v1/switched":
				conn, rw, err := http.NewResponseController(w).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				defer func() { _ = conn.Close() }()
				_, _ = conn.Write([]byte("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"))
				_, _ = io.Copy(conn, rw) // until the other end closes it
			default:
				_, _ = io.WriteString(w, name+" "+r.URL.Path)
			}
		}))}
	go func() { _ = server.Serve(p.Listener(l)) }() // ends with Close
	t.Cleanup(func() { _ = server.Close() })
	at := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.nodes[name] = store.Node{Name: name, Run: "r", SeenAt: at, ReadAt: at, PeerAddress: l.Addr().String()}
	return p
}

// change changes what the database says of a node, for those who ask again.
func (d *database) change(name string, f func(*store.Node), all ...*Peers) {
	d.mu.Lock()
	n := d.nodes[name]
	f(&n)
	d.nodes[name] = n
	d.mu.Unlock()
	for _, p := range all {
		p.mu.Lock()
		p.read = time.Time{}
		p.mu.Unlock()
	}
}

func get(p *Peers, node string) (string, error) {
	r, err := http.NewRequest(http.MethodGet, "https://"+node+"/v1/x", nil)
	if err != nil {
		return "", err
	}
	answer, err := p.RoundTrip(r)
	if err != nil {
		return "", err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	return string(text), err
}

func TestNodesReachEachOtherAndNobodyElseDoes(t *testing.T) {
	d := &database{nodes: map[string]store.Node{}}
	a, b, c := d.node(t, "a", key(1), time.Now), d.node(t, "b", key(1), time.Now), d.node(t, "c", key(2), time.Now)
	apart := d.node(t, "apart", key(1), func() time.Time { return time.Now().Add(20 * time.Hour) })
	for _, ways := range []struct {
		from *Peers
		to   string
	}{{a, "b"}, {b, "a"}, {a, "apart"}, {apart, "a"}} {
		if got, err := get(ways.from, ways.to); err != nil || got != ways.to+" /v1/x" {
			t.Errorf("%s asks %s: %q, %v", ways.from.o.Node, ways.to, got, err)
		}
	}
	for _, ways := range []struct {
		from *Peers
		to   string
	}{{a, "c"}, {c, "a"}} {
		_, err := get(ways.from, ways.to)
		if p, ok := problem.As(err); !ok || p.Code != problem.NodeUnreachable || !strings.Contains(p.Message, "another admin key") {
			t.Errorf("%s asks %s, with another secret: %v", ways.from.o.Node, ways.to, err)
		}
	}
	// A clock that is wrong by more than a day.
	wrong := d.node(t, "wrong", key(1), func() time.Time { return time.Now().Add(30 * time.Hour) })
	for _, ways := range []struct {
		from     *Peers
		to, says string
	}{{a, "wrong", "clocks"}, {wrong, "a", "refuses the certificate"}} {
		ways.from.read = time.Time{}
		_, err := get(ways.from, ways.to)
		if p, ok := problem.As(err); !ok || p.Code != problem.NodeUnreachable || !strings.Contains(p.Message, ways.says) {
			t.Errorf("%s asks %s, and the clock of one is wrong: %v", ways.from.o.Node, ways.to, err)
		}
	}
	// A node of the database that says that it is another one.
	d.change("b", func(n *store.Node) { n.PeerAddress = d.nodes["a"].PeerAddress }, a, b, apart)
	if got, err := get(apart, "b"); err == nil {
		t.Errorf("b is answered for by %q", got)
	}
	// Who has no certificate, or one of another authority.
	for name, config := range map[string]*tls.Config{"nobody": {}, "another authority": c.authority.client("a")} {
		config.InsecureSkipVerify, config.MinVersion = true, tls.VersionTLS13
		stranger := &http.Transport{TLSClientConfig: config}
		r, err := http.NewRequest(http.MethodGet, "https://"+d.nodes["a"].PeerAddress+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		if answer, err := stranger.RoundTrip(r); err == nil {
			_ = answer.Body.Close()
			t.Errorf("%s is answered with %s", name, answer.Status)
		}
	}
}

func TestCertificatesOfNodesAreRenewed(t *testing.T) {
	now := time.Now()
	a, err := newAuthority("a", key(1), func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	of := func() string {
		c, err := a.certificate()
		if err != nil {
			t.Fatal(err)
		}
		return string(c.Certificate[0])
	}
	first := of()
	now = now.Add(certificateUse - time.Minute)
	if of() != first {
		t.Error("it is renewed too soon")
	}
	now = now.Add(2 * time.Minute)
	second := of()
	if second == first {
		t.Error("it is not renewed")
	}
	now = now.Add(-48 * time.Hour) // a clock that was wrong
	if of() == second {
		t.Error("it is not renewed when the clock has gone back")
	}
}

func TestWhoHasASession(t *testing.T) {
	d := &database{nodes: map[string]store.Node{}}
	a, b := d.node(t, "a", key(1), time.Now), d.node(t, "b", key(1), time.Now)
	of := func(name string) string { return "s_" + store.NodeTag(name) + "bbbbbbbbbbb" }
	is := func(what, session, want, code string) {
		t.Helper()
		if got, err := a.Owner(t.Context(), session); got != want || problem.CodeOf(err) != code {
			t.Errorf("%s: %q, %v; want %q and the code %q", what, got, err, want, code)
		}
	}
	is("its own", of("a"), "", "")
	is("the other's", of("b"), "b", "")
	is("one of nobody", of("c"), "", "")
	for _, odd := range []string{"", "s_", "s_abc", "x", strings.Repeat("y", 40)} {
		is("what is none", odd, "", "")
	}
	d.change("b", func(n *store.Node) { n.PeerAddress = "" }, a)
	is("one of a node that is not reached", of("b"), "", problem.NodeUnreachable)
	d.change("b", func(n *store.Node) { n.SeenAt = n.ReadAt.Add(-store.NodeAlive - time.Second) }, a)
	is("one of a node that is lost", of("b"), "", problem.NodeLost)
	d.change("b", func(n *store.Node) { n.StoppedAt = n.ReadAt }, a)
	is("one of a node that has stopped", of("b"), "", "")

	// The nodes are asked for now and then, and known on while the database is away.
	d.asked = 0
	for range 100 {
		is("the other's", of("b"), "", "")
	}
	if d.asked > 1 {
		t.Errorf("the database was asked %d times for 100 requests", d.asked)
	}
	d.away = errors.New("the database is away")
	d.change("b", func(n *store.Node) {}, a)
	is("while the database is away", of("a"), "", "")
	d.asked = 0
	for range 100 {
		is("one of nobody, while the database is away", of("c"), "", "")
	}
	if d.asked > 1 {
		t.Errorf("the database, which is away, was asked %d times for 100 requests", d.asked)
	}
	b.nodes, b.read = nil, time.Time{}
	if _, err := b.Owner(t.Context(), of("a")); err == nil {
		t.Error("it is known who has a session, and nobody was asked")
	}
}

// A process that stood still is a node again as soon as it is heard of, also for those who have just read that it is lost.
func TestANodeThatIsHeardOfAgainIsNotTakenForLost(t *testing.T) {
	d := &database{nodes: map[string]store.Node{}}
	a := d.node(t, "a", key(1), time.Now)
	d.node(t, "b", key(1), time.Now)
	const silence = store.NodeAlive + time.Second
	session := "s_" + store.NodeTag("b") + "bbbbbbbbbbb"
	for name, ask := range map[string]func(context.Context) error{
		"who has its session": func(ctx context.Context) error { _, err := a.Owner(ctx, session); return err },
		"a request to it, all the time": func(ctx context.Context) error {
			ctx, cancel := context.WithTimeoutCause(ctx, 2*lookEvery, errDone)
			defer cancel()
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://b/v1/silent", nil)
			if err != nil {
				return err
			}
			if _, err = a.RoundTrip(r); errors.Is(context.Cause(ctx), errDone) {
				return nil
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			d.change("b", func(n *store.Node) { n.SeenAt = n.ReadAt.Add(-silence) }, a)
			if err := ask(t.Context()); problem.CodeOf(err) != problem.NodeLost {
				t.Errorf("while it is lost: %v", err)
			}
			d.change("b", func(n *store.Node) { n.SeenAt = n.ReadAt }) // and a has its old list
			if name == "who has its session" {
				time.Sleep(lostFresh)
			}
			if err := ask(t.Context()); err != nil {
				t.Errorf("when it is heard of again: %v", err)
			}
		})
	}
}

var errDone = errors.New("it is waited for no longer")

func TestSessionsOfAllNodesAreListed(t *testing.T) {
	d := &database{nodes: map[string]store.Node{}}
	a, _, c := d.node(t, "a", key(1), time.Now), d.node(t, "b", key(1), time.Now), d.node(t, "c", key(1), time.Now)
	here := sessions{{ID: "s_" + store.NodeTag("a") + "aaaaaaaaaaa"}}
	admin := identity.Principal{Kind: identity.KindOperator, ID: "op_1", Role: identity.RoleAdmin}
	if all, err := a.List(t.Context(), here, admin, "", false); err != nil || len(all) != 3 {
		t.Errorf("there are %+v: %v", all, err)
	}
	if all, err := a.List(t.Context(), here, identity.Principal{}, "", false); problem.CodeOf(err) != problem.Forbidden || all != nil {
		t.Errorf("who may not is told %+v: %v", all, err)
	}
	// One of them is not there: the others' are, and it is said.
	d.change("c", func(n *store.Node) { n.PeerAddress = "127.0.0.1:1" }, a)
	c.Close()
	a.Close()
	all, err := a.List(t.Context(), here, admin, "", false)
	if problem.CodeOf(err) != problem.NodeUnreachable || len(all) != 2 {
		t.Errorf("without one of them there are %+v: %v", all, err)
	}
}

// A node that stands still accepts connections, and answers nothing. When it is given up, whoever waits for it does not wait any more.
func TestAnAnswerThatEndsWhenItsNodeIsGivenUpIsNotWhole(t *testing.T) {
	for _, lost := range []error{nil, errLost("b")} {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(lost)
		text, err := io.ReadAll(carried{io.NopCloser(strings.NewReader("begun")), ctx, func() {}})
		if string(text) != "begun" || problem.CodeOf(err) != problem.CodeOf(lost) {
			t.Errorf("%q, %v after %v", text, err, lost)
		}
	}
}

func TestWhoWaitsForANodeThatIsLostIsToldSo(t *testing.T) {
	d := &database{nodes: map[string]store.Node{}}
	a := d.node(t, "a", key(1), time.Now)
	d.node(t, "b", key(1), time.Now)
	ask := func(path string) (*http.Response, error) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://b"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if path == "/v1/switched" {
			r.Header.Set("Connection", "Upgrade")
			r.Header.Set("Upgrade", "echo")
		}
		return a.RoundTrip(r)
	}
	endless, err := ask("/v1/endless")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = endless.Body.Close() }()
	both, err := ask("/v1/switched")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = both.Body.Close() }()
	conn, is := both.Body.(io.ReadWriteCloser)
	if !is {
		t.Fatal("nothing can be written after an upgrade")
	}
	text := make([]byte, 5)
	say := func() error {
		_, err := conn.Write([]byte("hello"))
		if err == nil {
			_, err = io.ReadFull(conn, text)
		}
		return err
	}
	if err := say(); err != nil || string(text) != "hello" {
		t.Fatalf("it says %q, %v", text, err)
	}
	silent := make(chan error, 1)
	go func() {
		_, err := ask("/v1/silent")
		silent <- err
	}()
	read := make(chan error, 1)
	go func() {
		_, err := io.ReadAll(endless.Body)
		read <- err
	}()
	select { // it is looked twice, and the node is there
	case err := <-silent:
		t.Fatalf("it ends before: %v", err)
	case err := <-read:
		t.Fatalf("the answer ends before: %v", err)
	case <-time.After(2*lookEvery + lookEvery/2):
	}
	if err := say(); err != nil {
		t.Errorf("what goes both ways has ended before: %v", err)
	}
	d.change("b", func(n *store.Node) { n.LostAt = time.Now() }, a)
	for what, end := range map[string]chan error{"a request": silent, "an answer": read} {
		select {
		case err := <-end:
			if err == nil || what == "a request" && problem.CodeOf(err) != problem.NodeLost {
				t.Errorf("%s of a node that is lost: %v", what, err)
			}
		case <-time.After(10 * time.Second):
			t.Errorf("%s of a node that is lost goes on", what)
		}
	}
	ended := make(chan error, 1)
	go func() {
		_, err := io.ReadFull(conn, text)
		ended <- err
	}()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("what goes both ways says something")
		}
	case <-time.After(10 * time.Second):
		t.Error("what goes both ways with a node that is lost goes on")
	}
}
