//go:build linux

package console

import (
	"crypto/rand"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// The names under which jails reach the site that people log in to, and the one that its pages load pictures from.
const (
	portalHost   = "portal.example.org"
	portalDomain = "example.org"
	portalCDN    = "cdn.example.com"
)

// portal is a site with a login in two steps, and pages with everything that a browser draws by itself. Whatever a person
// does in it is at a fixed place of the page, since a person who watches a picture knows places alone; and every page says
// in its title what became of it.
type portal struct {
	server *httptest.Server
	// password and code are what alice logs in with; session and remember are the values of her cookies.
	password, code, session, remember string

	mu       sync.Mutex
	over     bool // nobody is logged in any more
	pictures int
	uploads  []string
}

func newPortal(t *testing.T) *portal {
	t.Helper()
	number, err := rand.Int(rand.Reader, big.NewInt(1_000_000))
	if err != nil {
		t.Fatal(err)
	}
	p := &portal{password: "portal-pw-" + rand.Text(), code: fmt.Sprintf("%06d", number), session: "portalsession" + rand.Text(), remember: "portalremember" + rand.Text()}
	mux := http.NewServeMux()
	for path, page := range p.pages() {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			fmt.Fprint(w, strings.NewReplacer("{port}", fmt.Sprint(p.port())).Replace(page))
		})
	}
	p.login(mux)
	p.rest(mux)
	p.server = httptest.NewServer(mux)
	t.Cleanup(p.server.Close)
	return p
}

func (p *portal) port() int { return p.server.Listener.Addr().(*net.TCPAddr).Port }

// url is an address of the site as jails know it.
func (p *portal) url(path string) string {
	return fmt.Sprintf("http://%s:%d%s", portalHost, p.port(), path)
}

// settings let jails reach the site, and say how its login is known.
func (p *portal) settings() string {
	return fmt.Sprintf("logins:\n  - {domain: %s, urls: [\"http://%s:*/login*\"]}\ngateway:\n  private_destinations:\n    - {host: %s, address: 127.0.0.1, ports: [%d]}\n    - {host: %s, address: 127.0.0.1, ports: [%d]}\n",
		portalDomain, portalHost, portalHost, p.port(), portalCDN, p.port())
}

// login is the way of alice: a password, a second factor, and two cookies.
func (p *portal) login(mux *http.ServeMux) {
	to := func(w http.ResponseWriter, r *http.Request, path string) {
		http.Redirect(w, r, path, http.StatusSeeOther)
	}
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) { to(w, r, "/login") })
	mux.HandleFunc("POST /login", func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("user") != "alice" || r.FormValue("password") != p.password {
			to(w, r, "/login?wrong")
			return
		}
		http.SetCookie(w, &http.Cookie{Name: "portal_first", Value: "1", Path: "/", HttpOnly: true})
		to(w, r, "/second")
	})
	mux.HandleFunc("POST /second", func(w http.ResponseWriter, r *http.Request) {
		if _, err := r.Cookie("portal_first"); err != nil || r.FormValue("code") != p.code {
			to(w, r, "/second?wrong")
			return
		}
		p.mu.Lock()
		p.over = false
		p.mu.Unlock()
		http.SetCookie(w, &http.Cookie{Name: "portal_first", Path: "/", MaxAge: -1})
		http.SetCookie(w, &http.Cookie{Name: "portal_session", Value: p.session, Path: "/", HttpOnly: true, SameSite: http.SameSiteLaxMode})
		http.SetCookie(w, &http.Cookie{Name: "portal_remember", Value: p.remember, Path: "/", MaxAge: 30 * 86400})
		to(w, r, "/account")
	})
	mux.HandleFunc("GET /account", func(w http.ResponseWriter, r *http.Request) {
		c, err := r.Cookie("portal_session")
		p.mu.Lock()
		in := err == nil && c.Value == p.session && !p.over
		p.mu.Unlock()
		if !in {
			to(w, r, "/login")
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		fmt.Fprintf(w, `<!doctype html><title>account of alice</title><h1>Hello alice</h1><img src="http://%s:%d/picture.png" onload="document.title='account of alice, with picture'">`, portalCDN, p.port())
	})
}

// rest are the things that pages load, send and save.
func (p *portal) rest(mux *http.ServeMux) {
	mux.HandleFunc("GET /picture.png", func(w http.ResponseWriter, _ *http.Request) {
		p.mu.Lock()
		p.pictures++
		p.mu.Unlock()
		picture := image.NewRGBA(image.Rect(0, 0, 8, 8))
		picture.Set(1, 1, color.Black)
		w.Header().Set("Content-Type", "image/png")
		_ = png.Encode(w, picture) // the browser may have left
	})
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
		p.mu.Lock()
		p.uploads = append(p.uploads, header.Filename+" "+string(content))
		p.mu.Unlock()
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		fmt.Fprint(w, "<!doctype html><title>uploaded ", header.Filename, "</title>")
	})
	mux.HandleFunc("GET /report.txt", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Disposition", `attachment; filename="report.txt"`)
		fmt.Fprint(w, "the report")
	})
	mux.HandleFunc("GET /basic", func(w http.ResponseWriter, r *http.Request) {
		if user, password, ok := r.BasicAuth(); !ok || user != "bob" || password != "builder" {
			w.Header().Set("WWW-Authenticate", `Basic realm="the back office"`)
			w.Header().Set("Content-Type", "text/html")
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, "<!doctype html><title>not let in</title>")
			return
		}
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, "<!doctype html><title>let in as bob</title>")
	})
}

// logOut ends alice's login on the side of the site.
func (p *portal) logOut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
}

// uploaded is what was sent to the site.
func (p *portal) uploaded() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.uploads, "\n")
}

// head begins every page. The rows of a page are 60 pixels high, and what is in them is at the left: row 0 is at y = 100.
const head = `<!doctype html><meta charset=utf-8><style>body{margin:0;background:#fff} .at{position:absolute;left:50px;width:300px;height:40px;box-sizing:border-box;font:16px sans-serif}</style>`

// at is an element in a row.
func at(row int, tag, attributes, content string) string {
	end := "</" + tag + ">"
	if tag == "input" {
		end = ""
	}
	return fmt.Sprintf(`<%s class=at style="top:%dpx" %s>%s%s`, tag, 80+60*row, attributes, content, end)
}

func scripted(text string) string { return "<script>" + text + "</script>" }

// pages are those that are always the same.
func (p *portal) pages() map[string]string {
	const told = `const tell=()=>{document.title=[...document.querySelectorAll('input')].map(i=>i.type==='password'?i.value.length:i.value).join('|');const n=[...document.querySelectorAll('input')].indexOf(document.activeElement);if(n>=0)document.title+=' @'+n};for(const e of ['input','focusin'])addEventListener(e,tell);`
	return map[string]string{
		"/login": head + "<title>log in</title><form method=post action=/login>" + at(0, "input", "name=user", "") + at(1, "input", "name=password type=password", "") +
			at(2, "button", "", "Log in") + "</form>" + scripted(told),
		"/second": head + "<title>second factor</title><form method=post action=/second>" + at(0, "input", "name=code inputmode=numeric", "") + at(1, "button", "", "Go on") + "</form>" + scripted(told),
		"/fields": head + "<title>fields</title>" + at(0, "input", "", "") + at(1, "input", "type=password", "") + scripted(told),
		"/keys": head + "<title>keys</title>" + at(0, "textarea", "", "") + scripted(`
const area=document.querySelector('textarea');let last='';
const tell=()=>{document.title=JSON.stringify(area.value)+' '+last+(document.activeElement===area?' @0':'')};
addEventListener('keydown',e=>{last=(e.ctrlKey?'C-':'')+(e.altKey?'A-':'')+(e.metaKey?'M-':'')+(e.shiftKey?'S-':'')+e.key+(e.repeat?' again':'');tell()});
addEventListener('keyup',e=>{if(['Shift','Control','Alt','q'].includes(e.key)){last+=' up:'+e.key;tell()}});
addEventListener('paste',e=>{last='paste';tell()});
for(const e of ['input','focusin'])addEventListener(e,tell)`),
		"/boxes": head + "<title>boxes</title>" + at(0, "input", "", "") + at(1, "input", "", "") + at(2, "input", "", "") + scripted(`
const boxes=[...document.querySelectorAll('input')];
boxes.forEach((b,i)=>{b.maxLength=2;b.addEventListener('paste',e=>{e.preventDefault();[...e.clipboardData.getData('text')].forEach((c,k)=>{if(boxes[i+k])boxes[i+k].value=c})})});`+told),
		"/dialogs": head + "<title>dialogs</title>" +
			at(0, "button", `onclick="alert('hear <b>this</b>');document.title='alerted'"`, "alert") +
			at(1, "button", `onclick="document.title='confirmed '+confirm('really?')"`, "confirm") +
			at(2, "button", `onclick="document.title='prompted '+prompt('your name?','nobody')"`, "prompt") +
			at(3, "button", `onclick="onbeforeunload=e=>{e.preventDefault();return 'x'};document.title='staying'"`, "stay"),
		"/files":       head + "<title>files</title><form method=post enctype=multipart/form-data action=/upload>" + at(0, "input", `type=file name=file onchange="this.form.submit()"`, "") + "</form>" + at(1, "a", "href=/report.txt download", "report"),
		"/selects":     head + "<title>selects</title>" + at(0, "select", `onchange="document.title='chose '+this.value"`, "<option>red<option>green<option>blue") + fmt.Sprintf(`<iframe style="position:absolute;left:0;top:200px;width:600px;height:300px;border:0" src="http://%s:{port}/selectframe"></iframe>`, portalCDN) + scripted(`addEventListener('message',e=>{document.title='framed '+e.data})`),
		"/selectframe": head + at(0, "select", `onchange="parent.postMessage(this.value,'*')"`, "<option>north<option>south") + scripted("parent.postMessage('ready','*')"),
		"/scroll":      head + `<title>scroll</title><div style="height:4000px">tall</div>` + scripted(`addEventListener('scroll',()=>{document.title='scrolled '+(scrollY>0)})`),
		"/mark":        head + "<title>mark</title>" + scripted("document.cookie='portal_mark=1'"),
		"/still":       head + "<title>still</title><p>nothing moves here",
		"/hostile": head + "<title>hostile</title>" + at(0, "button", `onclick="attack()"`, "attack") + scripted(`
onclick=()=>{};
async function attack(){
  document.title='<img src=x onerror=document.title="got">'.repeat(40);
  for(let n=0;n<30;n++) window.open('about:blank','w'+n,'width=100,height=100');
  try{ moveTo(0,0); resizeTo(5000,5000); }catch{}
  try{ await Promise.race([document.documentElement.requestFullscreen(),new Promise(y=>setTimeout(y,1000))]); }catch{}
  try{ top.document.title='got'; opener.document.title='got'; }catch{}
  document.title='attacked';
  for(let n=0;n<5;n++) alert('storm '+n);
  document.title='stormed';
}`),
	}
}
