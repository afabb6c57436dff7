//go:build unix

package browser

import (
	"bytes"
	"fmt"
	"image/jpeg"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// liveSite serves pages by their path; every one is at site.test.
func liveSite(t testing.TB, build Build, pages map[string]string) *Browser {
	t.Helper()
	return open(t, build, newGateway(t, livePages(pages)).URL)
}

func livePages(pages map[string]string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, ok := pages[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		if strings.HasSuffix(r.URL.Path, ".js") {
			w.Header().Set("Content-Type", "text/javascript")
		}
		io.WriteString(w, body)
	})
}

func arrive(t testing.TB, b *Browser, path string) {
	t.Helper()
	if _, err := b.Navigate(within(t, 20*time.Second), site+path); err != nil {
		t.Fatal(err)
	}
}

// read evaluates an expression in the current tab's page.
func read(t testing.TB, b *Browser, expression string) string {
	t.Helper()
	got, err := tryRead(t, b, expression)
	if err != nil {
		t.Fatalf("%s: %v", expression, err)
	}
	return got
}

func tryRead(t testing.TB, b *Browser, expression string) (string, error) {
	out, err := b.Do(within(t, 10*time.Second), Eval{JS: "String(" + expression + ")"})
	if err != nil {
		return "", err
	}
	return fmt.Sprint(out.(EvalResult).Value), nil
}

// becomes waits until an expression has a value. A page that hangs, or is just left, has none.
func becomes(t testing.TB, b *Browser, expression, want string) {
	t.Helper()
	testenv.Eventually(t, 10*time.Second, func() bool { got, err := tryRead(t, b, expression); return err == nil && got == want },
		"%s becomes %q", expression, want)
}

func give(t testing.TB, b *Browser, inputs ...LiveInput) {
	t.Helper()
	for _, in := range inputs {
		if _, err := b.Live().Do(within(t, 15*time.Second), in); err != nil {
			t.Fatalf("%s: %v", in.Type, err)
		}
	}
}

func clicked(x, y float64) []LiveInput {
	return []LiveInput{{Type: "move", X: x, Y: y}, {Type: "down", X: x, Y: y, Button: "left", Buttons: 1, Clicks: 1},
		{Type: "up", X: x, Y: y, Button: "left", Clicks: 1}}
}

func strike(key, code string, modifiers int) []LiveInput {
	return []LiveInput{{Type: "keydown", Key: key, Code: code, Modifiers: modifiers}, {Type: "keyup", Key: key, Code: code, Modifiers: modifiers}}
}

func takeOver(t testing.TB, b *Browser) *Live {
	t.Helper()
	if err := b.Live().Hold(within(t, 10*time.Second)); err != nil {
		t.Fatal(err)
	}
	return b.Live()
}

// nextFrame draws the next frame that a condition holds for, and passes states over.
func nextFrame(t testing.TB, v *Viewer, ok func(*Frame) bool) *Frame {
	t.Helper()
	ctx := within(t, 10*time.Second)
	for {
		frame, _, err := v.Next(ctx)
		if err != nil {
			t.Fatal("no such frame: ", err)
		}
		if frame == nil {
			continue
		}
		v.Shown()
		if ok(frame) {
			return frame
		}
	}
}

// nextState passes frames over until a state has what is wanted.
func nextState(t testing.TB, v *Viewer, what string, ok func(*LiveState) bool) *LiveState {
	t.Helper()
	ctx := within(t, 10*time.Second)
	var last *LiveState
	for {
		frame, state, err := v.Next(ctx)
		if err != nil {
			t.Fatalf("no state in which %s: %v; the last was %+v", what, err, last)
		}
		if frame != nil {
			v.Shown()
		}
		if state != nil {
			last = state
		}
		if state != nil && ok(state) {
			return state
		}
	}
}

// colour is that of a frame's middle, as it is.
func colour(t testing.TB, f *Frame) (r, g, b uint32) {
	t.Helper()
	img, err := jpeg.Decode(bytes.NewReader(f.JPEG))
	if err != nil {
		t.Fatal(err)
	}
	size := img.Bounds()
	r, g, b, _ = img.At(size.Dx()/2, size.Dy()/2).RGBA()
	return r >> 8, g >> 8, b >> 8
}

func reddish(t testing.TB) func(*Frame) bool {
	return func(f *Frame) bool { r, g, _ := colour(t, f); return r > 200 && g < 60 }
}

func greenish(t testing.TB) func(*Frame) bool {
	return func(f *Frame) bool { r, g, _ := colour(t, f); return g > 100 && r < 60 }
}

func TestViewersSeeThePage(t *testing.T) {
	eachBuild(t, func(t *testing.T, build Build) {
		b := liveSite(t, build, map[string]string{
			"/":      `<title>Red</title><body style="background:red" onclick="document.body.style.background='green'">`,
			"/green": `<title>Green</title><body style="background:green">`,
		})
		arrive(t, b, "/")
		v := b.Live().Watch()
		defer v.Close()
		states := b.Live().Watch()
		defer states.Close()
		frame := nextFrame(t, v, reddish(t))
		wide, high := read(t, b, "innerWidth"), read(t, b, "innerHeight")
		if fmt.Sprint(frame.Width) != wide || fmt.Sprint(frame.Height) != high {
			t.Errorf("a frame of %d by %d for a window of %s by %s", frame.Width, frame.Height, wide, high)
		}
		if size, err := jpeg.DecodeConfig(bytes.NewReader(frame.JPEG)); err != nil || size.Width != frame.Width || size.Height != frame.Height {
			t.Errorf("the picture has %d by %d, %v", size.Width, size.Height, err)
		}
		nextState(t, states, "the title is there", func(s *LiveState) bool {
			return len(s.Tabs) == 1 && s.Tabs[0].Title == "Red" && s.Tabs[0].Current && s.URL == site+"/" && s.Back && !s.Forward
		})
		give(t, b, clicked(50, 50)...)
		nextFrame(t, v, greenish(t))
		arrive(t, b, "/")
		nextFrame(t, v, reddish(t))
		// Another tab of the agent's.
		if _, err := b.Do(within(t, 20*time.Second), OpenTab{URL: site + "/green"}); err != nil {
			t.Fatal(err)
		}
		nextFrame(t, v, greenish(t))
		nextState(t, states, "the second tab is current", func(s *LiveState) bool { return len(s.Tabs) == 2 && s.Tabs[1].Current })
		if _, err := b.Do(within(t, 20*time.Second), CloseTab{TargetID: "t2"}); err != nil {
			t.Fatal(err)
		}
		nextFrame(t, v, reddish(t))
	})
}

func TestFourViewersCostOneScreencast(t *testing.T) {
	b := liveSite(t, Shell, map[string]string{"/": `<body style="background:red" onclick="document.body.style.background='green'">`})
	arrive(t, b, "/")
	l := b.Live()
	var viewers []*Viewer
	for range 4 {
		v := l.Watch()
		defer v.Close()
		viewers = append(viewers, v)
		nextFrame(t, v, reddish(t))
	}
	if n := l.Casts(); n != 1 {
		t.Errorf("%d screencasts", n)
	}
	// One who has a frame and never draws it does not hold the others up.
	give(t, b, clicked(50, 50)...)
	for _, v := range viewers[1:] {
		nextFrame(t, v, greenish(t))
	}
	for _, v := range viewers {
		v.Visible(false)
	}
	testenv.Eventually(t, 5*time.Second, func() bool { l.mu.Lock(); defer l.mu.Unlock(); return l.cast == nil }, "nobody looks, nothing is drawn")
	viewers[2].Visible(true)
	nextFrame(t, viewers[2], greenish(t))
	if n := l.Casts(); n != 2 {
		t.Errorf("%d screencasts", n)
	}
}

func TestASlowViewerGetsTheLatestFrame(t *testing.T) {
	b := liveSite(t, Shell, map[string]string{"/": `<body style="background:red"><script>
		function run() { let n = 0; const f = () => { document.body.style.background = ++n % 2 ? 'blue' : 'red';
			if (n < 60) requestAnimationFrame(f); else { document.body.style.background = 'green'; window.over = true } }; f() }</script>`})
	arrive(t, b, "/")
	v := b.Live().Watch()
	defer v.Close()
	ctx := within(t, 10*time.Second)
	for {
		if frame, _, err := v.Next(ctx); err != nil {
			t.Fatal(err)
		} else if frame != nil {
			break
		}
	}
	read(t, b, "run()")
	becomes(t, b, "window.over", "true")
	v.Shown()
	nextFrame(t, v, greenish(t))
	v.l.mu.Lock()
	made := v.l.frames
	v.l.mu.Unlock()
	if made > 10 {
		t.Errorf("%d frames were made for one who was drawing the first", made)
	}
}

func TestInputPrintsAsItsType(t *testing.T) {
	in := LiveInput{Type: "text", Text: "hunter2", Password: "hunter2"}
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "in", in)
	for _, text := range []string{fmt.Sprint(in), fmt.Sprintf("%+v %#v %q %s", in, &in, in, []LiveInput{in}), log.String(),
		fmt.Sprint(LiveInput{Type: "hunter2"})} {
		if strings.Contains(text, "hunter2") || !strings.Contains(text, "input") {
			t.Errorf("%s", text)
		}
	}
}

func TestBadInputIsRefused(t *testing.T) {
	b, _ := openSite(t, Shell)
	for _, in := range []LiveInput{{Type: "hug"}, {Type: "size", Width: 100, Height: 5000}, {Type: "keydown"}, {Type: "down", Button: "sixth"},
		{Type: "go", URL: "javascript:alert(1)"}, {Type: "go", URL: "file:///etc/passwd"}, {Type: "open", URL: "data:text/html,x"},
		{Type: "move", X: 1e9}} {
		if _, err := b.Live().Do(within(t, 5*time.Second), in); !slices.Contains([]string{problem.BadRequest, problem.BadURL}, problem.CodeOf(err)) {
			t.Errorf("%s: %v", in.Type, err)
		}
	}
	if _, err := b.Live().Do(within(t, 5*time.Second), LiveInput{Type: "answer", Popup: "p7"}); problem.CodeOf(err) != problem.NotFound {
		t.Errorf("an answer to nothing: %v", err)
	}
}

func TestTheEndOfTheBrowserEndsViewers(t *testing.T) {
	b := openOwn(t, Shell, newGateway(t, tinySite(nil)).URL)
	v := b.Live().Watch()
	nextFrame(t, v, func(*Frame) bool { return true })
	if err := b.Close(within(t, 10*time.Second)); err != nil {
		t.Fatal(err)
	}
	for {
		if _, _, err := v.Next(within(t, 5*time.Second)); err != nil {
			if problem.CodeOf(err) != problem.BrowserExited {
				t.Error(err)
			}
			break
		}
	}
	v.Close()
	v.Close()
}
