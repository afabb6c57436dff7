//go:build unix

package browser

import (
	"bytes"
	"image/jpeg"
	"slices"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/testenv"
)

func TestPasswordsThatAreTypedAreSeen(t *testing.T) {
	anyBuild(t, func(t *testing.T, build Build) {
		b, here, there := crossSite(t, build, map[string]string{
			"/none":  `<input value=x><input type=password>`,
			"/plain": `<input type=password id=p><script>Object.defineProperty(HTMLInputElement.prototype, 'value', {get: () => ''}); document.createTreeWalker = null</script>`,
			"/deep":  `<my-box></my-box><script>document.querySelector('my-box').attachShadow({mode: 'open'}).innerHTML = '<input type=password value=secret>'</script>`,
			"/same":  `<iframe src="/deep"></iframe>`,
			"/other": `<iframe src="THERE/inner"></iframe>`,
			"/inner": `<iframe src="HERE/deep"></iframe>`,
		})
		secrets := func() []string {
			t.Helper()
			found, err := b.Live().Secrets(within(t, 15*time.Second))
			if err != nil {
				t.Fatal(err)
			}
			return found
		}
		_ = there
		if _, err := b.Navigate(within(t, 20*time.Second), here+"/none"); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{"/plain", "/same", "/other"} {
			do[OpenTabResult](t, b, OpenTab{URL: here + path})
		}
		if got := secrets(); !slices.Equal(got, []string{"t3", "t4"}) {
			t.Errorf("got %q", got)
		}
		takeOver(t, b)
		do[Done](t, b, FocusTab{TargetID: "t2"})
		read(t, b, "document.querySelector('#p').focus()")
		give(t, b, LiveInput{Type: "text", Text: "hunter2"})
		if got := secrets(); !slices.Equal(got, []string{"t2", "t3", "t4"}) {
			t.Errorf("got %q", got)
		}
	})
}

func TestCopyTakesWhatIsSelectedWhereTheFocusIs(t *testing.T) {
	b, here, _ := crossSite(t, Shell, map[string]string{
		"/": `<p id=p>some text</p><input id=i value="in a field"><input id=s type=password value=secret><iframe src="THERE/in"></iframe>`,
		"/in": `<textarea>in a frame</textarea><script>onmessage = () => { document.querySelector('textarea').select();
			document.querySelector('textarea').focus(); parent.postMessage('', '*') }</script>`,
	})
	if _, err := b.Navigate(within(t, 20*time.Second), here+"/"); err != nil {
		t.Fatal(err)
	}
	copied := func() string {
		t.Helper()
		text, err := b.Live().Do(within(t, 5*time.Second), LiveInput{Type: "copy"})
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	for _, test := range []struct{ js, want string }{
		{"getSelection().selectAllChildren(p)", "some text"},
		{"(i.focus(), i.setSelectionRange(3, 10))", "a field"},
		{"(s.focus(), s.select())", ""},
		{"(addEventListener('message', () => window.framed = 1), document.querySelector('iframe').focus(), frames[0].postMessage('', '*'))", "in a frame"},
	} {
		read(t, b, test.js)
		if test.want == "in a frame" {
			becomes(t, b, "window.framed", "1")
		}
		if got := copied(); got != test.want {
			t.Errorf("%s: copied %q", test.js, got)
		}
	}
	// A pasted text goes into the frame, too, in place of the selection there.
	give(t, b, LiveInput{Type: "text", Text: "pasted\ninto it"})
	if got := copied(); got != "" {
		t.Errorf("copied %q behind it", got)
	}
	read(t, b, "(delete window.framed, frames[0].postMessage('', '*'))")
	becomes(t, b, "window.framed", "1")
	if got := copied(); got != "pasted\ninto it" {
		t.Errorf("the frame has %q", got)
	}
}

func TestAThumbnailDisturbsNobody(t *testing.T) {
	anyBuild(t, func(t *testing.T, build Build) {
		b := liveSite(t, build, map[string]string{"/": `<body style="background:red;height:5000px"><script>
			let disturbed = ''; for (const kind of ['resize', 'blur', 'focus', 'scroll']) addEventListener(kind, () => disturbed += kind);
			document.addEventListener('visibilitychange', () => disturbed += document.visibilityState)</script>`})
		arrive(t, b, "/")
		read(t, b, "scrollTo(0, 1000)")
		becomes(t, b, "disturbed.includes('scroll')", "true")
		read(t, b, "setTimeout(() => disturbed = 'settled', 300)") // what else arriving has caused is over by then
		becomes(t, b, "disturbed", "settled")
		shot, err := b.Live().Thumbnail(within(t, 5*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		img, err := jpeg.Decode(bytes.NewReader(shot))
		if err != nil || img.Bounds().Dx() != 320 || len(shot) > 50_000 {
			t.Fatalf("%d bytes, %v", len(shot), err)
		}
		if r, g, _, _ := img.At(160, 100).RGBA(); r>>8 < 200 || g>>8 > 60 {
			t.Errorf("the picture is %v", img.At(160, 100))
		}
		if got := read(t, b, "disturbed"); got != "settled" {
			t.Errorf("the page was told %q", got)
		}
	})
}

// Full Chromium does not draw a tab that is behind another one.
func TestATabInTheBackgroundIsSeenAndLeftThere(t *testing.T) {
	b := liveSite(t, Full, map[string]string{"/": `<body style="background:red"><script>let disturbed = '';
		document.addEventListener('visibilitychange', () => disturbed += document.visibilityState)</script>`, "/green": `<body style="background:green">`})
	arrive(t, b, "/")
	do[OpenTabResult](t, b, OpenTab{URL: site + "/green"})
	b.tabs.mu.Lock()
	back := b.tabs.tabs[0]
	b.tabs.mu.Unlock()
	becomesHidden := func() string { return read(t, b, "disturbed + document.visibilityState") }
	b.tabs.focus(back) // the tab that is meant, and not in front
	testenv.Eventually(t, 5*time.Second, func() bool { return becomesHidden() == "hiddenhidden" }, "it is in the background")
	v := b.Live().Watch()
	defer v.Close()
	nextFrame(t, v, reddish(t))
	if got := becomesHidden(); got != "hiddenhidden" {
		t.Errorf("watching has disturbed it: %s", got)
	}
	takeOver(t, b)
	becomes(t, b, "document.visibilityState", "visible")
	read(t, b, "document.body.style.background = 'green'")
	nextFrame(t, v, greenish(t))
}
