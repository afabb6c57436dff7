//go:build unix

package guard

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/testenv"
)

// escapes are commands that leave what a session is for, by the mode in which they must not work. Those with a session
// run on a page.
func escapes() (anyMode, operator [][2]string) {
	anyMode = [][2]string{
		{"Target.setRemoteLocations", `{"locations":[{"host":"127.0.0.1","port":1}]}`},
		{"Tethering.bind", `{"port":19876}`}, {"Extensions.loadUnpacked", `{"path":"/tmp"}`}, {"SystemInfo.getInfo", `{}`},
		{"Browser.getBrowserCommandLine", `{}`}, {"Browser.crash", `{}`}, {"Browser.executeBrowserCommand", `{"commandId":"openTabSearch"}`},
		{"Target.createBrowserContext", `{"proxyServer":"http://127.0.0.1:1"}`},
		{"Target.createBrowserContext", `{"proxyBypassList":"*"}`},
		{"Target.createBrowserContext", `{"originsWithUniversalNetworkAccess":["http://a.test"]}`},
		{"Target.createTarget", `{"url":"file:///etc/passwd"}`}, {"Target.createTarget", `{"url":"about:blank","hidden":true}`},
		{"Target.createTarget", `{"url":"chrome://version"}`}, {"Target.setAutoAttach", `{"autoAttach":true,"waitForDebuggerOnStart":false}`},
		{"Fetch.enable", `{}`}, {"Tracing.start", `{"perfettoConfig":"AAAA"}`}, {"Tracing.start", `{"tracingBackend":"system"}`},
		{"Runtime.evaluate", `{"expression":"1","somethingNew":true}`},
	}
	operator = [][2]string{
		{"Target.createBrowserContext", `{}`}, {"Storage.setCookies", `{"cookies":[]}`}, {"Storage.clearCookies", `{}`},
		{"Tracing.start", `{}`}, {"Network.setCookie", `{"name":"sid","value":"x","url":"http://127.0.0.1"}`},
	}
	return anyMode, operator
}

func TestWhatLeavesTheSessionIsRefused(t *testing.T) {
	eachBuild(t, func(t *testing.T, program string, flags ...string) {
		_, mux := open(t, program, flags...)
		for _, mode := range []Mode{Clean, Operator} {
			u := guarded(t, mux, Options{Mode: mode})
			commands, more := escapes()
			if mode == Operator {
				commands = append(commands, more...)
			}
			target, session := u.page("")
			for _, c := range commands {
				if m := u.call("", c[0], c[1]); m.Error == nil || !strings.Contains(m.Error.Message, "is not allowed in this session: ") {
					t.Errorf("%s %s answered %s %+v", c[0], c[1], m.Result, m.Error)
				}
			}
			for _, c := range [][2]string{
				{"Target.exposeDevToolsProtocol", fmt.Sprintf(`{"targetId":%q}`, target)},
				{"Target.sendMessageToTarget", fmt.Sprintf(`{"targetId":%q,"message":"{}"}`, target)},
				{"Target.openDevTools", fmt.Sprintf(`{"targetId":%q}`, target)},
				{"Target.attachToTarget", fmt.Sprintf(`{"targetId":%q,"flatten":false}`, target)},
				{"Target.attachToTarget", fmt.Sprintf(`{"targetId":%q}`, target)},
				{"Target.detachFromTarget", fmt.Sprintf(`{"targetId":%q}`, target)},
			} {
				if m := u.call("", c[0], c[1]); m.Error == nil || !strings.Contains(m.Error.Message, "is not allowed in this session: ") {
					t.Errorf("%s answered %s %+v", c[0], m.Result, m.Error)
				}
			}
			for _, url := range []string{"file:///etc/passwd", "FILE:///etc/passwd", " \tfi\nle:///etc/passwd", "view-source:file:///etc/passwd",
				"chrome://version", "about:version", "about:blank/../x", "devtools://devtools/bundled/inspector.html", "javascript:alert(1)",
				"blob:file:///x", "filesystem:http://a/temporary/x", "chrome-extension://x/y", "\x01file:///etc/passwd", "/etc/passwd"} {
				m := u.call(session, "Page.navigate", fmt.Sprintf(`{"url":%s}`, quoted(url)))
				if m.Error == nil || !strings.Contains(m.Error.Message, "is not an address of the web") {
					t.Errorf("navigate to %q answered %s %+v", url, m.Result, m.Error)
				}
			}
			// The command line of the console is not there, and the browser stays when a client closes it.
			if got := u.evaluate(session, `typeof getEventListeners`); got != "undefined" {
				t.Error("a script has the console's command line")
			}
			m := u.call(session, "Runtime.evaluate", `{"expression":"typeof getEventListeners","include\u0043ommandLineAPI":true}`)
			if got := findText(find([]byte(m.Result), "result"), "value"); got != "undefined" {
				t.Errorf("with an escape in the name a script has the console's command line: %s", m.Result)
			}
			if m := u.call("", "Browser.close", `{}`); m.Error != nil || string(m.Result) != "{}" {
				t.Errorf("Browser.close answered %+v", m)
			}
			u.must("", "Browser.getVersion", `{}`)
		}
	})
}

func TestAFileIsGivenByItsNameAmongTheSessions(t *testing.T) {
	eachBuild(t, func(t *testing.T, program string, flags ...string) {
		_, mux := open(t, program, flags...)
		s := newSite(t)
		folder := writable(t, "report.pdf")
		u := guarded(t, mux, Options{Mode: Operator, File: func(name string) (string, bool) {
			return filepath.Join(folder, name), name == "report.pdf"
		}})
		_, session := u.page("")
		u.must(session, "Page.enable", `{}`)
		u.must(session, "Page.navigate", fmt.Sprintf(`{"url":%q}`, s.URL+"/"))
		u.event("Page.loadEventFired")
		u.must(session, "DOM.enable", `{}`)
		root := find(find([]byte(u.must(session, "DOM.getDocument", `{}`)), "root"), "nodeId")
		node := find([]byte(u.must(session, "DOM.querySelector", fmt.Sprintf(`{"nodeId":%s,"selector":"input"}`, root))), "nodeId")
		for _, name := range []string{"/etc/passwd", "../passwd", "report.pdf/..", "report.pdf/", "."} {
			m := u.call(session, "DOM.setFileInputFiles", fmt.Sprintf(`{"nodeId":%s,"files":["report.pdf",%q]}`, node, name))
			if m.Error == nil || !strings.Contains(m.Error.Message, "the session has no file") || !strings.Contains(m.Error.Message, "Put it into") {
				t.Errorf("%q answered %+v", name, m.Error)
			}
			m = u.call(session, "Input.dispatchDragEvent", fmt.Sprintf(
				`{"type":"dragEnter","x":1,"y":1,"data":{"items":[],"files":[%q],"dragOperationsMask":1}}`, name))
			if m.Error == nil || !strings.Contains(m.Error.Message, "the session has no file") {
				t.Errorf("a drag of %q answered %+v", name, m.Error)
			}
		}
		// Puppeteer makes a path of its own machine of every name.
		u.must(session, "DOM.setFileInputFiles", fmt.Sprintf(`{"nodeId":%s,"files":["/home/somebody/report.pdf"]}`, node))
		if got := u.evaluate(session, `document.querySelector('input').files[0].text()`); got != "content of report.pdf" {
			t.Errorf("the page reads %q", got)
		}
		if found := u.has(folder); len(found) > 0 {
			t.Errorf("the folder is named in %v", found)
		}
	})
}

// An address that no page took when it was dropped was opened in a new tab: in the shell, also a file.
func TestADroppedAddressOpensNoFile(t *testing.T) {
	eachBuild(t, func(t *testing.T, program string, flags ...string) {
		_, mux := open(t, program, flags...)
		s := newSite(t)
		u, all := guarded(t, mux, Options{Mode: Clean}), join(t, mux, nil)
		_, session := u.page("")
		drop := func(kind, address string) {
			for _, step := range []string{"dragEnter", "dragOver", "drop"} {
				u.must(session, "Input.dispatchDragEvent", fmt.Sprintf(
					`{"type":%q,"x":100,"y":100,"data":{"items":[{"mimeType":%q,"data":%s,"baseURL":"file:///"}],"dragOperationsMask":19}}`, step, kind, quoted(address)))
			}
		}
		for _, address := range []string{"file:///etc/passwd", " FI\nLE:///etc/passwd", "view-source:file:///etc/passwd", "chrome://version",
			"http://127.0.0.1:1/\r\nfile:///etc/passwd", "#\r\nfile:///etc/passwd", "javascript:1", "filesystem:file:///temporary/x"} {
			for _, kind := range []string{"text/uri-list", "Text/URI-List", "text/uri-list;charset=utf-8", "text/plain", "URL", "text/x-moz-url"} {
				drop(kind, address)
			}
		}
		// An address that may be opened still is, after all the others.
		drop("text/uri-list", s.URL+"/dropped")
		targets := ""
		testenv.Eventually(t, patience, func() bool {
			targets = string(all.must("", "Target.getTargets", `{}`))
			return strings.Contains(targets, s.URL+"/dropped")
		}, "the page of the web in its tab")
		for _, never := range []string{`"file:`, `"view-source:`, `"chrome://version`, "blocked"} {
			if strings.Contains(targets, never) {
				t.Errorf("there is %s in %s", never, targets)
			}
		}
	})
}

func TestADownloadGoesToTheSessionsFolder(t *testing.T) {
	eachBuild(t, func(t *testing.T, program string, flags ...string) {
		_, mux := open(t, program, flags...)
		s := newSite(t)
		folder, elsewhere := writable(t), writable(t)
		u := guarded(t, mux, Options{Mode: Operator, DownloadsPath: folder})
		for _, behavior := range []string{"allow", "deny", "default", "allowAndName"} {
			u.must("", "Browser.setDownloadBehavior", fmt.Sprintf(`{"behavior":%q,"downloadPath":%q,"eventsEnabled":true}`, behavior, elsewhere))
		}
		_, session := u.page("")
		u.must(session, "Page.enable", `{}`)
		u.must(session, "Page.setDownloadBehavior", fmt.Sprintf(`{"behavior":"allow","downloadPath":%q}`, elsewhere))
		u.must(session, "Page.navigate", fmt.Sprintf(`{"url":%q}`, s.URL+"/"))
		u.event("Page.loadEventFired")
		u.evaluate(session, `document.querySelector('a').click()`)
		begin := u.event("Browser.downloadWillBegin")
		if got := findText([]byte(begin.Params), "suggestedFilename"); got != "report.txt" {
			t.Errorf("the client is told of %q", got)
		}
		u.until("the end of the download", func(m message) bool {
			return m.Method == "Browser.downloadProgress" && findText([]byte(m.Params), "state") == "completed"
		})
		guid := findText([]byte(begin.Params), "guid")
		testenv.Eventually(t, patience, func() bool {
			data, err := os.ReadFile(filepath.Join(folder, guid))
			return err == nil && string(data) == "report"
		}, "the download under the name that the browser made up")
		if left, err := os.ReadDir(elsewhere); err != nil || len(left) > 0 {
			t.Errorf("in the client's folder is %v, %v", left, err)
		}
		if found := u.has(folder); len(found) > 0 {
			t.Errorf("the folder is named in %v", found)
		}
	})
}

func TestClientsDoNotSeeEachOthersContexts(t *testing.T) {
	eachBuild(t, func(t *testing.T, program string, flags ...string) {
		_, mux := open(t, program, flags...)
		s := newSite(t)
		for _, separate := range []bool{false, true} { // with registries that know nothing of each other the control is off
			registry := NewRegistry()
			other := Options{Mode: Clean, Registry: registry}
			if separate {
				other.Registry = NewRegistry()
			}
			one, two := guarded(t, mux, Options{Mode: Clean, Registry: registry}), guarded(t, mux, other)
			two.must("", "Target.setDiscoverTargets", `{"discover":true,"filter":[{}]}`)
			two.must("", "Target.setAutoAttach", `{"autoAttach":true,"waitForDebuggerOnStart":true,"flatten":true}`)
			context := findText([]byte(one.must("", "Target.createBrowserContext", `{"disposeOnDetach":false}`)), "browserContextId")
			target, session := one.page(context)
			one.must(session, "Page.enable", `{}`)
			if !separate {
				// The page runs although the other client's wish holds every new page.
				one.must(session, "Page.navigate", fmt.Sprintf(`{"url":%q}`, s.URL+"/"))
				one.event("Page.loadEventFired")
			}
			two.must("", "Target.getTargets", `{}`)
			two.must("", "Target.getBrowserContexts", `{}`)
			seen := len(two.has(context)) + len(two.has(target))
			if separate != (seen > 0) {
				t.Errorf("separate registries %v: the other client saw the context in %v and the target in %v", separate,
					two.has(context), two.has(target))
			}
			if separate {
				continue
			}
			for _, c := range [][2]string{
				{"Target.attachToTarget", fmt.Sprintf(`{"targetId":%q,"flatten":true}`, target)},
				{"Target.closeTarget", fmt.Sprintf(`{"targetId":%q}`, target)},
				{"Target.getTargetInfo", fmt.Sprintf(`{"targetId":%q}`, target)},
				{"Target.disposeBrowserContext", fmt.Sprintf(`{"browserContextId":%q}`, context)},
				{"Target.createTarget", fmt.Sprintf(`{"url":"about:blank","browserContextId":%q}`, context)},
				{"Storage.getCookies", fmt.Sprintf(`{"browserContextId":%q}`, context)},
				{"Browser.setDownloadBehavior", fmt.Sprintf(`{"behavior":"deny","browserContextId":%q}`, context)},
				{"Browser.grantPermissions", fmt.Sprintf(`{"permissions":["midi"],"browserContextId":%q}`, context)},
			} {
				if m := two.call("", c[0], c[1]); m.Error == nil || strings.Contains(m.Error.Message, "not allowed") {
					t.Errorf("%s answered %s %+v", c[0], m.Result, m.Error)
				}
			}
			// Targets that the first client made go with it, whatever it asked for.
			one.client.Close()
			three := guarded(t, mux, Options{Mode: Clean, Registry: registry})
			if got := string(three.must("", "Target.getBrowserContexts", `{}`)); strings.Contains(got, context) {
				t.Errorf("the context is still there: %s", got)
			}
			if len(registry.contexts) > 0 || len(registry.pending) > 0 {
				t.Errorf("the registry still knows %v", registry.contexts)
			}
		}
	})
}

func TestAStreamIsReadByWhomItWasGiven(t *testing.T) {
	_, mux := open(t, shell(t))
	one, two := guarded(t, mux, Options{Mode: Operator}), guarded(t, mux, Options{Mode: Operator})
	target, session := one.page("")
	two.must("", "Target.getTargets", `{}`)
	other := two.attach(target)
	stream := findText([]byte(one.must(session, "Page.printToPDF", `{"transferMode":"ReturnAsStream"}`)), "stream")
	read := fmt.Sprintf(`{"handle":%q}`, stream)
	for _, c := range []string{"IO.read", "IO.close"} {
		if m := two.call(other, c, read); m.Error == nil || m.Error.Message != "Invalid stream handle" {
			t.Errorf("another client's %s answered %s %+v", c, m.Result, m.Error)
		}
	}
	if m := one.call(session, "IO.read", `{"handle":"blob:x"}`); m.Error == nil {
		t.Error("a blob was read")
	}
	if data := findText([]byte(one.must(session, "IO.read", read)), "data"); len(data) < 100 {
		t.Errorf("the stream has %q", data)
	}
	one.must(session, "IO.close", read)
	if m := one.call(session, "IO.read", read); m.Error == nil {
		t.Error("a closed stream was read")
	}
	// Without the guard anybody on the page reads it: the handles are small numbers.
	stream = findText([]byte(one.must(session, "Page.printToPDF", `{"transferMode":"ReturnAsStream"}`)), "stream")
	open := join(t, mux, nil)
	if m := open.call(open.attach(target), "IO.read", fmt.Sprintf(`{"handle":%q}`, stream)); m.Error != nil {
		t.Errorf("without the guard: %s", m.Error.Message)
	}
}

func TestChallengesOfAServerAreTheClientsAndThoseOfAProxyNobodys(t *testing.T) {
	_, mux := open(t, shell(t))
	s := newSite(t)
	u := guarded(t, mux, Options{Mode: Operator})
	_, session := u.page("")
	u.must(session, "Fetch.enable", `{"handleAuthRequests":true}`)
	u.onEvent = func(m message) {
		if m.Method == "Fetch.requestPaused" {
			u.post(m.SessionID, "Fetch.continueRequest", fmt.Sprintf(`{"requestId":%q}`, findText([]byte(m.Params), "requestId")))
		}
	}
	u.post(session, "Page.navigate", fmt.Sprintf(`{"url":%q}`, s.URL+"/basic"))
	id := findText([]byte(u.event("Fetch.authRequired").Params), "requestId")
	own := fmt.Sprintf(`{"requestId":%q,"authChallengeResponse":{"response":"ProvideCredentials","username":"u","password":"p"}}`, id)
	if m := u.call(session, "Fetch.continueWithAuth", own); m.Error == nil || !strings.Contains(m.Error.Message, "not allowed") {
		t.Errorf("a login of the client's own answered %+v", m.Error)
	}
	cancel := fmt.Sprintf(`{"requestId":%q,"authChallengeResponse":{"response":"CancelAuth"}}`, id)
	u.must(session, "Fetch.continueWithAuth", cancel)
	if m := u.call(session, "Fetch.continueWithAuth", cancel); m.Error == nil {
		t.Error("a challenge was answered twice")
	}

	g, err := New(Options{Mode: Clean})
	if err != nil {
		t.Fatal(err)
	}
	var acts []string
	g.Started(func(session, method string, params jsontext.Value) {
		acts = append(acts, session+" "+method+" "+string(params))
	})
	event := &cdp.Message{Kind: cdp.Event, SessionID: "S", Method: "Fetch.authRequired",
		Params: []byte(`{"requestId":"7","request":{},"authChallenge":{"source":"Proxy","origin":"http://gateway"}}`)}
	if g.Event(event) || len(acts) != 1 || acts[0] != `S Fetch.continueWithAuth {"requestId":"7","authChallengeResponse":{"response":"CancelAuth"}}` {
		t.Errorf("a proxy's challenge passes, or was answered with %v", acts)
	}
	if reply := g.Command(&cdp.Message{SessionID: "S", Method: "Fetch.continueWithAuth", Params: []byte(`{"requestId":"7"}`)}); reply == nil {
		t.Error("a proxy's challenge can be answered")
	}
}

func TestFilesOfASessionAreNotNamedByTheirPlace(t *testing.T) {
	g, err := New(Options{Mode: Clean})
	if err != nil {
		t.Fatal(err)
	}
	for method, params := range map[string][2]string{
		"Browser.downloadProgress": {`{"guid":"g","state":"completed","filePath":"/jail/downloads/g"}`, `{"guid":"g","state":"completed","filePath":"g"}`},
		"Input.dragIntercepted": {`{"data":{"items":[],"files":["/jail/x.txt","C:\\y.txt"],"dragOperationsMask":1}}`,
			`{"data":{"items":[],"files":["x.txt","y.txt"],"dragOperationsMask":1}}`},
	} {
		m := &cdp.Message{Kind: cdp.Event, Method: method, Params: []byte(params[0])}
		if !g.Event(m) || string(m.Params) != params[1] {
			t.Errorf("%s became %s", method, m.Params)
		}
	}
}

func TestOnlyPagesFramesAndWorkersAreSeen(t *testing.T) {
	g, err := New(Options{Mode: Clean})
	if err != nil {
		t.Fatal(err)
	}
	var acts []string
	g.Started(func(session, method string, params jsontext.Value) { acts = append(acts, session+" "+method) })
	for kind, visible := range map[string]bool{"page": true, "iframe": true, "worker": true, "shared_worker": true, "service_worker": true,
		"tab": true, "browser": false, "browser_ui": false, "background_page": false, "other": false, "webview": false, "": false} {
		for _, method := range []string{"Target.targetCreated", "Target.attachedToTarget"} {
			m := &cdp.Message{Kind: cdp.Event, Method: method, Params: []byte(fmt.Sprintf(
				`{"sessionId":"S-%s","targetInfo":{"targetId":"T-%s","type":%q,"url":"http://x"}}`, kind, kind, kind))}
			if g.Event(m) != visible {
				t.Errorf("%s of type %q: not %v", method, kind, visible)
			}
		}
		reply := g.Command(&cdp.Message{Method: "Target.attachToTarget", Params: []byte(fmt.Sprintf(`{"targetId":"T-%s","flatten":true}`, kind))})
		if (reply == nil) != visible {
			t.Errorf("attach to type %q answered %+v", kind, reply)
		}
		if !visible && !slices.Equal(acts[len(acts)-2:], []string{"S-" + kind + " Runtime.runIfWaitingForDebugger", " Target.detachFromTarget"}) {
			t.Errorf("type %q was not let go of: %v", kind, acts)
		}
		if reply := g.Command(&cdp.Message{SessionID: "S-" + kind, Method: "Runtime.enable"}); (reply == nil) != visible {
			t.Errorf("a command on a session of type %q answered %+v", kind, reply)
		}
	}
	m := &cdp.Message{Kind: cdp.Event, Method: "Target.targetCreated",
		Params: []byte(`{"targetInfo":{"targetId":"D","type":"page","url":"devtools://devtools/bundled/x.html"}}`)}
	if g.Event(m) {
		t.Error("the developer tools are a page")
	}
	for given, want := range map[string]string{
		`{"autoAttach":true,"waitForDebuggerOnStart":true,"flatten":true,"filter":[{"type":"page","exclude":true},{"type":"browser"},{}]}`: `[{"type":"page","exclude":true},` + allTypes() + `,{"exclude":true}]`,
		`{"autoAttach":true,"waitForDebuggerOnStart":true,"flatten":true,"filter":[]}`:                                                     `[{"exclude":true}]`,
		`{"autoAttach":true,"waitForDebuggerOnStart":true,"flatten":true}`:                                                                 `[{"type":"tab","exclude":true},` + allTypes() + `,{"exclude":true}]`,
	} {
		m := &cdp.Message{Method: "Target.setAutoAttach", Params: []byte(given)}
		if reply := g.Command(m); reply != nil || string(find(m.Params, "filter")) != want || !json.Valid(m.Params) {
			t.Errorf("%s became %s %+v", given, m.Params, reply)
		}
	}
}

func allTypes() string {
	var out []string
	for _, t := range targetTypes() {
		out = append(out, fmt.Sprintf(`{"type":%q}`, t))
	}
	return strings.Join(out, ",")
}

// Playwright's newCDPSession begins with a second session of the browser itself. It leads nowhere that the first does not.
func TestASecondSessionOfTheBrowserIsGuardedLikeTheFirst(t *testing.T) {
	conn, mux := open(t, shell(t))
	s := newSite(t)
	inject(t, conn, s)
	for _, mode := range []Mode{Clean, Operator} {
		u := guarded(t, mux, Options{Mode: mode})
		session := findText([]byte(u.must("", "Target.attachToBrowserTarget", `{}`)), "sessionId")
		commands, more := escapes()
		if mode == Operator {
			commands = append(commands, more...)
		}
		for _, c := range commands {
			if m := u.call(session, c[0], c[1]); m.Error == nil || !strings.Contains(m.Error.Message, "is not allowed in this session: ") {
				t.Errorf("%s: %s %s answered %s %+v", mode, c[0], c[1], m.Result, m.Error)
			}
		}
		if answer := u.must(session, "Storage.getCookies", `{}`); mode == Operator && strings.Contains(string(answer), injected) {
			t.Errorf("the jar is %s", answer)
		}
		target, _ := u.page("")
		page := findText([]byte(u.must(session, "Target.attachToTarget", fmt.Sprintf(`{"targetId":%q,"flatten":true}`, target))), "sessionId")
		u.must(page, "Runtime.evaluate", `{"expression":"1"}`)
		u.must(session, "Target.detachFromTarget", fmt.Sprintf(`{"sessionId":%q}`, page))
		// They are bounded.
		var last message
		for range maxBrowsers {
			last = u.call("", "Target.attachToBrowserTarget", `{}`)
		}
		if last.Error == nil {
			t.Errorf("%s: there are more than %d", mode, maxBrowsers)
		}
		u.client.Close()
	}
}

// Clients do not see the contexts that the control plane has for itself.
func TestContextsOfTheControlPlaneAreHiddenFromClients(t *testing.T) {
	conn, mux := open(t, shell(t))
	var made struct {
		ID string `json:"browserContextId"`
	}
	if err := conn.Call(t.Context(), "", "Target.createBrowserContext", nil, &made); err != nil {
		t.Fatal(err)
	}
	var target struct {
		ID string `json:"targetId"`
	}
	if err := conn.Call(t.Context(), "", "Target.createTarget", map[string]any{"url": "about:blank", "browserContextId": made.ID}, &target); err != nil {
		t.Fatal(err)
	}
	for hidden, want := range map[bool]bool{false: true, true: false} {
		u := guarded(t, mux, Options{Mode: Clean, Hidden: func(id string) bool { return hidden && id == made.ID }})
		u.must("", "Target.setDiscoverTargets", `{"discover":true}`)
		seen := string(u.must("", "Target.getTargets", `{}`)) + string(u.must("", "Target.getBrowserContexts", `{}`))
		for _, m := range u.received {
			seen += string(m.Params)
		}
		if got := strings.Contains(seen, target.ID) && strings.Contains(seen, made.ID); got != want {
			t.Errorf("hidden %t: a client sees %s", hidden, seen)
		}
		if attached := u.call("", "Target.attachToTarget", fmt.Sprintf(`{"targetId":%q,"flatten":true}`, target.ID)); (attached.Error == nil) != want {
			t.Errorf("hidden %t: attaching answers %+v", hidden, attached)
		}
		u.client.Close()
	}
}
