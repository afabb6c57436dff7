//go:build unix

package guard

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/clawjail/clawjail/internal/cdp"
)

// Framing tricks: what a client writes in another way is still the same command.
func TestACommandIsWhatItsDecodedNameSays(t *testing.T) {
	b := newEveryBrowser(t)
	u := guarded(t, b.mux, Options{Mode: Operator})
	send := func(frame string) error { return u.client.Send(within(t), []byte(frame)) }

	if err := send(`{"id":1,"method":"Storage.set\u0043ookies","params":{"cookies":[]}}`); err != nil {
		t.Fatal(err)
	}
	if m := u.receive(); m.Error == nil || !strings.HasPrefix(m.Error.Message, "Storage.setCookies is not allowed") {
		t.Errorf("a name with an escape answered %+v", m)
	}
	if err := send(`{"id":2,"method":"storage.getcookies"}`); err != nil {
		t.Fatal(err)
	}
	if m := u.receive(); m.Error == nil {
		t.Error("names in small letters are known")
	}
	if err := send(`{"id":3,"method":"Page.navigate","params":{"\u0075rl":"file:///etc/passwd"}}`); err != nil {
		t.Fatal(err)
	}
	if m := u.receive(); m.Error == nil {
		t.Error("an address under a name with an escape passes")
	}
	if err := send(`{"id":4,"method":"Page.navigate","params":{"url":"http://a.test/","URL":"file:///etc/passwd"}}`); err != nil {
		t.Fatal(err)
	}
	if m := u.receive(); m.Error == nil || !strings.Contains(m.Error.Message, "not known here") {
		t.Error("a second name in other letters passes")
	}
	if seen := b.commands(); len(seen) > 0 {
		t.Errorf("the browser was sent %v", seen)
	}
	whole := guarded(t, b.mux, Options{Mode: Operator})
	if err := whole.client.Send(within(t), []byte(`{"id":5,"method":"Target.getTargets","params":{}}`)); err != nil {
		t.Errorf("a frame that is in order: %v", err)
	}
	for _, frame := range []string{
		`{"id":5,"method":"Page.enable","method":"Storage.getCookies"}`,
		`{"id":5,"method":"Page.enable","params":{},"extra":1}`,
		`{"id":5,"method":"Page.navigate","params":{"url":"http://a.test/","url":"file:///etc/passwd"}}`,
	} {
		other := guarded(t, b.mux, Options{Mode: Operator})
		if err := other.client.Send(within(t), []byte(frame)); err == nil {
			t.Errorf("%s is accepted", frame)
		}
	}
}

func TestALongTextWithEscapesIsReadInOneGo(t *testing.T) {
	// One look for the closing quote per escape would take minutes here.
	raw := []byte(`{"expression":"` + strings.Repeat(`\\`, 4<<20) + `","x":1}`)
	if got := string(find(raw, "x")); got != "1" {
		t.Error(got)
	}
}

// FuzzObject: the codec reads what a decoder of JSON reads.
func FuzzObject(f *testing.F) {
	f.Add([]byte(`{"a":1,"b":{"c":["]}\"",{}]},"":"\\","\u0041":null, "e" : -1.5e3 }`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var want map[string]json.RawMessage
		if jsontext.Value(raw).Kind() != '{' || !jsontext.Value(raw).IsValid() || json.Unmarshal(raw, &want) != nil {
			return
		}
		seen := map[string]bool{}
		err := object(raw, func(name []byte, value jsontext.Value) error {
			seen[string(name)] = true
			if !json.Valid(value) || string(want[string(name)]) != string(value) {
				return fmt.Errorf("%q is %q, not %q", name, value, want[string(name)])
			}
			return nil
		})
		if err != nil || len(seen) != len(want) {
			t.Fatalf("%q: %v, %v", raw, seen, err)
		}
		all := shape{}
		for name := range want {
			all[name] = keep
		}
		if out, err := all.command(raw); err != nil || !json.Valid(out) {
			t.Fatalf("%q became %q, %v", raw, out, err)
		}
	})
}

// FuzzCommand: whatever a client sends, no command that is refused gets to the browser, and no address of a file.
func FuzzCommand(f *testing.F) {
	for _, frame := range []string{
		`{"id":1,"method":"Storage.get\u0043ookies"}`, `{"id":2,"method":"Page.navigate","params":{"url":" FI\nLE:///x"}}`,
		`{"id":3,"method":"Runtime.evaluate","params":{"expression":"1","includeCommandLineAPI":true}}`,
		`{"id":4,"method":"Target.createBrowserContext","params":{"proxyServer":"x"}}`,
		`{"id":5,"method":"Target.setAutoAttach","params":{"autoAttach":true,"waitForDebuggerOnStart":true,"flatten":true,"filter":[{},{"type":"browser"}]}}`,
		`{"id":6,"method":"Fetch.continueRequest","params":{"requestId":"1","headers":[{"name":"cOOkie","value":"x"}]}}`,
	} {
		f.Add([]byte(frame))
	}
	rows := map[string]row{}
	for _, r := range rowsOf(f) {
		if r.kind == "command" {
			rows[r.name] = r
		}
	}
	b, registry := newEveryBrowser(f), NewRegistry()
	f.Fuzz(func(t *testing.T, frame []byte) {
		for _, mode := range []Mode{Clean, Operator} {
			u := guarded(t, b.mux, Options{Mode: mode, Registry: registry})
			before := len(b.commands())
			if err := u.client.Send(within(t), frame); err != nil {
				continue // the client was ended
			}
			if _, err := u.client.Receive(within(t)); err != nil {
				t.Fatal(err)
			}
			u.client.Close()
			for _, sent := range b.commands()[before:] {
				method, params := findText([]byte(sent), "method"), find([]byte(sent), "params")
				if v := rows[method].in(mode); v != allow && v != rewrite {
					t.Fatalf("%q sent %s", frame, sent)
				}
				if !json.Valid([]byte(sent)) || find(params, "includeCommandLineAPI") != nil || find(params, "proxyServer") != nil {
					t.Fatalf("%q sent %s", frame, sent)
				}
				if method == "Page.navigate" && strings.HasPrefix(strings.ToLower(findText(params, "url")), "file") {
					t.Fatalf("%q sent %s", frame, sent)
				}
			}
		}
	})
}

// FuzzEvent: a value that is planted in a header gets to no client of an operator's session, however the event looks.
func FuzzEvent(f *testing.F) {
	f.Add("Cookie", `{"url":"http://a.test/"}`, uint8(0))
	f.Add("sEt-cOOkie", `{"x":[{"headers":{"a":"b"}}]}`, uint8(1))
	f.Add("Sec-Session-Response", `{}`, uint8(2))
	registry := NewRegistry()
	f.Fuzz(func(t *testing.T, header, other string, which uint8) {
		if !sensitive([]byte(header)) || !jsontext.Value(other).IsValid() {
			return
		}
		const secret = "planted-5c1d99e0"
		headers := fmt.Sprintf(`{"Accept":"x",%s:%q}`, quoted(header), secret)
		list := fmt.Sprintf(`[{"name":%s,"value":%q}]`, quoted(header), secret)
		events := [][2]string{
			{"Network.requestWillBeSent", `{"request":{"headers":` + headers +
				`},"redirectResponse":{"headers":` + headers + `,"headersText":"` + secret + `"},"requestId":` + other + `}`},
			{"Network.requestWillBeSentExtraInfo", `{"headers":` + headers +
				`,"associatedCookies":[{"cookie":{"value":"` + secret + `"},"blockedReasons":` + other + `}],"new":"` + secret + `"}`},
			{"Network.responseReceivedExtraInfo", `{"blockedCookies":[{"cookieLine":"` + secret +
				`"}],"exemptedCookies":["` + secret + `"],"headersText":"` + secret + `","headers":` + headers + `,"requestId":` + other + `}`},
			{"Network.webSocketHandshakeResponseReceived", `{"response":{"headers":` + headers +
				`,"requestHeaders":` + headers + `,"requestHeadersText":"` + secret + `"},"timestamp":` + other + `}`},
			{"Fetch.requestPaused", `{"request":{"headers":` + headers + `},"responseHeaders":` + list + `,"frameId":` + other + `}`},
			{"Audits.issueAdded", `{"issue":{"rawCookieLine":"` + secret + `"}}`},
		}
		g, err := New(Options{Mode: Operator, Registry: registry})
		if err != nil {
			t.Fatal(err)
		}
		event := events[int(which)%len(events)]
		m := &cdp.Message{Kind: cdp.Event, Method: event[0], Params: []byte(event[1])}
		if !g.Event(m) {
			return
		}
		if !jsontext.Value(m.Params).IsValid() {
			t.Fatalf("%s became %s", event, m.Params)
		}
		if strings.Contains(string(m.Params), secret) && !strings.Contains(other, secret) {
			t.Fatalf("%s became %s", event, m.Params)
		}
	})
}

// BenchmarkGuard is what one message costs.
func BenchmarkGuard(b *testing.B) {
	headers := `"Accept-Language":"en-US,en;q=0.9","Cookie":"sid=` + injected +
		`; theme=dark; b=c","User-Agent":"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36"`
	for _, c := range []struct {
		name, method, params string
		command              bool
	}{
		{"allowed command", "Runtime.callFunctionOn", `{"functionDeclaration":"(a)=>a","objectId":"1","returnByValue":true}`, true},
		{"evaluate 1kB", "Runtime.evaluate", `{"expression":"` + strings.Repeat("x", 1000) + `","returnByValue":true,"awaitPromise":true}`, true},
		{"navigate", "Page.navigate", `{"url":"https://example.com/","frameId":"F"}`, true},
		{"allowed event", "Runtime.consoleAPICalled", `{"type":"log","args":[]}`, false},
		{"ExtraInfo", "Network.requestWillBeSentExtraInfo", `{"requestId":"1","associatedCookies":[{"cookie":{"name":"sid","value":"` +
			injected + `","domain":"a.test","path":"/","httpOnly":true},"blockedReasons":[]}],"headers":{` + headers +
			`},"connectTiming":{"requestTime":1}}`, false},
		{"requestWillBeSent", "Network.requestWillBeSent", `{"requestId":"1","loaderId":"2","documentURL":"https://a.test/",` +
			`"request":{"url":"https://a.test/x","method":"GET","headers":{` + headers + `},"initialPriority":"High",` +
			`"referrerPolicy":"no-referrer"},"timestamp":1,"wallTime":2,"initiator":{"type":"script","stack":{"callFrames":[]}},"type":"Script","frameId":"F"}`, false},
	} {
		b.Run(c.name, func(b *testing.B) {
			g, err := New(Options{Mode: Operator})
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			b.SetBytes(int64(len(c.params)))
			for b.Loop() {
				m := &cdp.Message{Method: c.method, Params: []byte(c.params), SessionID: "S"}
				if c.command {
					g.Command(m)
				} else {
					g.Event(m)
				}
			}
		})
	}
	b.Run("new client", func(b *testing.B) {
		registry := NewRegistry()
		for b.Loop() {
			if _, err := New(Options{Mode: Operator, Registry: registry}); err != nil {
				b.Fatal(err)
			}
		}
	})
}
