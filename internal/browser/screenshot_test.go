//go:build unix

package browser

import (
	"bytes"
	"image"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
)

// paintSite are pages that are photographed and printed.
func paintSite() http.Handler {
	mux := http.NewServeMux()
	page := func(path, html string) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			io.WriteString(w, html)
		})
	}
	page("/", `<title>Tiny</title><body style="margin:0;background:#00f"><h1>hello</h1>`)
	page("/tall", `<title>Tall</title><body style="margin:0"><div style="height:5000px;background:#0f0"></div>`)
	page("/endless", `<title>Endless</title><body style="margin:0"><div style="height:200000px"></div>`)
	page("/vast", `<title>Vast</title><body style="margin:0"><canvas width=30000 height=30000></canvas><div style="width:100000px;height:100000px"></div>`)
	page("/parts", `<title>Parts</title><body style="margin:0"><div style="height:3000px"></div>
		<div id="red" style="width:120px;height:60px;background:#f00"></div><div id="gone" style="display:none">x</div>
		<div style="height:3000px"></div>`)
	page("/buttons", `<title>Buttons</title><body style="margin:0;background:#fff"><button style="position:absolute;left:100px;top:100px;width:200px;height:100px">Save</button>
		<button style="position:absolute;left:400px;top:100px;width:200px;height:100px">Load</button>
		<button style="position:absolute;left:100px;top:4000px">Far</button>
		<script>window.changes = 0; new MutationObserver(() => changes++).observe(document, {subtree: true, childList: true, attributes: true})</script>`)
	page("/busy", `<title>Busy</title><script>onload = () => setTimeout(() => { for (;;); }, 50)</script>`)
	return mux
}

func openPaint(t *testing.T, build Build, path string) *Browser {
	t.Helper()
	b := open(t, build, newGateway(t, paintSite()).URL)
	goTo(t, b, path)
	return b
}

func goTo(t testing.TB, b *Browser, path string) {
	t.Helper()
	if _, err := b.Navigate(within(t, 20*time.Second), site+path); err != nil {
		t.Fatal(err)
	}
}

// must runs an operation that succeeds.
func must[T any](t testing.TB, b *Browser, op Operation) T {
	t.Helper()
	out, err := b.Do(within(t, 60*time.Second), op)
	if err != nil {
		t.Fatalf("%s: %v", op.Tool(), err)
	}
	return out.(T)
}

func decoded(t testing.TB, p Picture) image.Image {
	t.Helper()
	picture, format, err := image.Decode(bytes.NewReader(p.Data))
	if err != nil || "image/"+format != p.ContentType {
		t.Fatalf("%s of %d bytes, %v", format, len(p.Data), err)
	}
	if size := picture.Bounds().Size(); size != image.Pt(p.Width, p.Height) {
		t.Errorf("it says %d x %d and is %v", p.Width, p.Height, size)
	}
	return picture
}

func isColor(picture image.Image, x, y int, r, g, b uint32) bool {
	haveR, haveG, haveB, _ := picture.At(x, y).RGBA()
	near := func(a, b uint32) bool { return max(a>>8, b)-min(a>>8, b) < 12 }
	return near(haveR, r) && near(haveG, g) && near(haveB, b)
}

func innerWidth(t *testing.T, b *Browser) any {
	t.Helper()
	return must[EvalResult](t, b, Eval{JS: "innerWidth"}).Value
}

func TestScreenshot(t *testing.T) {
	anyBuild(t, func(t *testing.T, build Build) {
		b := openPaint(t, build, "/")
		own := innerWidth(t, b)
		for _, test := range []struct {
			name, path    string
			op            Screenshot
			width, height int // zero: not compared
		}{
			{"window", "/", Screenshot{}, 0, 0},
			{"sized", "/", Screenshot{Width: 640, Height: 480}, 640, 480},
			{"jpeg", "/", Screenshot{Type: JPEG, Quality: 30, Width: 320, Height: 200}, 320, 200},
			{"whole page", "/tall", Screenshot{FullPage: true, Width: 400, Height: 300}, 0, 5000},
			{"bounded page", "/endless", Screenshot{FullPage: true, Type: JPEG, Width: 200, Height: 300}, 0, maxSide},
			{"element", "/parts", Screenshot{Element: "#red"}, 120, 60},
		} {
			t.Run(test.name, func(t *testing.T) {
				goTo(t, b, test.path)
				p := must[Picture](t, b, test.op)
				picture := decoded(t, p)
				size := picture.Bounds()
				if test.width != 0 && size.Dx() != test.width || test.height != 0 && size.Dy() != test.height {
					t.Errorf("%d x %d", size.Dx(), size.Dy())
				}
				if p.URL != site+test.path || p.TargetID != "t1" || !p.OK {
					t.Errorf("of %s in %s", p.URL, p.TargetID)
				}
				if test.path == "/" && !isColor(picture, size.Dx()-1, size.Dy()-1, 0, 0, 255) {
					t.Error("the corner is not blue")
				}
				if test.op.Element != "" && (!isColor(picture, 0, 0, 255, 0, 0) || !isColor(picture, 119, 59, 255, 0, 0)) {
					t.Error("the element is not red from corner to corner")
				}
			})
		}
		if now := innerWidth(t, b); now != own {
			t.Errorf("the window is %v wide afterwards, and was %v", now, own)
		}
		// A size that somebody gave the page stays too.
		must[ActResult](t, b, Act{Kind: "resize", Width: 700, Height: 500})
		must[Picture](t, b, Screenshot{Width: 320, Height: 200})
		if now := innerWidth(t, b); now != 700.0 {
			t.Errorf("the window is %v wide afterwards, and was resized to 700", now)
		}
	})
}

func TestScreenshotOfAnElementThatIsNotThere(t *testing.T) {
	b := openPaint(t, Shell, "/parts")
	for selector, code := range map[string]string{
		"#gone": problem.ActOperationFailed, "#none": problem.ActOperationFailed, "#[": problem.BadRequest,
	} {
		if _, err := b.Do(within(t, 20*time.Second), Screenshot{Element: selector}); problem.CodeOf(err) != code {
			t.Errorf("%s: %v", selector, err)
		}
	}
}

func TestBadScreenshots(t *testing.T) {
	for _, o := range []Screenshot{
		{Type: "gif"}, {Quality: 101, Type: JPEG}, {Quality: -1, Type: JPEG}, {Quality: 50}, {Width: 100},
		{Height: 100}, {Width: -1, Height: -1}, {Width: maxViewport + 1, Height: 10}, {TimeoutMS: 499}, {TimeoutMS: 120001},
		{TimeoutMS: -1}, {Ref: "e1", Element: "p"}, {FullPage: true, Ref: "e1"}, {FullPage: true, Element: "p"},
	} {
		if err := o.Validate(); problem.CodeOf(err) != problem.BadRequest {
			t.Errorf("%+v: %v", o, err)
		}
	}
	for _, o := range []Screenshot{{}, {Type: PNG, FullPage: true}, {Type: JPEG, Quality: 100}, {Width: 1, Height: maxViewport},
		{TimeoutMS: 500}, {TimeoutMS: 120000}, {Ref: "e1", Labels: true}} {
		if err := o.Validate(); err != nil {
			t.Errorf("%+v: %v", o, err)
		}
	}
	err := Screenshot{FullPage: true, Ref: "e1"}.Validate()
	if p, ok := problem.As(err); !ok || p.Message != "fullPage is not supported for element screenshots" {
		t.Errorf("the contract's sentence is another: %v", err)
	}
}

// A page may be as large as it likes: the picture is cut, or refused, and the browser lives.
func TestVastPageIsCut(t *testing.T) {
	b := openPaint(t, Shell, "/vast")
	p := must[Picture](t, b, Screenshot{FullPage: true, Type: JPEG})
	if p.Width > maxSide || p.Height > maxSide || p.Width*p.Height > maxArea || p.Bytes > maxPicture {
		t.Errorf("%d x %d in %d bytes", p.Width, p.Height, p.Bytes)
	}
	if _, err := b.Do(within(t, 20*time.Second), Screenshot{Element: "canvas"}); err != nil && problem.CodeOf(err) == problem.BrowserExited {
		t.Error(err)
	}
	if _, err := b.Do(within(t, 20*time.Second), Screenshot{}); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

func TestCutBoundsSidesAndArea(t *testing.T) {
	for _, test := range [][4]float64{
		{0, 0, 1, 1}, {-5, 10, 1, 10}, {1280, 800, 1280, 800}, {1280, 1e9, 1280, maxSide}, {1e9, 1e9, maxSide, maxArea / maxSide},
		{8192, 1e9, 8192, 8192},
	} {
		if w, h := cut(test[0], test[1]); w != test[2] || h != test[3] {
			t.Errorf("%v: %v x %v", test, w, h)
		}
	}
}

// Neither a picture nor a print of a page that never rests takes longer than its limit, and the next page is fine.
func TestBusyPageDoesNotHoldScreenshots(t *testing.T) {
	anyBuild(t, func(t *testing.T, build Build) {
		b := openPaint(t, build, "/")
		goTo(t, b, "/busy")
		p, err := b.Page(within(t, 10*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		for _, op := range []Operation{
			Screenshot{TimeoutMS: 600, Width: 300, Height: 200}, Screenshot{TimeoutMS: 600, FullPage: true},
			Screenshot{TimeoutMS: 600, Element: "p"}, PDF{TimeoutMS: 600},
		} {
			// It says timeout by itself: the context of the test lasts longer.
			if _, err := b.Do(within(t, 10*time.Second), op); err != nil && problem.CodeOf(err) != problem.Timeout {
				t.Errorf("%+v: %v", op, err)
			}
		}
		p.terminate()
		goTo(t, b, "/")
		must[Picture](t, b, Screenshot{})
	})
}

func TestLabelsAreInThePictureAndNotInThePage(t *testing.T) {
	anyBuild(t, func(t *testing.T, build Build) {
		b := openPaint(t, build, "/buttons")
		if _, err := b.Do(within(t, 20*time.Second), Screenshot{Labels: true}); problem.CodeOf(err) != problem.BadRequest {
			t.Errorf("labels without a snapshot: %v", err)
		}
		must[SnapshotResult](t, b, Snapshot{})
		plain := decoded(t, must[Picture](t, b, Screenshot{}))
		p := must[Picture](t, b, Screenshot{Labels: true})
		labelled := decoded(t, p)
		if p.LabelsCount != 2 || p.LabelsSkipped < 1 {
			t.Errorf("%d labels, %d skipped", p.LabelsCount, p.LabelsSkipped)
		}
		red := labelColor(0)
		for _, at := range []image.Point{{100, 150}, {200, 100}, {299, 199}} {
			if isColor(plain, at.X, at.Y, uint32(red.R), uint32(red.G), uint32(red.B)) {
				t.Errorf("%v is red without labels", at)
			}
			if !isColor(labelled, at.X, at.Y, uint32(red.R), uint32(red.G), uint32(red.B)) {
				t.Errorf("%v is not on a frame", at)
			}
		}
		if got := must[EvalResult](t, b, Eval{JS: "changes"}); got.Value != 0.0 {
			t.Errorf("the page saw %v changes", got.Value)
		}
		// The whole page has them where they belong, and an element its own.
		whole := must[Picture](t, b, Screenshot{Labels: true, FullPage: true})
		if !isColor(decoded(t, whole), 100, 150, uint32(red.R), uint32(red.G), uint32(red.B)) {
			t.Error("the whole page has no frame at the button")
		}
		one := must[Picture](t, b, Screenshot{Labels: true, Element: "button"})
		if one.LabelsCount != 1 || !isColor(decoded(t, one), 0, 50, uint32(red.R), uint32(red.G), uint32(red.B)) {
			t.Errorf("an element has %d labels, or not at its side", one.LabelsCount)
		}
	})
}

func TestLabelsOfAPictureThatIsTooLargeAreRefused(t *testing.T) {
	// The header of a PNG of a billion by a billion pixels.
	header := []byte("\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x3b\x9a\xca\x00\x3b\x9a\xca\x00\x08\x06\x00\x00\x00")
	header = append(header, 0x1f, 0xea, 0xe8, 0x97)
	if _, err := drawLabels(header, []label{{ref: "e1"}}, 80); err == nil {
		t.Error("it was drawn on")
	}
	if _, err := drawLabels([]byte("no picture"), []label{{ref: "e1"}}, 80); err == nil {
		t.Error("it was drawn on")
	}
}

func TestPDF(t *testing.T) {
	anyBuild(t, func(t *testing.T, build Build) {
		b := openPaint(t, build, "/tall")
		var sizes []int
		for _, op := range []PDF{{}, {Paper: "letter", Landscape: true}} {
			p := must[Picture](t, b, op)
			if !bytes.HasPrefix(p.Data, []byte("%PDF-")) || !bytes.Contains(p.Data[len(p.Data)-20:], []byte("%%EOF")) {
				t.Errorf("%d bytes are no PDF", len(p.Data))
			}
			again := must[FileContent](t, b, GetMedia{ID: p.Media})
			if p.ContentType != "application/pdf" || !bytes.Equal(again.Data, p.Data) || again.ContentType != p.ContentType {
				t.Errorf("fetched again: %s of %d bytes", again.ContentType, len(again.Data))
			}
			sizes = append(sizes, bytes.Count(p.Data, []byte("/MediaBox [0 0 792 612]")))
		}
		if sizes[0] != 0 || sizes[1] == 0 {
			t.Errorf("pages in landscape: %v", sizes)
		}
	})
	for _, o := range []PDF{{Paper: "a0"}, {TimeoutMS: 1}, {TimeoutMS: 120001}} {
		if err := o.Validate(); problem.CodeOf(err) != problem.BadRequest {
			t.Errorf("%+v: %v", o, err)
		}
	}
}
