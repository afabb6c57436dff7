//go:build linux

package operators

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/instance"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/peer"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/test/testkit"
)

// nodesOf are the states of the control planes that one of them lists.
func nodesOf(b *testkit.Installation) map[string]peer.NodeState {
	b.T.Helper()
	out, err := b.Run(b.T.Context(), "node", "ls", "--json")
	if err != nil {
		b.T.Logf("list the nodes: %v: %s", err, out)
		return nil
	}
	var all []peer.Node
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		b.T.Fatalf("%v: %s", err, out)
	}
	states := map[string]peer.NodeState{}
	for _, n := range all {
		states[n.Name] = n.State
	}
	return states
}

func TestControlPlanesOfOneDatabaseKnowOfEachOther(t *testing.T) {
	database := testkit.OnPostgreSQL(t)
	named := func(node string) instance.Options {
		return instance.Options{Settings: testkit.NoPool + database + "node: " + node + "\n"}
	}
	first, second := testkit.Start(t, named("first")), testkit.Start(t, named("second"))
	are := func(b *testkit.Installation, within time.Duration, name string, want peer.NodeState) {
		t.Helper()
		testenv.Eventually(t, within, func() bool { return nodesOf(b)[name] == want }, name+" is "+string(want))
	}
	for _, b := range []*testkit.Installation{first, second} {
		are(b, 5*time.Second, "first", peer.NodeAlive)
		are(b, 5*time.Second, "second", peer.NodeAlive)
	}

	status := func(want string) {
		t.Helper()
		if out, err := first.Run(t.Context(), "status"); err != nil || !strings.Contains(out, want) {
			t.Errorf("the status is: %v: %s", err, out)
		}
	}
	status("2 control planes, first alive, second alive")

	// The name of one that is there is nobody else's.
	twin := testkit.Prepare(t, named("second"))
	if err := twin.Start(t.Context()); err == nil || !strings.Contains(err.Error()+twin.Log(), "another control plane is the node second") {
		t.Fatalf("a second one of the name starts: %v\n%s", err, twin.Log())
	}

	// One that was killed has its own name again at once, before it would be given up.
	serve := second.Victims("serve")[0]
	if err := syscall.Kill(serve, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 10*time.Second, func() bool { return nodesOf(second)["second"] == peer.NodeAlive }, "the second one answers again")

	// Nothing is heard of one that stands still.
	serve = second.Victims("serve")[0]
	if err := syscall.Kill(serve, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	are(first, 30*time.Second, "second", peer.NodeLost)
	status("second lost")
	if err := syscall.Kill(serve, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	are(first, 30*time.Second, "second", peer.NodeAlive)

	if err := second.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	are(first, 5*time.Second, "second", peer.NodeStopped)
	if out, err := first.Run(t.Context(), "status"); err != nil || strings.Contains(out, "control planes") {
		t.Errorf("the status of one is: %v: %s", err, out)
	}
	twin.Up()
	are(first, 5*time.Second, "second", peer.NodeAlive)
}

// sharing makes two control planes of one database that reach each other, with more settings. They have the same keys when together says so.
func sharing(t *testing.T, together bool, more ...string) (first, second *testkit.Installation) {
	t.Helper()
	database := testkit.OnPostgreSQL(t)
	named := func(node string) instance.Options {
		return instance.Options{Settings: testkit.NoPool + database + "node: " + node + "\n" + fmt.Sprintf("node_listen: 127.0.0.1:%d\n", testenv.FreePort(t)) + strings.Join(more, "")}
	}
	first, second = testkit.Start(t, named("first")), testkit.Start(t, named("second"))
	if !together {
		return first, second
	}
	second.Join(first)
	return first, second
}

func TestEachControlPlaneAnswersForTheSessionsOfAll(t *testing.T) {
	first, second := sharing(t, true)
	id := first.Open(session.OpenRequest{Label: "of the first"})

	if got, err := second.API.Get(t.Context(), id); err != nil || got.Label != "of the first" {
		t.Fatalf("asked of the other it is %+v: %v", got, err)
	}
	listed, err := second.API.List(t.Context(), false)
	if err != nil || len(listed) != 1 || listed[0].ID != id || listed[0].Label != "of the first" {
		t.Errorf("the other lists %+v: %v", listed, err)
	}
	if picture, err := second.API.Picture(t.Context(), id, browser.Screenshot{}); err != nil || len(picture) < 100 {
		t.Errorf("a picture by the other has %d bytes: %v", len(picture), err)
	}

	// A DevTools client attaches at the other one, with a token that it has made there.
	token, err := second.API.SessionToken(t.Context(), id, api.TokenRequest{Scope: identity.ScopeCDP})
	if err != nil {
		t.Fatal(err)
	}
	if at := "ws://" + second.Config.Listen.String() + "/"; !strings.HasPrefix(token.WSURL, at) {
		t.Errorf("the endpoint is %s, not at %s", token.WSURL, at)
	}
	conn, _, err := websocket.Dial(t.Context(), token.WSURL, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.CloseNow() }()
	conn.SetReadLimit(1 << 20)
	if err := conn.Write(t.Context(), websocket.MessageText, []byte(`{"id":1,"method":"Browser.getVersion"}`)); err != nil {
		t.Fatal(err)
	}
	if _, said, err := conn.Read(t.Context()); err != nil || !strings.Contains(string(said), `"product"`) {
		t.Errorf("the browser says %s: %v", said, err)
	}

	// Keys are asked for, by the one that has the session, and web pages are kept away by the one that is asked.
	for name, c := range map[string]struct {
		key, host, origin string
		want              int
	}{
		"the key":            {key: second.Key(), want: http.StatusOK},
		"no key":             {want: http.StatusUnauthorized},
		"another key":        {key: "cjop_" + strings.Repeat("a", 52), want: http.StatusUnauthorized},
		"another host":       {key: second.Key(), host: "evil.example", want: http.StatusForbidden},
		"a page":             {key: second.Key(), origin: "http://evil.example", want: http.StatusForbidden},
		"a session's token":  {key: token.Token, want: http.StatusOK},
		"half of the token":  {key: token.Token[:len(token.Token)-4], want: http.StatusUnauthorized},
		"the console's host": {key: second.Key(), host: "localhost", want: http.StatusOK},
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, second.URL()+"/v1/sessions/"+id, nil)
		if err != nil {
			t.Fatal(err)
		}
		if c.key != "" {
			r.Header.Set("Authorization", "Bearer "+c.key)
		}
		if r.Host = c.host; c.origin != "" {
			r.Header.Set("Origin", c.origin)
		}
		r.Header.Set("Clawjail-Client", `{"from":"127.0.0.1:1","to":"127.0.0.1:2"}`) // which is for other nodes to say
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode != c.want {
			t.Errorf("%s: %s, want %d", name, answer.Status, c.want)
		}
		if answer.Header.Get("Clawjail-Holder") != "" {
			t.Errorf("%s: the client is told what nodes tell each other", name)
		}
	}

	// Nobody fills the place where nodes are who is none.
	var idle []net.Conn
	for range 200 {
		c, err := net.Dial("tcp", first.Config.NodeListen.String())
		if err != nil {
			t.Fatal(err)
		}
		idle = append(idle, c)
	}
	if err := idle[0].SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := idle[0].Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("200 connections that say nothing are kept: %v", err)
	}
	if _, err := second.API.Get(t.Context(), id); err != nil {
		t.Errorf("beside them: %v", err)
	}
	for _, c := range idle {
		_ = c.Close()
	}
	// Only nodes are let in where nodes are.
	if _, err := tls.Dial("tcp", first.Config.NodeListen.String(), &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13}); err == nil {
		// In TLS 1.3 a client hears of it with the first answer.
		_, err := (&http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}).Post(
			"https://"+first.Config.NodeListen.String()+"/node/sessions", "application/json", strings.NewReader(`{"By":{"Kind":"admin","ID":"admin","Role":"admin"}}`))
		if err == nil {
			t.Error("a stranger is answered where nodes are")
		}
	}

	// What is closed at the other one is closed.
	if err := second.API.Close(t.Context(), id, true); err != nil {
		t.Fatal(err)
	}
	if left, err := first.API.List(t.Context(), false); err != nil || len(left) > 0 {
		t.Errorf("afterwards there are %+v: %v", left, err)
	}
	if _, _, err := conn.Read(t.Context()); err == nil {
		t.Error("its DevTools client is still attached")
	}

	// The sessions of one that is lost are lost, and what was under way there is on record as unknown.
	id = first.Open(session.OpenRequest{})
	if token, err = first.API.SessionToken(t.Context(), id, api.TokenRequest{Scope: identity.ScopeCDP}); err != nil {
		t.Fatal(err)
	}
	last, _, err := websocket.Dial(t.Context(), token.WSURL, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = last.CloseNow() }()
	serve := first.Victims("serve")[0]
	if err := syscall.Kill(serve, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 30*time.Second, func() bool { return nodesOf(second)["first"] == peer.NodeLost }, "the first one is lost")
	testenv.Eventually(t, 5*time.Second, func() bool {
		_, err := second.API.Get(t.Context(), id)
		return problem.CodeOf(err) == problem.NodeLost
	}, "its session is lost")
	if listed, err := second.API.List(t.Context(), false); err != nil || len(listed) > 0 {
		t.Errorf("the other lists %+v: %v", listed, err)
	}
	testenv.Eventually(t, 30*time.Second, func() bool { return len(second.Rows("--action", "node.lost")) == 1 }, "it is given up")
	testenv.Eventually(t, 30*time.Second, func() bool {
		rows := second.Rows("--action", string(identity.SessionAttach), "--session", id, "--result", "unknown")
		return len(rows) == 1 && rows[0].Node == "second"
	}, "what was under way there has an end")
	_ = last.CloseNow()
	if err := syscall.Kill(serve, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 30*time.Second, func() bool {
		_, err := second.API.Get(t.Context(), id)
		return problem.CodeOf(err) == problem.NotFound && nodesOf(first)["first"] == peer.NodeAlive
	}, "it starts anew, without its sessions")
	for _, b := range []*testkit.Installation{first, second} {
		if out, err := b.Run(t.Context(), "audit", "verify"); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	}
}

// What one control plane changes is known to the others before they look by themselves, which they do every five seconds.
func TestWhatIsRevokedAtOneControlPlaneEndsAtTheOthers(t *testing.T) {
	first, second := sharing(t, true)
	const rounds = 5
	var soon int
	for range rounds {
		made, err := client.Call(t.Context(), first.API, op.CreateOperator(), op.NewOperator{Body: op.With(op.OperatorRequest{Name: "ops", Tenant: store.DefaultTenant, Role: "operator"})})
		if err != nil {
			t.Fatal(err)
		}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, second.URL()+"/v1/audit/tail?follow=true", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+made.Key)
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = answer.Body.Close() }()
		if answer.StatusCode != http.StatusOK {
			t.Fatalf("with the key of the other control plane: %s", answer.Status)
		}
		if _, err := client.Call(t.Context(), first.API, op.RevokeOperator(), op.OperatorNamed{ID: made.Operator.ID}); err != nil {
			t.Fatal(err)
		}
		revoked := time.Now()
		_, _ = io.Copy(io.Discard, answer.Body) // until it ends
		took := time.Since(revoked)
		if t.Logf("the stream ends %s after its key was revoked elsewhere", took.Round(time.Millisecond)); took < time.Second {
			soon++
		}
	}
	if soon < rounds/2+1 {
		t.Errorf("%d of %d streams ended within a second", soon, rounds)
	}
}

func TestWrongKeysCountAtAllControlPlanes(t *testing.T) {
	first, second := sharing(t, true, "public_url: https://clawjail.test\nbehind_proxy: [127.0.0.1/32]\n")
	key := first.Key()
	// Of a client of the proxy, or of a program of this machine when there is none.
	ask := func(b *testkit.Installation, path, key, client string) int {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, b.URL()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+key)
		if client != "" {
			r.Header.Set("X-Forwarded-For", client)
		}
		got, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = got.Body.Close()
		return got.StatusCode
	}
	answer := func(b *testkit.Installation, key, client string) int { return ask(b, "/v1/tenants", key, client) }
	const guesser, neighbour, here = "203.0.113.7", "203.0.113.8", ""
	guess := func(client string) bool {
		got := answer(first, "cjop_wrong", client)
		if got != http.StatusUnauthorized && got != http.StatusTooManyRequests {
			t.Errorf("a wrong key of %q is answered by %d", client, got)
		}
		return got == http.StatusTooManyRequests
	}
	testenv.Eventually(t, 20*time.Second, func() bool { return guess(here) }, "wrong keys of this machine are not braked")
	testenv.Eventually(t, 20*time.Second, func() bool { return guess(guesser) && answer(second, key, guesser) == http.StatusTooManyRequests },
		"the other control plane takes a key of who guessed")
	// A loopback address is another one on another machine.
	for _, client := range []string{neighbour, here} {
		if got := answer(second, key, client); got != http.StatusOK {
			t.Errorf("the other control plane answers %d to %q", got, client)
		}
	}
	// Nor is it by way of another control plane, which forwards what it is asked of a session.
	path := "/v1/sessions/" + second.Open(session.OpenRequest{})
	testenv.Eventually(t, 20*time.Second, func() bool { return ask(first, path, "cjop_wrong", here) == http.StatusTooManyRequests }, "wrong keys that are forwarded are not braked")
	if got := ask(second, path, key, here); got != http.StatusOK {
		t.Errorf("after wrong keys of the other machine it answers %d", got)
	}
}

// An update of one after the other ends no session.
func TestAControlPlaneThatDrainsEndsNoSession(t *testing.T) {
	first, second := sharing(t, true)
	id := first.Open(session.OpenRequest{})
	ready := func(b *testkit.Installation) int {
		t.Helper()
		answer, err := http.Get(b.URL() + "/v1/ready")
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		return answer.StatusCode
	}
	if got := ready(first); got != http.StatusOK {
		t.Fatalf("before it is %d", got)
	}
	if out, err := second.Run(t.Context(), "node", "drain", "first"); err != nil || !strings.Contains(out, "first opens no new sessions, and has 1 session") {
		t.Fatalf("%v: %s", err, out)
	}
	testenv.Eventually(t, 5*time.Second, func() bool { return ready(first) == http.StatusServiceUnavailable }, "it is not ready")
	_, err := first.API.Open(t.Context(), session.OpenRequest{})
	testkit.ExpectCode(t, err, problem.NodeDraining)
	for _, b := range []*testkit.Installation{first, second} { // which goes on, whoever is asked
		if picture, err := b.API.Picture(t.Context(), id, browser.Screenshot{}); err != nil || len(picture) < 100 {
			t.Errorf("a picture has %d bytes: %v", len(picture), err)
		}
	}
	if got := nodesOf(second); got["first"] != peer.NodeDraining || got["second"] != peer.NodeAlive || ready(second) != http.StatusOK {
		t.Errorf("they are %v, and the other one is %d", got, ready(second))
	}
	other := second.Open(session.OpenRequest{})

	waited := make(chan string, 1)
	go func() {
		out, err := second.Run(t.Context(), "node", "drain", "first", "--wait", "1m")
		waited <- fmt.Sprint(out, err)
	}()
	select {
	case said := <-waited:
		t.Fatalf("it does not wait for the session: %s", said)
	case <-time.After(5 * time.Second):
	}
	if err := second.API.Close(t.Context(), id, true); err != nil {
		t.Fatal(err)
	}
	if said := <-waited; !strings.HasSuffix(said, "<nil>") {
		t.Fatal(said)
	}
	if err := first.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	first.Up()
	if got := ready(first); got != http.StatusOK {
		t.Errorf("started again it is %d", got)
	}
	first.Close(first.Open(session.OpenRequest{}))
	if got, err := first.API.Get(t.Context(), other); err != nil || got.State != session.StateReady {
		t.Errorf("the session of the other one is %+v: %v", got, err)
	}

	// It is asked for and taken back by name, and on record.
	for _, args := range [][]string{{"node", "drain", "second"}, {"node", "resume", "second"}} {
		if out, err := second.Run(t.Context(), args...); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if args[1] == "drain" {
			_, err := second.API.Open(t.Context(), session.OpenRequest{})
			testkit.ExpectCode(t, err, problem.NodeDraining)
		}
	}
	second.Close(second.Open(session.OpenRequest{}))
	if out, err := first.Run(t.Context(), "node", "drain", "nobody"); err == nil || !strings.Contains(err.Error(), problem.NotFound) {
		t.Errorf("one that is not there: %v, %s", err, out)
	}
	if rows := second.Rows("--action", "node.resume"); len(rows) == 0 || rows[0].Target != "second" {
		t.Errorf("on record is %+v", rows)
	}
}

func TestTheAccountsOfANodeThatIsLostAreFree(t *testing.T) {
	first, second := sharing(t, true)
	jar := filepath.Join(t.TempDir(), "cookies.txt")
	testkit.WriteFile(t, jar, "# Netscape HTTP Cookie File\n.example.com\tTRUE\t/\tTRUE\t4102444800\tsid\tvalue-of-the-cookie\n")
	if out, err := first.Run(t.Context(), "cookies", "import", jar, "--domain", "example.com"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	open := func(b *testkit.Installation) error {
		t.Helper()
		issued, err := client.Call(t.Context(), b.API, op.IssueGrant(), op.NewGrant{Body: op.With(op.GrantRequest{Domains: []string{"example.com"}})})
		if err != nil {
			t.Fatal(err)
		}
		_, err = b.API.Open(t.Context(), session.OpenRequest{CredentialMode: session.ModeOperator, Domains: []string{"example.com"}, Grant: grant.ParseToken(issued.Token)})
		return err
	}
	if err := open(first); err != nil {
		t.Fatal(err)
	}
	testkit.ExpectCode(t, open(second), problem.AccountBusy)
	serve := first.Victims("serve")[0]
	if err := syscall.Kill(serve, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	silent := time.Now()
	testenv.Eventually(t, 30*time.Second, func() bool { return open(second) == nil }, "the account is free")
	t.Logf("a session with the account is open %s after the last word of the node that had it", time.Since(silent).Round(10*time.Millisecond))
	if rows := second.Rows("--action", "node.lost"); len(rows) != 1 || rows[0].Target != "first" {
		t.Errorf("on record is %+v", rows)
	}
	// The one that was given up has nothing any more when it is heard of again.
	if err := syscall.Kill(serve, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 30*time.Second, func() bool {
		left, err := first.API.List(t.Context(), false)
		return err == nil && len(left) == 1 && nodesOf(first)["first"] == peer.NodeAlive // that of the second
	}, "it starts anew")
	testkit.ExpectCode(t, open(first), problem.AccountBusy)
}

func TestControlPlanesWithAnotherAdminKeyAreNotAsked(t *testing.T) {
	first, second := sharing(t, false)
	id := first.Open(session.OpenRequest{})
	_, err := second.API.Get(t.Context(), id)
	p := testkit.ExpectCode(t, err, problem.NodeUnreachable)
	if !strings.Contains(p.Message, "another admin key") {
		t.Errorf("it says %q", p.Message)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, second.URL()+"/v1/sessions", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+second.Key())
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	var listed op.SessionList
	if err := json.NewDecoder(answer.Body).Decode(&listed); err != nil || listed.Unknown == nil || listed.Unknown.Code != problem.NodeUnreachable || len(listed.Sessions) > 0 {
		t.Errorf("the listing has %+v and says %+v: %v", listed.Sessions, listed.Unknown, err)
	}
	first.Close(id)
}

// The jail of an agent is on one machine, and reached by way of every control plane.
func TestEachControlPlaneReachesTheAgentsOfAll(t *testing.T) {
	database := testkit.OnPostgreSQL(t)
	named := func(node string) string {
		return fmt.Sprintf("%snode: %s\nnode_listen: 127.0.0.1:%d\n", database, node, testenv.FreePort(t))
	}
	e := testkit.NewEstate(t, named("first"))
	second := testkit.Start(t, instance.Options{Settings: testkit.NoPool + named("second")})
	second.Join(e.Installation)
	e.Sync("clawbots: [{name: bot}, {name: sync, command: [/bin/sleep, infinity]}]") // a name that is a word of the API, too
	jail := e.Running("bot").Jail.Name
	if out, err := second.Run(t.Context(), "agent", "ls"); err != nil || !strings.Contains(out, agent.StateElsewhere) {
		t.Errorf("the other lists %s, %v", out, err)
	}
	// Who declares agents says so to the control plane of their machine.
	for _, argv := range [][]string{
		{"agent", "add", "bot", "--template", "browser", "--no-build", "--", "/bin/sleep", "1000"},
		{"agent", "sync", "-f", e.File("clawbots: [{name: bot}]"), "--dry-run"},
	} {
		if out, err := second.Run(t.Context(), argv...); err == nil || !strings.Contains(err.Error()+out, "on the machine of the control plane first") {
			t.Errorf("%v at the other one: %v: %s", argv, err, out)
		}
	}

	run := func(argv ...string) string {
		t.Helper()
		out, err := second.Run(t.Context(), argv...)
		if err != nil {
			t.Fatalf("%s: %v: %s", strings.Join(argv, " "), err, out)
		}
		return out
	}
	if out := run("agent", "exec", "bot", "--", "/bin/sh", "-c", "echo $AGENT_NAME; cat /etc/hostname"); !strings.HasPrefix(out, "bot\n") {
		t.Errorf("a program in its jail says %q", out)
	}
	if out := run("spawn", "--agent", "bot", "--", "/bin/sh", "-c", "echo $AGENT_NAME"); out != "bot\n" {
		t.Errorf("a program beside it says %q", out)
	}
	if out := run("agent", "show", "bot"); !strings.Contains(out, string(jail)) {
		t.Errorf("it is shown as %s", out)
	}
	testenv.Eventually(t, 20*time.Second, func() bool { return strings.Contains(run("agent", "logs", "bot"), `"type":"alive"`) }, "its log does not come")
	if len(second.Victims("serve")) != 1 || second.Log() == "" || strings.Contains(second.Log(), "jail made") {
		t.Errorf("the second has made a jail:\n%s", second.Log())
	}

	// What is started by way of the other one is followed and ended there.
	started, err := client.Call(t.Context(), second.API, op.StartProcess(), op.NewProcess{Name: "bot", Body: op.With(op.ProcessRequest{Argv: []string{"/bin/sh", "-c", `echo '{"said":"hello"}'; sleep 1000`}})})
	if err != nil {
		t.Fatal(err)
	}
	if all, err := client.Call(t.Context(), e.API, op.ListProcesses(), op.OneAgent{Name: "bot"}); err != nil || !slices.ContainsFunc(all.Processes, func(p op.Process) bool { return p.ID == started.ID && p.Exit == nil }) {
		t.Errorf("at the first there are %+v: %v", all, err)
	}
	heard := errors.New("heard")
	err = second.API.Events(t.Context(), client.EventsQuery{Agent: "bot", Process: started.ID, Follow: true}, func(ev agent.Event) error {
		if strings.Contains(string(ev.JSON), "hello") {
			return heard
		}
		return nil
	})
	if !errors.Is(err, heard) {
		t.Errorf("its events: %v", err)
	}
	if err := client.Do(t.Context(), second.API, op.EndProcess(), op.ProcessNamed{Name: "bot", ID: started.ID}); err != nil {
		t.Error(err)
	}

	// Keys are asked for by both, and nobody is told of agents that are not theirs.
	run("tenant", "create", "elsewhere")
	made, err := client.Call(t.Context(), second.API, op.CreateOperator(), op.NewOperator{Body: op.With(op.OperatorRequest{Name: "stranger", Tenant: "elsewhere", Role: "admin"})})
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]int{made.Key: http.StatusNotFound, second.Key(): http.StatusOK, "cjop_" + strings.Repeat("a", 52): http.StatusUnauthorized} {
		for _, path := range []string{"/v1/agents/bot", "/v1/agents/bot/log", "/v1/agents/bot/processes"} {
			for _, query := range []string{"", "?tenant=default"} {
				r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, second.URL()+path+query, nil)
				if err != nil {
					t.Fatal(err)
				}
				r.Header.Set("Authorization", "Bearer "+key)
				answer, err := http.DefaultClient.Do(r)
				if err != nil {
					t.Fatal(err)
				}
				_ = answer.Body.Close()
				if answer.StatusCode != want {
					t.Errorf("%s%s: %s, want %d", path, query, answer.Status, want)
				}
			}
		}
	}

	run("agent", "restart", "bot")
	testenv.Eventually(t, 30*time.Second, func() bool { return e.Running("bot").Jail.Name != jail }, "it is not another jail")

	// So are its pages of the console, for a person who has signed in at the other one, and for nobody else.
	link, err := second.API.ConsoleLink(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	cookies, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	page := func(who *http.Client, method, at string, form url.Values) string {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, at, strings.NewReader(form.Encode()))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Origin", second.URL())
		r.Header.Set("Accept", "text/html")
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		answer, err := who.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = answer.Body.Close() }()
		text, err := io.ReadAll(answer.Body)
		if err != nil || answer.StatusCode != http.StatusOK {
			t.Errorf("%s %s: %s, %v", method, at, answer.Status, err)
		}
		return string(text)
	}
	person, bot := &http.Client{Jar: cookies}, second.URL()+"/console/agents/default/bot"
	page(person, http.MethodPost, second.URL()+"/console/sign-in", url.Values{"code": {link.Code}})
	now := string(e.Running("bot").Jail.Name)
	if text := page(person, http.MethodGet, bot, nil); !strings.Contains(text, now) {
		t.Errorf("its page at the other one is %.2000s", text)
	}
	if text := page(http.DefaultClient, http.MethodGet, bot, nil); strings.Contains(text, now) || !strings.Contains(text, "Sign in") {
		t.Errorf("who has not signed in is shown %.2000s", text)
	}
	page(person, http.MethodPost, bot+"/restart", nil)
	testenv.Eventually(t, 30*time.Second, func() bool { return string(e.Running("bot").Jail.Name) != now }, "it is not restarted by a person at the other one")

	// When its control plane cannot answer, that is said.
	serve := e.Victims("serve")[0]
	if err := syscall.Kill(serve, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	_, err = client.Call(t.Context(), second.API, op.ListProcesses(), op.OneAgent{Name: "bot"})
	if code := problem.CodeOf(err); code != problem.NodeLost && code != problem.NodeUnreachable || time.Since(began) > 10*time.Second {
		t.Errorf("while it stands still: %v after %s", err, time.Since(began))
	}
	if _, err = client.Call(t.Context(), second.API, op.ListProcesses(), op.OneAgent{Name: "bot"}); problem.CodeOf(err) != problem.Conflict {
		t.Errorf("when it is lost: %v", err)
	}
	if err := syscall.Kill(serve, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 30*time.Second, func() bool {
		_, err := client.Call(t.Context(), second.API, op.ListProcesses(), op.OneAgent{Name: "bot"})
		return err == nil
	}, "it does not answer again")
	run("agent", "rm", "bot", "--yes")
	run("agent", "rm", "sync", "--yes")
	if names := e.Names(); len(names) != 0 {
		t.Errorf("when it is removed there are %v", names)
	}
}
