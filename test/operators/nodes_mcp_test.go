//go:build linux

package operators

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/peer"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/test/testkit"
)

// balancer sends requests to control planes in turn, as a load balancer does that knows nothing of them.
type balancer struct {
	key  string
	of   []*testkit.Installation
	next atomic.Int64
}

func (b *balancer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	to := b.of[int(b.next.Add(1)-1)%len(b.of)]
	r.URL.Host, r.Host = to.Config.Listen.String(), ""
	r.Header.Set("Authorization", "Bearer "+b.key)
	return http.DefaultTransport.RoundTrip(r)
}

// connect begins to speak a version of MCP.
func (b *balancer) connect(t *testing.T, version string) *mcp.ClientSession {
	t.Helper()
	c, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(),
		&mcp.StreamableClientTransport{Endpoint: b.of[0].URL() + "/mcp", HTTPClient: &http.Client{Transport: b}, MaxRetries: -1}, &mcp.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if got := c.InitializeResult().ProtocolVersion; got != version {
		t.Fatalf("it speaks %s, want %s", got, version)
	}
	return c
}

// says is what a tool says, and whether that is an error.
func says(t *testing.T, c *mcp.ClientSession, tool string, arguments map[string]any) (text string, failed bool) {
	t.Helper()
	out, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: arguments})
	if err != nil {
		t.Fatalf("%s: %v", tool, err)
	}
	for _, content := range out.Content {
		if c, is := content.(*mcp.TextContent); is {
			text += c.Text
		}
	}
	return text, out.IsError
}

var openedID = regexp.MustCompile(`s_[a-z2-7]+`)

// A client of MCP may be sent to another control plane with each request, in every version of the protocol.
func TestClientsOfMCPReachTheirSessionsByWayOfAnyControlPlane(t *testing.T) {
	first, second := sharing(t, true)
	for _, version := range []string{"2025-06-18", "2025-11-25", "2026-07-28"} {
		t.Run(version, func(t *testing.T) {
			c := (&balancer{key: first.Key(), of: []*testkit.Installation{first, second}}).connect(t, version)
			does := func(tool string, arguments map[string]any) string {
				t.Helper()
				text, failed := says(t, c, tool, arguments)
				if failed {
					t.Fatalf("%s: %s", tool, text)
				}
				return text
			}
			id := openedID.FindString(does("browser_open_session", nil))
			for n := range 6 { // by way of each, whose the session is or not
				arguments := map[string]any{"action": "list"}
				if version > "2026" || n%3 == 2 { // others need not say which
					arguments["session"] = id
				}
				if text := does("browser_tabs", arguments); !strings.Contains(text, "about:blank") {
					t.Errorf("the tabs are %s", text)
				}
				if text := does("capabilities", nil); !strings.Contains(text, id) {
					t.Errorf("its session %s is not among %s", id, text)
				}
			}
			does("browser_close_session", map[string]any{"session": id})
			for range 2 {
				if text, failed := says(t, c, "browser_tabs", map[string]any{"session": id}); !failed {
					t.Errorf("a session that was closed has %s", text)
				}
			}
		})
	}

	t.Run("another's session", func(t *testing.T) { // a conversation of one control plane, and a browser of the other
		c := (&balancer{key: first.Key(), of: []*testkit.Installation{first, second}}).connect(t, "2025-11-25")
		there := (&balancer{key: first.Key(), of: []*testkit.Installation{second}}).connect(t, "2025-11-25")
		text, _ := says(t, there, "browser_open_session", nil)
		id := openedID.FindString(text)
		for range 4 { // by way of each
			if text, failed := says(t, c, "browser_tabs", map[string]any{"session": id}); failed {
				t.Errorf("its tabs are %s", text)
			}
		}
		if _, err := client.Call(t.Context(), first.API, op.CreateTenant(), op.NewTenant{Body: op.With(op.TenantRequest{ID: "elsewhere"})}); err != nil {
			t.Fatal(err)
		}
		made, err := client.Call(t.Context(), first.API, op.CreateOperator(), op.NewOperator{Body: op.With(op.OperatorRequest{Name: "stranger", Tenant: "elsewhere", Role: "operator"})})
		if err != nil {
			t.Fatal(err)
		}
		stranger := (&balancer{key: made.Key, of: []*testkit.Installation{first}}).connect(t, "2025-11-25")
		if text, failed := says(t, stranger, "browser_tabs", map[string]any{"session": id}); !failed {
			t.Errorf("another tenant has %s", text)
		}
		own, _ := says(t, stranger, "browser_open_session", nil)
		if text, failed := says(t, stranger, "browser_tabs", map[string]any{"session": openedID.FindString(own)}); failed {
			t.Errorf("another tenant does not have its own: %s", text)
		}
		for _, of := range []*mcp.ClientSession{there, stranger} {
			if _, failed := says(t, of, "browser_close_session", nil); failed {
				t.Error("it cannot be closed")
			}
		}
		// Who has the id of a conversation and another key is told that there is none.
		talk := begins(t, first, first.Key())
		for key, want := range map[string]int{first.Key(): http.StatusOK, made.Key: http.StatusNotFound, "cjop_" + strings.Repeat("a", 52): http.StatusUnauthorized} {
			for _, at := range []*testkit.Installation{first, second} {
				if got := listens(t, at, key, talk); got != want {
					t.Errorf("%s answers %d, want %d", at.Config.Node, got, want)
				}
			}
		}
	})

	// Who waits for a control plane that is lost is told so, and goes on elsewhere. A client whose MCP session was there begins another one.
	c := (&balancer{key: first.Key(), of: []*testkit.Installation{first}}).connect(t, "2025-11-25")
	there := (&balancer{key: first.Key(), of: []*testkit.Installation{second}}).connect(t, "2025-11-25")
	text, _ := says(t, there, "browser_open_session", nil)
	talk := begins(t, second, second.Key())
	if got := listens(t, first, first.Key(), talk); got != http.StatusOK {
		t.Errorf("before, it is %d", got)
	}
	serve := second.Victims("serve")[0]
	if err := syscall.Kill(serve, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if text, failed := says(t, c, "browser_tabs", map[string]any{"session": openedID.FindString(text)}); !failed || !strings.Contains(text, "error node_") {
		t.Errorf("of a session that is lost it is told %s", text)
	}
	if text, failed := says(t, c, "capabilities", nil); failed {
		t.Errorf("afterwards it is told %s", text)
	}
	testenv.Eventually(t, 30*time.Second, func() bool { return listens(t, first, first.Key(), talk) == http.StatusNotFound }, "there is no such MCP session")
	if err := syscall.Kill(serve, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 30*time.Second, func() bool { return nodesOf(first)["second"] == peer.NodeAlive }, "it starts anew")

	// What is under way is answered when the control plane between the two ends.
	text, _ = says(t, c, "browser_open_session", nil)
	answered := make(chan string, 1)
	go func() {
		body := `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"browser_eval","arguments":{"js":"new Promise(r => setTimeout(() => r('is ' + 'done'), 2000))","await":true}}}`
		answer, err := send(t.Context(), second, second.Key(), http.MethodPost, c.ID(), body)
		if err != nil {
			answered <- err.Error()
			return
		}
		defer func() { _ = answer.Body.Close() }()
		said, err := io.ReadAll(answer.Body)
		answered <- fmt.Sprint(answer.StatusCode, " ", string(said), err)
	}()
	time.Sleep(500 * time.Millisecond) // it is under way
	if err := second.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if said := <-answered; !strings.Contains(said, "is done") {
		t.Errorf("%s: who waits by way of one that ends is answered %s", openedID.FindString(text), said)
	}
}

// send sends a request about a conversation.
func send(ctx context.Context, at *testkit.Installation, key, method, id, body string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, at.URL()+"/mcp", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	for name, value := range map[string]string{"Authorization": "Bearer " + key, "Mcp-Session-Id": id, "Accept": "application/json, text/event-stream", "Content-Type": "application/json"} {
		r.Header.Set(name, value)
	}
	return (&http.Client{Timeout: 30 * time.Second}).Do(r)
}

// asks sends a request about a conversation, or the first one of another, whose id it returns.
func asks(t *testing.T, at *testkit.Installation, key, method, id, body string) (status int, begun string) {
	t.Helper()
	answer, err := send(t.Context(), at, key, method, id, body)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode == http.StatusOK {
		if n, err := answer.Body.Read(make([]byte, 1)); n == 0 {
			t.Errorf("nothing is said on the stream: %v", err)
		}
	}
	return answer.StatusCode, answer.Header.Get("Mcp-Session-Id")
}

// listens is what somebody is answered who listens to a conversation.
func listens(t *testing.T, at *testkit.Installation, key, id string) int {
	t.Helper()
	status, _ := asks(t, at, key, http.MethodGet, id, "")
	return status
}

// begins begins a conversation.
func begins(t *testing.T, at *testkit.Installation, key string) (id string) {
	t.Helper()
	status, id := asks(t, at, key, http.MethodPost, "", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`)
	if status != http.StatusOK || id == "" {
		t.Fatalf("a conversation begins with %d and the id %q", status, id)
	}
	return id
}
