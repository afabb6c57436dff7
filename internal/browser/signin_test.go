//go:build unix

package browser

import (
	"io"
	"net/http"
	"testing"
	"time"
)

// lookSite are pages that are looked at.
func lookSite() http.Handler {
	mux := http.NewServeMux()
	page := func(path, html string) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			io.WriteString(w, html)
		})
	}
	page("/form", `<title>In</title><form id="login" data-x='a"b'><input type="password"></form>`)
	page("/plain", `<title>Plain</title><p>no form</p>`)
	page("/hides", `<title>Hides</title><form id="login"></form><script>
		for (const what of [document, Document.prototype, Element.prototype, DocumentFragment.prototype])
			for (const name of ['querySelector', 'querySelectorAll', 'getElementById', 'matches'])
				Object.defineProperty(what, name, {value: () => null});
		window.asked = 0</script>`)
	page("/invents", `<title>Invents</title><p id="p"></p><script>
		Document.prototype.querySelector = () => document.getElementById('p')</script>`)
	page("/later", `<title>Later</title><script>onload = () => { document.body.innerHTML = '<form id=login></form>' }</script><body>`)
	mux.HandleFunc("GET /go", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, site+"/form?from=go", http.StatusFound)
	})
	page("/script", `<title>Script</title><script>location.replace('/plain#there')</script>`)
	return mux
}

func TestSignInSaysWhereThePageEnded(t *testing.T) {
	anyBuild(t, func(t *testing.T, build Build) {
		b := open(t, build, newGateway(t, lookSite()).URL)
		if at, err := b.SignIn(within(t, 10*time.Second), ""); err != nil || at.URL != blank && at.URL != "" {
			t.Errorf("at first it is at %+v, %v", at, err)
		}
		for _, test := range []struct{ open, at string }{
			{"/plain", "/plain"}, {"/go", "/form?from=go"}, {"/script", "/plain#there"}, {"/form#part", "/form#part"},
		} {
			if _, err := b.Navigate(within(t, 20*time.Second), site+test.open); err != nil {
				t.Fatal(err)
			}
			if at, err := b.SignIn(within(t, 10*time.Second), ""); err != nil || at.URL != site+test.at || at.Status != 200 || at.Failed {
				t.Errorf("%s: it is at %+v, %v", test.open, at, err)
			}
		}
	})
}

func TestSelectorsAreAskedOfTheDocumentAndNotOfThePage(t *testing.T) {
	anyBuild(t, func(t *testing.T, build Build) {
		b := open(t, build, newGateway(t, lookSite()).URL)
		for _, test := range []struct {
			page, selector string
			has            bool
		}{
			{"/form", "form#login", true}, {"/form", "input[type=password]", true}, {"/form", `form[data-x='a"b']`, true},
			{"/form", "form#other", false}, {"/plain", "form#login", false},
			{"/hides", "form#login", true},    // its scripts would say that there is none
			{"/invents", "form#login", false}, // its scripts would say that there is one
			{"/later", "form#login", true},    // made after the document was read
			{"/go", "form#login", true},
		} {
			if _, err := b.Navigate(within(t, 20*time.Second), site+test.page); err != nil {
				t.Fatal(err)
			}
			for range 2 { // asking changes nothing
				if at, err := b.SignIn(within(t, 10*time.Second), "", "#none", test.selector); err != nil || at.Matches[0] || at.Matches[1] != test.has || at.Bad[1] {
					t.Errorf("%s has %s: %+v, %v", test.page, test.selector, at, err)
				}
			}
		}
	})
}

func TestWhatIsNoSelectorIsSaidToBeNone(t *testing.T) {
	anyBuild(t, func(t *testing.T, build Build) {
		b := open(t, build, newGateway(t, lookSite()).URL)
		if _, err := b.Navigate(within(t, 20*time.Second), site+"/form"); err != nil {
			t.Fatal(err)
		}
		for _, selector := range []string{"form[", "::::", "form:no-such-thing", "a,,b"} {
			if at, err := b.SignIn(within(t, 10*time.Second), "", selector, "form#login"); err != nil || at.Matches[0] || !at.Bad[0] || !at.Matches[1] || at.Bad[1] {
				t.Errorf("%q: %+v, %v", selector, at, err)
			}
		}
	})
}

func TestAnAnswerThatDoesNotSpeakOfEachSelectorIsRefused(t *testing.T) {
	two := []bool{false, true}
	for name, test := range map[string]struct {
		page SignInPage
		good bool
	}{
		"each":           {SignInPage{URL: site, Matches: two, Bad: two}, true},
		"no page":        {SignInPage{}, true},
		"none":           {SignInPage{URL: site}, false},
		"one too few":    {SignInPage{URL: site, Matches: two[:1], Bad: two}, false},
		"one bad unsaid": {SignInPage{URL: site, Matches: two, Bad: two[:1]}, false},
	} {
		if err := test.page.complete(2); (err == nil) != test.good {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestSignInLooksIntoFramesAndShadows finds the form wherever a person would see it, also where the page's names hide members
// of the document.
func TestSignInLooksIntoFramesAndShadows(t *testing.T) {
	form := `<form><input name=user><input type=password></form>`
	pages := map[string]string{
		"/frame":     `<iframe srcdoc="<form><input name=user><input type=password></form>"></iframe>`,
		"/shadow":    `<div id=host></div><script>host.attachShadow({mode: 'open'}).innerHTML = '` + form + `'</script>`,
		"/clobbered": form + `<img name=body><img name=title><img name=querySelectorAll><img name=readyState>`,
		"/hidden":    `<div style="display:none">` + form + `</div>`,
		"/invisible": `<div style="visibility:hidden">` + form + `</div>`,
		"/template":  `<template>` + form + `</template>`,
	}
	mux := http.NewServeMux()
	for path, html := range pages {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			io.WriteString(w, html)
		})
	}
	eachBuild(t, func(t *testing.T, build Build) {
		b := open(t, build, newGateway(t, mux).URL)
		for path, shown := range map[string]bool{"/frame": true, "/shadow": true, "/clobbered": true, "/hidden": false, "/invisible": false, "/template": false} {
			if _, err := b.Navigate(within(t, 20*time.Second), site+path); err != nil {
				t.Fatal(err)
			}
			if at, err := b.SignIn(within(t, 10*time.Second), ""); err != nil || at.Form != shown || !at.Loaded {
				t.Errorf("%s: %+v, %v", path, at, err)
			}
		}
	})
}
