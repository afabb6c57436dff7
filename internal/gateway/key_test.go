package gateway

import (
	"bufio"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/problem"
)

// keyring knows the tokens of a test, and who is cut off.
type keyring struct {
	mu      sync.Mutex
	tokens  map[string]identity.Principal
	revoked map[string]bool
	held    map[int]held
	last    int
}

type held struct {
	by     identity.Principal
	cancel context.CancelCauseFunc
}

func newKeyring(tokens map[string]identity.Principal) *keyring {
	return &keyring{tokens: tokens, revoked: map[string]bool{}, held: map[int]held{}}
}

func (k *keyring) Authenticate(_ context.Context, presented string, _ netip.Addr) (identity.Principal, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	p, ok := k.tokens[presented]
	if presented == "too-many" {
		return identity.Principal{}, problem.New(problem.RateLimited, "", "too many wrong keys").With(problem.RetryAfter, 7)
	}
	if !ok {
		return identity.Principal{}, problem.New(problem.Unauthorized, "", "not a key")
	}
	return p, nil
}

func (k *keyring) WatchValidity(_ context.Context, p identity.Principal, cancel context.CancelCauseFunc) (func(), error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.revoked[p.ID] {
		return nil, problem.New(problem.Unauthorized, "", "the key is not good")
	}
	k.last++
	n := k.last
	k.held[n] = held{p, cancel}
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		delete(k.held, n)
	}, nil
}

// cut ends what is held for whom match says.
func (k *keyring) cut(match func(identity.Principal) bool) {
	k.mu.Lock()
	var ends []context.CancelCauseFunc
	for n, h := range k.held {
		if match(h.by) {
			ends = append(ends, h.cancel)
			delete(k.held, n)
		}
	}
	k.mu.Unlock()
	for _, end := range ends {
		end(problem.New(problem.Unauthorized, "", "revoked"))
	}
}

func (k *keyring) revoke(agent string) {
	k.mu.Lock()
	k.revoked[agent] = true
	k.mu.Unlock()
	k.cut(func(p identity.Principal) bool { return p.ID == agent })
}

func (k *keyring) open() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.held)
}

// admitAgent lets the jail of an agent in.
func (w *fixture) admitAgent(addr, agent string, p policy.Policy) {
	w.t.Helper()
	needLoopbacks(w.t)
	if err := w.g.Admit(netip.MustParseAddr(addr), Caller{Jail: "a" + addr, Agent: agent, Tenant: "default", Actor: "agent:" + agent, Policy: p}); err != nil {
		w.t.Fatal(err)
	}
}

func agentToken(id, token string) identity.Principal {
	return identity.Principal{Kind: identity.KindAgent, ID: id, Tenant: "default", TokenID: token}
}

func TestAddressAndTokenMustAgree(t *testing.T) {
	keys := newKeyring(map[string]identity.Principal{
		"cjagt_one": agentToken("one", "t1"), "cjagt_two": agentToken("two", "t2"),
		"cjop_boss": {Kind: identity.KindOperator, ID: "one", TokenID: "one"},
	})
	w := newFixture(t, func(c *Config) { c.Keys = keys })
	s := newRawServer(t, okAnswer, headerEnd)
	w.public("example.com", "93.184.216.34", s.Addr())
	w.admitAgent(jailA, "one", policy.PublicWeb())
	w.admit(jailB, policy.PublicWeb())
	basic := func(token string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte("agent:"+token)) }
	for _, c := range []struct {
		name, from, value string
		passes            bool
	}{
		{"no token", jailA, "", true},
		{"its own", jailA, "Bearer cjagt_one", true},
		{"its own, as a password", jailA, basic("cjagt_one"), true},
		{"another agent's", jailA, "Bearer cjagt_two", false},
		{"nobody's", jailA, "Bearer cjagt_three", false},
		{"an operator's with the same id", jailA, "Bearer cjop_boss", false},
		{"no scheme", jailA, "cjagt_one", false},
		{"empty", jailA, "Bearer ", false},
		{"two", jailA, "Bearer cjagt_one\r\nProxy-Authorization: Bearer cjagt_two", false},
		{"an agent's in the jail of a session", jailB, "Bearer cjagt_one", false},
	} {
		header := ""
		if c.value != "" {
			header = "Proxy-Authorization: " + c.value + "\r\n"
		}
		for _, request := range []string{
			"GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\n" + header + "\r\n",
			"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com\r\n" + header + "\r\n",
		} {
			resp, body := w.rawHead(c.from, request)
			if c.passes != (resp.StatusCode == 200) {
				t.Errorf("%s: %s %s", c.name, resp.Status, body)
			}
			if !c.passes && (resp.StatusCode != http.StatusProxyAuthRequired || resp.Header.Get("Clawjail-Refusal") != problem.TokenMismatch) {
				t.Errorf("%s: %s %v", c.name, resp.Status, resp.Header)
			}
		}
	}
	for _, got := range s.requests() {
		if strings.Contains(strings.ToLower(got), "proxy-authorization") {
			t.Errorf("the token left:\n%s", got)
		}
	}
	if strings.Contains(w.logs.String(), "cjagt_") {
		t.Error("a token is in the log")
	}
}

func TestATokenThatIsRateLimitedSaysWhenToTryAgain(t *testing.T) {
	w := newFixture(t, func(c *Config) {
		c.Keys = newKeyring(map[string]identity.Principal{"cjagt_one": agentToken("one", "t1")})
	})
	w.public("example.com", "93.184.216.34", newRawServer(t, okAnswer, headerEnd).Addr())
	w.admitAgent(jailA, "one", policy.PublicWeb())
	for token, want := range map[string]struct {
		status int
		after  string
	}{"cjagt_one": {200, ""}, "too-many": {http.StatusTooManyRequests, "7"}} {
		resp, body := w.rawHead(jailA, "GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\nProxy-Authorization: Bearer "+token+"\r\n\r\n")
		if resp.StatusCode != want.status || resp.Header.Get("Retry-After") != want.after {
			t.Errorf("%s: %s %v %s", token, resp.Status, resp.Header, body)
		}
	}
}

// rawHead is raw for answers that may be the start of a tunnel.
func (w *fixture) rawHead(from, request string) (*http.Response, string) {
	w.t.Helper()
	c := w.dial(from)
	defer c.Close()
	if _, err := io.WriteString(c, request); err != nil {
		w.t.Fatal(err)
	}
	method, _, _ := strings.Cut(request, " ")
	resp, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: method})
	if err != nil {
		w.t.Fatalf("response to %.80q: %v", request, err)
	}
	defer resp.Body.Close()
	if method == http.MethodConnect && resp.StatusCode == 200 {
		return resp, ""
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return resp, string(body)
}

func TestTunnelsEndWithTheirTokenAndWithTheirAgent(t *testing.T) {
	for name, end := range map[string]func(*keyring){
		"the token":          func(k *keyring) { k.cut(func(p identity.Principal) bool { return p.TokenID == "t1" }) },
		"the agent":          func(k *keyring) { k.revoke("one") },
		"the agent, unnamed": func(k *keyring) { k.revoke("one") },
	} {
		t.Run(name, func(t *testing.T) {
			keys := newKeyring(map[string]identity.Principal{"cjagt_one": agentToken("one", "t1")})
			w := newFixture(t, func(c *Config) { c.Keys = keys })
			w.public("example.com", "93.184.216.34", server(t, echo).Addr())
			w.admitAgent(jailA, "one", policy.Policy{Default: policy.Deny, Rules: []policy.Rule{
				{Name: "all", Action: policy.Allow, Host: policy.AnyHost(), Ports: policy.Ports(443), Opaque: true}}})
			header := "Proxy-Authorization: Bearer cjagt_one\r\n"
			if name == "the agent, unnamed" {
				header = ""
			}
			c := w.dial(jailA)
			fmt.Fprintf(c, "CONNECT example.com:443 HTTP/1.1\r\nHost: example.com\r\n%s\r\n", header)
			br := bufio.NewReader(c)
			if resp, err := http.ReadResponse(br, &http.Request{Method: "CONNECT"}); err != nil || resp.StatusCode != 200 {
				t.Fatal(resp, err)
			}
			io.WriteString(c, "hello")
			if b, err := br.ReadByte(); err != nil || b != 'h' {
				t.Fatal(b, err)
			}
			end(keys)
			if _, err := io.Copy(io.Discard, br); err != nil && !strings.Contains(err.Error(), "reset") {
				t.Errorf("the tunnel goes on: %v", err)
			}
			if name == "the token" {
				return // the jail may go on without it
			}
			resp, body := w.rawHead(jailA, "GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n")
			if code, _ := refusal(t, resp, body); code != problem.Forbidden {
				t.Errorf("a revoked agent: %s %s", resp.Status, body)
			}
		})
	}
}

func TestNothingIsHeldForConnectionsThatAreClosed(t *testing.T) {
	keys := newKeyring(map[string]identity.Principal{"cjagt_one": agentToken("one", "t1")})
	w := newFixture(t, func(c *Config) { c.Keys = keys })
	s := web(t, func(http.ResponseWriter, *http.Request) {})
	w.public("example.com", "93.184.216.34", s.Listener.Addr())
	w.admitAgent(jailA, "one", policy.PublicWeb())
	c := w.dial(jailA)
	br := bufio.NewReader(c)
	for range 3 {
		io.WriteString(c, "GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\nProxy-Authorization: Bearer cjagt_one\r\n\r\n")
		resp, err := http.ReadResponse(br, nil)
		if err != nil || resp.StatusCode != 200 {
			t.Fatal(resp, err)
		}
		io.Copy(io.Discard, resp.Body)
	}
	if n := keys.open(); n != 2 {
		t.Errorf("%d things are held for one connection of an agent with a token", n)
	}
	c.Close()
	eventually(t, func() bool { return keys.open() == 0 }, "the connection is held after its end")
}
