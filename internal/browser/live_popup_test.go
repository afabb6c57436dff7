//go:build unix

package browser

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/cdp/cdptest"
	"github.com/clawjail/clawjail/internal/problem"
)

// waits is the popup of a kind that waits now.
func waits(t *testing.T, v *Viewer, kind PopupKind) Popup {
	t.Helper()
	s := nextState(t, v, string(kind)+" waits", func(s *LiveState) bool {
		return slices.ContainsFunc(s.Popups, func(p Popup) bool { return p.Kind == kind })
	})
	return s.Popups[slices.IndexFunc(s.Popups, func(p Popup) bool { return p.Kind == kind })]
}

func answers(id string, accept bool) LiveInput {
	return LiveInput{Type: "answer", Popup: id, Accept: accept}
}

func TestDialogsWaitForThePerson(t *testing.T) {
	eachBuild(t, func(t *testing.T, build Build) {
		b := liveSite(t, build, map[string]string{"/": `<title>ask</title><body style="margin:0;height:500px"
			onclick="document.title = [alert('one'), confirm('two'), prompt('three', 'four')].join()">`,
			"/stay": `<title>stay</title><body style="height:500px" onbeforeunload="event.preventDefault(); event.returnValue = 'x'">`})
		arrive(t, b, "/")
		l := takeOver(t, b)
		v := l.Watch()
		defer v.Close()
		// The click ends although the page has not taken it yet.
		give(t, b, clicked(50, 50)...)
		alert := waits(t, v, PopupAlert)
		if alert.Message != "one" || alert.Origin != site {
			t.Errorf("got %+v", alert)
		}
		if _, err := l.Do(within(t, 5*time.Second), LiveInput{Type: "keydown", Key: "a"}); problem.CodeOf(err) != problem.Conflict {
			t.Errorf("a key while a dialog is open: %v", err)
		}
		give(t, b, answers(alert.ID, true))
		if _, err := l.Do(within(t, 5*time.Second), answers(alert.ID, true)); problem.CodeOf(err) != problem.NotFound {
			t.Errorf("answered twice: %v", err)
		}
		give(t, b, answers(waits(t, v, PopupConfirm).ID, true))
		prompt := waits(t, v, PopupPrompt)
		if prompt.Default != "four" {
			t.Errorf("got %+v", prompt)
		}
		give(t, b, LiveInput{Type: "answer", Popup: prompt.ID, Accept: true, Text: "five"})
		becomes(t, b, "document.title", ",true,five")
		// Whether to leave is asked, too.
		give(t, b, LiveInput{Type: "go", URL: site + "/stay"})
		becomes(t, b, "document.title", "stay")
		give(t, b, clicked(50, 50)...)
		give(t, b, LiveInput{Type: "go", URL: site + "/"})
		give(t, b, answers(waits(t, v, PopupLeave).ID, false))
		if got := read(t, b, "document.title"); got != "stay" {
			t.Errorf("left for %s", got)
		}
		// A popup that waits when the browser is handed back is dismissed, and later dialogs are answered at once.
		give(t, b, LiveInput{Type: "go", URL: site + "/"})
		give(t, b, answers(waits(t, v, PopupLeave).ID, true))
		becomes(t, b, "document.title", "ask")
		give(t, b, clicked(50, 50)...)
		waits(t, v, PopupAlert)
		if err := l.LetGo(within(t, 10*time.Second)); err != nil {
			t.Fatal(err)
		}
		becomes(t, b, "document.title", ",false,")
		nextState(t, v, "nothing waits", func(s *LiveState) bool { return len(s.Popups) == 0 })
	})
}

func TestADialogIsOfASiteAndNotOfWordsInAnAddress(t *testing.T) {
	for address, want := range map[string]string{
		"https://shop.example/?from=https://bank.example/": "https://shop.example",
		"http://shop.example:8080/%zz#x":                   "http://shop.example:8080",
		"https://bank.example:pw@shop.example/":            "https://shop.example",
		"https://shop.example":                             "https://shop.example",
		"http://[::1]:80/@bank.example":                    "http://[::1]:80",
		"data:text/html,https://bank.example/":             "data:",
		"blob:https://shop.example/0":                      "blob:",
		"about:blank":                                      "about:",
	} {
		if got := asker(address); got != want {
			t.Errorf("%s is of %q, want %q", address, got, want)
		}
	}
}

func TestAPopupGoesWithItsPage(t *testing.T) {
	b := liveSite(t, Shell, map[string]string{"/": `<title>ask</title><body style="height:500px" onclick="alert(1)">`})
	arrive(t, b, "/")
	l := takeOver(t, b)
	v := l.Watch()
	defer v.Close()
	give(t, b, clicked(50, 50)...)
	first := waits(t, v, PopupAlert)
	give(t, b, LiveInput{Type: "open", URL: site + "/"})
	give(t, b, clicked(50, 50)...)
	nextState(t, v, "two wait", func(s *LiveState) bool { return len(s.Popups) == 2 })
	if _, err := b.Do(within(t, 10*time.Second), CloseTab{TargetID: "t1"}); err != nil {
		t.Fatal(err)
	}
	nextState(t, v, "one waits", func(s *LiveState) bool { return len(s.Popups) == 1 })
	if _, err := l.Do(within(t, 5*time.Second), answers(first.ID, true)); problem.CodeOf(err) != problem.NotFound {
		t.Errorf("an answer to what is gone: %v", err)
	}
}

func TestSelectsAreListed(t *testing.T) {
	eachBuild(t, func(t *testing.T, build Build) {
		const box = `<body style="margin:0"><select id=s style="position:absolute;left:10px;top:20px;width:100px;height:30px"
			onchange="document.title = 'chose ' + value + ' ' + (document.activeElement === this)">
			<option value=a>Apple<optgroup label=More><option value=b>Berry<option value=c disabled>Cherry</optgroup></select>`
		b, here, _ := crossSite(t, build, map[string]string{
			"/": box + `<my-box style="position:absolute;left:200px;top:0"></my-box><iframe src="THERE/in" style="position:absolute;left:100px;top:200px;border:7px solid;padding:3px"></iframe>
				<select multiple style="position:absolute;left:400px;top:0;height:100px;width:80px"><option>x<option>y</select>
				<script>document.querySelector('my-box').attachShadow({mode: 'closed'}).innerHTML =
					'<select style="position:absolute;left:0;top:0;width:100px;height:30px" onchange="document.title=\'deep \'+value"><option>1<option>2</select>'</script>`,
			"/in": box + `<script>s.addEventListener('change', () => parent.postMessage(document.title, '*'))</script>`,
		})
		if _, err := b.Navigate(within(t, 20*time.Second), here+"/"); err != nil {
			t.Fatal(err)
		}
		read(t, b, "(addEventListener('message', e => document.title = 'frame ' + e.data), 0)")
		l := takeOver(t, b)
		v := l.Watch()
		defer v.Close()
		give(t, b, clicked(50, 35)...)
		asked := waits(t, v, PopupSelect)
		if want := []PopupOption{{Label: "Apple", Selected: true}, {Label: "Berry", Group: "More"}, {Label: "Cherry", Group: "More", Disabled: true}}; !slices.Equal(asked.Options, want) {
			t.Errorf("options %+v", asked.Options)
		}
		for _, bad := range [][]int{{2}, {7}, {-1}, nil, {0, 1}} {
			if _, err := l.Do(within(t, 5*time.Second), LiveInput{Type: "answer", Popup: asked.ID, Accept: true, Options: bad}); problem.CodeOf(err) != problem.BadRequest {
				t.Errorf("%v: %v", bad, err)
			}
		}
		give(t, b, LiveInput{Type: "answer", Popup: asked.ID, Accept: true, Options: []int{1}})
		becomes(t, b, "document.title", "chose b true")
		// In a frame of another process, and in a closed shadow root.
		give(t, b, clicked(100+7+3+50, 200+7+3+35)...)
		give(t, b, LiveInput{Type: "answer", Popup: waits(t, v, PopupSelect).ID, Accept: true, Options: []int{1}})
		becomes(t, b, "document.title", "frame chose b true")
		give(t, b, clicked(230, 10)...)
		give(t, b, LiveInput{Type: "answer", Popup: waits(t, v, PopupSelect).ID, Accept: true, Options: []int{1}})
		becomes(t, b, "document.title", "deep 2")
		// By the keyboard, as the browser does.
		give(t, b, clicked(50, 35)...)
		give(t, b, answers(waits(t, v, PopupSelect).ID, false))
		give(t, b, strike("ArrowUp", "ArrowUp", 0)...)
		becomes(t, b, "document.title", "chose a true")
		give(t, b, strike(" ", "Space", 0)...)
		give(t, b, LiveInput{Type: "answer", Popup: waits(t, v, PopupSelect).ID, Accept: true, Options: []int{1}})
		becomes(t, b, "document.title", "chose b true")
		// A list that is drawn in the page is the page's.
		give(t, b, clicked(430, 10)...)
		becomes(t, b, "document.querySelector('select[multiple]').value", "x")
	})
}

func TestAFileChooserWaits(t *testing.T) {
	b, here, _ := crossSite(t, Shell, map[string]string{
		"/": `<body style="margin:0"><input type=file accept="image/*,.pdf" style="position:absolute;left:0;top:0;width:200px;height:30px"
			onchange="document.title = files[0].name + files[0].size"><iframe src="THERE/in" style="position:absolute;left:0;top:100px;border:0"></iframe>`,
		"/in": `<body style="margin:0"><input type=file multiple style="position:absolute;left:0;top:0;width:200px;height:30px"
			onchange="parent.postMessage(files.length + files[0].name, '*')">`,
	})
	b.UseFolder(cdptest.Dir(t))
	if err := b.ReapplyDownloads(within(t, 10*time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Navigate(within(t, 20*time.Second), here+"/"); err != nil {
		t.Fatal(err)
	}
	read(t, b, "(addEventListener('message', e => document.title = 'frame ' + e.data), 0)")
	do[File](t, b, PutFile{Name: "a.pdf", Data: []byte("12345")})
	l := takeOver(t, b)
	v := l.Watch()
	defer v.Close()
	give(t, b, clicked(20, 15)...)
	asked := waits(t, v, PopupFiles)
	if asked.Accept != "image/*,.pdf" || asked.Multiple {
		t.Errorf("got %+v", asked)
	}
	if _, err := l.Do(within(t, 5*time.Second), LiveInput{Type: "answer", Popup: asked.ID, Accept: true, Files: []string{"none.pdf"}}); err == nil {
		t.Error("a file that is not there was given")
	}
	give(t, b, LiveInput{Type: "answer", Popup: asked.ID, Accept: true, Files: []string{"a.pdf"}})
	becomes(t, b, "document.title", "a.pdf5")
	give(t, b, clicked(20, 115)...)
	if asked = waits(t, v, PopupFiles); !asked.Multiple {
		t.Errorf("got %+v", asked)
	}
	give(t, b, LiveInput{Type: "answer", Popup: asked.ID, Accept: true, Files: []string{"a.pdf"}})
	becomes(t, b, "document.title", "frame 1a.pdf")
}

func TestASiteThatAsksForAPasswordWaits(t *testing.T) {
	eachBuild(t, func(t *testing.T, build Build) {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			user, password, _ := r.BasicAuth()
			if strings.HasPrefix(r.URL.Path, "/secret") && (user != "ann" || password != "pw") {
				w.Header().Set("WWW-Authenticate", `Basic realm="the realm"`)
				w.WriteHeader(http.StatusUnauthorized)
				io.WriteString(w, "<title>refused</title>")
				return
			}
			fmt.Fprintf(w, "<title>%s</title>", r.URL.Path)
		}))
		t.Cleanup(server.Close)
		b := openOwn(t, build, server.URL) // it keeps the password until it ends
		arrive(t, b, "/open")
		l := takeOver(t, b)
		v := l.Watch()
		defer v.Close()
		give(t, b, LiveInput{Type: "go", URL: site + "/secret"})
		asked := waits(t, v, PopupAuth)
		if u, err := url.Parse(asked.Origin); err != nil || u.Host != "site.test" || asked.Message != "the realm" {
			t.Errorf("got %+v", asked)
		}
		give(t, b, LiveInput{Type: "answer", Popup: asked.ID, Accept: true, User: "ann", Password: "wrong"})
		give(t, b, LiveInput{Type: "answer", Popup: waits(t, v, PopupAuth).ID, Accept: true, User: "ann", Password: "pw"})
		becomes(t, b, "document.title", "/secret")
		give(t, b, LiveInput{Type: "open", URL: "http://other.test/secret/2"})
		give(t, b, answers(waits(t, v, PopupAuth).ID, false))
		becomes(t, b, "document.title", "refused")
		if err := l.LetGo(within(t, 10*time.Second)); err != nil {
			t.Fatal(err)
		}
		// No person is asked afterwards, and requests go their way.
		got, err := b.Navigate(within(t, 20*time.Second), "http://third.test/secret/3")
		if got.Status != 401 && (err == nil || !strings.Contains(err.Error(), "ERR_INVALID_AUTH_CREDENTIALS")) {
			t.Errorf("got %+v, %v", got, err)
		}
		if got, err := b.Navigate(within(t, 20*time.Second), "http://third.test/open"); err != nil || got.Title != "/open" {
			t.Errorf("got %+v, %v", got, err)
		}
	})
}
