//go:build unix

package cdp

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/browser"
	protocol "github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/target"

	"github.com/clawjail/clawjail/internal/cdp/cdptest"
	"github.com/clawjail/clawjail/internal/testenv"
)

func openShell(t testing.TB) (*Conn, *cdptest.Browser) {
	t.Helper()
	process := cdptest.Shell(t)
	conn, err := New(process.Replies, process.Commands, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn, process
}

// answer is a message as a client reads it.
type answer struct {
	ID        int             `json:"id"`
	SessionID string          `json:"sessionId"`
	Method    string          `json:"method"`
	Params    json.RawMessage `json:"params"`
	Result    json.RawMessage `json:"result"`
	Error     *struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

// roundTrip sends a command and reads until its reply, past those to earlier ones.
func roundTrip(t testing.TB, c *Client, id int, session, method, params string, earlier ...int) (reply answer, events []answer) {
	t.Helper()
	frame := fmt.Sprintf(`{"id":%d,"method":%q,"params":%s`, id, method, params)
	if session != "" {
		frame += fmt.Sprintf(`,"sessionId":%q`, session)
	}
	send(t, c, frame+"}")
	for {
		var m answer
		if err := json.Unmarshal([]byte(receive(t, c)), &m); err != nil {
			t.Fatal(err)
		}
		if m.Method == "" && m.ID == id {
			return m, events
		}
		if m.Method == "" && !slices.Contains(earlier, m.ID) {
			t.Fatalf("%s got the reply to id %d", method, m.ID)
		}
		events = append(events, m)
	}
}

// long is for what is as large as it may be.
func long(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// reply is the next message that is no event.
func reply(t testing.TB, c *Client) string {
	t.Helper()
	for {
		frame, err := c.Receive(long(t))
		if err != nil {
			t.Fatal(err)
		}
		if bytes.HasPrefix(frame, []byte(`{"id":`)) {
			return string(frame)
		}
	}
}

func field(t testing.TB, raw json.RawMessage, path ...string) string {
	t.Helper()
	for _, name := range path {
		var m map[string]json.RawMessage
		if err := json.Unmarshal(raw, &m); err != nil {
			t.Fatalf("%s in %s: %v", name, raw, err)
		}
		raw = m[name]
	}
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		t.Fatalf("%v is %s: %v", path, raw, err)
	}
	return text
}

// openPage makes a tab of its own for a client and goes to a page with a title.
func openPage(t testing.TB, c *Client, id int, title string) (targetID, session string) {
	t.Helper()
	page := "data:text/html;base64," + base64.StdEncoding.EncodeToString([]byte("<title>"+title+"</title>"))
	reply, _ := roundTrip(t, c, id, "", "Target.createTarget", `{"url":"about:blank"}`)
	targetID = field(t, reply.Result, "targetId")
	reply, _ = roundTrip(t, c, id+1, "", "Target.attachToTarget", fmt.Sprintf(`{"targetId":%q,"flatten":true}`, targetID))
	session = field(t, reply.Result, "sessionId")
	roundTrip(t, c, id+2, session, "Page.enable", `{}`)
	reply, _ = roundTrip(t, c, id+3, session, "Page.navigate", fmt.Sprintf(`{"url":%q}`, page))
	if reply.Error != nil {
		t.Fatalf("navigate: %+v", reply.Error)
	}
	return targetID, session
}

func TestChromiumTwoClientsShareOnePipe(t *testing.T) {
	conn, _ := openShell(t)
	m := NewMux(conn)
	clients := []*Client{attach(t, m, ClientOptions{}), attach(t, m, ClientOptions{})}
	targets, sessions := make([]string, 2), make([]string, 2)

	done := make(chan struct{}, 2)
	for i, c := range clients {
		go func() {
			defer func() { done <- struct{}{} }()
			targets[i], sessions[i] = openPage(t, c, 1, fmt.Sprintf("page of %d", i))
			// The same ids at the same time, each answered with its own.
			for n := range 50 {
				reply, _ := roundTrip(t, c, 10+n, sessions[i], "Runtime.evaluate",
					fmt.Sprintf(`{"expression":"'%d/%d'","returnByValue":true}`, i, n))
				if got := field(t, reply.Result, "result", "value"); got != fmt.Sprintf("%d/%d", i, n) {
					t.Errorf("client %d got %s", i, got)
				}
			}
		}()
	}
	<-done
	<-done
	if t.Failed() {
		return
	}

	// Each sees the other's page, and cannot use its session.
	for i, c := range clients {
		other := 1 - i
		testenv.Eventually(t, 10*time.Second, func() bool {
			reply, _ := roundTrip(t, c, 100, "", "Target.getTargets", `{}`)
			text := string(reply.Result)
			return strings.Contains(text, targets[other]) && strings.Contains(text, fmt.Sprintf("page of %d", other))
		}, "client %d sees the page of %d", i, other)
		reply, _ := roundTrip(t, c, 101, sessions[other], "Runtime.evaluate", `{"expression":"1"}`)
		if reply.Error == nil || reply.Error.Code != CodeSessionUnknown {
			t.Errorf("client %d used the session of %d: %s", i, other, reply.Result)
		}
		reply, _ = roundTrip(t, c, 102, "", "Target.detachFromTarget", fmt.Sprintf(`{"sessionId":%q}`, sessions[other]))
		if reply.Error == nil {
			t.Errorf("client %d detached the session of %d", i, other)
		}
	}

	// The first leaves: nothing of it stays attached, and the second goes on.
	if err := clients[0].Close(); err != nil {
		t.Fatal(err)
	}
	if attached := attachedTargets(t, conn); attached[targets[0]] || !attached[targets[1]] {
		t.Errorf("attached after the close: %v", attached)
	}
	var gone *Error
	if err := conn.Session(sessions[0]).Call(short(t), "Runtime.evaluate", map[string]string{"expression": "1"}, nil); !errors.As(err, &gone) || gone.Code != CodeSessionUnknown {
		t.Errorf("the browser still knows the session: %v", err)
	}
	reply, _ := roundTrip(t, clients[1], 200, sessions[1], "Runtime.evaluate", `{"expression":"document.title"}`)
	if got := field(t, reply.Result, "result", "value"); got != "page of 1" {
		t.Errorf("the second client reads %q", got)
	}
	// A frame that is no command ends the second; then nothing at all is attached.
	if err := clients[1].Send(short(t), []byte(`{"id":1,"method":"Browser.close","Method":"x"}`)); !errors.Is(err, ErrProtocol) {
		t.Errorf("got %v", err)
	}
	<-clients[1].detached
	for id, attached := range attachedTargets(t, conn) {
		if attached {
			t.Errorf("target %s is still attached", id)
		}
	}
	if n := conn.attachedSessions(); n != 0 {
		t.Errorf("%d sessions left in the table", n)
	}
	if stats := conn.Stats(); stats.Rejected != 0 {
		t.Errorf("the browser rejected %d messages", stats.Rejected)
	}
}

func attachedTargets(t testing.TB, conn *Conn) map[string]bool {
	t.Helper()
	result, err := Do(short(t), conn.Browser(), target.GetTargets, target.GetTargetsParams{})
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string]bool)
	for _, info := range result.TargetInfos {
		out[string(info.TargetID)] = info.Attached
	}
	return out
}

func TestChromiumCarriesLargeMessagesBothWays(t *testing.T) {
	conn, _ := openShell(t)
	m := NewMux(conn)
	c := attach(t, m, ClientOptions{})
	_, session := openPage(t, c, 1, "large")
	big := strings.Repeat("x", 8<<20)
	reply, _ := roundTrip(t, c, 10, session, "Runtime.evaluate", `{"expression":"'`+big+`'","returnByValue":true}`)
	if got := field(t, reply.Result, "result", "value"); got != big {
		t.Errorf("got %d bytes back", len(got))
	}
	// Half a character, as any page may make one, comes through and ends nothing.
	reply, _ = roundTrip(t, c, 11, session, "Runtime.evaluate", `{"expression":"document.title='\\ud800'; ({'\\ud800':1,'\\ud801':2})","returnByValue":true}`)
	if reply.Error != nil {
		t.Errorf("got %+v", reply.Error)
	}
	if err := conn.Err(); err != nil {
		t.Error(err)
	}
	attachedTargets(t, conn)
}

// Whatever the codec lets through, Chromium answers under its id: otherwise a client would wait for ever.
func TestChromiumAnswersWhateverTheCodecAccepts(t *testing.T) {
	conn, _ := openShell(t)
	c := attach(t, NewMux(conn), ClientOptions{})
	deepest := strings.Repeat(`[`, maxClientDepth-1) + strings.Repeat(`]`, maxClientDepth-1)
	for i, value := range []string{deepest, `-0`, `1E5`, `1.7976931348623157e308`, `123456789012345678901234567890`,
		`5e-400`, `"\ud800"`, `"\u0000"`, `"\/"`, `{"\ud800":1}`, "\"\x7f\"", `"` + strings.Repeat(`\"`, 1000) + `"`} {
		reply, _ := roundTrip(t, c, i, "", "Browser.getVersion", `{"a":`+value+`}`)
		if reply.Error != nil {
			t.Errorf("%.60s: %+v", value, reply.Error)
		}
	}
	if n := conn.Stats().Rejected; n != 0 {
		t.Errorf("the browser rejected %d messages without saying which", n)
	}
}

func TestChromiumDeathIsNoticedByAll(t *testing.T) {
	conn, process := openShell(t)
	m := NewMux(conn)
	one, two := attach(t, m, ClientOptions{}), attach(t, m, ClientOptions{})
	_, session := openPage(t, one, 1, "doomed")
	hanging := make(chan error, 1)
	go func() {
		hanging <- conn.Session(session).Call(short(t), "Runtime.evaluate",
			map[string]any{"expression": "new Promise(() => 0)", "awaitPromise": true}, nil)
	}()
	process.Kill()
	for _, c := range []*Client{one, two} {
		for {
			if _, err := c.Receive(short(t)); err != nil {
				if !errors.Is(err, ErrBrowserGone) {
					t.Errorf("a client got %v", err)
				}
				break
			}
		}
	}
	if err := <-hanging; !errors.Is(err, ErrBrowserGone) {
		t.Errorf("the call got %v", err)
	}
}

func TestChromiumExitsWhenItsPipeIsClosed(t *testing.T) {
	conn, process := openShell(t)
	if _, err := Do(short(t), conn.Browser(), browser.GetVersion, protocol.Empty{}); err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	select {
	case <-process.Exited():
	case <-time.After(10 * time.Second):
		t.Error("still running")
	}
}

// The tests mean little if the browser under them runs without its sandbox.
func TestChromiumRunsWithItsSandbox(t *testing.T) {
	conn, process := openShell(t)
	if _, err := Do(short(t), conn.Browser(), browser.GetVersion, protocol.Empty{}); err != nil {
		t.Fatal(err)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", process.PID()))
	if err != nil {
		t.Skipf("SKIPPED: no /proc: %v", err)
	}
	if strings.Contains(string(status), "\nUid:\t0\t") {
		t.Error("the browser runs as root")
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", process.PID()))
	if err != nil || strings.Contains(string(line), "no-sandbox") {
		t.Errorf("command line %q, %v", line, err)
	}
}

// A page that logs without end while its client computes costs the client lines, of which it is told, and nothing else.
func TestChromiumAFloodOfLinesLosesNoClient(t *testing.T) {
	conn, _ := openShell(t)
	const logged = 15000
	c := attach(t, NewMux(conn), ClientOptions{MaxNoise: 4 << 20})
	_, session := openPage(t, c, 1, "flood")
	roundTrip(t, c, 10, session, "Runtime.enable", `{}`)
	send(t, c, fmt.Sprintf(`{"id":11,"method":"Runtime.evaluate","params":{"expression":"for (let i = 0; i < %d; i++) console.log('a line of a page that logs much, number ' + i)"},"sessionId":%q}`, logged, session))
	testenv.Eventually(t, 10*time.Second, func() bool {
		c.queue.mu.Lock()
		defer c.queue.mu.Unlock()
		return slices.ContainsFunc(c.queue.items, func(i item) bool { return i.message != nil && i.message.Kind == Reply && i.message.ID == 11 })
	}, "the answer waits behind all lines")
	reply, events := roundTrip(t, c, 12, session, "Runtime.evaluate", `{"expression":"document.title"}`, 11)
	if got := field(t, reply.Result, "result", "value"); got != "flood" {
		t.Errorf("the title is %q", got)
	}
	seen, left := 0, 0
	for _, e := range events {
		switch e.Method {
		case line:
			seen++
		case leftOut:
			var said struct{ Count int }
			if err := json.Unmarshal(e.Params, &said); err != nil {
				t.Fatal(err)
			}
			left += said.Count
		}
	}
	if seen+left != logged || seen == 0 || left == 0 {
		t.Errorf("%d lines seen and %d left out, of %d", seen, left, logged)
	}
}

// Chromium takes commands, and gives results, as large as are passed on here. A larger message costs its command.
func TestChromiumTakesTheLargestMessages(t *testing.T) {
	conn, _ := openShell(t)
	m := NewMux(conn)
	c, other := attach(t, m, ClientOptions{}), attach(t, m, ClientOptions{})
	target, session := openPage(t, c, 1, "large")
	command := func(size int) string {
		head, tail := `{"id":20,"method":"Runtime.evaluate","params":{"expression":"'`, fmt.Sprintf(`'.length"},"sessionId":%q}`, session)
		return head + strings.Repeat("x", size-len(head)-len(tail)) + tail
	}
	result := func(size int) string {
		return fmt.Sprintf(`{"id":20,"method":"Runtime.evaluate","params":{"expression":"'x'.repeat(%d)"},"sessionId":%q}`, size, session)
	}
	for _, test := range []struct {
		name, command, reply string
		slow                 bool // Chromium looks through all that it has of a command with every piece of it
	}{
		{"a result", result(90 << 20), `{"id":20,"result":`, false},
		{"a command too large", command(MaxCommand + 8), `{"id":20,"error":`, false},
		{"the largest command", command(MaxCommand - 8), `{"id":20,"result":{"result":{"type":"number"`, true},
		{"a result too large", result(DefaultMaxBrowserFrame), `{"id":20,"error":`, true},
	} {
		if test.slow && !testenv.IsLong() {
			continue
		}
		if err := c.SendFrom(long(t), strings.NewReader(test.command)); err != nil {
			t.Fatal(err)
		}
		if got := reply(t, c); !strings.HasPrefix(got, test.reply) {
			t.Errorf("%s: %.300s", test.name, got)
		}
	}
	if said, _ := roundTrip(t, other, 1, "", "Target.getTargets", `{}`); !strings.Contains(string(said.Result), target) {
		t.Errorf("another client sees %s", said.Result)
	}
}
