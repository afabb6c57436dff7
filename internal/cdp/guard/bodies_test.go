//go:build unix

package guard

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/coder/websocket"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/policy/redact"
)

// odd is a value with all that the encoders of a browser treat in different ways, of a header or a cookie. decoy is as long,
// and nobody's.
const (
	odd   = `Qx7<v>K&w9"Z'4#m?2^N|c=8+%L{p}Y/s~A`
	decoy = `Rz3<h>J&u5"B'6#t?1^D|e=9+%F{g}H/k~I`
)

func judged(t testing.TB, values ...string) *Guard {
	t.Helper()
	var raw [][]byte
	for _, v := range values {
		raw = append(raw, []byte(v))
	}
	g, err := New(Options{Mode: Operator, Scrub: redact.New(raw...)})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// reply is what the client gets of a reply.
func reply(g *Guard, method, params, result string) *cdp.Message {
	r := &cdp.Message{Result: jsontext.Value(result)}
	g.Reply(&cdp.Message{Method: method, SessionID: "S", Params: jsontext.Value(params)}, r)
	return r
}

// event is what the client gets of an event.
func event(t testing.TB, g *Guard, method, params string) jsontext.Value {
	t.Helper()
	m := &cdp.Message{Method: method, SessionID: "S", Params: jsontext.Value(params)}
	if !g.Event(m) {
		t.Fatalf("%s %s was dropped", method, params)
	}
	return m.Params
}

// readAll reads a stream in two pieces, the first of which has cut bytes, or in pieces of one size.
func readAll(t testing.TB, g *Guard, body string, binary bool, cut, size int) string {
	t.Helper()
	g.own("S", "1")
	var out strings.Builder
	for at := 0; ; {
		end := min(at+size, len(body))
		if at == 0 && cut > 0 {
			end = cut
		}
		data := body[at:end]
		if binary {
			data = base64.StdEncoding.EncodeToString([]byte(data))
		}
		r := reply(g, "IO.read", `{"handle":"1"}`, fmt.Sprintf(`{"base64Encoded":%t,"data":%s,"eof":%t}`, binary, quoted(data), end == len(body)))
		if r.Error != nil {
			t.Fatal(r.Error.Message)
		}
		got := findText(r.Result, "data")
		if isTrue(find(r.Result, "base64Encoded")) {
			plain, err := base64.StdEncoding.DecodeString(got)
			if err != nil {
				t.Fatal(err)
			}
			got = string(plain)
		}
		out.WriteString(got)
		if isTrue(find(r.Result, "eof")) {
			return out.String()
		}
		at = end
	}
}

func TestAStreamHasNoValueHoweverItIsRead(t *testing.T) {
	g := judged(t, odd)
	before, after := "<p title=é>", "</p>é"
	for _, binary := range []bool{false, true} {
		for at := 1; at < len(before)+len(odd); at++ {
			if !binary && at == len("<p title=")+1 {
				continue // Chromium cuts no letter of a text in two
			}
			if got := readAll(t, g, before+odd+after, binary, at, 1000); got != before+redact.Mark+after {
				t.Fatalf("cut at %d it is %q", at, got)
			}
			if got := readAll(t, g, before+decoy+after, binary, at, 1000); got != before+decoy+after {
				t.Fatalf("cut at %d, another value became %q", at, got)
			}
		}
	}
	for size := 1; size <= 7; size++ {
		if got := readAll(t, g, before+odd+after, true, 0, size); got != before+redact.Mark+after {
			t.Errorf("in pieces of %d it is %q", size, got)
		}
		if got := readAll(t, g, before+odd[:20]+after, true, 0, size); got != before+odd[:20]+after {
			t.Errorf("in pieces of %d the beginning of a value became %q", size, got)
		}
		// Bytes that were held back come with the end.
		if got := readAll(t, g, before+odd[:20], true, 0, size); got != before+odd[:20] {
			t.Errorf("in pieces of %d the end became %q", size, got)
		}
	}
	if len(g.streams) > 0 {
		t.Errorf("%d streams are remembered", len(g.streams))
	}
}

func TestAStreamIsReadInItsOrder(t *testing.T) {
	for offset, want := range map[string]bool{"": true, `,"size":7`: true, `,"offset":0`: false, `,"offset":12,"size":7`: false} {
		g := judged(t, odd)
		g.own("S", "1")
		no := g.Command(&cdp.Message{Method: "IO.read", SessionID: "S", Params: jsontext.Value(`{"handle":"1"` + offset + `}`)})
		if passed := no == nil; passed != want {
			t.Errorf("with %q it passes: %v", offset, passed)
		}
		// Where there is nothing to look for the order is the client's.
		g = judged(t)
		g.own("S", "1")
		if no := g.Command(&cdp.Message{Method: "IO.read", SessionID: "S", Params: jsontext.Value(`{"handle":"1"` + offset + `}`)}); no != nil {
			t.Errorf("without values %q is refused: %s", offset, no.Error.Message)
		}
	}
	// A piece that arrives after the stream was closed is nobody's.
	g := judged(t, odd)
	if r := reply(g, "IO.read", `{"handle":"1"}`, `{"data":"x","eof":false}`); r.Error == nil {
		t.Errorf("a stream that is not the client's gives %s", r.Result)
	}
}

// said is what a client gets of messages, joined.
func said(t testing.TB, g *Guard, kind string, messages []string) string {
	t.Helper()
	var out strings.Builder
	for _, m := range messages {
		in64 := base64.StdEncoding.EncodeToString([]byte(m))
		var got string
		var err error
		switch kind {
		case "text frame":
			got = findText(find(event(t, g, "Network.webSocketFrameReceived", fmt.Sprintf(
				`{"requestId":"1","timestamp":1,"response":{"opcode":1,"mask":false,"payloadData":%s}}`, quoted(m))), "response"), "payloadData")
		case "binary frame":
			got = findText(find(event(t, g, "Network.webSocketFrameSent", fmt.Sprintf(
				`{"requestId":"1","timestamp":1,"response":{"opcode":2,"mask":false,"payloadData":%q}}`, in64)), "response"), "payloadData")
		case "event of a server":
			got = findText(event(t, g, "Network.eventSourceMessageReceived", fmt.Sprintf(
				`{"requestId":"1","timestamp":1,"eventName":"message","eventId":"","data":%s}`, quoted(m))), "data")
		case "data":
			got = findText(event(t, g, "Network.dataReceived", fmt.Sprintf(
				`{"requestId":"1","timestamp":1,"dataLength":1,"encodedDataLength":0,"data":%q}`, in64)), "data")
		case "posted":
			entries := make([]string, 0, len(messages))
			for _, m := range messages {
				entries = append(entries, fmt.Sprintf(`{"bytes":%q}`, base64.StdEncoding.EncodeToString([]byte(m))))
			}
			request := find(event(t, g, "Network.requestWillBeSent", fmt.Sprintf(
				`{"requestId":"1","request":{"url":"http://a.test/","method":"POST","headers":{},"postDataEntries":[%s]}}`, strings.Join(entries, ","))), "request")
			err = array(find(request, "postDataEntries"), func(entry jsontext.Value) error {
				plain, err := base64.StdEncoding.DecodeString(findText(entry, "bytes"))
				out.Write(plain)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			return out.String()
		}
		if kind == "binary frame" || kind == "data" {
			plain, err := base64.StdEncoding.DecodeString(got)
			if err != nil {
				t.Fatal(err)
			}
			got = string(plain)
		}
		out.WriteString(got)
	}
	event(t, g, "Network.webSocketClosed", `{"requestId":"1","timestamp":1}`)
	event(t, g, "Network.loadingFinished", `{"requestId":"1","timestamp":1,"encodedDataLength":1}`)
	return out.String()
}

// shownOf is the longest part of a value from its beginning that is in a text.
func shownOf(text, value string) int {
	n := 0
	for n < len(value) && strings.Contains(text, value[:n+1]) {
		n++
	}
	return n
}

func TestMessagesHaveNoValueHoweverItIsDividedAmongThem(t *testing.T) {
	g := judged(t, odd)
	for _, kind := range []string{"text frame", "binary frame", "event of a server", "data", "posted"} {
		for at := 1; at < len(odd); at++ {
			for value, limit := range map[string]int{odd: redact.Shortest - 1, decoy: len(decoy)} {
				got := said(t, g, kind, []string{"sid=" + value[:at], value[at:] + "; a"})
				if value == decoy && got != "sid="+decoy+"; a" {
					t.Fatalf("%s cut at %d: another value became %q", kind, at, got)
				}
				if n := shownOf(got, value); n > limit || !strings.HasPrefix(got, "sid=") || !strings.HasSuffix(got, "; a") {
					t.Fatalf("%s cut at %d: %d bytes are shown in %q", kind, at, n, got)
				}
				if value == odd && strings.Contains(got, odd[len(odd)-redact.Shortest:]) {
					t.Fatalf("%s cut at %d: the end is shown in %q", kind, at, got)
				}
			}
		}
		for size := 1; size <= 7; size++ {
			var parts []string
			for at := 0; at < len(odd); at += size {
				parts = append(parts, odd[at:min(at+size, len(odd))])
			}
			if got := said(t, g, kind, parts); shownOf(got, odd) >= redact.Shortest || strings.Contains(got, odd[len(odd)-redact.Shortest:]) {
				t.Errorf("%s of %d bytes: %q", kind, size, got)
			}
		}
		if len(g.messages) > 0 {
			t.Errorf("%s: %d conversations are remembered after their end", kind, len(g.messages))
		}
	}
}

// TestConversationsWithoutEndAreNoWayAround: when no more can be remembered, what could be a beginning is not shown.
func TestConversationsWithoutEndAreNoWayAround(t *testing.T) {
	g := judged(t, odd)
	frame := func(request int, text string) string {
		return findText(find(event(t, g, "Network.webSocketFrameReceived", fmt.Sprintf(
			`{"requestId":"%d","response":{"opcode":1,"payloadData":%s}}`, request, quoted(text))), "response"), "payloadData")
	}
	for i := range maxConversations {
		if got := frame(i, odd[:4]); got != odd[:4] {
			t.Fatalf("frame %d became %q", i, got)
		}
	}
	if got := frame(maxConversations, "a\n"+odd[:4]); got != "a\n"+redact.Mark {
		t.Errorf("one more became %q", got)
	}
	// Whatever stands there: whether it was a beginning is not told.
	if got := frame(maxConversations, "a text"); got != redact.Mark {
		t.Errorf("a text became %q", got)
	}
	if got := frame(maxConversations, "a text\n"); got != "a text\n" {
		t.Errorf("a line became %q", got)
	}
	if got := frame(3, odd[4:]); strings.Contains(got, odd[10:18]) || len(g.messages) > maxConversations {
		t.Errorf("a value became %q, %d conversations", got, len(g.messages))
	}
	g.Event(&cdp.Message{Method: "Target.detachedFromTarget", Params: jsontext.Value(`{"sessionId":"S"}`)})
	if len(g.messages) > 0 {
		t.Errorf("%d conversations of a session that has ended", len(g.messages))
	}
}

func TestWhatAnAnswerHadBeforeCountsForWhatFollows(t *testing.T) {
	g := judged(t, odd)
	in64 := func(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }
	for at := 1; at < len(odd); at++ {
		first := reply(g, "Network.streamResourceContent", `{"requestId":"1"}`, fmt.Sprintf(`{"bufferedData":%q}`, in64("a "+odd[:at])))
		second := event(t, g, "Network.dataReceived", fmt.Sprintf(`{"requestId":"1","data":%q}`, in64(odd[at:]+" b")))
		one, err := base64.StdEncoding.DecodeString(findText(first.Result, "bufferedData"))
		two, err2 := base64.StdEncoding.DecodeString(findText(second, "data"))
		got := string(one) + string(two)
		if err != nil || err2 != nil || shownOf(got, odd) >= redact.Shortest || !strings.HasPrefix(got, "a ") || !strings.HasSuffix(got, " b") {
			t.Fatalf("cut at %d: %q, %v, %v", at, got, err, err2)
		}
	}
}

func TestBodiesInBase64AreLookedThroughAsWhatTheyAre(t *testing.T) {
	g := judged(t, odd)
	spelled := `%3Cp%3E Qx7&lt;v&gt;K&amp;w9"Z'4#m?2^N|c=8+%L{p}Y/s~A`
	for method, name := range map[string]string{"Network.getResponseBody": "body", "Fetch.getResponseBody": "body",
		"Page.getResourceContent": "content", "Network.getRequestPostData": "postData"} {
		for text, want := range map[string]string{
			"a " + odd + " b": "a [redacted] b", spelled: "%3Cp%3E [redacted]", "a " + decoy + " b": "a " + decoy + " b",
		} {
			in64 := base64.StdEncoding.EncodeToString([]byte(text))
			got := findText(reply(g, method, `{}`, fmt.Sprintf(`{%q:%q,"base64Encoded":true}`, name, in64)).Result, name)
			if plain, err := base64.StdEncoding.DecodeString(got); err != nil || string(plain) != want {
				t.Errorf("%s of %q is %q, %v", method, text, plain, err)
			}
			if got := findText(reply(g, method, `{}`, fmt.Sprintf(`{%q:%s,"base64Encoded":false}`, name, quoted(text))).Result, name); got != want {
				t.Errorf("%s of the text %q is %q", method, text, got)
			}
		}
	}
}

func TestATitleThatTheBrowserCutEndsBeforeAValue(t *testing.T) {
	g := judged(t, odd)
	cut := strings.Repeat("x", cdp.LongestTitle-10) + odd[:10]
	whole := strings.Repeat("x", cdp.LongestTitle-11) + odd[:10]
	for title, want := range map[string]bool{cut: false, whole: true} {
		history := reply(g, "Page.getNavigationHistory", `{}`, fmt.Sprintf(`{"currentIndex":0,"entries":[{"id":1,"title":%s}]}`, quoted(title))).Result
		info := reply(g, "Target.getTargetInfo", `{}`, fmt.Sprintf(`{"targetInfo":{"targetId":"T","title":%s}}`, quoted(title))).Result
		g.know("T")
		changed := event(t, g, "Target.targetInfoChanged",
			fmt.Sprintf(`{"targetInfo":{"targetId":"T","type":"page","url":"http://a.test/","title":%s}}`, quoted(title)))
		for _, got := range []string{string(history), findText(find(info, "targetInfo"), "title"), findText(find(changed, "targetInfo"), "title")} {
			if strings.Contains(got, odd[:4]) != want || !strings.Contains(got, "xxxx") {
				t.Errorf("a title of %d is %q", len(title), got[max(0, len(got)-80):])
			}
		}
	}
}

// ways are the ways in which the real browser writes a value: the script is given it as v.
var ways = map[string]string{
	"query": `new URL('http://a/?q=' + v).href`, "path": `new URL('http://a/' + v).href`, "fragment": `new URL('http://a/#' + v).href`,
	"query that is set":    `(u => (u.search = v, u.href))(new URL('http://a/'))`,
	"path that is set":     `(u => (u.pathname = v, u.href))(new URL('http://a/'))`,
	"fragment that is set": `(u => (u.hash = v, u.href))(new URL('http://a/'))`,
	"user that is set":     `(u => (u.username = v, u.href))(new URL('http://a/'))`,
	"parameter":            `new URLSearchParams({q: v}).toString()`,
	"component":            `encodeURIComponent(v)`, "address": `encodeURI(v)`, "escape": `JSON.stringify({a: v})`,
	"twice in JSON":  `JSON.stringify(JSON.stringify({a: v}))`,
	"text":           `(e => (e.textContent = v, e.outerHTML))(document.createElement('p'))`,
	"attribute":      `(e => (e.title = v, e.outerHTML))(document.createElement('p'))`,
	"XML":            `(e => (e.title = v, new XMLSerializer().serializeToString(e)))(document.createElement('p'))`,
	"link":           `(e => (e.setAttribute('href', new URL('http://a/?q=' + v).href), e.outerHTML))(document.createElement('a'))`,
	"link of a path": `(e => (e.setAttribute('href', new URL('http://a/' + v).href), e.outerHTML))(document.createElement('a'))`,
	"style":          `(e => (e.style.backgroundImage = 'url("http://a/?q=' + encodeURIComponent(v) + '")', e.outerHTML))(document.createElement('p'))`,
	"base64":         `btoa('xy' + v)`,
}

// TestNothingOfABrowsersOwnSpellingPasses asks the real browser how it writes values.
func TestNothingOfABrowsersOwnSpellingPasses(t *testing.T) {
	_, mux := open(t, shell(t))
	values := []string{odd, decoy, `a<b>c&d'e"f g`, `tok~en!with$all(of)*them,;[x]`, `p^a|t\h{b}ack`, "wJalrXUtnFEMI/K7MDENG+bPx==", "plain-value_1.2"}
	u := join(t, mux, nil)
	_, session := u.page("")
	for _, value := range values {
		values := redact.New([]byte(value))
		other := redact.New([]byte("nobody-has-this-1"))
		for name, script := range ways {
			written := u.evaluate(session, fmt.Sprintf("(v => %s)(%s)", script, quoted(value)))
			if written == "" || !values.Has(written) {
				t.Errorf("%s of %s, %s, is not found", name, value, written)
			}
			if got := values.Text(written); strings.Contains(got, value) || values.Has(got) {
				t.Errorf("%s of %s leaves %s", name, value, got)
			}
			if other.Has(written) {
				t.Errorf("%s of %s is found for another", name, value)
			}
		}
	}
}

// TestASavedPageHasNoValueWhereverItsLinesBreak moves the value by each length of a line.
func TestASavedPageHasNoValueWhereverItsLinesBreak(t *testing.T) {
	_, mux := open(t, shell(t))
	s := newSite(t)
	inner := s.Server.Config.Handler
	shown, shift, letters := odd, 0, ""
	s.Server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/saved":
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			escaped := strings.NewReplacer("&", "&amp;", "<", "&lt;", `"`, "&quot;").Replace(shown)
			fmt.Fprintf(w, `<title>%s%s%s</title><p title="%[3]s">%s%[3]s</p><a href="/?q=%[3]s">x</a><img src=/pic.svg>`,
				letters, strings.Repeat("y", shift), escaped, strings.Repeat("z", shift))
		case "/pic.svg":
			w.Header().Set("Content-Type", "image/svg+xml")
			fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><text>%s%s</text></svg>`,
				strings.Repeat("z", shift), strings.NewReplacer("&", "&amp;", "<", "&lt;").Replace(shown))
		default:
			inner.ServeHTTP(w, r)
		}
	})
	values := redact.New([]byte(odd))
	guarded, bare := guarded(t, mux, Options{Mode: Operator, Scrub: values}), join(t, mux, nil)
	target, session := guarded.page("")
	other := bare.attach(target)
	guarded.must(session, "Page.enable", `{}`)
	open := 0
	for shift = range 76 {
		letters = []string{"", "é ", "a title with spaces é "}[shift%3]
		for _, shown = range []string{odd, decoy} {
			if shown == decoy && shift%8 > 0 {
				continue // that nobody's value is seen as it is needs no place of its own
			}
			guarded.received = nil
			guarded.must(session, "Page.navigate", fmt.Sprintf(`{"url":%q}`, s.URL+"/saved"))
			guarded.event("Page.loadEventFired")
			if shown == odd && values.Has(findText([]byte(bare.must(other, "Page.captureSnapshot", `{}`)), "data")) {
				open++
			}
			is := findText([]byte(guarded.must(session, "Page.captureSnapshot", `{}`)), "data")
			plain := strings.NewReplacer("=\r\n", "", "?=\r\n =?utf-8?Q?", "", "=3D", "=").Replace(is)
			for _, part := range []string{shown[4:12], shown[20:28]} {
				seen := strings.Contains(plain, part) || strings.Contains(plain, strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(part))
				if seen != (shown == decoy) {
					t.Fatalf("moved by %d, %q is seen: %v in\n%s", shift, part, seen, is)
				}
			}
			if marks := strings.Count(plain, redact.Mark); shown == odd && marks < 5 || shown == decoy && marks > 0 {
				t.Fatalf("moved by %d there are %d marks in\n%s", shift, marks, is)
			}
		}
	}
	if open == 76 {
		t.Error("the lines break nowhere in the value, so nothing was tried")
	}
}

// TestTheRealBrowsersPiecesAreLookedThrough reads a body as a stream, and frames, from a browser.
func TestTheRealBrowsersPiecesAreLookedThrough(t *testing.T) {
	conn, mux := open(t, shell(t))
	s := newSite(t)
	inject(t, conn, s)
	inner := s.Server.Config.Handler
	s.Server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/say" {
			inner.ServeHTTP(w, r)
			return
		}
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		cookie := r.Header.Get("Cookie")
		for i := 0; i < len(cookie); i += 5 {
			_ = c.Write(r.Context(), websocket.MessageText, []byte(cookie[i:min(i+5, len(cookie))])) // the page may have left
		}
		_ = c.Close(websocket.StatusNormalClosure, "")
	})
	for _, scrub := range []*redact.Values{redact.New([]byte(injected)), redact.New([]byte("nobody-has-this-1"))} {
		u := guarded(t, mux, Options{Mode: Operator, Scrub: scrub})
		_, session := u.page("")
		u.must(session, "Network.enable", `{}`)
		u.must(session, "Fetch.enable", `{"patterns":[{"urlPattern":"*/echo","requestStage":"Response"}]}`)
		u.post(session, "Page.navigate", fmt.Sprintf(`{"url":%q}`, s.URL+"/echo"))
		id := findText([]byte(u.event("Fetch.requestPaused").Params), "requestId")
		stream := findText([]byte(u.must(session, "Fetch.takeResponseBodyAsStream", fmt.Sprintf(`{"requestId":%q}`, id))), "stream")
		var body strings.Builder
		for {
			result := []byte(u.must(session, "IO.read", fmt.Sprintf(`{"handle":%q,"size":3}`, stream)))
			data := findText(result, "data")
			if isTrue(find(result, "base64Encoded")) {
				plain, err := base64.StdEncoding.DecodeString(data)
				if err != nil {
					t.Fatal(err)
				}
				data = string(plain)
			}
			body.WriteString(data)
			if isTrue(find(result, "eof")) {
				break
			}
		}
		u.post(session, "Fetch.failRequest", fmt.Sprintf(`{"requestId":%q,"errorReason":"Aborted"}`, id))
		u.must(session, "Fetch.disable", `{}`)
		u.must(session, "Page.enable", `{}`)
		u.must(session, "Page.navigate", fmt.Sprintf(`{"url":%q}`, s.URL+"/"))
		u.event("Page.loadEventFired")
		u.evaluate(session, `new Promise(done => { new WebSocket('ws://' + location.host + '/say').onclose = () => done('x') })`)
		u.event("Network.webSocketClosed")
		var frames strings.Builder
		for _, m := range u.received {
			if m.Method == "Network.webSocketFrameReceived" {
				frames.WriteString(findText(find([]byte(m.Params), "response"), "payloadData"))
			}
		}
		own := scrub.Has(injected)
		for what, text := range map[string]string{"stream": body.String(), "frames": frames.String()} {
			if shown := shownOf(text, injected); own && shown >= redact.Shortest || !own && shown != len(injected) || !strings.Contains(text, "sid=") {
				t.Errorf("%s with the value known: %v, %d bytes of it are shown in %q", what, own, shown, text)
			}
		}
	}
}

// BenchmarkBodies is what the look through pieces costs where there is no value.
func BenchmarkBodies(b *testing.B) {
	g := judged(b, injected, "another-8f3a91c2d4e5")
	g.own("S", "1")
	text := strings.Repeat("An ordinary text of a page. ", 1<<20/28)
	in64 := base64.StdEncoding.EncodeToString([]byte(text))
	read := &cdp.Message{Method: "IO.read", SessionID: "S", Params: jsontext.Value(`{"handle":"1"}`)}
	for name, run := range map[string]func(){
		"stream 1MB": func() {
			g.Reply(read, &cdp.Message{Result: jsontext.Value(`{"base64Encoded":true,"data":"` + in64 + `","eof":false}`)})
		},
		"snapshot 1MB": func() {
			g.Reply(&cdp.Message{Method: "Page.captureSnapshot"}, &cdp.Message{Result: jsontext.Value(`{"data":"` + text + `"}`)})
		},
		"frame 1kB": func() {
			g.Event(&cdp.Message{Method: "Network.webSocketFrameReceived",
				Params: jsontext.Value(`{"requestId":"1","response":{"opcode":1,"payloadData":"` + text[:1000] + `"}}`)})
		},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				run()
			}
		})
	}
}
