//go:build unix

package browser

import (
	"bytes"
	"context"
	"errors"
	"image"
	_ "image/jpeg"
	_ "image/png"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/target"

	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

func TestOpenSaysWhichBrowserItIs(t *testing.T) {
	eachBuild(t, func(t *testing.T, build Build) {
		b := open(t, build, deadAddress(t))
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
	eachBuild(t, func(t *testing.T, build Build) {
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
		}{
			{"https://refused.test/", "net::ERR_TUNNEL_CONNECTION_FAILED", true},
			{"http://dead.test/", "net::ERR_EMPTY_RESPONSE", false},
			{"http://site.test:6000/", "net::ERR_UNSAFE_PORT", true},
		}
		for _, test := range tests {
			_, err := b.Navigate(within(t, 20*time.Second), test.url)
			p, ok := problem.As(err)
			if !ok || p.Code != problem.NavigationFailed || p.Details["net_error"] != test.netError ||
				p.Details["blocked"] != test.blocked || p.Hint == "" || !strings.Contains(p.Message, test.netError) {
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
	eachBuild(t, func(t *testing.T, build Build) {
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
		for i, want := range []Dialog{{"alert", "one", site + "/alert"}, {"confirm", "two", site + "/alert"}, {"prompt", "three", site + "/alert"}} {
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
	if _, err := cdp.Do(within(t, 5*time.Second), b.Conn().Browser(), target.CloseTarget, target.CloseTargetParams{TargetID: target.ID(tabs[0].ID)}); err != nil {
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

func TestScreenshot(t *testing.T) {
	eachBuild(t, func(t *testing.T, build Build) {
		b, _ := openSite(t, build)
		tests := []struct {
			name, path, format string
			options            ScreenshotOptions
			width, height      int // zero: not compared
		}{
			{"window", "/", "png", ScreenshotOptions{}, 0, 0},
			{"sized", "/", "png", ScreenshotOptions{Width: 640, Height: 480}, 640, 480},
			{"jpeg", "/", "jpeg", ScreenshotOptions{Format: JPEG, Quality: 30, Width: 320, Height: 200}, 320, 200},
			{"whole page", "/tall", "png", ScreenshotOptions{FullPage: true, Width: 400, Height: 300}, 0, 5000},
			{"bounded page", "/endless", "jpeg", ScreenshotOptions{FullPage: true, Format: JPEG, Width: 200, Height: 300}, 0, maxSide},
		}
		for _, test := range tests {
			t.Run(test.name, func(t *testing.T) {
				if _, err := b.Navigate(within(t, 20*time.Second), site+test.path); err != nil {
					t.Fatal(err)
				}
				data, err := b.Screenshot(within(t, 30*time.Second), test.options)
				if err != nil {
					t.Fatal(err)
				}
				picture, format, err := image.Decode(bytes.NewReader(data))
				if err != nil || format != test.format {
					t.Fatalf("%s of %d bytes, %v", format, len(data), err)
				}
				size := picture.Bounds()
				if test.width != 0 && size.Dx() != test.width || test.height != 0 && size.Dy() != test.height {
					t.Errorf("%d x %d", size.Dx(), size.Dy())
				}
				if test.path == "/" {
					if r, g, blue, _ := picture.At(size.Dx()-1, size.Dy()-1).RGBA(); r>>8 > 10 || g>>8 > 10 || blue>>8 < 240 {
						t.Errorf("the corner is not blue: %d %d %d", r>>8, g>>8, blue>>8)
					}
				}
			})
		}
		// The window has its own size again.
		page, err := b.Page(within(t, 5*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		var inner struct {
			Result struct {
				Value int `json:"value"`
			} `json:"result"`
		}
		if err := page.Session().Call(within(t, 5*time.Second), "Runtime.evaluate", map[string]any{"expression": "innerWidth"}, &inner); err != nil || inner.Result.Value < 1000 {
			t.Errorf("the window is %d wide afterwards, %v", inner.Result.Value, err)
		}
	})
}

func TestBadScreenshotOptions(t *testing.T) {
	for _, o := range []ScreenshotOptions{
		{Format: "gif"}, {Quality: 101, Format: JPEG}, {Quality: -1, Format: JPEG}, {Quality: 50}, {Width: 100},
		{Height: 100}, {Width: -1, Height: -1}, {Width: maxViewport + 1, Height: 10},
	} {
		if err := o.Validate(); problem.CodeOf(err) != problem.BadRequest {
			t.Errorf("%+v: %v", o, err)
		}
	}
	for _, o := range []ScreenshotOptions{{}, {Format: PNG, FullPage: true}, {Format: JPEG, Quality: 100}, {Width: 1, Height: maxViewport}} {
		if err := o.Validate(); err != nil {
			t.Errorf("%+v: %v", o, err)
		}
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
		"screenshot": func() error { _, err := b.Screenshot(within(t, 5*time.Second), ScreenshotOptions{}); return err },
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
