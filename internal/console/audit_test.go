package console

import (
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/audit"
)

func auditOfRefusals() audit.Filter { return audit.Filter{Result: string(audit.Refused)} }

// events writes some records, numbered in their targets.
func (w *fixture) events(n int, e audit.Event) {
	w.t.Helper()
	for i := range n {
		one := e
		one.Target = fmt.Sprintf("%starget-%d-", e.Target, i)
		w.log.Note(one)
	}
	w.must(w.log.Event(w.ctx, audit.Event{Action: "test.end"})) // what was noted before is written by then
}

var targets = regexp.MustCompile(`target-(\d+)-`)

func targetsOf(p page) (out []string) {
	for _, m := range targets.FindAllStringSubmatch(p.body, -1) {
		out = append(out, m[1])
	}
	return out
}

// linkOf is where a link of a page leads to.
func linkOf(p page, rel string) string {
	m := regexp.MustCompile(`href="([^"]+)" rel="` + rel + `"`).FindStringSubmatch(p.body)
	if m == nil {
		return ""
	}
	return html.UnescapeString(m[1])
}

func TestAuditShowsEveryRecordOnceFromTheNewestToTheOldestAndBack(t *testing.T) {
	w := newFixture(t)
	const n = 170 // many of one moment
	w.events(n, audit.Event{Action: "test.event", Tenant: "acme"})
	var all []string
	var back string
	at := "/console/audit?action=test.event"
	for at != "" {
		p := w.get("acme viewer", at)
		if p.status != http.StatusOK {
			t.Fatalf("%s: %d\n%s", at, p.status, p.body)
		}
		all = append(all, targetsOf(p)...)
		back, at = linkOf(p, "prev"), linkOf(p, "next")
	}
	if len(all) != n || all[0] != "169" || all[n-1] != "0" {
		t.Fatalf("%d records: %v", len(all), all)
	}
	for i, number := range all {
		if number != fmt.Sprint(n-1-i) {
			t.Fatalf("record %d is %s", i, number)
		}
	}
	for pages := 0; back != ""; pages++ {
		p := w.get("acme viewer", back)
		if linkOf(p, "prev") == "" && targetsOf(p)[0] != "169" {
			t.Errorf("the newest page begins with %s", targetsOf(p)[0])
		}
		if back = linkOf(p, "prev"); pages > 5 {
			t.Fatal("there is no end")
		}
	}
}

func TestAuditShowsATenantItsOwnAlone(t *testing.T) {
	w := newFixture(t)
	w.events(1, audit.Event{Action: "test.event", Tenant: "beta", Target: "theirs-" + hostile})
	row := w.newest("test.event")
	for _, at := range []string{"/console/audit", "/console/audit?tenant=beta", "/console/audit?action=test"} {
		hasNot(t, w.get("acme admin", at), "theirs-")
	}
	for _, id := range []string{row.ID, w.newest("test.end").ID, "nothing", hostile} {
		if p := w.get("acme admin", "/console/audit/"+url.PathEscape(id)); p.status != http.StatusNotFound || strings.Contains(p.body, "theirs-") {
			t.Errorf("%s: %d", id, p.status)
		}
	}
	p := w.get("beta viewer", "/console/audit/"+row.ID)
	has(t, p, "theirs-&lt;img", "<h1>test.event</h1>", fmt.Sprintf("%x", row.Hash))
	hasNot(t, p, hostile, "Records beside it")
	has(t, w.get("admin", "/console/audit/"+row.ID), "Records beside it")
	has(t, w.get("beta viewer", "/console/audit"), "theirs-&lt;img")
}

// What was begun and what came of it are one line, wherever a page ends between them; by kind of record, each is one.
func TestARecordAndItsOutcomeAreOneLine(t *testing.T) {
	w := newFixture(t)
	lines := func(at string) int {
		return strings.Count(w.get("admin", at).body, `class="nowrap"><a href="/console/audit/`)
	}
	done, err := w.log.Begin(w.ctx, audit.Intent{Action: "fruit.pick", Tenant: "acme", Actor: "admin", Target: "pear-1", Detail: audit.NewDetail(audit.Fields{"from": "the tree"})})
	w.must(err)
	w.events(auditPage-1, audit.Event{Action: "fruit.fall"})
	done.End(audit.Outcome{Result: audit.Refused, Detail: audit.NewDetail(audit.Fields{"code": "too_high"})})
	open, err := w.log.Begin(w.ctx, audit.Intent{Action: "fruit.pick", Tenant: "acme", Actor: "admin", Target: "pear-2"})
	w.must(err)
	w.events(0, audit.Event{})

	at := "/console/audit?action=fruit.pick"
	p := w.get("admin", at)
	has(t, p, "from the tree, code too_high", `class="badge bad">refused`, "begun", "pear-1", "pear-2")
	if n := lines(at); n != 2 {
		t.Errorf("two things are in %d lines", n)
	}
	if n := lines(at + "&phase=intent"); n != 2 {
		t.Errorf("of two intents there are %d lines", n)
	}
	if n := lines(at + "&phase=outcome"); n != 1 {
		t.Errorf("of one outcome there are %d lines", n)
	}
	// The intent of the first one is on the second page, and has its line on the first.
	first := w.get("admin", "/console/audit?action=fruit")
	older := regexp.MustCompile(`href="([^"]*before=[^"]*)" rel="next"`).FindStringSubmatch(first.body)
	if older == nil {
		t.Fatal("there is one page alone")
	}
	second := w.get("admin", html.UnescapeString(older[1]))
	has(t, first, "code too_high", "begun")
	has(t, second, "fruit.fall")
	hasNot(t, second, "fruit.pick", "begun")
	open.End(audit.Outcome{Result: audit.OK})
}

func (w *fixture) newest(action string) audit.Row {
	w.t.Helper()
	rows, err := w.log.List(w.ctx, audit.Filter{Action: action, Newest: true, Limit: 1})
	if err != nil || len(rows) == 0 {
		w.t.Fatalf("no %s: %v", action, err)
	}
	return rows[0]
}

func TestAuditFindsByWhatIsAskedFor(t *testing.T) {
	w := newFixture(t)
	w.events(1, audit.Event{Action: "fruit.apple", Actor: "agent:a_1", Session: "s_1", Result: audit.Refused, Target: "one-"})
	w.events(1, audit.Event{Action: "fruit.pear", Actor: "admin", Session: "s_2", Target: "two-"})
	for asked, want := range map[string][]string{
		"action=fruit": {"one-", "two-"}, "action=fruit.": {"one-", "two-"}, "action=fruit.p*": {"two-"}, "action=fruit.apple": {"one-"}, "action=apple": nil,
		"actor=agent:a_1": {"one-"}, "session=s_2": {"two-"}, "result=refused&action=fruit": {"one-"}, "phase=event&action=fruit": {"one-", "two-"},
		"phase=intent&action=fruit": nil, "range=1h&action=fruit": {"one-", "two-"}, "to=2020-01-01T00:00": nil, "from=2100-01-01T00:00": nil,
		"from=2020-01-01T00:00&to=2100-01-01T00:00&action=fruit": {"one-", "two-"},
	} {
		p := w.get("admin", "/console/audit?"+asked)
		for _, text := range []string{"one-", "two-"} {
			wanted := false
			for _, one := range want {
				wanted = wanted || one == text
			}
			if got := strings.Contains(p.body, text); got != wanted || p.status != http.StatusOK {
				t.Errorf("%s: %d, %s is there: %v", asked, p.status, text, got)
			}
		}
	}
	has(t, w.get("admin", "/console/audit?action=apple"), "Nothing was found", `value="apple"`)
}

func TestAuditTellsWhatCannotBeAskedForBesideItsField(t *testing.T) {
	w := newFixture(t)
	for asked, field := range map[string]string{
		"range=1y": "range", "result=lost": "result", "phase=moon": "phase", "from=yesterday": "from", "to=x": "to",
		"from=2024-01-02T00:00&to=2024-01-01T00:00": "to", "actor=" + strings.Repeat("a", 200): "actor", "session=%ff": "session", "action=%00": "action",
	} {
		p := w.get("acme viewer", "/console/audit?"+asked)
		if p.status != http.StatusUnprocessableEntity || !strings.Contains(p.body, `id="f-`+field+`-wrong"`) {
			t.Errorf("%s: %d\n%s", asked, p.status, p.body)
		}
	}
	// A place that is none is the beginning.
	for _, place := range []string{"x", "1-2", "-1-1-n", "9999999999999999999-1-n1", hostile} {
		if p := w.get("acme viewer", "/console/audit?before="+url.QueryEscape(place)); p.status != http.StatusOK {
			t.Errorf("%s: %d", place, p.status)
		}
	}
}

func FuzzReadPlace(f *testing.F) {
	f.Add("1700000000000000-12-n1")
	f.Add("1-1-")
	f.Fuzz(func(t *testing.T, text string) {
		p, ok := readPlace(text)
		if !ok {
			return
		}
		again, ok := readPlace(p.String())
		if !ok || again != p {
			t.Errorf("%q: %v is read as %v", text, p, again)
		}
	})
}

func TestARecordShowsWhatWasToBeDoneAndWhatCameOfIt(t *testing.T) {
	w := newFixture(t)
	pending, err := w.log.Begin(w.ctx, audit.Intent{Action: "grant.issue", Tenant: "acme", Actor: "admin", Detail: audit.NewDetail(audit.Fields{"asked": hostile})})
	w.must(err)
	at := "/console/audit/" + w.newest("grant.issue").ID
	has(t, w.get("acme viewer", at), "There is no outcome yet")
	pending.End(audit.Outcome{Result: audit.Failed, Detail: audit.NewDetail(audit.Fields{"code": "vault_locked"})})
	w.events(0, audit.Event{})
	p := w.get("acme viewer", at)
	has(t, p, "vault_locked", "&#34;asked&#34;: &#34;&lt;img", `class="badge bad"`)
	hasNot(t, p, hostile)
	has(t, w.get("acme viewer", "/console/audit/"+w.newest("grant.issue").ID), "What was to be done", "&#34;asked&#34;")
}

func TestWhatTheGatewayRefusedLeadsToWhy(t *testing.T) {
	w := newFixture(t)
	w.log.Note(audit.Event{Action: "gateway.connect", Tenant: "acme", Result: audit.Refused, Target: "evil.test:443",
		Detail: audit.NewDetail(audit.Fields{"agent": "a_1", "method": "CONNECT", "scheme": "https"})})
	w.events(0, audit.Event{})
	p := w.get("acme viewer", "/console/audit/"+w.newest("gateway.connect").ID)
	has(t, p, html.EscapeString("/console/network/explain?agent=a_1&method=CONNECT&surface=proxy&tenant=acme&url=https%3A%2F%2Fevil.test%3A443"))
	w.log.Note(audit.Event{Action: "gateway.connect", Tenant: "acme", Actor: "admin", Session: "s_1", Result: audit.Refused, Target: "evil.test:443",
		Detail: audit.NewDetail(audit.Fields{"confined": true, "method": "CONNECT", "scheme": "https"})})
	w.events(0, audit.Event{})
	p = w.get("acme viewer", "/console/audit/"+w.newest("gateway.connect").ID)
	has(t, p, html.EscapeString("/console/network/explain?confined=true&method=CONNECT&session=s_1&surface=proxy&tenant=acme&url=https%3A%2F%2Fevil.test%3A443"))
}

func TestFollowingTheLogAnswersOnlyWhenThereIsSomethingNew(t *testing.T) {
	w := newFixture(t)
	w.events(3, audit.Event{Action: "test.event"})
	part := func(at string) page {
		return w.send("admin", http.MethodGet, at, nil, func(r *http.Request) { r.Header.Set("HX-Request", "true") })
	}
	again := func(p page) string {
		m := regexp.MustCompile(`hx-get="(/console/audit[^"]+)"`).FindStringSubmatch(p.body)
		if m == nil {
			t.Fatalf("nothing is renewed\n%s", p.body)
		}
		return html.UnescapeString(m[1])
	}
	hasNot(t, w.get("admin", "/console/audit"), `hx-get="/console/audit`)
	p := w.get("admin", "/console/audit?live=yes&action=test.event")
	next := again(p)
	if p := part(next); p.status != http.StatusNoContent || p.body != "" {
		t.Fatalf("%d\n%s", p.status, p.body)
	}
	w.events(1, audit.Event{Action: "test.event", Target: "fresh-"})
	p = part(next)
	if p.status != http.StatusOK || strings.Count(p.body, `class="new"`) != 1 || !strings.Contains(p.body, "fresh-") || again(p) == next {
		t.Errorf("%d\n%s", p.status, p.body)
	}
	if p := part(again(p)); p.status != http.StatusNoContent {
		t.Errorf("%d", p.status)
	}
}

func TestVerifyingIsForAdminsOfTheInstallationAndIsOnRecord(t *testing.T) {
	w := newFixture(t)
	w.events(3, audit.Event{Action: "test.event", Tenant: "acme"})
	for _, who := range []string{"acme viewer", "acme operator", "acme admin"} {
		if p := w.post(who, "/console/audit/verify"); p.status != http.StatusForbidden {
			t.Errorf("%s verifies: %d", who, p.status)
		}
		if p := w.get(who, "/console/audit/export"); p.status != http.StatusForbidden || strings.Contains(p.body, "test.event") {
			t.Errorf("%s exports: %d", who, p.status)
		}
		hasNot(t, w.get(who, "/console/audit"), "/audit/verify", "/audit/export")
	}
	has(t, w.get("admin", "/console/audit"), "/audit/verify", "/audit/export")
	has(t, w.post("admin", "/console/audit/verify"), "No record was changed", ">n1<")
	w.events(0, audit.Event{})
	if r := w.newest("audit.verify"); r.Actor != "admin" {
		t.Errorf("%+v", r)
	}
	if p := w.get("admin", "/console/audit/verify"); p.status != http.StatusSeeOther {
		t.Errorf("loaded again: %d", p.status)
	}
	w.Console.Verify = bad
	has(t, w.post("admin", "/console/audit/verify"), "The log is not what it was", "row 7 of n1", "&lt;img", "/console/audit/id7")
}

func TestAnExportIsAllThatIsThereAndCanBeVerified(t *testing.T) {
	w := newFixture(t)
	w.events(60, audit.Event{Action: "test.event", Tenant: "acme"})
	p := w.get("admin", "/console/audit/export")
	if p.status != http.StatusOK || p.header.Get("Content-Type") != "application/x-ndjson" || !strings.Contains(p.header.Get("Content-Disposition"), "attachment; filename=\"clawjail-audit-") {
		t.Fatalf("%d %v", p.status, p.header)
	}
	lines := strings.Split(strings.TrimSpace(p.body), "\n")
	for _, line := range lines {
		if !json.Valid([]byte(line)) {
			t.Fatalf("no JSON: %s", line)
		}
	}
	if !strings.Contains(lines[len(lines)-1], `"audit.export"`) {
		t.Errorf("the export is not in the export: %s", lines[len(lines)-1])
	}
	report, err := audit.Verify(t.Context(), audit.Export{File: strings.NewReader(p.body)}, nil, nil)
	if err != nil || !report.OK() || report.Nodes[0].Rows != int64(len(lines)) {
		t.Errorf("%+v %v", report, err)
	}
	if p := w.get("admin", "/console/audit/export?node=none"); p.status != http.StatusNotFound || p.header.Get("Content-Disposition") != "" {
		t.Errorf("%d %v", p.status, p.header)
	}
}
