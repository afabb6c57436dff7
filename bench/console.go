//go:build linux

package main

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptrace"
	"net/http/httputil"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/console"
	"github.com/clawjail/clawjail/internal/op"
)

// shownAgents and shownRecords are what the pages of the console show at once, and have to find their rows among.
const shownAgents, shownRecords = 200, 10_000

// desk is somebody at the console of an instance.
type desk struct {
	*testInstance
	base   string
	client *http.Client // it keeps its connections, and follows no redirection
}

// console measures the console, which is to be full.
func (b *bench) console(ctx context.Context) {
	d := b.boxes[cold].signedIn(ctx)
	defer d.client.CloseIdleConnections()
	d.fill(ctx)
	d.with(ctx, func(session string) { b.pages(ctx, d, session) })
	d.with(ctx, func(session string) { b.live(ctx, d, session) })
}

// signedIn signs in with a link, as `clawjail console` does.
func (x *testInstance) signedIn(ctx context.Context) *desk {
	d := &desk{testInstance: x, base: "http://" + x.Config.Listen.String(), client: &http.Client{Jar: must(cookiejar.New(nil)), Transport: &http.Transport{DisableCompression: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
	d.post(ctx, "/sign-in", url.Values{"code": {must(x.api.ConsoleLink(ctx)).Code}})
	return d
}

// answer is one of the console's.
type answer struct {
	body  []byte        // as it was before it was compressed
	leads string        // where to
	bytes int           // what came over the connection, headers included
	first time.Duration // until its first byte
}

// ask sends a request, and wants this status.
func (d *desk) ask(ctx context.Context, method, path string, form url.Values, status int) (a answer) {
	var began time.Time
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotFirstResponseByte: func() { a.first = time.Since(began) }})
	r := must(http.NewRequestWithContext(ctx, method, d.base+path, strings.NewReader(form.Encode())))
	r.Header = http.Header{"Accept": {"text/html,*/*"}, "Accept-Encoding": {"gzip"}}
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	began = time.Now()
	resp := must(d.client.Do(r))
	defer resp.Body.Close()
	a.bytes, a.leads = len(must(httputil.DumpResponse(resp, true))), strings.TrimPrefix(resp.Header.Get("Location"), console.Prefix)
	body := io.Reader(resp.Body)
	if resp.Header.Get("Content-Encoding") == "gzip" {
		body = must(gzip.NewReader(body))
	}
	if a.body = must(io.ReadAll(body)); resp.StatusCode != status {
		check(fmt.Errorf("%s: %s: %.2000s", path, resp.Status, a.body))
	}
	return a
}

// post sends a form of the console's, and returns where it leads.
func (d *desk) post(ctx context.Context, path string, form url.Values) string {
	return d.ask(ctx, http.MethodPost, console.Prefix+path, form, http.StatusSeeOther).leads
}

func (d *desk) get(ctx context.Context, path string) answer {
	return d.ask(ctx, http.MethodGet, path, nil, http.StatusOK)
}

// fill makes the agents and the records, by way of the API: each of these actions has an intent and an outcome.
func (d *desk) fill(ctx context.Context) {
	atOnce(16, upTo(shownAgents), func(n int) {
		name := fmt.Sprintf("shown-%d", n)
		must(client.Call(ctx, d.api, op.CreateAgent(), op.NewAgent{Body: op.With(op.AgentRequest{Name: name})}))
		for range shownRecords / shownAgents / 4 {
			check(client.Do(ctx, d.api, op.RevokeAgent(), op.OneAgent{Name: name}), client.Do(ctx, d.api, op.RestoreAgent(), op.OneAgent{Name: name}))
		}
	})
	var rows bytes.Buffer
	check(d.api.AuditExport(ctx, &rows, ""))
	if n := bytes.Count(rows.Bytes(), []byte("\n")); n < shownRecords {
		check(fmt.Errorf("%d records were made", n))
	}
}

// pages measures all pages, in turn, next to an address of the API that only answers.
func (b *bench) pages(ctx context.Context, d *desk, session string) {
	found := must(client.Call(ctx, d.api, op.ListAudit(), op.AuditQuery{Limit: 1}))
	if len(found.Rows) == 0 {
		check(errors.New("no record is found"))
	}
	const health, name = "/v1/health", "console: first byte, "
	paths := map[string]string{"/sessions/ID": "/sessions/" + session, "/audit/ID": "/audit/" + found.Rows[0].ID, "/agents/NAME": "/agents/default/shown-7",
		"/agents/NAME/tokens": "/agents/default/shown-7/tokens", "/agents/NAME/network": "/agents/default/shown-7/network"}
	for _, path := range []string{"/", "/sessions", "/refresh", "/agents", "/agents/add", "/agents/plan", "/credentials", "/credentials/import",
		"/credentials/secrets", "/credentials/grants", "/credentials/grants/issue", "/network", "/network/explain", "/network/requests",
		"/network/services", "/network/providers", "/network/usage", "/audit", "/audit?action=session", "/settings", "/settings/people",
		"/settings/keys", "/settings/machine", "/settings/host-browser", "/settings/servers"} {
		paths[path] = path
	}
	b.inTurn(50, 2, func(t times) {
		t.add(name+health, d.get(ctx, health).first)
		for page, path := range paths {
			t.add(name+page, d.get(ctx, console.Prefix+path).first)
		}
	})
	var slowest float64
	for page := range paths {
		f := b.result.Figures[name+page]
		f.AtMost(20)
		slowest = max(slowest, f.P95)
	}
	b.result.Value(name+"page that is slowest, p95", "ms", slowest).AtMost(20)
	b.weights(ctx, d, paths)
}

// referred are the files that a page, a style sheet or a module names.
var referred = regexp.MustCompile(`(?:(/console/static/[0-9a-f]+)|from '\.)/([a-z0-9-]+\.[a-z]+)`)

// weights counts the bytes of each page with an empty cache: itself, and all that it refers to.
func (b *bench) weights(ctx context.Context, d *desk, paths map[string]string) {
	type weight struct {
		page      string
		html, all int
	}
	var all []weight
	for page, path := range paths {
		a := d.get(ctx, console.Prefix+path)
		w := weight{page, a.bytes, a.bytes}
		folder, loaded := "", map[string]bool{}
		for wanted := referred.FindAllSubmatch(a.body, -1); len(wanted) > 0; wanted = wanted[1:] {
			folder = cmp.Or(folder, string(wanted[0][1]))
			name := string(wanted[0][2])
			if loaded[name] {
				continue
			}
			loaded[name] = true
			file := d.get(ctx, folder+"/"+name)
			w.all += file.bytes
			wanted = append(wanted, referred.FindAllSubmatch(file.body, -1)...)
		}
		if len(loaded) < 3 {
			check(fmt.Errorf("%s refers to %d files", path, len(loaded)))
		}
		all = append(all, w)
	}
	slices.SortFunc(all, func(one, other weight) int { return other.all - one.all })
	var said []string
	for _, w := range all[:5] {
		said = append(said, fmt.Sprintf("%s %d KB of which %d KB HTML", w.page, w.all/1000, w.html/1000))
	}
	b.result.Notes = append(b.result.Notes, "the heaviest pages: "+strings.Join(said, ", "))
	b.result.Value("console: weight of the heaviest page", "KB", float64(all[0].all)/1000).AtMost(150)
	b.result.Value("console: weight of the page in the middle", "KB", float64(all[len(all)/2].all)/1000)
}
