//go:build unix

package session

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	protocol "github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/target"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/cdp/cdptest"
	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/internal/vault"
	"github.com/clawjail/clawjail/internal/weblogin"
)

// applications keep a login where web applications do: by the name of their domain, keep stores what a login has answered
// (access, refresh, expires), and have returns it, or nothing. The layouts are those of the libraries that are named.
var applications = map[string]struct {
	keep, have string
	// cookies says that the login is known by its cookies alone, and left that a record is named and not carried.
	cookies, left bool
}{
	"token": {keep: `localStorage.login = JSON.stringify(l)`, have: `return localStorage.login && JSON.parse(localStorage.login)`},
	"firebase": { // Firebase Authentication, persistence of the browser
		keep: `await put('firebaseLocalStorageDb', 1, 'firebaseLocalStorage', { keyPath: 'fbase_key' }, { fbase_key: 'firebase:authUser:AIzaKey:[DEFAULT]', value: { uid: 'u1', email: 'ann@example.com',
			stsTokenManager: { refreshToken: l.refresh, accessToken: l.access, expirationTime: l.expires }, providerData: [], lastLoginAt: String(Date.now()) } })`,
		have: `const r = await get('firebaseLocalStorageDb', 'firebaseLocalStorage', 'firebase:authUser:AIzaKey:[DEFAULT]')
			return r && { access: r.value.stsTokenManager.accessToken, refresh: r.value.stsTokenManager.refreshToken, expires: r.value.stsTokenManager.expirationTime }`},
	"auth0": { // auth0-spa-js, cacheLocation: localstorage
		keep: `localStorage['@@auth0spajs@@::client1::https://api.test::openid offline_access'] = JSON.stringify({ body: { access_token: l.access, refresh_token: l.refresh, token_type: 'Bearer' }, expiresAt: l.expires / 1000 })
			localStorage['@@auth0spajs@@::client1::@@user@@'] = JSON.stringify({ id_token: 'e30.e30.', decodedToken: { user: { name: 'ann' } } }); document.cookie = 'auth0.client1.is.authenticated=true; secure'`,
		have: `const c = localStorage['@@auth0spajs@@::client1::https://api.test::openid offline_access']; if (!c || !document.cookie.includes('is.authenticated')) return
			const { body, expiresAt } = JSON.parse(c); return { access: body.access_token, refresh: body.refresh_token, expires: expiresAt * 1000 }`},
	"supabase": { // supabase-js
		keep: `localStorage['sb-abcdefgh-auth-token'] = JSON.stringify({ access_token: l.access, refresh_token: l.refresh, expires_at: l.expires / 1000, token_type: 'bearer', user: { id: 'u1' } })`,
		have: `const c = localStorage['sb-abcdefgh-auth-token']; if (!c) return
			const s = JSON.parse(c); return { access: s.access_token, refresh: s.refresh_token, expires: s.expires_at * 1000 }`},
	"msal": { // msal-browser 4: localStorage is encrypted, and the key is in a cookie of the session
		keep: `const key = await crypto.subtle.generateKey({ name: 'AES-GCM', length: 256 }, true, ['encrypt', 'decrypt']), id = crypto.randomUUID()
			document.cookie = 'msal.cache.encryption=' + encodeURIComponent(JSON.stringify({ id, key: bytes(await crypto.subtle.exportKey('raw', key)) })) + '; secure; samesite=none; path=/'
			const nonce = crypto.getRandomValues(new Uint8Array(12)), data = await crypto.subtle.encrypt({ name: 'AES-GCM', iv: nonce }, key, new TextEncoder().encode(JSON.stringify(l)))
			localStorage['u1.t1-login.test-refreshtoken-client1----'] = JSON.stringify({ id, nonce: bytes(nonce), data: bytes(data), lastUpdatedAt: String(Date.now()) })
			localStorage['msal.token.keys.client1'] = JSON.stringify({ refreshToken: ['u1.t1-login.test-refreshtoken-client1----'] })`,
		have: `const cookie = document.cookie.split('; ').find((c) => c.startsWith('msal.cache.encryption=')), c = localStorage['u1.t1-login.test-refreshtoken-client1----']; if (!cookie || !c) return
			const { id, nonce, data } = JSON.parse(c), held = JSON.parse(decodeURIComponent(cookie.split('=')[1])); if (held.id !== id) return
			const key = await crypto.subtle.importKey('raw', Uint8Array.fromBase64(held.key), 'AES-GCM', false, ['decrypt'])
			return JSON.parse(new TextDecoder().decode(await crypto.subtle.decrypt({ name: 'AES-GCM', iv: Uint8Array.fromBase64(nonce) }, key, Uint8Array.fromBase64(data))))`},
	"exported": { // a key in IndexedDB that can be exported, and what it opens in localStorage
		keep: `const key = await crypto.subtle.generateKey({ name: 'AES-GCM', length: 256 }, true, ['encrypt', 'decrypt']), iv = crypto.getRandomValues(new Uint8Array(12))
			await put('keys', 2, 'keys', {}, { key, iv }, 'login')
			localStorage.sealed = bytes(await crypto.subtle.encrypt({ name: 'AES-GCM', iv }, key, new TextEncoder().encode(JSON.stringify(l))))`,
		have: `const k = await get('keys', 'keys', 'login'); if (!k || !localStorage.sealed) return
			return JSON.parse(new TextDecoder().decode(await crypto.subtle.decrypt({ name: 'AES-GCM', iv: k.iv }, k.key, Uint8Array.fromBase64(localStorage.sealed))))`},
	"fixed": { // the login is a cookie, and a key that cannot be exported seals a cache that is made again
		cookies: true, left: true,
		keep: `await put('cache', 1, 'keys', {}, { key: await crypto.subtle.generateKey({ name: 'AES-GCM', length: 256 }, false, ['encrypt']) }, 'cache')`,
		have: `await get('cache', 'keys', 'cache') ?? await put('cache', 1, 'keys', {}, { key: await crypto.subtle.generateKey({ name: 'AES-GCM', length: 256 }, false, ['encrypt']) }, 'cache'); return { cookie: true }`},
	"worker": { // a service worker adds the header, from IndexedDB
		keep: `await put('session', 1, 'tokens', {}, { ...l, expires: new Date(l.expires) }, 'current')`,
		have: `const r = await get('session', 'tokens', 'current'); if (!r) return
			await navigator.serviceWorker.register('/sw.js'); await navigator.serviceWorker.ready
			if (!navigator.serviceWorker.controller) await new Promise((ok) => navigator.serviceWorker.oncontrollerchange = ok)
			return { worker: true, refresh: r.refresh, expires: r.expires.getTime(), access: r.access }`},
	"cognito": { // AWS Amplify
		keep: `const at = 'CognitoIdentityServiceProvider.client1.'; localStorage[at + 'LastAuthUser'] = 'ann@example.com'
			for (const [k, v] of Object.entries({ accessToken: l.access, refreshToken: l.refresh, clockDrift: '0', signInDetails: '{}' })) localStorage[at + 'ann@example.com.' + k] = v
			localStorage.expires = l.expires`,
		have: `const at = 'CognitoIdentityServiceProvider.client1.', user = localStorage[at + 'LastAuthUser']; if (!user) return
			return { access: localStorage[at + user + '.accessToken'], refresh: localStorage[at + user + '.refreshToken'], expires: Number(localStorage.expires) }`},
	"redux": { // redux-persist: JSON within JSON, and a token that goes with a cookie
		keep: `document.cookie = 'csrf=' + l.access.slice(-12) + '; secure; max-age=9999999'; localStorage['persist:root'] = JSON.stringify({ auth: JSON.stringify({ ...l, csrf: l.access.slice(-12) }), theme: '"dark"', _persist: '{"version":1}' })`,
		have: `const r = localStorage['persist:root']; if (!r) return
			const l = JSON.parse(JSON.parse(r).auth); return document.cookie.includes('csrf=' + l.csrf) ? l : undefined`},
	"forage": { // localForage, with a Blob and a Map
		keep: `await put('localforage', 2, 'keyvaluepairs', {}, new Blob([JSON.stringify(l)], { type: 'application/json' }), 'login'); await put('localforage', 2, 'keyvaluepairs', {}, new Map([['when', new Date()]]), 'meta')`,
		have: `const b = await get('localforage', 'keyvaluepairs', 'login'), m = await get('localforage', 'keyvaluepairs', 'meta'); return b && m.get('when') instanceof Date && JSON.parse(await b.text())`},
}

// application is the page of each: it signs in at /#login, and says in its title who is signed in.
const application = `<!doctype html><script>
Date.now = ((f) => () => f() + SHIFT)(Date.now)
const bytes = (b) => new Uint8Array(b.buffer ?? b).toBase64()
const done = (r) => new Promise((ok, no) => { r.onsuccess = () => ok(r.result); r.onerror = () => no(r.error) })
async function put(name, version, store, options, value, key) {
	const r = indexedDB.open(name, version)
	r.onupgradeneeded = () => r.result.createObjectStore(store, options)
	const db = await done(r)
	await done(db.transaction(store, 'readwrite').objectStore(store).put(value, key))
	db.close()
}
async function get(name, store, key) {
	if (!(await indexedDB.databases()).some((d) => d.name === name)) return
	const db = await done(indexedDB.open(name))
	const value = await done(db.transaction(store).objectStore(store).get(key))
	db.close()
	return value
}
async function keep(l) { KEEP }
async function have() { HAVE }
(async () => {
	if (location.hash === '#login') await keep(await (await fetch('/login', { method: 'POST' })).json())
	let l = await have()
	if (l && l.refresh && l.expires < Date.now()) { // after a while a new access token is asked for
		const r = await fetch('/token', { method: 'POST', body: l.refresh })
		if (r.ok) { await keep(await r.json()); l = await have() }
	}
	const r = l && await fetch('/me', { headers: l.worker || l.cookie ? {} : { Authorization: 'Bearer ' + l.access } })
	document.title = r && r.ok ? 'signed in as ' + await r.text() : 'sign in'
})().catch((e) => document.title = 'failed: ' + e)
</script>`

// addsHeader is the service worker.
const addsHeader = `oninstall = () => skipWaiting(); onactivate = (e) => e.waitUntil(clients.claim())
const done = (r) => new Promise((ok, no) => { r.onsuccess = () => ok(r.result); r.onerror = () => no(r.error) })
onfetch = (e) => { if (new URL(e.request.url).pathname === '/me') e.respondWith((async () => {
	const db = await done(indexedDB.open('session')), l = await done(db.transaction('tokens').objectStore('tokens').get('current'))
	db.close()
	return fetch('/me', { headers: { Authorization: 'Bearer ' + l.access } })
})()) }`

// backend is the server of all applications, with a clock of its own, and the proxy before it.
type backend struct {
	proxy *httptest.Server
	later atomic.Int64 // how much it is later than it is

	mu     sync.Mutex
	access map[string]time.Time // until when they are good; tokens and cookies
	fresh  map[string]bool      // refresh tokens
}

func newBackend(t *testing.T) *backend {
	t.Helper()
	b := &backend{access: map[string]time.Time{}, fresh: map[string]bool{}}
	site := httptest.NewTLSServer(b)
	t.Cleanup(site.Close)
	b.proxy = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		to, err := net.Dial("tcp", site.Listener.Addr().String())
		if r.Method != http.MethodConnect || err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		defer to.Close()
		from, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		defer from.Close()
		_, _ = io.WriteString(from, "HTTP/1.1 200 OK\r\n\r\n") // the browser that has gone asks for nothing more
		go func() { _, _ = io.Copy(to, from); to.Close() }()
		_, _ = io.Copy(from, to)
	}))
	t.Cleanup(b.proxy.Close)
	return b
}

func (b *backend) now() time.Time { return time.Now().Add(time.Duration(b.later.Load())) }

// tokens are those of a login, with an access token that is good for an hour.
func (b *backend) tokens() map[string]any {
	b.mu.Lock()
	defer b.mu.Unlock()
	access, refresh, until := "eyJhbGciOiJub25lIn0.e30."+rand.Text(), "refresh-"+rand.Text(), b.now().Add(time.Hour)
	b.access[access], b.fresh[refresh] = until, true
	return map[string]any{"access": access, "refresh": refresh, "expires": until.UnixMilli()}
}

func (b *backend) good(access string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.now().Before(b.access[access])
}

func (b *backend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	app := applications[strings.TrimSuffix(strings.TrimPrefix(r.Host, "www."), ".test")]
	switch r.URL.Path {
	case "/":
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, strings.NewReplacer("SHIFT", fmt.Sprint(b.later.Load()/int64(time.Millisecond)), "KEEP", app.keep, "HAVE", app.have).Replace(application))
	case "/sw.js":
		w.Header().Set("Content-Type", "text/javascript")
		_, _ = io.WriteString(w, addsHeader)
	case "/login", "/token":
		body, _ := io.ReadAll(r.Body)
		b.mu.Lock()
		known := b.fresh[string(body)]
		b.mu.Unlock()
		if r.URL.Path == "/token" && !known {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		tokens := b.tokens()
		if app.cookies {
			sid := rand.Text()
			b.mu.Lock()
			b.access[sid] = b.now().Add(90 * 24 * time.Hour)
			b.mu.Unlock()
			http.SetCookie(w, &http.Cookie{Name: "sid", Value: sid, HttpOnly: true, Secure: true, MaxAge: 90 * 24 * 3600})
		}
		_ = json.NewEncoder(w).Encode(tokens)
	case "/me":
		sid, _ := r.Cookie("sid")
		if !b.good(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")) && (sid == nil || !b.good(sid.Value)) {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = io.WriteString(w, "ann")
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

// shown opens an address in a new context, or in one that there is, and waits until its page says who is signed in.
func shown(t *testing.T, b *piped, id, address string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience*30*time.Second)
	defer cancel()
	root := b.conn.Browser()
	made, err := cdp.Do(ctx, root, target.CreateTarget, target.CreateTargetParams{URL: "about:blank", BrowserContextID: protocol.BrowserContextID(id)})
	if err != nil {
		t.Fatal(err)
	}
	tab := made.TargetID
	session, err := root.Attach(ctx, tab)
	if err != nil {
		t.Fatal(err)
	}
	if opened, err := cdp.Do(ctx, session, page.Navigate, page.NavigateParams{URL: address}); err != nil || opened.ErrorText != "" {
		t.Fatal(opened.ErrorText, err)
	}
	title := ""
	testenv.Eventually(t, 20*time.Second, func() bool {
		info, err := cdp.Do(ctx, root, target.GetTargetInfo, target.GetTargetInfoParams{TargetID: tab})
		if err != nil {
			t.Fatal(err)
		}
		title = info.TargetInfo.Title
		return strings.HasPrefix(title, "sign") || strings.HasPrefix(title, "failed")
	}, "the page says who is signed in")
	if _, err := cdp.Do(ctx, root, target.CloseTarget, target.CloseTargetParams{TargetID: tab}); err != nil {
		t.Error(err)
	}
	return title
}

// A login of each kind of application is carried by the vault to fresh browsers, and is good there a day later. The control
// is a browser with the cookies alone.
func TestApplicationsKnowALoginOfTheVaultADayLater(t *testing.T) {
	back := newBackend(t)
	path, dir := testenv.Chromium(t), cdptest.Dir(t)
	process := cdptest.Start(t, []string{path, "--remote-debugging-pipe", "--user-data-dir=" + dir, "--disable-gpu", "--disable-software-rasterizer",
		"--disable-background-networking", "--incognito", "--site-per-process", "--proxy-server=" + back.proxy.URL, "--proxy-bypass-list=<-loopback>",
		"--ignore-certificate-errors", "about:blank"}, []string{"HOME=" + dir, "TMPDIR=" + dir, "PATH=/usr/bin:/bin", "LANG=C.UTF-8"})
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience*2*time.Minute)
	defer cancel()
	dialed, err := dial(ctx, &jail.Stdio{In: process.Commands, Out: process.Replies}, browser.DialogWait)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dialed.Close(); err != nil {
			t.Error(err)
		}
	})
	b := dialed.(*piped)
	a := &accounts{fixture: newFixture(t)}
	a.openStore(t)
	const signedIn = "signed in as ann"
	for name, app := range applications {
		t.Run(name, func(t *testing.T) {
			back.later.Store(0)
			domain, origin := name+".test", "https://www."+name+".test"
			fresh := func() string {
				id, end, err := emptyJar(ctx, b)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if err := end(); err != nil {
						t.Error(err)
					}
				})
				return id
			}
			login := fresh()
			if got := shown(t, b, login, origin+"/#login"); got != signedIn {
				t.Fatalf("after the login it says %q", got)
			}
			jar, err := b.Cookies(ctx, login)
			if err != nil {
				t.Fatal(err)
			}
			stored, err := b.Stored(ctx, login, []string{origin})
			if err != nil {
				t.Fatal(err)
			}
			set, err := a.vault.PutCookies(ctx, vault.NewCookies{Tenant: store.DefaultTenant, Domain: domain, Cookies: jar, Origins: stored})
			if err != nil {
				t.Fatal(err)
			}
			if left := len(set.Storage) == 1 && len(set.Storage[0].LeftOut) > 0; left != app.left {
				t.Errorf("it is kept as %+v", set.Storage)
			}
			for _, days := range []int{0, 1} {
				back.later.Store(int64(time.Duration(days) * 24 * time.Hour))
				id, alone := fresh(), fresh()
				err := a.vault.UseLogin(ctx, store.DefaultTenant, domain, func(l weblogin.Login) error {
					if err := putLogin(ctx, b, id, []string{domain}, l, time.Now()); err != nil {
						return err
					}
					return put(ctx, b, alone, []string{domain}, l.Cookies, time.Now())
				})
				if err != nil {
					t.Fatal(err)
				}
				if got := shown(t, b, id, origin+"/"); got != signedIn {
					t.Errorf("after %d days it says %q", days, got)
				}
				if got := shown(t, b, alone, origin+"/"); (got == signedIn) != app.cookies {
					t.Errorf("after %d days, with the cookies alone, it says %q", days, got)
				}
			}
			cookies.Wipe(jar)
			weblogin.WipeOrigins(stored)
		})
	}
}
