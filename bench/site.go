//go:build linux

package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
)

// siteHost is what jails call the site. Nothing of it is ever looked up.
const siteHost = "page.clawjail.test"

// largeElements is how many elements the large page has.
const largeElements = 5000

// site is a small server on loopback. It answers for any host, so that it can also be the proxy of a browser that is
// not in a jail: both load the same addresses.
type site struct{ *httptest.Server }

func startSite() *site {
	pages := map[string]string{"/": `<h1>hello</h1><p>A small page.</p>`, "/form": form(), "/large": large(), "/still": still(), "/moving": moving()}
	return &site{httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		page, ok := pages[r.URL.Path]
		if !ok || r.Method != http.MethodGet {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = io.WriteString(w, "<!doctype html><title>bench</title><link rel=icon href=data:,>"+page) // the browser may have left
	}))}
}

// address is a page as jails, and browsers that have the site as their proxy, know it. URL is the site without any proxy, and as one.
func (s *site) address(path string) string {
	return fmt.Sprintf("http://%s:%d%s", siteHost, port(s.Listener), path)
}

// settings let jails reach the site.
func (s *site) settings() string {
	return fmt.Sprintf("gateway:\n  private_destinations:\n    - {host: %s, address: 127.0.0.1, ports: [%d]}\n", siteHost, port(s.Listener))
}

// form is a page that a script uses.
func form() string {
	return `<h1>Visitors</h1><label>Name <input id=name></label> <button id=greet>Greet</button><p id=greeting></p><ul>` +
		strings.Repeat("<li><a href=/>somebody</a> was here</li>", 40) + `</ul><script>
document.querySelector('#greet').onclick = () => {
  document.querySelector('#greeting').textContent = 'Hello ' + document.querySelector('#name').value
}</script>`
}

// large is a page with elements of the usual kinds, ten in each section.
func large() string {
	var html strings.Builder
	for n := range largeElements / 10 {
		fmt.Fprintf(&html, `<section><h3>Title %d</h3><p>Some <b>bold</b> text of paragraph %[1]d.</p>
<ul><li><a href="/%[1]d">Link %[1]d</a></li></ul>
<div><button>Do %[1]d</button><input value="%[1]d" aria-label="Field %[1]d"></div></section>`, n)
	}
	return html.String()
}
