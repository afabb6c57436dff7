//go:build unix

package browser

import (
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
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

func TestAddressIsWhereThePageEnded(t *testing.T) {
	anyBuild(t, func(t *testing.T, build Build) {
		b := open(t, build, newGateway(t, lookSite()).URL)
		if at, err := b.Address(within(t, 10*time.Second)); err != nil || at != blank {
			t.Errorf("at first it is at %q, %v", at, err)
		}
		for _, test := range []struct{ open, at string }{
			{"/plain", "/plain"}, {"/go", "/form?from=go"}, {"/script", "/plain#there"}, {"/form#part", "/form#part"},
		} {
			if _, err := b.Navigate(within(t, 20*time.Second), site+test.open); err != nil {
				t.Fatal(err)
			}
			if at, err := b.Address(within(t, 10*time.Second)); err != nil || at != site+test.at {
				t.Errorf("%s: it is at %q, %v", test.open, at, err)
			}
		}
	})
}

func TestHasAsksTheDocumentAndNotThePage(t *testing.T) {
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
				if has, err := b.Has(within(t, 10*time.Second), test.selector); err != nil || has != test.has {
					t.Errorf("%s has %s: %v, %v", test.page, test.selector, has, err)
				}
			}
		}
	})
}

func TestSelectorThatIsNoneIsABadRequest(t *testing.T) {
	anyBuild(t, func(t *testing.T, build Build) {
		b := open(t, build, newGateway(t, lookSite()).URL)
		if _, err := b.Navigate(within(t, 20*time.Second), site+"/form"); err != nil {
			t.Fatal(err)
		}
		for _, selector := range []string{"", "form[", "::::", "form:no-such-thing", "a,,b"} {
			has, err := b.Has(within(t, 10*time.Second), selector)
			if problem.CodeOf(err) != problem.BadRequest || has {
				t.Errorf("%q: %v, %v", selector, has, err)
			}
			if p, ok := problem.As(err); !ok || p.Hint == "" {
				t.Errorf("%q has no hint: %v", selector, err)
			}
		}
		if has, err := b.Has(within(t, 10*time.Second), "form#login"); err != nil || !has {
			t.Errorf("afterwards: %v, %v", has, err)
		}
	})
}
