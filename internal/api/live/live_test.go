package live

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"go.uber.org/goleak"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeViewer sees what a test shows it: the latest frame, after the one before was shown, and everything else in order.
type fakeViewer struct {
	mu      sync.Mutex
	frame   *browser.Frame
	shown   bool
	others  []session.Sight
	gone    error
	changed chan struct{}

	inputs  []browser.LiveInput
	visible []bool
	doing   chan struct{} // each input waits for one, unless it is nil
	answer  func(browser.LiveInput) (string, error)
}

func newViewer() *fakeViewer { return &fakeViewer{shown: true, changed: make(chan struct{}, 1)} }

func (v *fakeViewer) change(f func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	f()
	select {
	case v.changed <- struct{}{}:
	default:
	}
}

func (v *fakeViewer) show(f *browser.Frame) { v.change(func() { v.frame = f }) }
func (v *fakeViewer) tell(s session.Sight)  { v.change(func() { v.others = append(v.others, s) }) }
func (v *fakeViewer) end(err error)         { v.change(func() { v.gone = err }) }
func (v *fakeViewer) Shown()                { v.change(func() { v.shown = true }) }
func (v *fakeViewer) Visible(visible bool) {
	v.change(func() { v.visible = append(v.visible, visible) })
}
func (v *fakeViewer) next() (session.Sight, error, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case v.gone != nil:
		return session.Sight{}, v.gone, true
	case len(v.others) > 0:
		s := v.others[0]
		v.others = v.others[1:]
		return s, nil, true
	case v.frame != nil && v.shown:
		s := session.Sight{Frame: v.frame}
		v.frame, v.shown = nil, false
		return s, nil, true
	}
	return session.Sight{}, nil, false
}

func (v *fakeViewer) Next(ctx context.Context) (session.Sight, error) {
	for {
		if s, err, ok := v.next(); ok {
			return s, err
		}
		select {
		case <-v.changed:
		case <-ctx.Done():
			return session.Sight{}, ctx.Err()
		}
	}
}

func (v *fakeViewer) Input(ctx context.Context, in browser.LiveInput) (string, error) {
	if v.doing != nil {
		select {
		case <-v.doing:
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.inputs = append(v.inputs, in)
	if v.answer != nil {
		return v.answer(in)
	}
	return "", nil
}

// done are the inputs that were done.
func (v *fakeViewer) done() []browser.LiveInput {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Clone(v.inputs)
}

// watched is a viewer behind a server, and a client that watches.
type watched struct {
	*fakeViewer
	conn  *websocket.Conn
	end   context.CancelCauseFunc
	log   *written
	ended chan error // what Serve returned
}

// written is a log.
type written struct {
	mu   sync.Mutex
	text strings.Builder
}

func (w *written) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(b)
}

func (w *written) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

func watch(t *testing.T, viewer *fakeViewer) *watched {
	t.Helper()
	out := &watched{fakeViewer: viewer, log: &written{}, ended: make(chan error, 1)}
	ctx, cancel := context.WithCancelCause(context.Background())
	out.end = cancel
	log := slog.New(slog.NewTextHandler(out.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		out.ended <- Serve(ctx, w, r, viewer, log)
	}))
	t.Cleanup(server.Close)
	conn, _, err := websocket.Dial(t.Context(), server.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	conn.SetReadLimit(64 << 20)
	out.conn = conn
	t.Cleanup(func() {
		cancel(nil)
		_ = conn.CloseNow() // most are closed already
	})
	return out
}

func (w *watched) send(t *testing.T, text string) {
	t.Helper()
	if err := w.conn.Write(t.Context(), websocket.MessageText, []byte(text)); err != nil {
		t.Fatal(err)
	}
}

func (w *watched) read(t *testing.T) (websocket.MessageType, []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	kind, text, err := w.conn.Read(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return kind, text
}

// want reads one text message.
func (w *watched) want(t *testing.T, want string) {
	t.Helper()
	if kind, text := w.read(t); kind != websocket.MessageText || string(text) != want {
		t.Fatalf("the message is %s, want %s", text, want)
	}
}

// wantEnd reads the last message and the close frame.
func (w *watched) wantEnd(t *testing.T, code websocket.StatusCode, end string) {
	t.Helper()
	var said struct {
		End *ending `json:"end"`
	}
	for said.End == nil {
		if kind, text := w.read(t); kind == websocket.MessageText {
			if err := json.Unmarshal(text, &said); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got := said.End.Code + ": " + said.End.Message; got != end {
		t.Errorf("the end is %q, want %q", got, end)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, _, err := w.conn.Read(ctx)
	var closed websocket.CloseError
	if !errors.As(err, &closed) || closed.Code != code || closed.Reason != end {
		t.Errorf("it is closed with %v, want %d %q", err, code, end)
	}
	<-w.ended
}

// picture reads one frame.
func (w *watched) picture(t *testing.T) (about map[string]any, jpeg string) {
	t.Helper()
	kind, text := w.read(t)
	if kind != websocket.MessageBinary || len(text) < 4 {
		t.Fatalf("it is no frame: %s", text)
	}
	n := binary.BigEndian.Uint32(text)
	if err := json.Unmarshal(text[4:4+n], &about); err != nil {
		t.Fatal(err)
	}
	return about, string(text[4+n:])
}

func picture(text string) *browser.Frame {
	return &browser.Frame{JPEG: []byte(text), Width: 1280, Height: 720, At: time.Unix(1_700_000_000, 0).UTC()}
}

func TestFramesStatesAndControlAreShown(t *testing.T) {
	w := watch(t, newViewer())
	w.show(picture("\xff\xd8picture"))
	about, jpeg := w.picture(t)
	if jpeg != "\xff\xd8picture" || about["width"] != 1280.0 || about["height"] != 720.0 || about["at"] != "2023-11-14T22:13:20Z" || len(about) != 3 {
		t.Errorf("%v %q", about, jpeg)
	}
	w.tell(session.Sight{State: &browser.LiveState{Tabs: []browser.LiveTab{{ID: "t1", Title: "<b>\xff", Current: true}}, URL: "https://example.com/", Back: true}})
	w.want(t, `{"state":{"tabs":[{"id":"t1","title":"\u003cb\u003e\ufffd","url":"","current":true}],"url":"https://example.com/","loading":false,"back":true,"forward":false}}`)
	w.tell(session.Sight{Changed: true, Mine: true, Control: &session.Control{By: "operator:op_1", Name: "ann", Since: time.Unix(1_700_000_000, 0).UTC()}})
	w.want(t, `{"control":{"by":"operator:op_1","name":"ann","since":"2023-11-14T22:13:20Z","mine":true}}`)
	w.tell(session.Sight{Changed: true})
	w.want(t, `{"control":null}`)
}

// A client that draws slowly sees the latest, and nothing piles up before it.
func TestASlowClientGetsOnlyTheLatest(t *testing.T) {
	w := watch(t, newViewer())
	w.show(picture("1"))
	if _, jpeg := w.picture(t); jpeg != "1" {
		t.Fatalf("the first is %q", jpeg)
	}
	for n := 2; n <= 9; n++ {
		w.show(picture(fmt.Sprint(n)))
	}
	// Messages that are no frames do not wait for shown: so this comes before the next frame.
	w.tell(session.Sight{Changed: true})
	w.want(t, `{"control":null}`)
	w.send(t, `{"type":"shown"}`)
	if _, jpeg := w.picture(t); jpeg != "9" {
		t.Errorf("the next is %q, and not the latest", jpeg)
	}
}

func TestWhetherAnybodyLooksIsSaid(t *testing.T) {
	w := watch(t, newViewer())
	w.send(t, `{"type":"visible","visible":false}`)
	w.send(t, `{"visible":true,"type":"visible"}`)
	testenv.Eventually(t, 5*time.Second, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return slices.Equal(w.visible, []bool{false, true})
	}, "both are said")
}

func TestInputsAreDoneInTheirOrderAndAnswered(t *testing.T) {
	v := newViewer()
	v.answer = func(in browser.LiveInput) (string, error) {
		switch in.Type {
		case "copy":
			return "cop\"ied", nil
		case "cut":
			return "cut", nil
		case "go":
			return "", problem.New(problem.BadURL, "write https://", "it is no address")
		}
		return "", nil
	}
	w := watch(t, v)
	w.send(t, `{"type":"down","x":10.5,"y":20,"button":"left","buttons":1,"clicks":1}`)
	w.send(t, `{"type":"keydown","key":"é","code":"KeyE","modifiers":8}`)
	w.send(t, `{"type":"go","url":"nonsense"}`)
	w.want(t, `{"error":{"code":"bad_url","message":"it is no address","hint":"write https://"}}`)
	w.send(t, `{"type":"copy"}`)
	w.want(t, `{"copied":"cop\"ied"}`)
	w.send(t, `{"type":"cut"}`)
	w.want(t, `{"copied":"cut"}`)
	done := w.done()
	if len(done) != 5 || done[0].X != 10.5 || done[0].Button != "left" || done[1].Key != "é" || done[1].Modifiers != 8 || done[2].URL != "nonsense" {
		t.Errorf("%#v", done)
	}
}

func TestAMessageThatCannotBeTakenIsRefusedAndTheViewGoesOn(t *testing.T) {
	w := watch(t, newViewer())
	for text, want := range map[string]string{
		`{"type":"shown","really":true}`:        `bad_json: the body at line 1, column 17: the key "really" is not known`,
		`{"type":"visible"}`:                    `bad_request: a message of the type visible lacks the field visible`,
		`{"type":"visible","visible":"yes"}`:    `bad_json: the body at line 1, column 29: the value of "visible" has the wrong type`,
		`{"type":"text","text":"a","txt":"b"}`:  `bad_json: the body at line 1, column 27: the key "txt" is not known`,
		`{"type":"text","text":"a","text":"b"}`: `bad_json: the body at line 1, column 27: the key "text" is there twice`,
		`{"type":"move","x":"1"}`:               `bad_json: the body at line 1, column 20: the value of "x" has the wrong type`,
		`{"Type":"move"}`:                       `bad_json: the body at line 1, column 2: the key "Type" is not known`,
		`{"type":7}`:                            `bad_json: the body at line 1, column 9: the value of "type" has the wrong type`,
		`{"x":1}`:                               `bad_request: a message has no type`,
		`{}`:                                    `bad_request: a message has no type`,
		`[]`:                                    `bad_json: the body at line 1, column 1: it is not an object`,
		`null`:                                  `bad_json: the body at line 1, column 1: it is not an object`,
	} {
		w.send(t, text)
		_, answer := w.read(t)
		var said struct{ Error failure }
		if err := json.Unmarshal(answer, &said); err != nil || said.Error.Code+": "+said.Error.Message != want || said.Error.Hint != protocolHint {
			t.Errorf("%s: %s, %v, want %s", text, answer, err, want)
		}
	}
	w.send(t, `{"type":"reload"}`)
	testenv.Eventually(t, 5*time.Second, func() bool { return len(w.done()) == 1 }, "what is right is done")
}

func TestWhatIsNoMessageEndsTheView(t *testing.T) {
	const of = "bad_json: a message is not one of the live view: "
	for name, test := range map[string]struct {
		kind      websocket.MessageType
		text, end string
	}{
		"no JSON": {websocket.MessageText, `{"type":`, of + "it is not JSON"},
		"empty":   {websocket.MessageText, ``, of + "it is not JSON"},
		"two":     {websocket.MessageText, `{"type":"shown"}{}`, of + "it is not JSON"},
		"binary":  {websocket.MessageBinary, `{"type":"shown"}`, of + "it is not a text"},
	} {
		t.Run(name, func(t *testing.T) {
			w := watch(t, newViewer())
			if err := w.conn.Write(t.Context(), test.kind, []byte(test.text)); err != nil {
				t.Fatal(err)
			}
			w.wantEnd(t, websocket.StatusPolicyViolation, test.end)
			if len(w.done()) > 0 {
				t.Error("it was done")
			}
		})
	}
}

// A message that is too long is refused, however much longer it is, and what comes behind it is taken.
func TestAMessageThatIsTooLongIsRefusedAndTheViewGoesOn(t *testing.T) {
	w := watch(t, newViewer())
	for _, more := range []int{0, 3 << 20} {
		w.send(t, `{"type":"text","text":"`+strings.Repeat("x", MaxMessage+more)+`"}`)
		w.want(t, `{"error":{"code":"too_large","message":"a message has more than 1048576 bytes, and nothing of it was done","hint":"send it in parts"}}`)
	}
	w.send(t, `{"type":"reload"}`)
	testenv.Eventually(t, 5*time.Second, func() bool { return len(w.done()) == 1 }, "what comes behind it is done")
}

func TestTheLargestMessageIsTaken(t *testing.T) {
	w := watch(t, newViewer())
	const around = `{"type":"text","text":""}`
	w.send(t, `{"type":"text","text":"`+strings.Repeat("x", MaxMessage-len(around))+`"}`)
	testenv.Eventually(t, 5*time.Second, func() bool { return len(w.done()) == 1 }, "it is done")
}

func TestAViewEndsWithItsReason(t *testing.T) {
	for name, test := range map[string]struct {
		end  func(w *watched)
		code websocket.StatusCode
		want string
	}{
		"the key is revoked": {func(w *watched) { w.end(problem.New(problem.Unauthorized, "", "the key was revoked")) },
			websocket.StatusPolicyViolation, "unauthorized: the key was revoked"},
		"clawjail stops": {func(w *watched) { w.end(problem.New(problem.ShuttingDown, "", "clawjail is being stopped")) },
			websocket.StatusGoingAway, "shutting_down: clawjail is being stopped"},
		"the session ends": {func(w *watched) { w.fakeViewer.end(problem.New(problem.SessionClosed, "", "it was closed")) },
			websocket.StatusNormalClosure, "session_closed: it was closed"},
		"the browser is gone": {func(w *watched) { w.fakeViewer.end(cdp.ErrBrowserGone) }, websocket.StatusNormalClosure, "session_closed: the session has ended"},
		"too many watch": {func(w *watched) { w.fakeViewer.end(problem.New(problem.RateLimited, "", "20 watch")) },
			websocket.StatusPolicyViolation, "rate_limited: 20 watch"},
		"something private": {func(w *watched) { w.fakeViewer.end(errors.New("secret")) },
			websocket.StatusInternalError, "internal: clawjail failed unexpectedly"},
	} {
		t.Run(name, func(t *testing.T) {
			w := watch(t, newViewer())
			test.end(w)
			w.wantEnd(t, test.code, test.want)
		})
	}
}

// A client that does not answer the end is waited for, and has nobody's browser in hand meanwhile.
func TestNothingIsDoneAfterTheEndWasTold(t *testing.T) {
	v := newViewer()
	v.doing = make(chan struct{})
	w := watch(t, v)
	w.send(t, `{"type":"text","text":"is being done"}`)
	w.send(t, `{"type":"text","text":"waits"}`)
	w.send(t, `{"type":"visible","visible":false}`)
	testenv.Eventually(t, 5*time.Second, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.visible) == 1
	}, "all have arrived")
	w.end(problem.New(problem.Unauthorized, "", "the key was revoked"))
	w.want(t, `{"end":{"code":"unauthorized","message":"the key was revoked"}}`)
	close(v.doing)
	select { // it waits for the answer to its close frame
	case <-w.ended:
	case <-time.After(10 * time.Second):
		t.Fatal("it did not end")
	}
	if done := w.done(); len(done) != 0 {
		t.Errorf("%d inputs were done after the end", len(done))
	}
}

func TestAClientThatLeavesEndsItsView(t *testing.T) {
	for name, leave := range map[string]func(*websocket.Conn) error{
		"with a word": func(c *websocket.Conn) error { return c.Close(websocket.StatusNormalClosure, "") },
		"without":     func(c *websocket.Conn) error { return c.CloseNow() },
	} {
		w := watch(t, newViewer())
		if err := leave(w.conn); err != nil {
			t.Error(err)
		}
		if why := <-w.ended; !errors.Is(why, errLeft) {
			t.Errorf("%s: it ended with %v", name, why)
		}
	}
}

// Passwords are typed here.
func TestNothingOfAnInputIsLogged(t *testing.T) {
	v := newViewer()
	v.answer = func(in browser.LiveInput) (string, error) { return "", errors.New("canary: " + in.Text + in.Password) }
	w := watch(t, v)
	for _, text := range []string{`{"type":"text","text":"canary"}`, `{"type":"answer","popup":"p1","password":"canary"}`} {
		w.send(t, text)
		w.want(t, `{"error":{"code":"internal","message":"clawjail failed unexpectedly","hint":"look into the log of the control plane"}}`)
	}
	w.send(t, `{"type":"canary","canary":"canary"}`)
	w.read(t)
	w.send(t, `canary`)
	w.wantEnd(t, websocket.StatusPolicyViolation, "bad_json: a message is not one of the live view: it is not JSON")
	if log := w.log.String(); strings.Contains(log, "canary") || strings.Count(log, "level=ERROR") != 2 {
		t.Errorf("the log is %s", log)
	}
}

func TestACrowdOfMovesHoldsUpNothing(t *testing.T) {
	v := newViewer()
	v.doing = make(chan struct{})
	w := watch(t, v)
	w.send(t, `{"type":"down","button":"left"}`) // is being done
	for n := range 3 * maxQueue {
		// Each differs from the one before in its modifiers, so that it does not take its place.
		w.send(t, fmt.Sprintf(`{"type":"move","x":%d,"modifiers":%d}`, n, n%2))
	}
	w.send(t, `{"type":"up","button":"left"}`)
	w.send(t, `{"type":"visible","visible":false}`)
	testenv.Eventually(t, 5*time.Second, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.visible) == 1
	}, "all have arrived")
	close(v.doing)
	testenv.Eventually(t, 5*time.Second, func() bool {
		done := w.done()
		return len(done) > 0 && done[len(done)-1].Type == "up"
	}, "the last is done")
	done := w.done()
	if len(done) > maxQueue+1 || done[0].Type != "down" || done[len(done)-2].X != 3*maxQueue-1 {
		t.Errorf("%d were done, the last move was %v", len(done), done[len(done)-2].X)
	}
}

func TestASocketIsAskedFor(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := Serve(r.Context(), w, r, newViewer(), slog.New(slog.DiscardHandler)); err == nil {
			t.Error("it was served")
		}
	}))
	defer server.Close()
	response, err := http.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, response.Body); errors.Join(err, response.Body.Close()) != nil || response.StatusCode != http.StatusUpgradeRequired {
		t.Errorf("%s, %v", response.Status, err)
	}
	http.DefaultClient.CloseIdleConnections()
}
