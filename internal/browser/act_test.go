//go:build unix

package browser

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/cdp/cdptest"
	"github.com/clawjail/clawjail/internal/problem"
)

// stage is a browser before a small site: the same pages on every host, so that frames can be of other sites.
type stage struct {
	t testing.TB
	b *Browser
}

// newStage serves pages by their paths; "/never" does not answer while the test runs.
func newStage(t testing.TB, pages map[string]string) *stage {
	t.Helper()
	over := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch html, ok := pages[r.URL.Path]; {
		case r.URL.Path == "/never":
			select {
			case <-over:
			case <-r.Context().Done():
			}
		case r.URL.Path == "/nothing":
			w.WriteHeader(http.StatusNoContent)
		case r.URL.Path == "/file":
			w.Header().Set("Content-Disposition", "attachment; filename=x.bin")
			io.WriteString(w, "bytes")
		case !ok:
			http.NotFound(w, r)
		default:
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			io.WriteString(w, "<!doctype html>"+html)
		}
	}))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(over) }) // before the server closes, which waits
	return &stage{t, open(t, Shell, server.URL)}
}

// play opens one page on a stage of its own.
func play(t testing.TB, html string) *stage {
	t.Helper()
	s := newStage(t, map[string]string{"/": html})
	s.visit("/")
	return s
}

// of is the stage in a test that is a part of another.
func (s *stage) of(t testing.TB) *stage { return &stage{t, s.b} }

func (s *stage) visit(path string) {
	s.t.Helper()
	if _, err := s.b.Do(within(s.t, 30*time.Second), Navigate{URL: site + path}); err != nil {
		s.t.Fatal(err)
	}
}

func (s *stage) try(act Act) (ActResult, error) {
	s.t.Helper()
	out, err := s.b.Do(within(s.t, act.Limit()+time.Second), act)
	if err != nil {
		return ActResult{}, err
	}
	return out.(ActResult), nil
}

func (s *stage) do(act Act) ActResult {
	s.t.Helper()
	result, err := s.try(act)
	if err != nil {
		e, _ := problem.As(err)
		s.t.Fatalf("%s: %v (%+v)", act.Target(), err, e)
	}
	return result
}

// fails does an action that must fail, with a check.
func (s *stage) fails(act Act, check string) *problem.Error {
	s.t.Helper()
	given := act.TimeoutMS
	act.TimeoutMS = cmp.Or(given, 500)
	result, err := s.try(act)
	e, ok := problem.As(err)
	// Where a machine is busy, a page may take longer to say anything at all.
	for given == 0 && ok && e.Details["check"] == "responsive" && check != "responsive" && act.TimeoutMS < 10_000 {
		act.TimeoutMS *= 4
		result, err = s.try(act)
		e, ok = problem.As(err)
	}
	if !ok || e.Code != problem.ActOperationFailed || e.Details["check"] != check || e.Hint == "" {
		s.t.Fatalf("%s: %v (%+v), result %+v; want the check %s to fail", act.Target(), err, e, result, check)
	}
	return e
}

// says reads a value in the page.
func (s *stage) says(js string) any {
	s.t.Helper()
	return s.do(Act{Kind: "evaluate", Fn: js}).Value
}

func (s *stage) want(js string, want any) {
	s.t.Helper()
	if got := s.says(js); got != want {
		s.t.Fatalf("%s is %v, want %v", js, got, want)
	}
}

// ref takes a snapshot, and returns the ref of the line with a text.
func (s *stage) ref(line string) string {
	s.t.Helper()
	out, err := s.b.Do(within(s.t, 30*time.Second), Snapshot{})
	if err != nil {
		s.t.Fatal(err)
	}
	text := out.(SnapshotResult).Snapshot
	for l := range strings.Lines(text) {
		if m := regexp.MustCompile(`\[ref=(\w+)\]`).FindStringSubmatch(l); m != nil && strings.Contains(l, line) {
			return m[1]
		}
	}
	s.t.Fatalf("the snapshot has no ref for %q:\n%s", line, text)
	return ""
}

func click(selector string) Act { return Act{Kind: "click", Selector: selector} }

func TestClickUnderAnOverlayNamesTheOverlay(t *testing.T) {
	s := play(t, `<button id=b onclick="document.title='clicked'">x</button>
		<div id=overlay style="position:fixed;inset:0;background:#fff8"></div>`)
	e := s.fails(click("#b"), "hit")
	if e.Details["covered_by"] != "<div id=overlay>" || !strings.Contains(e.Message, "<div id=overlay> covers it") {
		t.Fatalf("%s %+v", e.Message, e.Details)
	}
	s.want("document.title", "")
	s.says("overlay.remove()")
	s.do(click("#b"))
	s.want("document.title", "clicked")
}

func TestClickWaitsUntilTheOverlayIsGone(t *testing.T) {
	s := play(t, `<button id=b onclick="document.title='clicked'">x</button>
		<div id=overlay style="position:fixed;inset:0"></div><script>setTimeout(() => overlay.remove(), 600)</script>`)
	s.do(click("#b"))
	s.want("document.title", "clicked")
}

func TestClickHitsAButtonThatMoves(t *testing.T) {
	s := play(t, `<button id=b style="position:absolute;left:0;top:100px" onclick="document.title='clicked'">x</button>
		<script>let n = 0; const timer = setInterval(() => { b.style.left = 5 * ++n + 'px'; if (n === 60) clearInterval(timer) }, 8)</script>`)
	s.do(click("#b"))
	s.want("document.title", "clicked")
	s.says("setInterval(() => { b.style.left = 5 * (++n % 100) + 'px' }, 8)")
	s.fails(click("#b"), "stable")
}

func TestClickWaitsForWhatItNeeds(t *testing.T) {
	tests := []struct{ name, attribute, release, check string }{
		{"disabled", "disabled", "b.disabled = false", "enabled"},
		{"disabled by its group", "", "g.disabled = false", "enabled"},
		{"aria-disabled", "aria-disabled=true", "b.ariaDisabled = 'false'", "enabled"},
		{"not displayed", "style=display:none", "b.style.display = ''", "visible"},
		{"hidden", "style=visibility:hidden", "b.style.visibility = ''", "visible"},
		{"out of reach", "style=position:fixed;left:-500px", "b.style.left = 0", "in view"},
	}
	pages := map[string]string{}
	for _, test := range tests {
		group := ""
		if test.attribute == "" {
			group = "disabled"
		}
		pages["/"+test.name] = fmt.Sprintf(`<fieldset id=g %s><button id=b %s onclick="document.title='clicked'">x</button></fieldset>`, group, test.attribute)
	}
	s := newStage(t, pages)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := s.of(t)
			s.visit("/" + url.PathEscape(test.name))
			s.fails(click("#b"), test.check)
			s.want("document.title", "")
			s.says("setTimeout(() => { " + test.release + " }, 300)")
			s.do(click("#b"))
			s.want("document.title", "clicked")
		})
	}
}

func TestActionsFindElementsThatComeLate(t *testing.T) {
	s := play(t, `<script>setTimeout(() => { document.body.innerHTML = '<button id=b onclick="document.title=1">x</button>' }, 500)</script>`)
	s.do(click("#b"))
	s.want("document.title", "1")
	if _, err := s.try(Act{Kind: "click", Selector: "#none", TimeoutMS: 500}); problem.CodeOf(err) != problem.ActOperationFailed {
		t.Fatal(err)
	}
	// An action that can never succeed fails at once.
	for act, code := range map[*Act]string{
		{Kind: "click", Selector: "a[[", TimeoutMS: 60_000}: problem.BadRequest,
		{Kind: "click", Ref: "e999", TimeoutMS: 60_000}:     problem.StaleRef,
	} {
		if _, err := s.try(*act); problem.CodeOf(err) != code {
			t.Fatalf("%s: %v", act.Target(), err)
		}
	}
}

func TestClickScrollsFromUnderWhatIsFixed(t *testing.T) {
	s := play(t, `<style>body{margin:0}#h{position:fixed;top:0;height:500px;width:100%;background:#ccc}</style>
		<div id=h></div><div style="height:3000px"></div><button id=b onclick="document.title='clicked'">x</button><div style="height:3000px"></div>`)
	s.do(click("#b"))
	s.want("document.title", "clicked")
	s.says("scrollTo(0, 0)")
	s.do(Act{Kind: "scrollIntoView", Selector: "#b"})
	if s.says("scrollY").(float64) < 1000 {
		t.Fatal("scrollIntoView did not scroll")
	}
}

func TestClickGoesIntoFrames(t *testing.T) {
	inner := `<body style="margin:0"><div style="height:900px"></div><button onclick="top.postMessage('%s', '*')">%s</button>`
	for _, test := range []struct{ name, src string }{
		{"of the same origin", "/frame"}, {"of another site", "http://other.test/frame"}, {"nested", "http://other.test/nested"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newStage(t, map[string]string{
				"/frame":  fmt.Sprintf(inner, "hit", "Inside"),
				"/nested": `<body style="margin:30px"><iframe src="http://third.test/frame" style="border:7px solid;width:300px;height:150px"></iframe>`,
				"/": `<script>onmessage = e => { document.title = e.data }</script><div style="height:1500px"></div>
					<iframe id=f style="margin-left:70px;border:9px solid;width:400px;height:300px" src="` + test.src + `"></iframe>
					<div id=overlay style="position:fixed;inset:0;display:none"></div>`,
			})
			s.visit("/")
			ref := s.ref("Inside")
			// A frame in a frame of another site is scrolled to by three processes, one after the other.
			s.do(Act{Kind: "hover", Ref: ref})
			s.says("overlay.style.display = ''")
			e := s.fails(Act{Kind: "click", Ref: ref, TimeoutMS: 4000}, "hit")
			if e.Details["covered_by"] != "<div id=overlay>" {
				t.Fatalf("%+v", e.Details)
			}
			s.says("overlay.style.display = 'none'")
			s.do(Act{Kind: "click", Ref: ref})
			s.do(Act{Kind: "wait", Fn: "document.title === 'hit'"})
		})
	}
}

func TestClickReachesShadowRootsAndLabels(t *testing.T) {
	s := play(t, `<my-card></my-card>
		<label id=l><input type=checkbox id=c style="position:absolute;opacity:0"><span style="position:relative;display:block;width:80px;height:30px">Box</span></label>
		<a href="#there"><span id=s style="pointer-events:none">link</span></a>
		<script>document.querySelector('my-card').attachShadow({mode: 'open'}).innerHTML =
			'<p><slot></slot><button id=deep onclick="document.title=\'deep\'"><b>x</b></button></p>'</script>`)
	s.do(click("#deep"))
	s.want("document.title", "deep")
	s.do(click("my-card")) // what is hit is in its shadow root
	s.do(click("#c"))
	s.want("c.checked", true)
	s.do(click("#s"))
	s.want("location.hash", "#there")
}

func TestClickIsARealClick(t *testing.T) {
	s := play(t, `<button id=b>x</button><script>const seen = [];
		for (const name of ['mousemove', 'mousedown', 'mouseup', 'click', 'dblclick', 'contextmenu', 'auxclick'])
			b.addEventListener(name, e => { e.preventDefault(); seen.push([e.type, e.isTrusted, e.button, e.detail, e.ctrlKey, e.shiftKey].join(' ')) })</script>`)
	s.do(Act{Kind: "click", Selector: "#b", Modifiers: []string{"Control", "Shift"}})
	got := s.says("seen.splice(0).filter(x => !x.startsWith('mousemove')).join()")
	if got != "mousedown true 0 1 true true,mouseup true 0 1 true true,click true 0 1 true true" {
		t.Fatal(got)
	}
	s.do(Act{Kind: "click", Selector: "#b", Double: true})
	if got := s.says("seen.splice(0).filter(x => /^click|dbl/.test(x)).join()"); got != "click true 0 1 false false,click true 0 2 false false,dblclick true 0 2 false false" {
		t.Fatal(got)
	}
	s.do(Act{Kind: "click", Selector: "#b", Button: "right"})
	if got := s.says("seen.splice(0).some(x => x.startsWith('contextmenu true 2'))"); got != true {
		t.Fatal("no context menu")
	}
	s.do(Act{Kind: "hover", Selector: "#b"})
	s.want("b.matches(':hover')", true)
	box := s.says("(() => { const r = b.getBoundingClientRect(); return [r.x + 5, r.y + 5] })()").([]any)
	x, y := box[0].(float64), box[1].(float64)
	s.do(Act{Kind: "clickCoords", X: &x, Y: &y, DelayMS: 20})
	if got := s.says("seen.splice(0).some(x => x.startsWith('click true 0 1'))"); got != true {
		t.Fatal("the click at a point did not arrive")
	}
}

func TestDragFollowsThePointer(t *testing.T) {
	s := play(t, `<style>body{margin:0}#b{position:absolute;left:50px;top:50px;width:40px;height:40px;background:red}#t{position:absolute;left:400px;top:1500px;width:100px;height:100px}</style>
		<div id=t></div><div id=b></div><script>let grip, moves = 0;
		b.onpointerdown = e => { grip = [e.pageX - b.offsetLeft, e.pageY - b.offsetTop]; b.setPointerCapture(e.pointerId) };
		b.onpointermove = e => { if (!grip) return; moves++; b.style.left = e.pageX - grip[0] + 'px'; b.style.top = e.pageY - grip[1] + 'px' };
		b.onpointerup = () => { grip = null; document.title = 'dropped' }</script>`)
	s.do(Act{Kind: "drag", StartSel: "#b", EndSel: "#t"})
	s.want("document.title", "dropped")
	s.want("(() => { const r = b.getBoundingClientRect(), q = t.getBoundingClientRect(); return Math.abs(r.x - q.x - 30) < 3 && Math.abs(r.y - q.y - 30) < 3 && moves > 5 })()", true)
	x, y, endX, endY := 0.0, 0.0, 0.0, 0.0
	point := s.says("(() => { scrollTo(0, 1400); const r = b.getBoundingClientRect(); return [r.x + 20, r.y + 20] })()").([]any)
	x, y, endX, endY = point[0].(float64), point[1].(float64), 100, 100
	s.do(Act{Kind: "dragCoords", X: &x, Y: &y, EndX: &endX, EndY: &endY})
	s.want("Math.abs(b.getBoundingClientRect().x - 80) < 3", true)
}

func TestDragAndDropOfTheBrowser(t *testing.T) {
	anyBuild(t, func(t *testing.T, build Build) {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			io.WriteString(w, `<!doctype html><style>div{width:80px;height:80px;margin:20px;background:#ccc}</style>
				<div id=a draggable=true ondragstart="event.dataTransfer.setData('text/plain', 'cargo')" ondragend="document.title += ' end'">a</div>
				<div id=b ondragover="event.preventDefault()" ondrop="event.preventDefault(); document.title = event.dataTransfer.getData('text/plain')">b</div>
				<button id=c onclick="document.title='free'">x</button>`)
		}))
		t.Cleanup(server.Close)
		s := &stage{t, open(t, build, server.URL)}
		s.visit("/")
		s.do(Act{Kind: "drag", StartSel: "#a", EndSel: "#b"})
		s.do(Act{Kind: "wait", Fn: "document.title.startsWith('cargo')", TimeoutMS: 5000})
		s.do(click("#c"))
		s.want("document.title", "free")
	})
}

func TestResizeGivesAnotherViewport(t *testing.T) {
	s := play(t, `x`)
	s.do(Act{Kind: "resize", Width: 640, Height: 360})
	s.want("innerWidth + 'x' + innerHeight", "640x360")
}

func TestAlertInAHandlerDoesNotHangTheAction(t *testing.T) {
	s := play(t, `<button id=b onclick="alert('one'); document.title = confirm('two')">x</button><button id=c>y</button>`)
	result := s.do(click("#b"))
	if !result.BlockedByDialog || len(result.Dialogs) != 2 || result.Dialogs[0].Message != "one" {
		t.Fatalf("%+v", result)
	}
	s.want("document.title", "false")
	if result := s.do(click("#c")); result.BlockedByDialog || len(result.Dialogs) != 0 {
		t.Fatalf("%+v", result)
	}
}

func TestClickReportsWhereItLed(t *testing.T) {
	s := newStage(t, map[string]string{
		"/":      `<a id=a href="/next">a</a> <a id=slow href="/late">b</a> <a id=never href="/never">c</a> <a id=none href="/nothing">d</a> <a id=file href="/file" download>e</a> <button id=later onclick="setTimeout(() => location = '/next', 100)">f</button> <button id=js onclick="location = 'javascript:document.title=\'js\''">g</button>`,
		"/next":  `<title>Next</title>`,
		"/late":  `<title>Late</title><img src="/never">`,
		"/never": ``,
	})
	for _, test := range []struct {
		id, url string
		loading bool
	}{
		{"a", "/next", false}, {"later", "/next", false},
		{"slow", "/late", false}, // parsed, though one of its pictures never comes
		{"never", "/", true}, {"none", "/", false}, {"file", "/", false}, {"js", "/", false},
	} {
		t.Run(test.id, func(t *testing.T) {
			s := &stage{t, s.b}
			s.visit("/")
			result := s.do(Act{Kind: "click", Selector: "#" + test.id, TimeoutMS: 1500})
			if result.URL != site+test.url || result.Loading != test.loading || result.TargetID == "" {
				t.Fatalf("%+v", result)
			}
			// Before a document has come, Chromium keeps what is sent to the page.
			if !test.loading && s.says("document.readyState") == "loading" {
				t.Fatal("the document is still being parsed")
			}
		})
	}
}

func TestClickReportsNewTabsAndFileChoosers(t *testing.T) {
	s := newStage(t, map[string]string{
		"/":     `<a id=a target=_blank href="/next">a</a> <button id=b onclick="window.open('/next')">b</button> <input type=file id=f> <button id=c onclick="window.close()">c</button>`,
		"/next": `<title>Next</title><button id=c onclick="window.close()">c</button>`,
	})
	s.visit("/")
	for _, id := range []string{"#a", "#b"} {
		result := s.do(click(id))
		if len(result.Opened) != 1 || result.Opened[0].URL != site+"/next" || result.URL != site+"/" {
			t.Fatalf("%s: %+v", id, result)
		}
		if id == "#a" {
			continue // only what a script opened may close itself
		}
		// A tab that closes itself was clicked all the same.
		closed := s.do(Act{Kind: "click", Selector: "#c", TargetID: result.Opened[0].TabID})
		if !closed.OK || closed.URL != "" {
			t.Fatalf("%+v", closed)
		}
	}
	result := s.do(click("#f"))
	if !result.FileChooser {
		t.Fatalf("%+v", result)
	}
}

func TestClickReportsDownloads(t *testing.T) {
	s := newStage(t, map[string]string{"/": `<a id=a href="/file">a</a><button id=b>b</button>`})
	folder := cdptest.Dir(t)
	s.b.UseFolder(folder)
	if err := s.b.ReapplyDownloads(within(t, 10*time.Second)); err != nil {
		t.Fatal(err)
	}
	s.visit("/")
	result := s.do(click("#a"))
	if len(result.Downloads) != 1 || result.Downloads[0].Name != "x.bin" || result.URL != site+"/" {
		t.Fatalf("%+v", result)
	}
	if result := s.do(click("#b")); len(result.Downloads) != 0 {
		t.Fatalf("%+v", result)
	}
}

func TestCloseClosesTheTab(t *testing.T) {
	s := newStage(t, map[string]string{"/": `<script>onbeforeunload = e => e.preventDefault()</script><button id=b>x</button>`})
	s.visit("/")
	s.do(click("#b")) // a page asks whether to leave only once somebody has used it
	if result := s.do(Act{Kind: "close"}); !result.OK {
		t.Fatalf("%+v", result)
	}
	tabs, err := s.b.Tabs(within(t, 10*time.Second))
	if err != nil || slices.ContainsFunc(tabs, func(tab Tab) bool { return tab.URL == site+"/" }) {
		t.Fatalf("%v %+v", err, tabs)
	}
}

func TestHostilePagesEndWithinTheLimit(t *testing.T) {
	// The last one ends the script that hangs.
	evaluate := Act{Kind: "evaluate", Fn: "1"}
	for _, test := range []struct {
		name, html string
		others     []Act
	}{
		{"a handler that never ends", `<button id=b onclick="for(;;);">x</button>`, []Act{evaluate}},
		{"dialogs without end", `<button id=b onclick="for(;;) alert('again')">x</button>`, []Act{evaluate}},
		{"a page that hangs", `<button id=b>x</button>`, []Act{{Kind: "press", Key: "a"}, {Kind: "wait", Selector: "#none"}, {Kind: "hover", Selector: "#b"}, evaluate}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := play(t, test.html)
			if strings.Contains(test.name, "page") {
				s.says("setTimeout(() => { for (;;); })")
			}
			e := s.fails(Act{Kind: "click", Selector: "#b", TimeoutMS: 1000}, "responsive")
			if strings.Contains(test.html, "alert") && e.Details["dialogs"] == nil {
				t.Fatalf("%+v", e.Details)
			}
			// The others are cut off as well.
			for _, act := range test.others {
				act.TimeoutMS = 500
				if _, err := s.try(act); problem.CodeOf(err) != problem.ActOperationFailed {
					t.Errorf("%s: %v", act.Kind, err)
				}
			}
			s.do(Act{Kind: "close"})
		})
	}
}
