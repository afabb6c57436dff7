package browsers

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"mime/quotedprintable"
	"net/url"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/test/testkit"
)

// devtools is a client of the DevTools protocol that reads as it likes.
type devtools struct {
	t       testing.TB
	conn    *websocket.Conn
	session string
	last    int
	events  []devtoolsMessage
}

type devtoolsMessage struct {
	ID     int
	Method string
	Params json.RawMessage
	Result json.RawMessage
	Error  *struct{ Message string }
}

// drive connects and opens a page.
func drive(t *testing.T, address string) *devtools {
	t.Helper()
	conn, _, err := websocket.Dial(t.Context(), address, nil)
	if err != nil {
		t.Fatal(err)
	}
	conn.SetReadLimit(64 << 20)
	t.Cleanup(func() { _ = conn.CloseNow() }) // nobody waits for its end
	d := &devtools{t: t, conn: conn}
	var made struct{ TargetID, SessionID string }
	d.must("Target.createTarget", map[string]any{"url": "about:blank"}, &made)
	d.must("Target.attachToTarget", map[string]any{"targetId": made.TargetID, "flatten": true}, &made)
	d.session = made.SessionID
	for _, domain := range []string{"Page.enable", "Network.enable"} {
		d.must(domain, nil, nil)
	}
	return d
}

func (d *devtools) read() devtoolsMessage {
	d.t.Helper()
	var m devtoolsMessage
	_, frame, err := d.conn.Read(d.t.Context())
	if err == nil {
		err = json.Unmarshal(frame, &m)
	}
	if err != nil {
		d.t.Fatal(err)
	}
	if m.Method != "" {
		d.events = append(d.events, m)
	}
	return m
}

func (d *devtools) send(method string, params any) int {
	d.t.Helper()
	if params == nil {
		params = map[string]any{}
	}
	d.last++
	frame := map[string]any{"id": d.last, "method": method, "params": params}
	if d.session != "" {
		frame["sessionId"] = d.session
	}
	raw, err := json.Marshal(frame)
	if err == nil {
		err = d.conn.Write(d.t.Context(), websocket.MessageText, raw)
	}
	if err != nil {
		d.t.Fatal(err)
	}
	return d.last
}

// call returns the reason when the command is refused.
func (d *devtools) call(method string, params, result any) string {
	d.t.Helper()
	id := d.send(method, params)
	for {
		m := d.read()
		switch {
		case m.Method != "" || m.ID != id:
			continue
		case m.Error != nil:
			return m.Error.Message
		case result != nil:
			if err := json.Unmarshal(m.Result, result); err != nil {
				d.t.Fatal(err)
			}
		}
		return ""
	}
}

func (d *devtools) must(method string, params, result any) {
	d.t.Helper()
	if refused := d.call(method, params, result); refused != "" {
		d.t.Fatalf("%s: %s", method, refused)
	}
}

// event waits for one that came since the last look.
func (d *devtools) event(method string, params any) {
	d.t.Helper()
	for {
		for i, m := range d.events {
			if m.Method != method {
				continue
			}
			d.events = d.events[i+1:]
			if err := json.Unmarshal(m.Params, params); err != nil {
				d.t.Fatal(err)
			}
			return
		}
		d.read()
	}
}

// goTo opens an address and waits until it is there.
func (d *devtools) goTo(address string) {
	d.t.Helper()
	d.events = nil
	d.must("Page.navigate", map[string]any{"url": address}, nil)
	d.event("Page.loadEventFired", &struct{}{})
}

// stream opens an address and reads its body in pieces of a size.
func (d *devtools) stream(address string, size int) string {
	d.t.Helper()
	d.must("Fetch.enable", map[string]any{"patterns": []any{map[string]any{"requestStage": "Response"}}}, nil)
	d.events = nil
	d.send("Page.navigate", map[string]any{"url": address})
	var paused struct{ RequestID string }
	d.event("Fetch.requestPaused", &paused)
	var stream struct{ Stream string }
	d.must("Fetch.takeResponseBodyAsStream", map[string]any{"requestId": paused.RequestID}, &stream)
	if refused := d.call("IO.read", map[string]any{"handle": stream.Stream, "offset": 3}, nil); !strings.Contains(refused, "offset") {
		d.t.Errorf("a read with an offset answered %q", refused)
	}
	var body strings.Builder
	for {
		var piece struct {
			Data          string
			Base64Encoded bool
			EOF           bool
		}
		d.must("IO.read", map[string]any{"handle": stream.Stream, "size": size}, &piece)
		data := []byte(piece.Data)
		if piece.Base64Encoded {
			var err error
			if data, err = base64.StdEncoding.DecodeString(piece.Data); err != nil {
				d.t.Fatal(err)
			}
		}
		body.Write(data)
		if piece.EOF {
			break
		}
	}
	d.must("Fetch.failRequest", map[string]any{"requestId": paused.RequestID, "errorReason": "Aborted"}, nil)
	d.must("Fetch.disable", nil, nil)
	return body.String()
}

// messages has a page hear messages of a size, and returns what the client saw of them.
func (d *devtools) messages(site, text string, size int) string {
	d.t.Helper()
	d.goTo(site + "/")
	d.must("Runtime.evaluate", map[string]any{"expression": fmt.Sprintf(
		"void new WebSocket('ws://' + location.host + '/repeated/messages?size=%d&text=' + encodeURIComponent(%q))", size, text)}, nil)
	var all strings.Builder
	d.event("Network.webSocketCreated", &struct{}{})
	for {
		m := d.read()
		switch m.Method {
		case "Network.webSocketFrameReceived":
			var frame struct{ Response struct{ PayloadData string } }
			if err := json.Unmarshal(m.Params, &frame); err != nil {
				d.t.Fatal(err)
			}
			all.WriteString(frame.Response.PayloadData)
		case "Network.webSocketClosed":
			return all.String()
		}
	}
}

// beginning is how much of a value is in a text, from any byte of it on and in any of its spellings in a page.
func beginning(text, value string) int {
	limit := 0
	for _, spelled := range []string{value, strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "'", "&#39;").Replace(value)} {
		for i := range spelled {
			for n := i + limit + 1; n <= len(spelled) && strings.Contains(text, spelled[i:n]); n++ {
				limit = n - i
			}
		}
	}
	return limit
}

// TestNoValueComesInPieces reads what repeats the cookies of an account piece by piece, over DevTools and with the tools.
func TestNoValueComesInPieces(t *testing.T) {
	v := newLaboratory(t)
	inner := &laboratory{Installation: &testkit.Installation{Instance: v.Instance, T: t, API: v.API}, lab: v.lab}
	s, env := inner.operator("shell")
	site := env["SITE"]
	text := `Zp3<u>&J'5=n|1^` + "MNOPQRSTUVWX" // looks like the value, and is nobody's
	query := "?text=" + url.QueryEscape(text)
	d := drive(t, env["WS_URL"])
	values := map[string]string{"secret": v.lab.Secret, "odd": v.lab.Odd}
	// A value has more than two dozen bytes, so that some cut is in the middle of it, wherever it stands.
	step := 7
	if testenv.IsLong() {
		step = 1
	}
	check := func(t *testing.T, how, got string, limit int) {
		t.Helper()
		for name, value := range values {
			if n := beginning(got, value); n > limit {
				t.Errorf("%s shows %d bytes of the cookie %s: %.600q", how, n, name, got)
			}
		}
		if !strings.Contains(got, text) || !strings.Contains(got, "lab_odd=") || !strings.Contains(got, "[redacted]") {
			t.Errorf("%s does not show what is nobody's, or no cookie: %.600q", how, got)
		}
	}
	t.Run("streams", func(t *testing.T) {
		for size := 1; size <= 7; size++ {
			check(t, fmt.Sprintf("a stream in pieces of %d", size), d.stream(site+"/repeated"+query, size), 3)
		}
	})
	t.Run("messages", func(t *testing.T) {
		for size := 1; size <= 7; size++ {
			check(t, fmt.Sprintf("messages of %d", size), d.messages(site, text, size), 7)
		}
	})
	t.Run("saved pages", func(t *testing.T) {
		for shift := 0; shift < 76; shift += step {
			d.goTo(site + "/repeated/page" + query + strings.Repeat("y", shift))
			var saved struct{ Data string }
			d.must("Page.captureSnapshot", nil, &saved)
			_, part, _ := strings.Cut(saved.Data, "quoted-printable")
			plain, err := io.ReadAll(quotedprintable.NewReader(strings.NewReader(part)))
			if err != nil {
				t.Fatal(err)
			}
			escaped := strings.NewReplacer("&lt;", "<", "&gt;", ">", "&amp;", "&").Replace(string(plain))
			check(t, fmt.Sprintf("a page with %d letters more", shift), escaped, 5)
		}
	})
	t.Run("tools", func(t *testing.T) {
		at := s.ID
		if _, err := v.API.Drive(t.Context(), at, browser.Navigate{URL: site + "/repeated/page" + query}); err != nil {
			t.Fatal(err)
		}
		whole, err := client.As[browser.DOMResult](v.API.Drive(t.Context(), at, browser.DOM{Format: "text", Selector: "p"}))
		if err != nil {
			t.Fatal(err)
		}
		check(t, "the text of a page", whole.Text, 3)
		for limit := 1; limit < len(whole.Text)+40; limit += step {
			for name, op := range map[string]browser.Operation{
				"text": browser.DOM{Format: "text", Selector: "p", MaxChars: limit}, "html": browser.DOM{MaxChars: limit},
				"snapshot": browser.Snapshot{MaxChars: limit},
			} {
				out, err := v.API.Drive(t.Context(), at, op)
				if err != nil {
					t.Fatal(err)
				}
				raw, err := json.Marshal(out)
				if err != nil {
					t.Fatal(err)
				}
				for cookie, value := range values {
					if n := beginning(string(raw), value); n > 5 {
						t.Errorf("%s of %d shows %d bytes of the cookie %s: %.400s", name, limit, n, cookie, raw)
					}
				}
			}
		}
	})
}
