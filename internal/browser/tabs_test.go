//go:build unix

package browser

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/target"

	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// tabSite has as many small pages as are asked for, titled by their path.
func tabSite() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		fmt.Fprintf(w, "<title>%s</title>", strings.TrimPrefix(r.URL.Path, "/"))
		if r.URL.Path == "/opener" {
			io.WriteString(w, `<script>onload = () => { for (let i = 0; i < 3; i++) open('/popup' + i) }</script>`)
		}
	})
}

// do runs an operation that works, and returns what it answers.
func do[T any](t testing.TB, b *Browser, op Operation) T {
	t.Helper()
	out, err := b.Do(t.Context(), op)
	if err != nil {
		t.Fatalf("%s: %v", op.Tool(), err)
	}
	answer, ok := out.(T)
	if !ok {
		t.Fatalf("%s answered with a %T", op.Tool(), out)
	}
	return answer
}

func refused(t testing.TB, b *Browser, op Operation, code, sentence string) {
	t.Helper()
	_, err := b.Do(t.Context(), op)
	p, ok := problem.As(err)
	if !ok || p.Code != code || !strings.Contains(p.Message, sentence) {
		t.Errorf("%s %+v: %v (%s), want %s %q", op.Tool(), op, err, problem.CodeOf(err), code, sentence)
	}
}

// names are the tabs by their titles. A blank page gets its address as a title, a moment after it is there.
func names(tabs []Tab) string {
	var out []string
	for _, tab := range tabs {
		name := tab.SuggestedTargetID + "=" + cmp.Or(tab.Title, tab.URL)
		if tab.IsActive {
			name += "*"
		}
		out = append(out, name)
	}
	return strings.Join(out, " ")
}

func TestTabsHaveHandlesThatStay(t *testing.T) {
	eachBuild(t, func(t *testing.T, build Build) {
		b := open(t, build, newGateway(t, tabSite()).URL)
		if got := do[StatusResult](t, b, Status{}); !got.Running || got.Tabs != 1 || got.TargetID != "" || got.Version == "" {
			t.Errorf("status before anything: %+v", got)
		}
		one := do[OpenTabResult](t, b, OpenTab{URL: site + "/one"})
		if one.TabID != "t2" || !one.IsActive || one.URL != site+"/one" || one.Status != 200 || one.Reused || one.Type != "page" {
			t.Errorf("opened %+v", one)
		}
		do[OpenTabResult](t, b, OpenTab{URL: site + "/two", Label: "docs"})
		if got := names(do[TabsResult](t, b, Tabs{}).Tabs); got != "t1=about:blank t2=one docs=two*" {
			t.Errorf("tabs %s", got)
		}
		// The same address is not opened twice, unless that is wanted.
		if again := do[OpenTabResult](t, b, OpenTab{URL: site + "/one"}); !again.Reused || again.TabID != "t2" || !again.IsActive {
			t.Errorf("again %+v", again)
		}
		if fresh := do[OpenTabResult](t, b, OpenTab{URL: site + "/one", NewTab: true}); fresh.Reused || fresh.TabID != "t4" {
			t.Errorf("anew %+v", fresh)
		}
		if got := do[Done](t, b, CloseTab{TargetID: "docs"}); !got.OK || got.TargetID != "t3" {
			t.Errorf("closed %+v", got)
		}
		do[Done](t, b, FocusTab{TargetID: "T2"})
		if got := do[Result](t, b, Navigate{URL: site + "/three"}); got.TargetID != "t2" || got.Title != "three" || !got.OK {
			t.Errorf("navigated %+v", got)
		}
		if got := names(do[TabsResult](t, b, Tabs{}).Tabs); got != "t1=about:blank t2=three* t4=one" {
			t.Errorf("tabs %s", got)
		}
		// The number of a tab that is gone is not given again.
		if got := do[OpenTabResult](t, b, OpenTab{URL: site + "/five"}); got.TabID != "t5" {
			t.Errorf("opened %+v", got)
		}
		// When the current tab goes, the one that was used before it is meant.
		do[Done](t, b, CloseTab{})
		if got := do[StatusResult](t, b, Status{}); got.TargetID != "t2" || got.Tabs != 3 {
			t.Errorf("status %+v", got)
		}
		// The last tab is replaced: full Chromium would exit.
		for _, tab := range []string{"t1", "t4", "t2"} {
			do[Done](t, b, CloseTab{TargetID: tab})
		}
		if got := do[TabsResult](t, b, Tabs{}).Tabs; len(got) != 1 || got[0].TabID != "t6" || got[0].URL != blank || !got[0].IsActive {
			t.Errorf("tabs %+v", got)
		}
	})
}

func TestATabIsFoundByAnyOfItsNames(t *testing.T) {
	b := open(t, Shell, newGateway(t, tabSite()).URL)
	do[OpenTabResult](t, b, OpenTab{URL: site + "/one", Label: "Inbox"})
	two := do[OpenTabResult](t, b, OpenTab{URL: site + "/two", Label: "index"})
	for ref, want := range map[string]string{
		"t1": "t1", "T2": "t2", "Inbox": "t2", "inbox": "t2", "inb": "t2", "IND": "t3", two.TargetID: "t3",
		strings.ToLower(two.TargetID): "t3", two.TargetID[:20]: "t3",
	} {
		p, err := b.tab(t.Context(), ref)
		if err != nil || p.handle() != want {
			t.Errorf("%q is %v, %v", ref, p, err)
		}
	}
	for ref, code := range map[string]string{
		"in": problem.TabAmbiguous, "t": problem.TabAmbiguous, "t9": problem.TabNotFound, "x": problem.TabNotFound,
		strings.Repeat("x", 5000): problem.TabNotFound, "1": problem.TabNotFound, "7": problem.TabNotFound,
	} {
		_, err := b.tab(t.Context(), ref)
		p, _ := problem.As(err)
		if p == nil || p.Code != code || !strings.Contains(p.Hint, "use action=tabs and pass suggestedTargetId") {
			t.Errorf("%.20q: %v", ref, err)
		}
	}
	_, err := b.tab(t.Context(), "1")
	if p, _ := problem.As(err); p == nil || !strings.Contains(p.Hint, "say t1") || p.Message != `tab not found: browser tab "1" not found` {
		t.Errorf("a bare number: %v", err)
	}
	_, err = b.tab(t.Context(), "in")
	if p, _ := problem.As(err); p == nil || !strings.Contains(p.Hint, "Inbox, index") || !strings.Contains(p.Message, "ambiguous browser tab reference") {
		t.Errorf("ambiguous: %v", err)
	}
	refused(t, b, OpenTab{URL: site + "/three", Label: "Inbox"}, problem.Conflict, "has the label")
	if got := names(do[TabsResult](t, b, Tabs{}).Tabs); got != "t1=about:blank Inbox=one index=two*" && !strings.HasPrefix(got, "t1=about:blank Inbox=one index=two* ") {
		t.Errorf("tabs %s", got)
	}
}

func TestTabActions(t *testing.T) {
	b := open(t, Shell, newGateway(t, tabSite()).URL)
	index := func(n int) *int { return &n }
	if got := do[Done](t, b, TabAction{Action: "new", URL: site + "/one", Label: "a b"}); got.TargetID != "t2" || len(got.Tabs) != 1 {
		t.Errorf("new: %+v", got)
	}
	do[Done](t, b, TabAction{Action: "new"})
	do[Done](t, b, TabAction{Action: "label", Index: index(0), Label: "first"})
	do[Done](t, b, TabAction{Action: "select", Index: index(1)})
	if got := do[Done](t, b, TabAction{Action: "list"}); names(got.Tabs) != "first=about:blank a b=one* t3=about:blank" {
		t.Errorf("list: %s", names(got.Tabs))
	}
	do[Done](t, b, TabAction{Action: "close", TargetID: "first"})
	if got := do[Done](t, b, TabAction{Action: "list"}); names(got.Tabs) != "a b=one* t3=about:blank" {
		t.Errorf("list: %s", names(got.Tabs))
	}
	refused(t, b, TabAction{Action: "select", Index: index(2)}, problem.TabNotFound, "none at index 2")
}

func TestBadTabRequestsAreRefusedBeforeTheBrowserIsAsked(t *testing.T) {
	b := new(Browser) // any use of it would panic
	minus := -1
	for _, test := range []struct {
		op             Operation
		code, sentence string
	}{
		{OpenTab{}, problem.BadURL, "url is required"},
		{OpenTab{URL: "file:///etc/passwd"}, problem.BadURL, "cannot be opened"},
		{OpenTab{URL: site, Label: "t12"}, problem.BadRequest, "handle"},
		{OpenTab{URL: site, Label: "12"}, problem.BadRequest, "index"},
		{OpenTab{URL: site, Label: " x"}, problem.BadRequest, "space"},
		{OpenTab{URL: site, Label: "a\x1b[2J"}, problem.BadRequest, "not shown"},
		{OpenTab{URL: site, Label: strings.Repeat("x", 65)}, problem.BadRequest, "65 bytes"},
		{OpenTab{URL: site, TimeoutMS: 999}, problem.BadRequest, "not between 1000 and 120000"},
		{Navigate{}, problem.BadURL, "url is required"},
		{Navigate{URL: "http://user:pw@site.test/"}, problem.BadURL, "user name"},
		{Navigate{URL: site, TimeoutMS: 120001}, problem.BadRequest, "not between"},
		{Navigate{URL: site, TimeoutMS: -1}, problem.BadRequest, "not between"},
		{FocusTab{}, problem.BadRequest, "targetId is required"},
		{CloseTab{TargetIDMode: "any"}, problem.BadRequest, `targetIdMode must be "raw"`},
		{CloseTab{TargetIDMode: "raw"}, problem.BadRequest, "targetId is required"},
		{TabAction{}, problem.BadRequest, "unknown tab action"},
		{TabAction{Action: "destroy"}, problem.BadRequest, "unknown tab action"},
		{TabAction{Action: "select", Index: &minus}, problem.BadRequest, "index must be a non-negative integer"},
		{TabAction{Action: "label"}, problem.BadRequest, "label is required"},
		{TabAction{Action: "select"}, problem.BadRequest, "targetId is required"},
		{TabAction{Action: "new", URL: "chrome://version"}, problem.BadURL, "cannot be opened"},
		{SetDialog{TimeoutMS: 120001}, problem.BadRequest, "not between"},
		{SetDialog{PromptText: strings.Repeat("x", maxPrompt+1)}, problem.BadRequest, "promptText"},
		{Console{Level: "loud"}, problem.BadRequest, "level"},
		{Console{Max: -1}, problem.BadRequest, "limit"},
		{Requests{Filter: strings.Repeat("x", 5000)}, problem.BadRequest, "filter"},
	} {
		refused(t, b, test.op, test.code, test.sentence)
		if strings.Contains(test.op.Target(), "pw") {
			t.Errorf("%s: the target has the password: %s", test.op.Tool(), test.op.Target())
		}
	}
}

func TestPopupsAreTabsInTheirOrder(t *testing.T) {
	b := open(t, Shell, newGateway(t, tabSite()).URL)
	do[TabsResult](t, b, Tabs{})
	mark := b.mark()
	do[Result](t, b, Navigate{URL: site + "/opener"})
	testenv.Eventually(t, 5*time.Second, func() bool { return len(b.openedSince(t.Context(), mark)) == 3 }, "three popups")
	testenv.Eventually(t, 5*time.Second, func() bool {
		return names(do[TabsResult](t, b, Tabs{}).Tabs) == "t1=opener* t2=popup0 t3=popup1 t4=popup2"
	}, "they are in their order")
	if got := b.openedSince(t.Context(), b.mark()); len(got) != 0 {
		t.Errorf("opened since now: %+v", got)
	}
}

func TestAPageGetsNoMoreWindowsThanAreAllowed(t *testing.T) {
	const maximum, attachedMost = 20, 8 // a hundred, and fifty, take a minute
	b := open(t, Shell, newGateway(t, tabSite()).URL)
	if b.tabs.limit != maxTabs || b.tabs.attached != maxAttached {
		t.Errorf("the bounds are %d and %d", b.tabs.limit, b.tabs.attached)
	}
	b.tabs.limit, b.tabs.attached = maximum, attachedMost
	do[Result](t, b, Navigate{URL: site + "/one"})
	p, err := b.tab(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	script := map[string]any{"expression": `for (let i = 0; i < 60; i++) open('about:blank'); 1`, "userGesture": true}
	if err := p.session.Call(within(t, 30*time.Second), "Runtime.evaluate", script, nil); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 20*time.Second, func() bool {
		return do[StatusResult](t, b, Status{}).Tabs == maximum && len(do[TabsResult](t, b, Tabs{}).Tabs) == maximum
	}, "as many are left")
	refused(t, b, OpenTab{URL: site + "/two"}, problem.Conflict, "20 tabs are open")
	// The newest went: those that are left are the first.
	tabs := do[TabsResult](t, b, Tabs{}).Tabs
	if last := tabs[len(tabs)-1].TabID; last != "t20" {
		t.Errorf("the last one is %s", last)
	}
	// No more than so many are attached, and the one that is used least goes first.
	for _, tab := range tabs[:attachedMost+5] {
		if _, err := b.tab(within(t, 10*time.Second), tab.TabID); err != nil {
			t.Fatal(err)
		}
	}
	attached := 0
	for _, tab := range do[TabsResult](t, b, Tabs{}).Tabs {
		if tab.Attached {
			attached++
		}
	}
	if attached != attachedMost || p.open() {
		t.Errorf("%d are attached; the first still is: %v", attached, p.open())
	}
}

func TestAReplacedTabKeepsItsHandle(t *testing.T) {
	b := open(t, Shell, newGateway(t, tabSite()).URL)
	before := do[OpenTabResult](t, b, OpenTab{URL: site + "/one", Label: "stuck"})
	p, err := b.tab(t.Context(), "stuck")
	if err != nil {
		t.Fatal(err)
	}
	fresh, err := b.replace(within(t, 10*time.Second), p)
	if err != nil {
		t.Fatal(err)
	}
	if fresh.handle() != "t2" || fresh.ID() == before.TargetID {
		t.Errorf("the new page is %s of %s", fresh.ID(), fresh.handle())
	}
	if got := do[Result](t, b, Navigate{URL: site + "/two", TargetID: "stuck"}); got.TargetID != "t2" || got.Title != "two" {
		t.Errorf("navigated %+v", got)
	}
	if got := names(do[TabsResult](t, b, Tabs{}).Tabs); got != "t1=about:blank stuck=two*" {
		t.Errorf("tabs %s", got)
	}
	testenv.Eventually(t, 5*time.Second, func() bool { return do[StatusResult](t, b, Status{}).Tabs == 2 }, "the old page is closed")
}

func TestATabThatWasNotReadyInTimeIsNamed(t *testing.T) {
	b := openOwn(t, Shell, newGateway(t, hostileSite()).URL)
	opened, err := b.Do(t.Context(), OpenTab{URL: site + "/loopNow", TimeoutMS: 1000})
	p, _ := problem.As(err)
	if p == nil || p.Code != problem.Timeout || p.Details["targetId"] != "t2" {
		t.Fatalf("opened %+v, %v", opened, err)
	}
}

func TestCloseByRawIDTakesNothingElse(t *testing.T) {
	b := open(t, Shell, newGateway(t, tabSite()).URL)
	one := do[OpenTabResult](t, b, OpenTab{URL: site + "/one", Label: "one"})
	for _, ref := range []string{"one", "t2", one.TargetID[:10]} {
		refused(t, b, CloseTab{TargetID: ref, TargetIDMode: "raw"}, problem.TabNotFound, "tab not found")
	}
	do[Done](t, b, CloseTab{TargetID: one.TargetID, TargetIDMode: "raw"})
	if got := names(do[TabsResult](t, b, Tabs{}).Tabs); got != "t1=about:blank*" {
		t.Errorf("tabs %s", got)
	}
}

func TestATabThatCouldNotBeOpenedIsNotLeftBehind(t *testing.T) {
	b := open(t, Shell, newGateway(t, tabSite()).URL)
	do[TabsResult](t, b, Tabs{})
	refused(t, b, OpenTab{URL: "http://dead.test/"}, problem.NavigationFailed, "ERR_EMPTY_RESPONSE")
	testenv.Eventually(t, 5*time.Second, func() bool {
		return names(do[TabsResult](t, b, Tabs{}).Tabs) == "t1=about:blank*"
	}, "it is closed again")
}

func TestStatusOfABrowserThatIsGone(t *testing.T) {
	conn, process, _ := launch(t, Shell, deadAddress(t))
	b, err := Open(within(t, 20*time.Second), conn)
	if err != nil {
		t.Fatal(err)
	}
	do[TabsResult](t, b, Tabs{})
	process.Kill()
	<-b.Done()
	if got := do[StatusResult](t, b, Status{}); got.Running {
		t.Errorf("got %+v", got)
	}
	refused(t, b, Tabs{}, problem.BrowserExited, "")
	refused(t, b, Navigate{URL: site}, problem.BrowserExited, "")
	if err := b.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// A registry that lost events compares with what is there.
func TestLostEventsAreMadeGood(t *testing.T) {
	b := open(t, Shell, deadAddress(t))
	page, err := b.tab(t.Context(), "t1")
	if err != nil {
		t.Fatal(err)
	}
	generation := func() uint64 {
		page.mu.Lock()
		defer page.mu.Unlock()
		return page.document
	}
	gone, err := b.create(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// Lines that were lost change nothing but the lists of them; anything else may have been another document.
	before := generation()
	if page.lost(true); generation() != before {
		t.Error("lost lines count for more")
	}
	if page.lost(false); generation() == before {
		t.Error("lost events count for nothing")
	}
	// As if the events about these two had been lost.
	b.tabs.events.Close()
	b.tabs.task.Wait()
	if err := b.closeRaw(t, gone.id); err != nil {
		t.Fatal(err)
	}
	made, err := cdp.Do(within(t, 5*time.Second), b.conn.Browser(), target.CreateTarget, target.CreateTargetParams{URL: blank})
	if err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 5*time.Second, func() bool {
		infos, err := b.targets(within(t, 5*time.Second))
		return err == nil && len(infos) == 2
	}, "the browser has two tabs")
	b.tabs.resync(within(t, 5*time.Second))
	if b.tabs.handleOf(made.TargetID) != "t3" || b.tabs.handleOf(gone.id) != "" || b.tabs.count() != 2 {
		t.Errorf("%d tabs", b.tabs.count())
	}
	select {
	case <-gone.closed:
	default:
		t.Error("nobody was told that the tab is gone")
	}
}

func (b *Browser) closeRaw(t *testing.T, id target.ID) error {
	_, err := cdp.Do(within(t, 5*time.Second), b.conn.Browser(), target.CloseTarget, target.CloseTargetParams{TargetID: id})
	return err
}
