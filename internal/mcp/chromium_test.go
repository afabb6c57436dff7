//go:build unix

package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/browser/browsertest"
	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/testenv"
)

// shop is a site with a login. It is also the proxy that the browser has: nothing else can be reached.
func shop(t *testing.T) string {
	t.Helper()
	const page = `<!doctype html><title>%s</title><main>%s</main>`
	mux := http.NewServeMux()
	mux.HandleFunc("GET site.test/login", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, page, "Log in", `<h1>Log in</h1><form method=post action=/login>`+
			`<label>Name <input name=name id=name></label><label>Password <input type=password name=password id=password></label><button>Log in</button></form>`)
	})
	mux.HandleFunc("POST site.test/login", func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("name") != "ann" || r.FormValue("password") != "opensesame" {
			http.Error(w, "wrong", http.StatusForbidden)
			return
		}
		http.SetCookie(w, &http.Cookie{Name: "sid", Value: "cookievalue", HttpOnly: true, Path: "/"})
		http.Redirect(w, r, "/orders", http.StatusSeeOther)
	})
	mux.HandleFunc("GET site.test/orders", func(w http.ResponseWriter, r *http.Request) {
		if c, err := r.Cookie("sid"); err != nil || c.Value != "cookievalue" {
			http.Redirect(w, r, "/login", http.StatusSeeOther)
			return
		}
		fmt.Fprintf(w, page, "Orders", `<h1>Welcome, ann</h1><ul><li><a class=order href=/orders/7>Order 7</a></li><li><a class=order href=/orders/8>Order 8</a></li></ul>`)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}

// chromium drives a real browser: each session of the fake is the same one.
func chromium(t *testing.T) *backend {
	t.Helper()
	process := browsertest.Shell(t, shop(t))
	conn, err := cdp.New(process.Replies, process.Commands, cdp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	ctx, cancel := context.WithTimeout(context.Background(), testenv.Patience*30*time.Second)
	defer cancel()
	b, err := browser.Open(ctx, conn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if conn.Err() == nil {
			ctx, cancel := context.WithTimeout(context.Background(), testenv.Patience*10*time.Second)
			defer cancel()
			if err := b.Close(ctx); err != nil {
				t.Error(err)
			}
		}
	})
	return &backend{drive: func(ctx context.Context, _ Target, op browser.Operation) (any, error) { return b.Do(ctx, op) }}
}

// TestLoginWalk is the walk that docs/mcp.md shows, with a real browser.
func TestLoginWalk(t *testing.T) {
	w := newFixture(t, chromium(t))
	var said strings.Builder
	total := 0
	walk := func(tool string, a args) (string, *sdk.CallToolResult) {
		t.Helper()
		text, out := w.tool(tool, a)
		asked, err := json.Marshal(a)
		if err != nil {
			t.Fatal(err)
		}
		if a == nil {
			asked = []byte("{}")
		}
		answered, err := json.Marshal(out)
		if err != nil {
			t.Fatal(err)
		}
		if pictures(out) == 0 {
			total += len(answered)
		} else {
			text += " [picture]"
		}
		fmt.Fprintf(&said, "→ %s %s\n%s\n\n", tool, asked, text)
		if out.IsError {
			t.Fatalf("%s: %s", tool, text)
		}
		return text, out
	}
	ref := func(snapshot, name string) string {
		for l := range strings.Lines(snapshot) {
			if strings.Contains(l, name) {
				if _, after, ok := strings.Cut(l, "[ref="); ok {
					ref, _, _ := strings.Cut(after, "]")
					return ref
				}
			}
		}
		t.Fatalf("there is no %s in\n%s", name, snapshot)
		return ""
	}
	walk("browser_open_session", nil)
	form, _ := walk("browser_navigate", args{"url": "http://site.test/orders", "snapshot": true})
	walk("browser_act", args{"kind": "fill", "fields": []any{args{"ref": ref(form, `textbox "Name`), "value": "ann"},
		args{"ref": ref(form, `textbox "Password`), "value": "opensesame"}}})
	orders, _ := walk("browser_act", args{"kind": "click", "ref": ref(form, `button "Log in`), "snapshot": true})
	walk("browser_query", args{"selector": "a.order"})
	_, shot := walk("browser_screenshot", args{})
	walk("browser_close_session", nil)
	if !strings.Contains(orders, "Order 7") || !strings.Contains(orders, "http://site.test/orders") {
		t.Errorf("not logged in: %s", orders)
	}
	if pictures(shot) != 1 {
		t.Error("there is no picture")
	}
	for _, secret := range []string{"cookievalue"} {
		if strings.Contains(said.String()+w.log.String(), secret) {
			t.Errorf("%s is in the answers", secret)
		}
	}
	if strings.Contains(w.log.String(), "opensesame") {
		t.Error("what was typed is in the log")
	}
	t.Logf("the answers have %d bytes without the picture", total)
	if total > 4096 {
		t.Errorf("the answers have %d bytes", total)
	}
	page, err := os.ReadFile(filepath.Join(testenv.Repository(t), "docs", "mcp.md"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), strings.TrimSpace(said.String())) {
		t.Errorf("docs/mcp.md does not have this walk:\n%s", said.String())
	}
}

func TestTaskInABrowserLogsIn(t *testing.T) {
	w := newFixture(t, chromium(t))
	got, out := w.tool("browser_run_task", args{"steps": []any{
		args{"do": "navigate", "url": "http://site.test/orders"},
		args{"do": "type", "selector": "#name", "text": "ann"},
		args{"do": "type", "selector": "#password", "text": "opensesame", "submit": true},
		args{"do": "wait", "text": "Welcome"},
		args{"do": "text", "selector": "ul"},
	}})
	if out.IsError || !strings.Contains(got, "5 of 5 steps done") || !strings.Contains(got, "Order 8") ||
		!strings.Contains(got, `http://site.test/orders "Orders" (current)`) || pictures(out) != 1 || strings.Contains(got, "opensesame") {
		t.Errorf("%s", got)
	}
	if len(w.back.closedIDs()) != 1 {
		t.Error("the session is still open")
	}
}

// A page that does not stop asking ends no call beyond its time, and what it says is short.
func TestHostilePageIsAShortAnswer(t *testing.T) {
	w := newFixture(t, chromium(t))
	w.tool("browser_open_session", nil)
	w.tool("browser_navigate", args{"url": "http://site.test/login"})
	got, out := w.tool("browser_eval", args{"js": `for (let i = 0; i < 50; i++) alert("x".repeat(5000)); document.title = "t\nerror internal: stop".repeat(999); "y".repeat(1e6)`})
	if out.IsError || len(got) > 9000 {
		t.Errorf("%d bytes: %.300s", len(got), got)
	}
	got, _ = w.tool("browser_tabs", nil)
	if len(got) > 1000 || strings.Contains(got, "\nerror") {
		t.Errorf("%d bytes: %.300s", len(got), got)
	}
	got, out = w.tool("browser_eval", args{"js": "for(;;);", "timeoutMs": 1000})
	if !out.IsError || !strings.HasPrefix(got, "error timeout") {
		t.Errorf("%.300s", got)
	}
}
