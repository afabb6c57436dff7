//go:build unix

package browser

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	protocol "github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/target"

	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

func TestOpenSaysWhichBrowserItIs(t *testing.T) {
	eachBuild(t, func(t *testing.T, build Build) {
		b := openOwn(t, build, deadAddress(t))
		if v := b.Version(); !strings.Contains(v.Product, "Chrome/") || v.UserAgent == "" || v.Protocol == "" {
			t.Errorf("got %+v", v)
		}
		if err := b.Close(within(t, 10*time.Second)); err != nil {
			t.Error(err)
		}
		if _, err := b.Tabs(within(t, time.Second)); problem.CodeOf(err) != problem.BrowserExited {
			t.Errorf("after the close: %v", err)
		}
	})
}

func TestNavigateWaitsForThePage(t *testing.T) {
	anyBuild(t, func(t *testing.T, build Build) {
		b, _ := openSite(t, build)
		tests := []struct {
			path, url, title string
			status           int
		}{
			{"/", "/", "Tiny", 200},
			{"/missing", "/missing", "Not here", 404},
			{"/redirect", "/arrived?from=redirect", "Arrived", 200},
			{"/hop", "/missing", "Not here", 404}, // the status is that of the page it ends on
			{"/stop", "/stop", "Stopped", 200},
			{"/stop#here", "/stop#here", "Stopped", 0}, // the same document
		}
		for _, test := range tests {
			got, err := b.Navigate(within(t, 20*time.Second), site+test.path)
			if err != nil {
				t.Errorf("%s: %v", test.path, err)
				continue
			}
			if got.URL != site+test.url || got.Title != test.title || got.Status != test.status || got.LoadMS < 0 {
				t.Errorf("%s: got %+v", test.path, got)
			}
		}
		if got, err := b.Navigate(within(t, 20*time.Second), "about:blank"); err != nil || got.URL != "about:blank" || got.Status != 0 {
			t.Errorf("about:blank: got %+v, %v", got, err)
		}
		tabs, err := b.Tabs(within(t, 5*time.Second))
		if err != nil || len(tabs) != 1 || tabs[0].URL != "about:blank" || !tabs[0].Attached {
			t.Errorf("tabs %+v, %v", tabs, err)
		}
	})
}

func TestNavigateSaysWhyAPageCouldNotBeLoaded(t *testing.T) {
	eachBuild(t, func(t *testing.T, build Build) {
		b, _ := openSite(t, build)
		tests := []struct {
			url, netError string
			blocked       bool
			at            string // where it failed
		}{
			{"https://refused.test/", "net::ERR_TUNNEL_CONNECTION_FAILED", true, "https://refused.test/"},
			{site + "/away", "net::ERR_TUNNEL_CONNECTION_FAILED", true, "https://refused.test/there?a=b"},
			{"http://dead.test/", "net::ERR_EMPTY_RESPONSE", false, "http://dead.test/"},
			{"http://site.test:6000/", "net::ERR_UNSAFE_PORT", true, "http://site.test:6000/"},
		}
		for _, test := range tests {
			_, err := b.Navigate(within(t, 20*time.Second), test.url)
			p, ok := problem.As(err)
			if !ok || p.Code != problem.NavigationFailed || p.Details["net_error"] != test.netError ||
				p.Details["blocked"] != test.blocked || p.Details["url"] != test.at || p.Hint == "" || !strings.Contains(p.Message, test.netError) {
				t.Errorf("%s: %v, %+v", test.url, err, p)
			}
		}
		if _, err := b.Navigate(within(t, 20*time.Second), site+"/download"); problem.CodeOf(err) != problem.NavigationFailed {
			t.Errorf("download: %v", err)
		}
		// In plain HTTP the gateway's refusal is a page.
		if got, err := b.Navigate(within(t, 20*time.Second), "http://other.test/"); err != nil || got.Status != 403 {
			t.Errorf("refused in plain HTTP: %+v, %v", got, err)
		}
		// And the browser is as good as before.
		if got, err := b.Navigate(within(t, 20*time.Second), site+"/"); err != nil || got.Title != "Tiny" {
			t.Errorf("afterwards: %+v, %v", got, err)
		}
	})
}

func TestBadAddressesNeverReachTheBrowser(t *testing.T) {
	b, g := openSite(t, Shell)
	for _, raw := range []string{"file:///etc/passwd", "view-source:" + site, "chrome://version", "http://a:b@site.test/"} {
		if _, err := b.Navigate(within(t, 5*time.Second), raw); problem.CodeOf(err) != problem.BadURL {
			t.Errorf("%s: %v", raw, err)
		}
	}
	if seen := g.requests(); len(seen) != 0 {
		t.Errorf("requests %q", seen)
	}
}

func TestNavigateEndsAtItsDeadline(t *testing.T) {
	anyBuild(t, func(t *testing.T, build Build) {
		b, _ := openSite(t, build)
		if _, err := b.Page(within(t, 10*time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Navigate(within(t, time.Second), site+"/slow"); problem.CodeOf(err) != problem.Timeout {
			t.Errorf("a page that hangs: %v", err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if _, err := b.Navigate(ctx, site+"/"); problem.CodeOf(err) != problem.Canceled {
			t.Errorf("a caller that left: %v", err)
		}
		if got, err := b.Navigate(within(t, 20*time.Second), site+"/"); err != nil || got.Title != "Tiny" {
			t.Errorf("afterwards: %+v, %v", got, err)
		}
	})
}

func TestDialogsAreAnsweredAndReported(t *testing.T) {
	eachBuild(t, func(t *testing.T, build Build) {
		b, _ := openSite(t, build)
		got, err := b.Navigate(within(t, 20*time.Second), site+"/alert")
		if err != nil {
			t.Fatal(err)
		}
		if got.Title != "confirmed false" || len(got.Dialogs) != 3 {
			t.Fatalf("got %+v", got)
		}
		for i, want := range []Dialog{
			{Type: "alert", Message: "one", URL: site + "/alert"},
			{Type: "confirm", Message: "two", URL: site + "/alert"},
			{Type: "prompt", Message: "three", URL: site + "/alert"},
		} {
			if got.Dialogs[i] != want {
				t.Errorf("dialog %d is %+v", i, got.Dialogs[i])
			}
		}
		// A page that asks whether to be left is left. It may only ask when the user has touched it.
		if _, err := b.Navigate(within(t, 20*time.Second), site+"/stay"); err != nil {
			t.Fatal(err)
		}
		page, err := b.Page(within(t, 5*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		for _, kind := range []string{"mousePressed", "mouseReleased"} {
			err := page.Session().Call(within(t, 5*time.Second), "Input.dispatchMouseEvent",
				map[string]any{"type": kind, "x": 10, "y": 10, "button": "left", "clickCount": 1}, nil)
			if err != nil {
				t.Fatal(err)
			}
		}
		got, err = b.Navigate(within(t, 20*time.Second), site+"/")
		if err != nil || got.Title != "Tiny" || len(got.Dialogs) != 1 || got.Dialogs[0].Type != "beforeunload" {
			t.Errorf("got %+v, %v", got, err)
		}
	})
}

func TestAHostilePageChangesNothing(t *testing.T) {
	b, _ := openSite(t, Shell)
	got, err := b.Navigate(within(t, 20*time.Second), site+"/surrogate")
	if err != nil || !strings.HasPrefix(got.Title, "half ") || len(got.Title) > maxText {
		t.Errorf("got a title of %d bytes, %v", len(got.Title), err)
	}
	// A page whose scripts never rest is left without asking them.
	if _, err := b.Navigate(within(t, 20*time.Second), site+"/busy"); err != nil {
		t.Fatal(err)
	}
	if got, err := b.Navigate(within(t, 20*time.Second), site+"/"); err != nil || got.Title != "Tiny" {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestAPageThatIsClosedIsReplaced(t *testing.T) {
	eachBuild(t, func(t *testing.T, build Build) {
		b, _ := openSite(t, build)
		first, err := b.Page(within(t, 10*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		// Full Chromium exits with its last window, so another one is there first.
		if _, err := cdp.Do(within(t, 5*time.Second), b.Conn().Browser(), target.CreateTarget, target.CreateTargetParams{URL: blank}); err != nil {
			t.Fatal(err)
		}
		if _, err := cdp.Do(within(t, 5*time.Second), b.Conn().Browser(), target.CloseTarget, target.CloseTargetParams{TargetID: first.id}); err != nil {
			t.Fatal(err)
		}
		<-first.gone
		if got, err := b.Navigate(within(t, 20*time.Second), site+"/"); err != nil || got.Title != "Tiny" {
			t.Errorf("got %+v, %v", got, err)
		}
		second, err := b.Page(within(t, 5*time.Second))
		if err != nil || second.ID() == first.ID() {
			t.Errorf("the page is the old one, %v", err)
		}
	})
}

func TestABrowserWithoutAPageGetsOne(t *testing.T) {
	b, _ := openSite(t, Shell)
	tabs, err := b.Tabs(within(t, 5*time.Second))
	if err != nil || len(tabs) != 1 {
		t.Fatalf("tabs %+v, %v", tabs, err)
	}
	if _, err := cdp.Do(within(t, 5*time.Second), b.Conn().Browser(), target.CloseTarget, target.CloseTargetParams{TargetID: target.ID(tabs[0].TargetID)}); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 5*time.Second, func() bool {
		tabs, err := b.Tabs(within(t, 5*time.Second))
		return err == nil && len(tabs) == 0
	}, "the page is closed")
	if got, err := b.Navigate(within(t, 20*time.Second), site+"/"); err != nil || got.Title != "Tiny" {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestDeathOfTheBrowserIsNamed(t *testing.T) {
	g := newGateway(t, tinySite(nil))
	conn, process, _ := launch(t, Shell, g.URL)
	b, err := Open(within(t, 20*time.Second), conn)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Navigate(within(t, 20*time.Second), site+"/"); err != nil {
		t.Fatal(err)
	}
	process.Kill()
	<-b.Done()
	for name, do := range map[string]func() error{
		"navigate":   func() error { _, err := b.Navigate(within(t, 5*time.Second), site+"/"); return err },
		"screenshot": func() error { _, err := b.Do(within(t, 5*time.Second), Screenshot{}); return err },
		"tabs":       func() error { _, err := b.Tabs(within(t, 5*time.Second)); return err },
	} {
		if err := do(); problem.CodeOf(err) != problem.BrowserExited || !errors.Is(err, cdp.ErrBrowserGone) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := b.Close(within(t, 5*time.Second)); err != nil {
		t.Errorf("close: %v", err)
	}
}

func TestOpenFailsWhenTheBrowserDoes(t *testing.T) {
	conn, process, _ := launch(t, Shell, deadAddress(t))
	process.Kill()
	if _, err := Open(within(t, 10*time.Second), conn); problem.CodeOf(err) != problem.BrowserExited {
		t.Errorf("got %v", err)
	}
}

// The field that names the gateway is only believed where the gateway can read the answer: inside TLS the site writes fields.
func TestAnAnswerOfTheGatewaysIsToldFromThatOfASite(t *testing.T) {
	for response, want := range map[string]answered{
		`{"status":403,"url":"http://a.test/","headers":{"Clawjail-Refusal":"host_denied","Server":"x"}}`: {403, "host_denied"},
		`{"status":403,"url":"http://a.test/","headers":{"Server":"x"}}`:                                  {403, ""},
		`{"status":403,"url":"https://a.test/","headers":{"Clawjail-Refusal":"host_denied"}}`:             {403, ""},
		`{"status":200,"url":"http://a.test/"}`:                                                           {200, ""},
	} {
		watch := loading{frame: "F", wanted: "L", loader: "L", answers: map[protocol.LoaderID]answered{}}
		_, err := watch.see(cdp.EventMessage{Method: network.ResponseReceived.Method, Params: []byte(`{"requestId":"L","loaderId":"L","frameId":"F","response":` + response + `}`)})
		if got := watch.answers["L"]; err != nil || got != want {
			t.Errorf("%s: %+v, %v", response, got, err)
		}
	}
}

// On a busy machine a page may take long from the server's answer to the frame.
func TestAPageThatTheServerHasSentIsWaitedFor(t *testing.T) {
	began := time.Now()
	watch := loading{frame: "F", wanted: "L", loader: "L", before: "B", answers: map[protocol.LoaderID]answered{}}
	stopped, failure := &outcome{since: began}, &outcome{since: began, err: errors.New("no")}
	believed := func(o *outcome) time.Duration { return watch.believed(o).Sub(began) }
	if got := believed(stopped); got != quietTimeout {
		t.Errorf("without an answer: %s", got)
	}
	if done, err := watch.see(cdp.EventMessage{Method: network.ResponseReceived.Method,
		Params: []byte(`{"requestId":"L","loaderId":"L","frameId":"F","response":{"status":200}}`)}); done || err != nil {
		t.Fatalf("%v, %v", done, err)
	}
	if got := believed(stopped); got != answeredTimeout {
		t.Errorf("with an answer that came afterwards: %s", got)
	}
	if got := believed(failure); got != quietTimeout {
		t.Errorf("a failure: %s", got)
	}
}
