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

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/console"
	"github.com/clawjail/clawjail/internal/op"
)

const (
	// shownAgents and shownRecords are what the pages of the console show at once, and have to find their rows among.
	shownAgents, shownRecords = 200, 10_000
	// pageRounds is how often each page is asked for.
	pageRounds = 50
	// fillers make the records, at the same time.
	fillers = 16
)

// desk is somebody at the console of an instance.
type desk struct {
	*box
	base   string
	client *http.Client // it keeps its connections, and follows no redirection
}

// console measures the console, which is to be full.
func (b *bench) console(ctx context.Context) error {
	d, err := b.boxes[cold].signedIn(ctx)
	if err != nil {
		return fmt.Errorf("sign in: %w", err)
	}
	defer d.client.CloseIdleConnections()
	return inOrder(func() error { return b.pages(ctx, d) }, func() error { return b.live(ctx, d) })
}

// signedIn signs in with a link, as `clawjail console` does.
func (x *box) signedIn(ctx context.Context) (*desk, error) {
	link, err := x.api.ConsoleLink(ctx)
	if err != nil {
		return nil, err
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		return nil, err
	}
	d := &desk{box: x, base: "http://" + x.Config.Listen.String(), client: &http.Client{Jar: jar, Transport: &http.Transport{DisableCompression: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
	_, err = d.post(ctx, "/sign-in", url.Values{"code": {link.Code}})
	return d, err
}

// answer is one of the console's.
type answer struct {
	body  []byte        // as it was before it was compressed
	leads string        // where to
	bytes int           // what came over the connection, headers included
	first time.Duration // until its first byte
}

// ask sends a request, and wants this status.
func (d *desk) ask(ctx context.Context, method, path string, form url.Values, status int) (a answer, err error) {
	var began time.Time
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotFirstResponseByte: func() { a.first = time.Since(began) }})
	r, err := http.NewRequestWithContext(ctx, method, d.base+path, strings.NewReader(form.Encode()))
	if err != nil {
		return a, err
	}
	r.Header.Set("Accept", "text/html,*/*")
	r.Header.Set("Accept-Encoding", "gzip")
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	began = time.Now()
	resp, err := d.client.Do(r)
	if err != nil {
		return a, err
	}
	whole, err := httputil.DumpResponse(resp, true)
	body := io.Reader(resp.Body)
	if resp.Header.Get("Content-Encoding") == "gzip" && err == nil {
		body, err = gzip.NewReader(body)
	}
	if err == nil {
		a.body, err = io.ReadAll(body)
	}
	a.bytes, a.leads = len(whole), strings.TrimPrefix(resp.Header.Get("Location"), console.Prefix)
	if err = errors.Join(err, resp.Body.Close()); err == nil && resp.StatusCode != status {
		err = fmt.Errorf("%s: %s: %.2000s", path, resp.Status, a.body)
	}
	return a, err
}

// post sends a form of the console's, and returns where it leads.
func (d *desk) post(ctx context.Context, path string, form url.Values) (string, error) {
	a, err := d.ask(ctx, http.MethodPost, console.Prefix+path, form, http.StatusSeeOther)
	return a.leads, err
}

func (d *desk) get(ctx context.Context, path string) (answer, error) {
	return d.ask(ctx, http.MethodGet, path, nil, http.StatusOK)
}

// fill makes the agents and the records, by way of the API: each of these actions has an intent and an outcome.
func (d *desk) fill(ctx context.Context) error {
	_, err := atOnce(fillers, upTo(shownAgents), func(n int) error {
		name := fmt.Sprintf("shown-%d", n)
		_, err := client.Call(ctx, d.api, op.CreateAgent(), op.NewAgent{Body: op.With(op.AgentRequest{Name: name})})
		for n := 0; n < shownRecords/shownAgents/4 && err == nil; n++ {
			err = errors.Join(client.Do(ctx, d.api, op.RevokeAgent(), op.OneAgent{Name: name}), client.Do(ctx, d.api, op.RestoreAgent(), op.OneAgent{Name: name}))
		}
		return err
	})
	if err != nil {
		return err
	}
	var rows bytes.Buffer
	err = d.api.AuditExport(ctx, &rows, "")
	if n := bytes.Count(rows.Bytes(), []byte("\n")); err == nil && n < shownRecords {
		err = fmt.Errorf("%d records were made", n)
	}
	return err
}

// pages measures all pages, in turn, next to an address of the API that only answers.
func (b *bench) pages(ctx context.Context, d *desk) (err error) {
	if err := d.fill(ctx); err != nil {
		return fmt.Errorf("fill the instance: %w", err)
	}
	s, err := d.api.Open(ctx, api.OpenRequest{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.api.Close(context.WithoutCancel(ctx), s.ID, true)) }()
	found, err := client.Call(ctx, d.api, op.ListAudit(), op.AuditQuery{Limit: 1})
	if err != nil || len(found.Rows) == 0 {
		return errors.Join(err, errors.New("no record is found"))
	}
	const health, name = "/v1/health", "console: first byte, "
	paths := map[string]string{"/sessions/ID": "/sessions/" + s.ID, "/audit/ID": "/audit/" + found.Rows[0].ID, "/agents/NAME": "/agents/default/shown-7",
		"/agents/NAME/tokens": "/agents/default/shown-7/tokens", "/agents/NAME/network": "/agents/default/shown-7/network"}
	for _, path := range []string{"/", "/sessions", "/refresh", "/agents", "/agents/add", "/agents/plan", "/credentials", "/credentials/import",
		"/credentials/secrets", "/credentials/grants", "/credentials/grants/issue", "/network", "/network/explain", "/network/requests",
		"/network/services", "/network/providers", "/network/usage", "/audit", "/audit?action=session", "/settings", "/settings/people",
		"/settings/keys", "/settings/machine", "/settings/host-browser", "/settings/servers"} {
		paths[path] = path
	}
	_, err = b.inTurn(pageRounds, 2, func(t times) error {
		a, err := d.get(ctx, health)
		t.add(name+health, a.first)
		for page, path := range paths {
			if err == nil {
				a, err = d.get(ctx, console.Prefix+path)
				t.add(name+page, a.first)
			}
		}
		return err
	})
	if err != nil {
		return err
	}
	var slowest float64
	for page := range paths {
		f := b.result.Figures[name+page]
		f.AtMost(20)
		slowest = max(slowest, f.P95)
	}
	b.result.Value(name+"page that is slowest, p95", "ms", slowest).AtMost(20)
	return b.weights(ctx, d, paths)
}

// referred are the files that a page, a style sheet or a module names.
var referred = regexp.MustCompile(`(?:(/console/static/[0-9a-f]+)|from '\.)/([a-z0-9-]+\.[a-z]+)`)

// weights counts the bytes of each page with an empty cache: itself, and all that it refers to.
func (b *bench) weights(ctx context.Context, d *desk, paths map[string]string) error {
	type weight struct {
		page      string
		html, all int
	}
	var all []weight
	for page, path := range paths {
		a, err := d.get(ctx, console.Prefix+path)
		if err != nil {
			return err
		}
		w := weight{page, a.bytes, a.bytes}
		folder, loaded := "", map[string]bool{}
		for wanted := referred.FindAllSubmatch(a.body, -1); len(wanted) > 0; wanted = wanted[1:] {
			folder = cmp.Or(folder, string(wanted[0][1]))
			name := string(wanted[0][2])
			if loaded[name] {
				continue
			}
			loaded[name] = true
			if a, err = d.get(ctx, folder+"/"+name); err != nil {
				return err
			}
			w.all += a.bytes
			wanted = append(wanted, referred.FindAllSubmatch(a.body, -1)...)
		}
		if len(loaded) < 3 {
			return fmt.Errorf("%s refers to %d files", path, len(loaded))
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
	return nil
}
