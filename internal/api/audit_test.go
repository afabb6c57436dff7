package api

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/testenv"
)

func TestRecordsAreThoseOfTheCallersTenant(t *testing.T) {
	w := newFixture(t)
	for _, tenant := range []string{"acme", "beta", ""} {
		if err := w.log.Event(w.ctx, audit.Event{Action: "test.here", Tenant: tenant, Actor: "admin", Target: "of-" + tenant}); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{"/v1/audit?limit=1000", "/v1/audit/tail?limit=1000", "/v1/audit?limit=1000&action=test.", "/v1/audit/tail?tenant=acme&action=test.here"} {
		a := w.request("acme viewer", "GET", path, "")
		if a.StatusCode != http.StatusOK || !strings.Contains(a.body, "of-acme") || strings.Contains(a.body, "of-beta") || strings.Contains(a.body, `"of-"`) {
			t.Errorf("%s: %d %s", path, a.StatusCode, a.body)
		}
		if all := w.request("admin", "GET", path, ""); !strings.Contains(path, "tenant=") && (!strings.Contains(all.body, "of-beta") || !strings.Contains(all.body, `"of-"`)) {
			t.Errorf("%s: the admin is shown %s", path, all.body)
		}
	}
	for _, path := range []string{"/v1/audit?tenant=beta", "/v1/audit/tail?tenant=beta"} {
		w.request("acme admin", "GET", path, "").wantProblem(t, http.StatusNotFound, problem.NotFound)
	}
	for _, path := range []string{"/v1/audit/export", "/v1/audit/export?node=n1"} {
		w.request("acme admin", "GET", path, "").wantProblem(t, http.StatusForbidden, problem.Forbidden)
	}
}

func TestAQueryArrives(t *testing.T) {
	var got audit.Filter
	d := newTestAPI(t, func(o *Options) {
		o.Audit = &noLog{list: func(f audit.Filter) ([]audit.Row, error) { got = f; return nil, nil }}
	})
	values := url.Values{"tenant": {"acme"}, "action": {"grant.issue"}, "actor": {"operator:x"}, "session": {"s"}, "jail": {"j"}, "phase": {"intent"},
		"result": {"ok"}, "ref": {"r"}, "node": {"n"}, "since": {"2026-01-02T03:04:05Z"}, "until": {"2026-01-02T03:04:06.5Z"}, "after_seq": {"7"}, "limit": {"9"}}
	a := d.ask(t, "GET", "/v1/audit?"+values.Encode(), "")
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	want := audit.Filter{Tenant: "acme", Action: "grant.issue", Actor: "operator:x", Session: "s", Jail: "j", Phase: "intent", Result: "ok", Ref: "r",
		Node: "n", Since: at, Until: at.Add(1500 * time.Millisecond), AfterSeq: 7, Limit: 9}
	if got != want || a.body == "" || !strings.Contains(a.body, `"rows":[]`) {
		t.Errorf("%+v, want %+v: %s", got, want, a.body)
	}
	d.ask(t, "GET", "/v1/audit?action=session.", "")
	if (got != audit.Filter{ActionPrefix: "session.", Limit: 100, Newest: true}) {
		t.Errorf("%+v", got)
	}
	for _, query := range []string{"after_seq=7", "limit=0", "limit=1001", "since=yesterday", "phase=x", "result=x", "tenant=A", "follow=true"} {
		if a := d.ask(t, "GET", "/v1/audit?"+query, ""); a.StatusCode != 400 && a.StatusCode != 422 {
			t.Errorf("%s: %d %s", query, a.StatusCode, a.body)
		}
	}
}

func TestARowThatWasChangedIsShown(t *testing.T) {
	if got := op.AuditRowOf(audit.Row{Detail: []byte(`{"a":`)}); string(got.Detail) != `"{\"a\":"` {
		t.Errorf("%s", got.Detail)
	}
	if _, err := json.Marshal(op.AuditRowOf(audit.Row{Detail: []byte("\xff")})); err != nil {
		t.Error(err)
	}
}

func TestAnExportCanBeVerified(t *testing.T) {
	w := newFixture(t)
	a := w.request("admin", "GET", "/v1/audit/export", "")
	if a.StatusCode != http.StatusOK || a.Header.Get("Content-Type") != linesType {
		t.Fatalf("%d %s", a.StatusCode, a.body)
	}
	report, err := audit.Verify(w.ctx, audit.Export{File: strings.NewReader(a.body)}, nil, nil)
	if err != nil || !report.OK() || len(report.Nodes) != 1 || report.Nodes[0].Rows < 10 {
		t.Errorf("%+v, %v", report, err)
	}
	w.request("admin", "GET", "/v1/audit/export?node=nosuch", "").wantProblem(t, http.StatusNotFound, problem.NotFound)
	var said audit.Report
	if err := json.Unmarshal([]byte(w.request("admin", "POST", "/v1/audit/verify", "").body), &said); err != nil || !said.OK() || len(said.Nodes) != 1 {
		t.Errorf("%+v, %v", said, err)
	}
}

// Nobody may take a part for the whole.
func TestAStreamThatFailsIsBrokenOff(t *testing.T) {
	row := audit.Row{Node: "n1", Seq: 1, Time: time.Unix(1, 0), Detail: []byte("{}"), PrevHash: make([]byte, 32), Hash: make([]byte, 32)}
	long := row
	long.Detail = []byte(`{"x":"` + strings.Repeat("x", 100<<10) + `"}`) // more than is kept back before it is sent
	failing := errors.New("secret cause")
	tail := func(before int) *noLog {
		return &noLog{tail: func(_ context.Context, _ bool, yield func(audit.Row, error) bool) {
			for range before {
				if !yield(row, nil) {
					return
				}
			}
			yield(audit.Row{}, failing)
		}}
	}
	for name, test := range map[string]struct {
		path   string
		change func(*Options)
		broken bool
	}{
		"a tail at once":     {"/v1/audit/tail", func(o *Options) { o.Audit = tail(0) }, false},
		"a tail later":       {"/v1/audit/tail", func(o *Options) { o.Audit = tail(2) }, true},
		"a tail that waited": {"/v1/audit/tail?follow=true", func(o *Options) { o.Audit = tail(0) }, true},
		"an export at once":  {"/v1/audit/export", func(o *Options) { o.Rows = fakeRows{fail: failing} }, false},
		"an export later":    {"/v1/audit/export", func(o *Options) { o.Rows = fakeRows{rows: []store.AuditRow{long, long}, fail: failing} }, true},
	} {
		t.Run(name, func(t *testing.T) {
			d := newTestAPI(t, test.change)
			body, broken := d.brokenOff(t, test.path)
			if broken != test.broken || strings.Contains(body, "secret") {
				t.Errorf("broken off: %t, with %.200s", broken, body)
			}
			if !test.broken {
				d.ask(t, "GET", test.path, "").wantProblem(t, http.StatusInternalServerError, problem.Internal)
			}
		})
	}
	if body, broken := newTestAPI(t).brokenOff(t, "/v1/audit/tail"); broken || body != "" {
		t.Errorf("an empty tail: %t %q", broken, body)
	}
}

// follow starts following, and returns the lines as they come.
func follow(t *testing.T, base, key string) (*bufio.Scanner, func()) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), "GET", base+"/v1/audit/tail?follow=true&action=test.&limit=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", bearer+" "+key)
	transport := &http.Transport{}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	if response.StatusCode != http.StatusOK || response.Header.Get("Content-Type") != linesType {
		t.Fatalf("%s", response.Status)
	}
	return bufio.NewScanner(response.Body), func() {
		response.Body.Close()
		transport.CloseIdleConnections()
	}
}

func TestRowsArriveAsTheyAreWritten(t *testing.T) {
	w := newFixture(t)
	server := serve(t, w)
	lines, end := follow(t, server.URL, w.keys["acme viewer"])
	defer end()
	for n := range 3 {
		// The next one is written only when this one was read: nothing waits for more to come.
		if err := w.log.Event(w.ctx, audit.Event{Action: "test.row", Tenant: "acme", Target: fmt.Sprint(n)}); err != nil {
			t.Fatal(err)
		}
		var row op.AuditRow
		if !lines.Scan() || json.Unmarshal(lines.Bytes(), &row) != nil || row.Target != fmt.Sprint(n) {
			t.Fatalf("row %d is %s, %v", n, lines.Bytes(), lines.Err())
		}
	}
}

func TestAStreamEndsWithItsKey(t *testing.T) {
	w := newFixture(t)
	server := serve(t, w)
	key, o, err := w.identity.CreateOperator(w.ctx, w.admin, identity.NewOperator{Name: "x", Tenant: "acme", Role: identity.RoleViewer, Life: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	lines, end := follow(t, server.URL, key.Reveal())
	defer end()
	if err := w.identity.RevokeOperator(w.ctx, w.admin, o.ID); err != nil {
		t.Fatal(err)
	}
	for lines.Scan() {
	}
	if !errors.Is(lines.Err(), io.ErrUnexpectedEOF) {
		t.Errorf("it ends with %v, as if it were whole", lines.Err())
	}
	testenv.Eventually(t, 5*time.Second, func() bool { return w.identity.Open() == 0 }, "nothing is held for a request that has ended")
}

func TestAStreamEndsWithItsServer(t *testing.T) {
	w := newFixture(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- w.Serve(ctx, listener) }()
	lines, end := follow(t, "http://"+listener.Addr().String(), w.keys["acme viewer"])
	defer end()
	stop()
	for lines.Scan() {
	}
	if !errors.Is(lines.Err(), io.ErrUnexpectedEOF) {
		t.Errorf("it ends with %v, as if it were whole", lines.Err())
	}
	if err := <-served; err != nil {
		t.Errorf("the server had to cut it off: %v", err)
	}
}

// A token of a session that is not good is a wrong key like any other.
func TestWrongKeysAreBraked(t *testing.T) {
	w := newFixture(t)
	d := &testAPI{API: w.API, key: w.keys["acme viewer"]}
	from := func(addr string) func(*http.Request) { return func(r *http.Request) { r.RemoteAddr = addr } }
	burst := identity.DefaultRateLimit().Burst
	const good = session.TokenPrefix + "good"
	w.sessions.holders = map[string]identity.Principal{good: w.admin.Within("s_1", identity.ScopeView, time.Now().Add(time.Hour))}
	for range burst {
		if a := d.ask(t, "GET", "/v1/whoami", "", key(good), from("192.0.2.1:1")); a.StatusCode == http.StatusUnauthorized || a.StatusCode == http.StatusTooManyRequests {
			t.Fatalf("%d %s", a.StatusCode, a.body)
		}
	}
	for _, wrong := range []string{session.TokenPrefix + "ended", "cjop_wrong"} { // of which the second is a guess
		for range burst {
			d.ask(t, "GET", "/v1/whoami", "", key(wrong), from("192.0.2.1:1")).wantProblem(t, http.StatusUnauthorized, problem.Unauthorized)
		}
	}
	// Also the good key, and whether it is sent in the one header or the other.
	for _, change := range []func(*http.Request){key(d.key), header(KeyHeader, d.key), key(good)} {
		a := d.ask(t, "GET", "/v1/whoami", "", change, from("192.0.2.1:2"))
		a.wantProblem(t, http.StatusTooManyRequests, problem.RateLimited)
		if a.Header.Get("Retry-After") == "" {
			t.Errorf("Retry-After is %q", a.Header.Get("Retry-After"))
		}
	}
	if a := d.ask(t, "GET", "/v1/whoami", "", from("192.0.2.2:1")); a.StatusCode != http.StatusOK || !strings.Contains(a.body, `"tenant":"acme"`) {
		t.Errorf("another address has to wait: %d %s", a.StatusCode, a.body)
	}
}
