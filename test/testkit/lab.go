//go:build linux

package testkit

import (
	"crypto/rand"
	"fmt"
	"html"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/coder/websocket"
)

// The name under which jails reach a lab, and the domain that it belongs to.
const (
	labHost   = "lab.example.net"
	LabDomain = "example.net"
)

// Lab is a site with everything that clients of a browser try: a login, files both ways, frames, and pages that repeat
// what they were sent. Two of its cookies can be read by no script.
type Lab struct {
	Server *httptest.Server
	// secret is the session of alice, rotated what the site sets anew at every visit of /rotate.
	Secret, Rotated string
	Odd             string // a cookie with what encoders escape, which decides nothing

	mu       sync.Mutex
	accounts int // visits of /account with the cookie
	uploads  []string
}

// NewLab starts one that ends with the test.
func NewLab(t *testing.T) *Lab {
	t.Helper()
	l := &Lab{Secret: "labsecret" + rand.Text(), Rotated: "labrotated" + rand.Text(), Odd: `Qo7<v>&K'4=m|2^` + rand.Text()}
	mux := http.NewServeMux()
	page := func(body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			fmt.Fprint(w, "<!doctype html><title>lab</title>", body)
		}
	}
	mux.HandleFunc("GET /{$}", page("<h1>lab</h1>"))
	mux.HandleFunc("GET /login", page(`<form method=post action=/login><input id=user name=user><input id=password name=password type=password><button>Log in</button></form>`))
	mux.HandleFunc("POST /login", func(w http.ResponseWriter, r *http.Request) {
		http.SetCookie(w, &http.Cookie{Name: "lab_session", Value: l.Secret, Path: "/", HttpOnly: true, SameSite: http.SameSiteLaxMode})
		http.Redirect(w, r, "/account", http.StatusSeeOther)
	})
	mux.HandleFunc("GET /account", func(w http.ResponseWriter, r *http.Request) {
		if !l.knows(r) {
			http.Redirect(w, r, "/login", http.StatusSeeOther)
			return
		}
		l.mu.Lock()
		l.accounts++
		l.mu.Unlock()
		page("<h1>Hello alice</h1><a href=/login>log in</a>")(w, r)
	})
	mux.HandleFunc("GET /api/answer", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"answer":0,"added":%q}`, r.Header.Get("X-Added"))
	})
	mux.HandleFunc("GET /upload", page(`<form method=post enctype=multipart/form-data action=/upload><input id=file type=file name=file multiple><button>Send</button></form>
<script>addEventListener('dragover', e => e.preventDefault()); addEventListener('drop', e => { e.preventDefault(); const f = e.dataTransfer.files[0]; f && f.text().then(x => { window.dropped = x }) })</script>`))
	mux.HandleFunc("POST /upload", func(w http.ResponseWriter, r *http.Request) {
		file, header, err := r.FormFile("file")
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		defer file.Close() // only read
		content, err := io.ReadAll(io.LimitReader(file, 1<<20))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		l.mu.Lock()
		l.uploads = append(l.uploads, string(content))
		l.mu.Unlock()
		page(fmt.Sprintf("<p id=got>%s %d</p>", header.Filename, len(content)))(w, r)
	})
	mux.HandleFunc("GET /downloads", page(`<a id=report href=/report.bin download>report</a>`))
	mux.HandleFunc("GET /report.bin", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("Content-Disposition", `attachment; filename="report.bin"`)
		content := make([]byte, 100_000)
		for i := range content {
			content[i] = byte(i % 251)
		}
		_, _ = w.Write(content) // the browser may have left
	})
	mux.HandleFunc("GET /frames", page(`<h1>frames</h1><iframe src=/inner></iframe>`))
	mux.HandleFunc("GET /inner", page(`<p id=inner>inside</p><button onclick="document.querySelector('#inner').textContent='clicked'">press</button>`))
	mux.HandleFunc("GET /document.pdf", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/pdf")
		_, _ = io.WriteString(w, "%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj 2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj "+
			"3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 10 10]>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF")
	})
	mux.HandleFunc("GET /documents", page(`<embed src=/document.pdf type=application/pdf><iframe src=/document.pdf></iframe><iframe src=/inner></iframe>`))
	mux.HandleFunc("GET /echo", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Header.Get("Cookie")) })
	rotate := func(w http.ResponseWriter) {
		http.SetCookie(w, &http.Cookie{Name: "lab_rotated", Value: l.Rotated, Path: "/", HttpOnly: true})
	}
	mux.HandleFunc("GET /rotate", func(w http.ResponseWriter, r *http.Request) { rotate(w); page("<h1>rotated</h1>")(w, r) })
	mux.HandleFunc("GET /redirect", func(w http.ResponseWriter, r *http.Request) {
		rotate(w)
		http.Redirect(w, r, "/account", http.StatusFound)
	})
	mux.HandleFunc("GET /ws", func(w http.ResponseWriter, r *http.Request) {
		rotate(w)
		if c, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true}); err == nil {
			_ = c.Close(websocket.StatusNormalClosure, "") // it was about the handshake
		}
	})
	// A page that repeats what it was sent wherever browsers keep things.
	mux.HandleFunc("GET /kept", func(w http.ResponseWriter, r *http.Request) {
		http.SetCookie(w, &http.Cookie{Name: "lab_rotated", Value: l.Rotated, Path: "/", HttpOnly: true, MaxAge: 3600})
		w.Header().Set("Cache-Control", "max-age=3600")
		page(fmt.Sprintf(`<p id=sent>%s</p><script>
const sent = document.querySelector('#sent').textContent
localStorage.setItem('sent', sent); sessionStorage.setItem('sent', sent); history.pushState({sent}, '')
document.title = 'kept'</script>`, r.Header.Get("Cookie")))(w, r)
	})
	// These paths repeat the cookies and a text that is no secret behind them: as a text, as a page and in messages.
	mux.HandleFunc("GET /repeated", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.Header.Get("Cookie"), "; text=", r.FormValue("text"))
	})
	mux.HandleFunc("GET /repeated/page", func(w http.ResponseWriter, r *http.Request) {
		text := html.EscapeString(r.Header.Get("Cookie") + "; text=" + r.FormValue("text"))
		page(fmt.Sprintf(`<p title="%[1]s">%[1]s</p><a href="/?%[1]s">link</a>`, text))(w, r)
	})
	mux.HandleFunc("GET /repeated/messages", func(w http.ResponseWriter, r *http.Request) {
		size, _ := strconv.Atoi(r.FormValue("size")) // none is one
		c, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
		if err != nil {
			return
		}
		for text := r.Header.Get("Cookie") + "; text=" + r.FormValue("text"); text != ""; {
			n := min(max(size, 1), len(text))
			_ = c.Write(r.Context(), websocket.MessageText, []byte(text[:n])) // the page may have left
			text = text[n:]
		}
		_ = c.Close(websocket.StatusNormalClosure, "")
	})
	mux.HandleFunc("GET /sw.js", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Type", "text/javascript") })
	l.Server = httptest.NewServer(mux)
	t.Cleanup(l.Server.Close)
	return l
}

// knows says whether a request comes from alice.
func (l *Lab) knows(r *http.Request) bool {
	c, err := r.Cookie("lab_session")
	return err == nil && c.Value == l.Secret
}

// Port is where it listens.
func (l *Lab) Port() int { return l.Server.Listener.Addr().(*net.TCPAddr).Port }

// URL is an address of the lab as jails know it.
func (l *Lab) URL(path string) string { return fmt.Sprintf("http://%s:%d%s", labHost, l.Port(), path) }

// Settings let jails reach the lab.
func (l *Lab) Settings() string {
	return fmt.Sprintf("gateway:\n  private_destinations:\n    - {host: %s, address: 127.0.0.1, ports: [%d]}\n", labHost, l.Port())
}

// State is alice's login as a storage state of Playwright.
func (l *Lab) State() string {
	cookie := func(name, value string) string {
		return fmt.Sprintf(`{"name":%q,"value":%q,"domain":%q,"path":"/","expires":-1,"httpOnly":true,"secure":false,"sameSite":"Lax"}`,
			name, value, labHost)
	}
	return fmt.Sprintf(`{"origins":[],"cookies":[%s,%s]}`, cookie("lab_session", l.Secret), cookie("lab_odd", l.Odd))
}

// Visits is how often alice's account was shown.
func (l *Lab) Visits() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.accounts
}

// Uploaded is everything that was sent to the lab, in one text.
func (l *Lab) Uploaded() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.uploads, "\n")
}

// Page serves one HTML page on loopback and returns the settings that let jails reach it, and its address.
func Page(t *testing.T, html string) (settings, address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = io.WriteString(w, html)
	})}
	go func() { _ = server.Serve(l) }() // ends with Close
	t.Cleanup(func() { _ = server.Close() })
	port := l.Addr().(*net.TCPAddr).Port
	settings = fmt.Sprintf("gateway:\n  private_destinations:\n    - host: page.clawjail.test\n      address: 127.0.0.1\n      ports: [%d]\n", port)
	return settings, fmt.Sprintf("http://page.clawjail.test:%d/", port)
}
