//go:build unix

package browser

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	protocol "github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/cdproto/target"

	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/internal/weblogin"
)

// storing is an origin with entries: names and values in turn.
func storing(origin string, pairs ...string) weblogin.Origin {
	o := weblogin.Origin{Origin: origin}
	for n := 0; n+1 < len(pairs); n += 2 {
		o.Local = append(o.Local, weblogin.Item{Name: pairs[n], Value: secret.New([]byte(pairs[n+1]))})
	}
	return o
}

// outside is the proxy of a browser: it writes down what comes, and answers with a page.
type outside struct {
	*httptest.Server
	mu   sync.Mutex
	came []string
}

func newOutside(t testing.TB, pages map[string]string) *outside {
	t.Helper()
	o := &outside{}
	o.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		o.mu.Lock()
		o.came = append(o.came, r.Method+" "+r.Host+" "+r.URL.Path)
		o.mu.Unlock()
		if strings.HasSuffix(r.URL.Path, ".js") {
			w.Header().Set("Content-Type", "text/javascript")
		} else {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
		}
		if r.Method == http.MethodConnect {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		io.WriteString(w, pages[r.URL.Path])
	}))
	t.Cleanup(o.Close)
	return o
}

func (o *outside) requests() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.came)
}

// telling is a page that says in its title what it has when its first script runs.
const telling = `<script>document.title = JSON.stringify(Object.entries(localStorage).sort())</script>`

func mustStore(t testing.TB, b *Browser, id string, list ...weblogin.Origin) {
	t.Helper()
	back, err := b.Store(within(t, 20*time.Second), id, list)
	if err != nil {
		t.Fatal(err)
	}
	if bad := weblogin.Compare(list, back); len(bad) > 0 {
		t.Errorf("put in and not kept: %q", bad)
	}
}

func mustRead(t testing.TB, b *Browser, id string, origins ...string) string {
	t.Helper()
	list, err := b.Stored(within(t, 20*time.Second), id, origins)
	if err != nil {
		t.Fatal(err)
	}
	return string(weblogin.EncodeOrigins(list))
}

// Storage of an account is there when the first script of the site runs; until then the site is asked for nothing.
func TestStorageIsThereBeforeTheFirstDocumentOfASite(t *testing.T) {
	eachBuild(t, func(t *testing.T, build Build) {
		o := newOutside(t, map[string]string{"/": telling})
		b := open(t, build, o.URL)
		app := storing("http://app.example.com", "token", planted+"token", "ü 😀", "line\nNUL\x00\"\\<", "", "empty name", "empty", "")
		port, secure := storing("http://example.com:8080", "token", "of another port"), storing("https://secure.example.com", "token", "of https")
		mustStore(t, b, "", app, port, secure)
		// A full Chromium connects ahead where no policy forbids it, as those of a jail do (NetworkPredictionOptions).
		came := slices.DeleteFunc(o.requests(), func(r string) bool { return build == Full && strings.HasPrefix(r, "CONNECT ") })
		if len(came) > 0 {
			t.Errorf("the sites were asked: %q", came)
		}
		if tabs := do[TabsResult](t, b, Tabs{}).Tabs; len(tabs) != 1 || tabs[0].URL != blank || tabs[0].TabID != "t1" {
			t.Errorf("the tabs are %+v", tabs)
		}
		for address, want := range map[string]string{
			"http://app.example.com/":      `[["","empty name"],["empty",""],["token","value-of-token"],["ü 😀","line\nNUL\u0000\"\\<"]]`,
			"http://example.com:8080/":     `[["token","of another port"]]`,
			"http://other.example.com/":    `[]`,
			"http://app.example.com:8080/": `[]`,
			"http://example.com/":          `[]`,
			"http://secure.example.com/":   `[]`,
			"http://example.org/":          `[]`,
		} {
			if got := do[Result](t, b, Navigate{URL: address}); got.Title != want {
				t.Errorf("%s sees %s, want %s", address, got.Title, want)
			}
		}
		if got := mustRead(t, b, "", "https://secure.example.com", "http://example.org"); got != `[{"origin":"https://secure.example.com","localStorage":[{"name":"token","value":"of https"}]}]` {
			t.Errorf("https has %s", got)
		}
		if got := mustRead(t, b, newContext(t, b), "http://app.example.com"); got != "[]" {
			t.Errorf("another context has %s", got)
		}
	})
}

// A page that was opened ahead is used by the next who needs one in its context, and closed by one who needs another.
func TestAPageThatIsOpenedAheadIsUsedOnce(t *testing.T) {
	o := newOutside(t, map[string]string{"/": telling})
	b := openOwn(t, Shell, o.URL)
	pages := func() (n int) {
		t.Helper()
		list, err := cdp.Do(within(t, 10*time.Second), b.conn.Browser(), target.GetTargets, target.GetTargetsParams{Filter: pagesOnly()})
		if err != nil {
			t.Fatal(err)
		}
		return len(list.TargetInfos)
	}
	one, another := newContext(t, b), newContext(t, b)
	before := pages()
	const origin = "http://example.com"
	for n, ahead := range []struct{ context, origin string }{{one, origin}, {one, "http://app.example.com"}, {another, origin}, {one, "nonsense"}} {
		b.Prepare(ahead.context, ahead.origin)
		b.Prepare(ahead.context, ahead.origin) // there is one
		value := fmt.Sprintf("of %d", n)
		mustStore(t, b, one, storing(origin, "token", value))
		if got := mustRead(t, b, one, origin); !strings.Contains(got, value) {
			t.Errorf("stored is %s", got)
		}
		testenv.Eventually(t, 10*time.Second, func() bool { return pages() == before }, "no page of ours is left")
	}
	b.Prepare("", origin)
	testenv.Eventually(t, 10*time.Second, func() bool { return pages() == before+1 }, "a page is opened ahead")
	if tabs := must[TabsResult](t, b, Tabs{}).Tabs; len(tabs) != before {
		t.Errorf("it is a tab: %+v", tabs)
	}
	mustStore(t, b, "", storing(origin, "token", "x"))
	if got := o.requests(); len(got) > 0 {
		t.Errorf("the network was asked: %q", got)
	}
	b.Prepare("", origin) // nobody uses it: it ends with the browser
}

// The pages of our own are no tabs, whatever is opened at the same time.
func TestReadingWhatIsStoredOpensNoTab(t *testing.T) {
	eachBuild(t, func(t *testing.T, build Build) {
		o := newOutside(t, map[string]string{"/": telling, "/frames": `<iframe src="http://login.example.com/"></iframe><iframe src="http://ads.test/"></iframe>`})
		b := open(t, build, o.URL)
		do[Result](t, b, Navigate{URL: "http://example.com/frames"})
		var reading sync.WaitGroup
		reading.Go(func() {
			for range 5 {
				mustRead(t, b, "", "http://example.com")
			}
		})
		for n := range 5 {
			do[OpenTabResult](t, b, OpenTab{URL: fmt.Sprintf("http://example.com/%d", n), NewTab: true})
		}
		reading.Wait()
		var handles []string
		for _, tab := range do[TabsResult](t, b, Tabs{}).Tabs {
			handles = append(handles, tab.TabID)
		}
		if !slices.Equal(handles, []string{"t1", "t2", "t3", "t4", "t5", "t6"}) {
			t.Errorf("the tabs are %q", handles)
		}
		// A page that a person looks at is drawn as before.
		mustRead(t, b, "", "http://example.com")
		drawn := must[EvalResult](t, b, Eval{Await: true, JS: "Promise.race([new Promise(ok => requestAnimationFrame(() => ok('drawn'))), new Promise(ok => setTimeout(ok, 5000, 'not drawn'))])"})
		if drawn.Value != "drawn" {
			t.Errorf("the tab is %v", drawn.Value)
		}
		got, err := b.Origins(within(t, 5*time.Second))
		if want := []string{"http://example.com", "http://login.example.com"}; err != nil || !slices.Equal(got, want) {
			t.Errorf("visited were %q, %v; want %q", got, err, want)
		}
	})
}

// A service worker answers for its site. It is not asked when what is stored is read.
func TestWhatIsStoredIsReadPastServiceWorkers(t *testing.T) {
	o := newOutside(t, map[string]string{"/": "<title>page</title>",
		"/sw.js": `onactivate = e => e.waitUntil(clients.claim()); oninstall = () => skipWaiting();
			onfetch = e => e.respondWith(new Response("<script>localStorage.seen = 'by a script of the site'</script>", {headers: {"Content-Type": "text/html"}}))`})
	b := open(t, Shell, o.URL)
	do[Result](t, b, Navigate{URL: "http://localhost/"})
	read(t, b, "(localStorage.token = 't', navigator.serviceWorker.register('/sw.js'), 0)")
	becomes(t, b, "!!navigator.serviceWorker.controller", "true")
	before := len(o.requests())
	for range 2 {
		if got := mustRead(t, b, "", "http://localhost"); got != `[{"origin":"http://localhost","localStorage":[{"name":"token","value":"t"}]}]` {
			t.Errorf("it has %s", got)
		}
	}
	if came := o.requests(); len(came) != before {
		t.Errorf("the site was asked: %q", came[before:])
	}
	// The control: with a page as others open it, the worker answers, and its script runs.
	do[Result](t, b, Navigate{URL: "http://localhost/"})
	if got := mustRead(t, b, "", "http://localhost"); !strings.Contains(got, "by a script of the site") {
		t.Errorf("it has %s", got)
	}
}

// everyKind makes a database with a record for each kind of value that structured clone has.
const everyKind = `(async () => {
	const done = (r) => new Promise((ok, no) => { r.onsuccess = () => ok(r.result); r.onerror = () => no(r.error) })
	const r = indexedDB.open('all ü', 7)
	r.onupgradeneeded = () => {
		r.result.createObjectStore('keys')
		r.result.createObjectStore('path', { keyPath: 'id' }).createIndex('by', ['a', 'b.c'], { unique: true })
		r.result.createObjectStore('auto', { autoIncrement: true, keyPath: 'n' }).createIndex('tags', 'tags', { multiEntry: true })
		r.result.createObjectStore('two', { keyPath: ['a', 'b'] })
		r.result.createObjectStore('empty')
	}
	const db = await done(r)
	const circle = { list: [1] }
	circle.self = circle; circle.list.push(circle.list)
	const shared = { a: 1 }
	const keys = crypto.subtle ? await crypto.subtle.generateKey({ name: 'ECDSA', namedCurve: 'P-256' }, true, ['sign', 'verify']) : 'none'
	const aes = crypto.subtle ? await crypto.subtle.generateKey({ name: 'AES-GCM', length: 256 }, true, ['encrypt', 'decrypt']) : 'none'
	const fixed = crypto.subtle ? await crypto.subtle.generateKey({ name: 'AES-GCM', length: 256 }, false, ['encrypt', 'decrypt']) : 'none'
	const values = { plain: { a: [1, 'x', null, true, { b: -1.5 }] }, undef: undefined, nul: null, nan: [NaN, Infinity, -Infinity, -0], big: 2n ** 80n, date: new Date(1234567890123),
		nodate: new Date(NaN), regexp: /a\/b"[\n]/giu, error: Object.assign(new TypeError('bad "thing"')), buffer: new Uint8Array([0, 1, 255]).buffer, bytes: new Uint8Array([1, 2, 3]),
		clamped: new Uint8ClampedArray([1]), floats: new Float64Array([1.5, NaN]), halves: new Float16Array([1.5]), bigs: new BigInt64Array([-1n]), part: new Uint16Array(new ArrayBuffer(8), 2, 2),
		view: new DataView(new ArrayBuffer(4), 1, 2), map: new Map([[{ k: 1 }, new Set(['a', 2, undefined])], ['m', new Map()]]), blob: new Blob(['bl\0ob'], { type: 'text/x' }),
		file: new File(['fi'], 'n ü.txt', { type: 'a/b', lastModified: 5 }), half: 'a\ud800b', proto: JSON.parse('{"__proto__":1,"constructor":2}'), sparse: [, 1, ,], circle, shared: [shared, shared],
		ref: { ref: 1, v: 'null', d: 'x', o: [] }, keys, aes }
	let t = db.transaction(['keys', 'path', 'auto', 'two'], 'readwrite')
	for (const [k, v] of Object.entries(values)) t.objectStore('keys').put(v, k)
	t.objectStore('keys').put('date', new Date(5)); t.objectStore('keys').put('list', [1, ['a', new Uint8Array([1])]]); t.objectStore('keys').put('binary', new Uint8Array([9]))
	t.objectStore('keys').put('minus', -Infinity); t.objectStore('keys').put({ canary: 'only with its key', fixed }, 'fixed')
	t.objectStore('path').put({ id: 1, a: 1, b: { c: new Date(7) } })
	t.objectStore('auto').put({ tags: ['x', 'y'] }); t.objectStore('auto').put({ n: 41, tags: [] })
	t.objectStore('two').put({ a: 1, b: 'b', c: 3n })
	await new Promise((ok, no) => { t.oncomplete = ok; t.onabort = () => no(t.error) })
	db.close()
	const other = await done(indexedDB.open('bare', 3)); other.close()
	return String(!!crypto.subtle)
})()`

// describing tells what is in the databases of a page, value by value, by other code than the browser's own.
const describing = `(async () => {
	const done = (r) => new Promise((ok, no) => { r.onsuccess = () => ok(r.result); r.onerror = () => no(r.error) })
	const tell = async (v, seen = []) => {
		if (typeof v === 'string') return JSON.stringify([...v].map((c) => c.codePointAt(0)))
		if (typeof v !== 'object' || v === null) return typeof v + ':' + (Object.is(v, -0) ? '-0' : String(v))
		if (seen.includes(v)) return 'again ' + seen.indexOf(v)
		seen.push(v)
		const kind = Object.prototype.toString.call(v)
		if (v instanceof Date) return kind + v.getTime()
		if (v instanceof RegExp) return String(v)
		if (v instanceof Error) return kind + v.name + v.message + v.stack
		if (v instanceof ArrayBuffer) return kind + new Uint8Array(v)
		if (ArrayBuffer.isView(v)) return kind + new Uint8Array(v.buffer.slice(v.byteOffset, v.byteOffset + v.byteLength))
		if (v instanceof Blob) return kind + v.type + v.name + v.lastModified + new Uint8Array(await v.arrayBuffer())
		if (globalThis.CryptoKey && v instanceof CryptoKey) return kind + v.extractable + (v.extractable && JSON.stringify(await crypto.subtle.exportKey('jwk', v))) + v.usages + JSON.stringify(v.algorithm)
		const out = []
		for (const [k, one] of v instanceof Map ? v : v instanceof Set ? [...v].entries() : Object.entries(v)) out.push(await tell(k, seen) + '=' + await tell(one, seen))
		return kind + v.length + '{' + out + '}'
	}
	const out = []
	for (const { name, version } of (await indexedDB.databases()).sort((a, b) => a.name < b.name ? -1 : 1)) {
		const db = await done(indexedDB.open(name))
		out.push(name + ' ' + version)
		for (const s of db.objectStoreNames) {
			const store = db.transaction(s).objectStore(s)
			const [keys, values] = await Promise.all([done(store.getAllKeys()), done(store.getAll())])
			out.push(' ' + s + ' ' + JSON.stringify(store.keyPath) + store.autoIncrement)
			for (const i of store.indexNames) { const x = db.transaction(s).objectStore(s).index(i); out.push('  index ' + i + JSON.stringify(x.keyPath) + x.unique + x.multiEntry + await done(x.count())) }
			for (const n in keys) out.push('  ' + await tell(keys[n]) + ': ' + await tell(values[n]))
			if (store.autoIncrement) {
				const t = db.transaction(s, 'readwrite')
				out.push('  next ' + await done(t.objectStore(s).add({ tags: [] })))
				t.abort()
			}
		}
		db.close()
	}
	return out.join('\n')
})()`

// Every kind of value comes into another browser context as it was. A key that cannot be exported is named, with its record.
func TestDatabasesAreCarriedAsTheyWere(t *testing.T) {
	eachBuild(t, func(t *testing.T, build Build) {
		o := newOutside(t, map[string]string{"/": telling})
		b := open(t, build, o.URL)
		for _, address := range []string{"http://localhost/", "http://example.com/"} { // with and without crypto.subtle
			carried(t, b, address)
		}
	})
}

// carried carries databases of every kind from a page to another context.
func carried(t *testing.T, b *Browser, address string) {
	t.Helper()
	do[Result](t, b, Navigate{URL: address})
	secure := evaluated(t, b, everyKind)
	want := evaluated(t, b, describing)
	origin := strings.TrimSuffix(address, "/")
	list, err := b.Stored(within(t, 20*time.Second), "", []string{origin})
	if err != nil || len(list) != 1 || len(list[0].Databases) != 2 {
		t.Fatalf("%s has %+v, %v", origin, list, err)
	}
	if secure == "true" {
		if left := list[0].Left; len(left) != 1 || left[0] != "a record of the database all ü, keys, with a CryptoKey that cannot be exported" {
			t.Errorf("left out is %q", left)
		}
		lines := strings.Split(want, "\n")
		want = strings.Join(slices.DeleteFunc(lines, func(l string) bool { return strings.Contains(l, "[object CryptoKey]false") }), "\n")
	}
	weighed, err := b.Weigh(within(t, 20*time.Second), "", []string{origin, "http://nothing.example.com"})
	described := weblogin.Describe(list)[0]
	if err != nil || len(weighed) != 1 || weighed[0].Databases != 2 || weighed[0].Records < described.Records || weighed[0].Records > described.Records+1 {
		t.Errorf("it weighs %+v, and is %+v, %v", weighed, described, err)
	}
	// As it is kept in between.
	kept, err := weblogin.Decode(weblogin.Encode(weblogin.Login{Origins: list}))
	if err != nil {
		t.Fatal(err)
	}
	other := newContext(t, b)
	mustStore(t, b, other, kept.Origins...)
	back, err := b.Stored(within(t, 20*time.Second), other, []string{origin})
	if err != nil || !slices.EqualFunc(back[0].Databases, list[0].Databases, func(x, y weblogin.Database) bool { return x.JSON.Equal(y.JSON) }) {
		t.Errorf("%s: read again it is another one: %v", origin, err)
	}
	if got := evaluatedIn(t, b, other, address, describing); got != want {
		t.Errorf("%s: it became\n%s\nand was\n%s", origin, got, want)
	}
}

// evaluated is the text that an expression comes to in the current tab.
func evaluated(t *testing.T, b *Browser, expression string) string {
	t.Helper()
	out := must[EvalResult](t, b, Eval{Await: true, JS: expression})
	text, ok := out.Value.(string)
	if !ok {
		t.Fatalf("it is %+v", out)
	}
	return text
}

// evaluatedIn evaluates something in a page of a context.
func evaluatedIn(t *testing.T, b *Browser, id, address, expression string) string {
	t.Helper()
	ctx := within(t, 20*time.Second)
	made, err := cdp.Do(ctx, b.conn.Browser(), target.CreateTarget, target.CreateTargetParams{URL: blank, BrowserContextID: protocol.BrowserContextID(id)})
	if err != nil {
		t.Fatal(err)
	}
	tab := made.TargetID
	session, err := b.conn.Browser().Attach(ctx, tab)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cdp.Do(ctx, session, page.Navigate, page.NavigateParams{URL: address}); err != nil {
		t.Fatal(err)
	}
	await, byValue := true, true
	out, err := cdp.Do(ctx, session, runtime.Evaluate, runtime.EvaluateParams{Expression: expression, AwaitPromise: &await, ReturnByValue: &byValue})
	if err != nil || out.ExceptionDetails != nil {
		t.Fatalf("%v, %+v", err, out.ExceptionDetails)
	}
	var text string
	if err := cdp.Decode(out.Result.Value, &text); err != nil {
		t.Fatal(err)
	}
	if _, err := cdp.Do(ctx, b.conn.Browser(), target.CloseTarget, target.CloseTargetParams{TargetID: tab}); err != nil {
		t.Error(err)
	}
	return text
}

// database is one with a store, whose records are JSON.
func database(name string, version int, records string) string {
	return fmt.Sprintf(`{"name":%q,"version":%d,"stores":[{"name":"s","autoIncrement":false,"indexes":[{"name":"i","keyPath":"a","multiEntry":false,"unique":true}],"records":[%s]}]}`, name, version, records)
}

func withDatabases(t testing.TB, list ...string) weblogin.Origin {
	t.Helper()
	o, err := weblogin.DecodeOrigin([]byte(`{"origin":"http://example.com","localStorage":[],"indexedDB":[` + strings.Join(list, ",") + `]}`))
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestDatabasesThatABrowserDoesNotTakeAreRefused(t *testing.T) {
	o := newOutside(t, map[string]string{"/": telling})
	b := open(t, Shell, o.URL)
	for name, test := range map[string]struct{ database, says string }{
		"two with one unique value": {database("d", 1, `{"key":1,"value":{"a":1,"b":"`+planted+`"}},{"key":2,"value":{"a":1}}`), "the database d is not taken (ConstraintError)"},
		"a key that is none":        {database("d", 1, `{"key":true,"value":"`+planted+`"}`), "the database d is not taken (DataError)"},
		"a key twice":               {database("d", 1, `{"key":1,"value":"`+planted+`"},{"key":1,"value":2}`), "the database d is not taken (ConstraintError)"},
		"a kind that is not known":  {database("d", 1, `{"key":1,"valueEncoded":{"zz":"`+planted+`"}}`), "has a value of a kind that is not known"},
		"damaged base64":            {database("d", 1, `{"key":1,"valueEncoded":{"ab":{"b":"`+planted+`"}}}`), "the database d is not taken (SyntaxError)"},
		"an address":                {database("d", 1, `{"key":1,"valueEncoded":{"u":"https://`+planted+`/"}}`), "has an address (URL)"},
		"a key of no kind":          {database("d", 1, `{"key":1,"valueEncoded":{"ck":{"k":{"kty":"oct","k":"`+planted+`"},"a":{"o":[{"k":"name","v":"NONE"}],"id":1},"u":[]}}}`), "the database d is not taken ("},
	} {
		back, err := b.Store(within(t, 20*time.Second), newContext(t, b), []weblogin.Origin{withDatabases(t, test.database)})
		if problem.CodeOf(err) != problem.BadStorage || back != nil || !strings.Contains(err.Error(), test.says) || strings.Contains(fmt.Sprintf("%+v", err), planted) {
			t.Errorf("%s: %+v", name, err)
		}
	}
	id := newContext(t, b)
	good := withDatabases(t, database("d", 3, `{"key":1,"value":{"a":1}},{"keyEncoded":{"d":"2026-11-27T00:00:00.000Z"},"valueEncoded":{"o":[{"k":"a","v":{"bi":"5"}}],"id":1}}`))
	mustStore(t, b, id, good)
	for version, says := range map[int]string{3: "the database d was there before", 4: "the database d was there before", 2: "the database d is there in version 3, which is newer than 2"} {
		_, err := b.Store(within(t, 20*time.Second), id, []weblogin.Origin{withDatabases(t, database("d", version, ""))})
		if problem.CodeOf(err) != problem.BadStorage || !strings.Contains(err.Error(), says) {
			t.Errorf("version %d: %v", version, err)
		}
	}
}

// A database that is too large to be kept is named and left out, whole.
func TestDatabasesBeyondTheirBoundsAreNamedAndLeftOut(t *testing.T) {
	o := newOutside(t, map[string]string{"/": telling})
	b := open(t, Shell, o.URL)
	do[Result](t, b, Navigate{URL: "http://example.com/"})
	must[EvalResult](t, b, Eval{Await: true, JS: fmt.Sprintf(`(async () => {
		const fill = (name, n, value) => new Promise((ok) => { const r = indexedDB.open(name); r.onupgradeneeded = () => { const s = r.result.createObjectStore('s'); for (let i = 0; i < n; i++) s.put(value, i) }
			r.onsuccess = () => { r.result.close(); ok() } })
		await fill('large', 3, 'x'.repeat(4 << 20)); await fill('many', %d, 1); await fill('good', 1, 'y')
		for (let n = 10; n < 62; n++) await fill('small' + n, 1, 1)
		window.busy = await new Promise((ok) => { const r = indexedDB.open('busy'); r.onupgradeneeded = () => r.result.createObjectStore('s'); r.onsuccess = () => ok(r.result) })
		const t = busy.transaction('s', 'readwrite'), again = () => { t.objectStore('s').get(1).onsuccess = again }; again() // a transaction that never ends
	})()`, weblogin.MaxRecords+1)})
	list, err := b.Stored(within(t, 60*time.Second), "", []string{"http://example.com"})
	if err != nil || len(list) != 1 || len(list[0].Databases) != weblogin.MaxDatabases || list[0].Databases[0].Name != "good" ||
		!slices.Equal(list[0].Left, []string{"a database beyond those that are kept, 3 times", "the database busy, which is in use", "the database large, which has 13 MB",
			"the database many, which has 10001 records"}) {
		t.Errorf("it has %v, %v", weblogin.Describe(list), err)
	}
}

func TestStorageThatABrowserDoesNotTakeIsRefused(t *testing.T) {
	eachBuild(t, func(t *testing.T, build Build) {
		b := open(t, build, deadAddress(t))
		large := strings.Repeat(planted, 3<<20/len(planted))
		back, err := b.Store(within(t, 20*time.Second), newContext(t, b), []weblogin.Origin{storing("http://example.com", "a", large, "b", large)})
		if problem.CodeOf(err) != problem.BadStorage || back != nil || strings.Contains(fmt.Sprintf("%+v", err), planted) {
			t.Errorf("too much together: %v", err)
		}
		// And the browser is as good as before.
		mustStore(t, b, "", storing("http://example.com", "a", large), storing("http://example.org", "token", planted))
		if _, err := b.Stored(within(t, 20*time.Second), "0123456789ABCDEF", []string{"http://example.com"}); err == nil {
			t.Error("a context that is not there is read")
		}
	})
}

func TestWhatIsNoTextIsNamedAndLeftOut(t *testing.T) {
	o := newOutside(t, map[string]string{"/": telling})
	b := open(t, Shell, o.URL)
	do[Result](t, b, Navigate{URL: "http://example.com/"})
	read(t, b, `(localStorage.half = 'a\ud800', localStorage['b\udc00'] = 'c', localStorage.whole = '😀', 0)`)
	list, err := b.Stored(within(t, 20*time.Second), "", []string{"http://example.com"})
	if err != nil || len(list) != 1 || len(list[0].Local) != 1 || list[0].Local[0].Name != "whole" ||
		!slices.Equal(list[0].Left, []string{"an entry of localStorage that is no text in Unicode, 2 times"}) {
		t.Errorf("it has %+v, %v", list, err)
	}
}

func TestStorageOfABrowserThatIsGone(t *testing.T) {
	b := openOwn(t, Shell, deadAddress(t))
	mustStore(t, b, "", storing("http://example.com", "a", planted))
	if err := b.Close(within(t, 10*time.Second)); err != nil {
		t.Fatal(err)
	}
	_, err := b.Store(within(t, 10*time.Second), "", []weblogin.Origin{storing("http://example.com", "a", planted)})
	if problem.CodeOf(err) != problem.BrowserExited || strings.Contains(fmt.Sprintf("%+v", err), planted) {
		t.Errorf("it is %v", err)
	}
}

// BenchmarkStore is what an origin with 20 entries takes to be put in and read back.
func BenchmarkStore(b *testing.B) {
	shell := open(b, Shell, deadAddress(b))
	o := weblogin.Origin{Origin: "https://app.example.com"}
	for n := range 20 {
		o.Local = append(o.Local, weblogin.Item{Name: fmt.Sprint("entry", n), Value: secret.New([]byte(strings.Repeat("v", 100*n)))})
	}
	for b.Loop() {
		back, err := shell.Store(b.Context(), "", []weblogin.Origin{o})
		if err != nil || len(weblogin.Compare([]weblogin.Origin{o}, back)) > 0 {
			b.Fatal(err)
		}
	}
}
