//go:build linux

package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"

	"github.com/clawjail/clawjail/internal/api/socket"
	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/cdp/guard"
	"github.com/clawjail/clawjail/internal/policy/redact"
)

// The ways to drive one browser. They differ in nothing but the guard.
const (
	direct          = "direct"
	guardedClean    = "guarded, clean"
	guardedOperator = "guarded, operator"
)

// relay is a plain Chromium with WebSocket endpoints before it, as a session has one.
type relay struct {
	*browser.Browser
	mux      *cdp.Mux
	registry *guard.Registry
	scrub    *redact.Values // such values as an operator's cookies have; none is on a page

	server *httptest.Server
	secret string // the endpoints are below this path, which only this process knows
	all    sync.WaitGroup
}

// startRelay starts one that ends with the part.
func (b *bench) startRelay(ctx context.Context) *relay {
	c := startChromium(ctx, b.site.URL)
	b.atEnd(c.end)
	conn := must(cdp.New(c.out, c.in, cdp.Options{}))
	values := make([][]byte, 20)
	for n := range values {
		values[n] = []byte(rand.Text() + rand.Text())
	}
	r := &relay{Browser: must(browser.Open(ctx, conn)), mux: cdp.NewMux(conn), registry: guard.NewRegistry(), scrub: redact.New(values...), secret: rand.Text()}
	r.UseFolder(c.home)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /"+r.secret+"/{way}", r.serve)
	r.server = httptest.NewServer(mux)
	b.atEnd(func() error {
		r.server.Close()
		err := errors.Join(r.mux.Close(), r.Close(context.Background()))
		r.all.Wait()
		return err
	})
	return r
}

// endpoint is where a client drives the browser in a certain way.
func (r *relay) endpoint(way string) string {
	return strings.Replace(r.server.URL, "http", "ws", 1) + "/" + r.secret + "/" + url.PathEscape(way)
}

// serve carries the messages of one client, as the control plane does.
func (r *relay) serve(w http.ResponseWriter, req *http.Request) {
	r.all.Add(1)
	defer r.all.Done()
	var filter cdp.Filter // a direct client has none
	if way := req.PathValue("way"); way != direct {
		o := guard.Options{Mode: guard.Clean, Registry: r.registry, Hidden: r.HiddenContext, DownloadsPath: r.DownloadsPath(), File: r.FilePath,
			Refused: func(string, string) {}, Seen: func(string) {}}
		if way == guardedOperator {
			o.Mode, o.Scrub = guard.Operator, r.scrub
		}
		g, err := guard.New(o)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		filter = g
	}
	client, err := r.mux.Attach(req.Context(), cdp.ClientOptions{Filter: filter})
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	_ = socket.Serve(req.Context(), w, req, client) // until either has left
	_ = client.Close()
}

// snapshot measures how quickly a large page is told to an agent, next to the tree as the browser gives it.
func (b *bench) snapshot(ctx context.Context) {
	r := b.startRelay(ctx)
	must(r.Navigate(ctx, b.site.address("/large")))
	session := must(r.Page(ctx)).Session()
	take := func(s browser.Snapshot, whole bool) func() {
		return func() {
			if got, ok := must(r.Do(ctx, s)).(browser.SnapshotResult); !ok || got.Truncated == whole {
				check(fmt.Errorf("truncated: %t", got.Truncated))
			}
		}
	}
	name := fmt.Sprintf("snapshot: %d elements, ", largeElements)
	ai, aria, tree := name+"ai, whole", name+"aria, whole", name+"raw tree"
	t := b.inTurn(b.runs, 2, func(t times) {
		t.timed(name+"ai, as it is by default", take(browser.Snapshot{}, false))
		t.timed(ai, take(browser.Snapshot{MaxChars: 500_000}, true))
		t.timed(tree, func() { // handed on as it is
			var all struct {
				Nodes json.RawMessage `json:"nodes"`
			}
			check(session.Call(ctx, "Accessibility.getFullAXTree", map[string]any{}, &all))
			if len(all.Nodes) < 100*largeElements {
				check(fmt.Errorf("%d bytes are not the whole tree", len(all.Nodes)))
			}
		})
		t.timed(aria, take(browser.Snapshot{Format: "aria", Max: 50_000}, true))
	})
	b.result.Figures[ai].AtMost(100)
	b.result.Beside("the raw tree of the browser", tree, ai, aria)
	b.result.Value(name+"aria to raw tree", "×", ratio(t[aria], t[tree])).AtMost(1.15)
}
