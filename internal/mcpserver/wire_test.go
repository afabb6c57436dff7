package mcpserver

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/quota"
	"github.com/clawjail/clawjail/internal/testenv"
)

func TestAServerThatFloodsIsEndedAndOthersGoOn(t *testing.T) {
	for name, c := range map[string]struct {
		behave func(p *peer, s said)
		says   string
	}{
		"notifications": {func(p *peer, _ said) {
			batch := strings.Repeat(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}`+"\n", 1000)
			for range 2 * maxStray / 1000 {
				p.say("%s", batch)
			}
		}, "that nobody asked for"},
		"no messages at all": {func(p *peer, _ said) { p.say("%s", strings.Repeat("x\n", 2*maxStray)) }, "that nobody asked for"},
		"empty lines":        {func(p *peer, _ said) { p.say("%s", strings.Repeat("\n", 2*maxStray)) }, "that nobody asked for"},
		"questions": {func(p *peer, _ said) {
			p.say("%s", strings.Repeat(`{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage","params":{}}`+"\n", 2*maxStray))
		}, "that nobody asked for"},
		"a line without an end": {func(p *peer, _ said) {
			part := bytes.Repeat([]byte("x"), 1<<20)
			for {
				if _, err := p.out.Write(part); err != nil {
					return
				}
			}
		}, "did not answer"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t, files(), config.MCPServer{Name: "good", Command: []string{"/s"}})
			w.pace.pong = 200 * time.Millisecond
			if w.pace.call = 30 * time.Second; c.says == "did not answer" {
				w.pace.call = 3 * time.Second
			}
			if _, err := w.call(operator(), "good__echo"); err != nil {
				t.Fatal(err)
			}
			w.behave = func(p *peer) { p.serve(c.behave) }
			_, err := w.call(operator(), "files__echo")
			// A call without an answer fails by its silence.
			if p, ok := problem.As(err); !ok || p.Code != problem.Timeout && !strings.Contains(p.Message, "was ended") || !strings.Contains(p.Message, c.says) {
				t.Errorf("%v", err)
			}
			testenv.Eventually(t, 5*time.Second, func() bool { return w.running() == 1 }, "its jail is still there")
			if _, err := w.call(operator(), "good__echo"); err != nil {
				t.Errorf("another server: %v", err)
			}
		})
	}
}

// An answer that cannot be taken costs the call. The server goes on with what it has in mind, and so do the calls of others.
func TestAnAnswerThatCannotBeTakenCostsTheCall(t *testing.T) {
	large := files()
	large.Answer = config.MiB
	w := newFixture(t, large)
	waits, go1 := make(chan struct{}), make(chan struct{})
	answers := map[string]func(n int) string{
		"larger than it may be": func(n int) string { return `{"content":[{"type":"text","text":"` + strings.Repeat("x", n) + `"}]}` },
		"of too many values": func(int) string {
			return `{"content":[],"structuredContent":{"a":[` + strings.Repeat("[],", 2*maxParts) + `[]]}}`
		},
		"nested too deep": func(int) string {
			return `{"content":[],"structuredContent":` + strings.Repeat(`{"a":`, 2*maxDepth) + "1" + strings.Repeat("}", 2*maxDepth) + `}`
		},
	}
	w.behave = func(p *peer) {
		p.serve(func(p *peer, s said) {
			var arguments struct{ Arguments struct{ What string } }
			_ = json.Unmarshal(s.Params, &arguments)
			switch what := arguments.Arguments.What; {
			case what == "wait":
				close(waits)
				<-go1
				p.text(s, "waited")
			case what == "id last": // as some write it
				p.say(`{"result":%s,"jsonrpc":"2.0","id":%s}`, answers["larger than it may be"](2<<20), s.ID)
			case answers[what] != nil:
				p.result(s, answers[what](2<<20))
			case what == "fits":
				p.result(s, answers["larger than it may be"](900<<10))
			default:
				echo(p, s)
			}
		})
	}
	ask := func(what string) (string, error) {
		out, err := w.Call(t.Context(), operator(), "files__echo", json.RawMessage(`{"what":"`+what+`"}`), nil)
		if err != nil {
			return "", err
		}
		return textOf(out), nil
	}
	other := make(chan error, 1)
	go func() {
		_, err := ask("wait")
		other <- err
	}()
	<-waits
	for _, what := range []string{"larger than it may be", "id last", "of too many values", "nested too deep"} {
		if _, err := ask(what); problem.CodeOf(err) != problem.TooLarge {
			t.Errorf("%s: %v", what, err)
		}
	}
	if text, err := ask("fits"); err != nil || len(text) != 900<<10 {
		t.Errorf("%d bytes, %v", len(text), err)
	}
	// A message that is too large and no answer is left out.
	close(go1)
	if err := <-other; err != nil {
		t.Errorf("the call of another: %v", err)
	}
	if w.started() != 1 || w.running() != 1 {
		t.Errorf("%d servers were started", w.started())
	}
	if held := w.messages.Amounts(quota.Holder{}); held[0].Held.All != 0 {
		t.Errorf("of the room %+v is held", held)
	}
}

// Large answers of all servers have a room together, of which a tenant has a share.
func TestLargeAnswersHaveARoomTogether(t *testing.T) {
	for size, code := range map[int64]string{6 << 20: problem.TooLarge, 8 << 20: ""} { // of which a tenant has four fifths
		w := newFixture(t, files())
		w.messages = quota.NewGate(quota.GateOptions{Kind: quota.ServerMessages(), Whole: size, Tenants: func() int { return 2 }})
		w.behave = func(p *peer) {
			p.serve(func(p *peer, s said) { p.text(s, strings.Repeat("x", 5<<20)) })
		}
		text, err := w.call(operator(), "files__echo")
		if problem.CodeOf(err) != code || code == "" && len(text) != 5<<20 || code != "" && !strings.Contains(err.Error(), "no room") {
			t.Errorf("with %d: %d bytes, %v", size, len(text), err)
		}
	}
}

func TestAServerThatDoesNotReadIsEnded(t *testing.T) {
	w := newFixture(t, files())
	w.pace.write = 100 * time.Millisecond
	w.behave = func(p *peer) {
		for range 4 { // the hello, and the list of its tools; then nothing any more
			if !p.in.Scan() {
				return
			}
			var s said
			_ = json.Unmarshal(p.in.Bytes(), &s)
			switch s.Method {
			case "initialize":
				p.result(s, `{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"peer","version":"7"}}`)
			case "tools/list":
				p.result(s, strings.ReplaceAll(someTools, "\n", " "))
				<-p.killed
				return
			}
		}
	}
	big := json.RawMessage(`{"a":"` + strings.Repeat("x", 900<<10) + `"}`)
	_, err := w.Call(t.Context(), operator(), "files__echo", big, nil)
	if p, ok := problem.As(err); !ok || !strings.Contains(p.Message, "did not read") {
		t.Errorf("%v", err)
	}
}

// A server with one thread reads its second call when it is done with the first.
func TestAServerThatWorksNeedNotReadAnotherCall(t *testing.T) {
	patient := files()
	patient.Silence = time.Minute
	w := newFixture(t, patient)
	w.pace.write = 50 * time.Millisecond
	works, sent := make(chan struct{}), make(chan struct{})
	begin := sync.OnceFunc(func() { close(works) })
	w.behave = func(p *peer) {
		p.oneByOne = true
		p.serve(func(p *peer, s said) {
			begin()
			<-sent
			time.Sleep(3 * w.pace.write) // of work; the second call does not fit into the pipe meanwhile
			echo(p, s)
		})
	}
	first := make(chan error, 1)
	go func() {
		_, err := w.call(operator(), "files__echo")
		first <- err
	}()
	<-works
	close(sent)
	_, err := w.Call(t.Context(), operator(), "files__echo", json.RawMessage(`{"a":"`+strings.Repeat("x", 200<<10)+`"}`), nil)
	if err := errors.Join(err, <-first); err != nil || w.started() != 1 {
		t.Errorf("%v, %d starts", err, w.started())
	}
}

func TestWhatAServerAsksOfItsClientIsRefused(t *testing.T) {
	w := newFixture(t, files())
	refused := make(chan said, 8)
	w.behave = func(p *peer) {
		p.serve(func(p *peer, s said) {
			for n, method := range []string{"sampling/createMessage", "elicitation/create", "roots/list"} {
				p.say(`{"jsonrpc":"2.0","id":"q%d","method":%q,"params":{}}`, n, method)
			}
			p.say(`{"jsonrpc":"2.0","id":"q9","method":"ping"}`)
			testenv.Eventually(p.t, 5*time.Second, func() bool {
				p.mu.Lock()
				defer p.mu.Unlock()
				n := 0
				for _, s := range p.seen {
					if s.Method == "" {
						n++
					}
				}
				return n == 4
			}, "not everything was answered")
			p.mu.Lock()
			defer p.mu.Unlock()
			for _, s := range p.seen {
				if s.Method == "" {
					refused <- s
				}
			}
			echo(p, s)
		})
	}
	if _, err := w.call(agent(), "files__echo"); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		s := <-refused
		if ping := string(s.ID) == `"q9"`; ping != (len(s.Error) == 0) {
			t.Errorf("%s was answered with %s", s.ID, s.Error)
		}
	}
	// Nothing was offered in the hello either.
	for _, s := range w.peer(0).seen {
		if s.Method == "initialize" && (bytes.Contains(s.Params, []byte("sampling")) || bytes.Contains(s.Params, []byte("roots")) || bytes.Contains(s.Params, []byte("elicitation"))) {
			t.Errorf("the client offers %s", s.Params)
		}
	}
}

func TestLinesThatAreNoMessagesAreKeptAsWhatWasPrinted(t *testing.T) {
	w := newFixture(t, files())
	w.behave = func(p *peer) {
		p.say("Server is starting…")
		p.say(`{"jsonrpc":`)
		p.say(`[1,2]`)
		p.serve(echo)
	}
	r, err := w.Test(t.Context(), admin(), "", "files")
	if err != nil || r.Problem != "" {
		t.Fatalf("%+v, %v", r, err)
	}
	for _, want := range []string{"stdout: Server is starting…", `stdout: {"jsonrpc":`, "stdout: [1,2]"} {
		if !strings.Contains(r.Stderr, want) {
			t.Errorf("%q is not in what was printed: %q", want, r.Stderr)
		}
	}
}

func TestWhatIsPrintedIsBounded(t *testing.T) {
	var r run
	for n := range 5000 {
		fmt.Fprintf(&r.stderr, "line %d of some length, so that it fills\n", n)
	}
	if text := r.printed(100); !strings.HasSuffix(text, "line 4999 of some length, so that it fills\n") || len(text) > 100 || !strings.HasPrefix(text, "line ") {
		t.Errorf("%q", text)
	}
}

// pipeless is a wire over memory.
func pipeless(input []byte) *wire {
	return newWire(nowhere{}, io.NopCloser(bytes.NewReader(input)), usualPace(), time.Now, 1<<20, endless{})
}

type endless struct{}

func (endless) Take(int64) bool { return true }
func (endless) Give(int64)      {}

type nowhere struct{}

func (nowhere) Write(p []byte) (int, error) { return len(p), nil }
func (nowhere) Close() error                { return nil }

// FuzzWire reads whatever a server may print: it ends, it does not panic, and what comes through is an answer.
func FuzzWire(f *testing.F) {
	f.Add([]byte(`{"jsonrpc":"2.0","id":1,"result":{}}` + "\n"))
	f.Add([]byte("hello\n\n{\"id\":1}\n[]\n{\"method\":\"ping\",\"id\":\"\\\"\"}\n"))
	f.Add([]byte(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":{},"progress":1e400}}`))
	f.Add([]byte(`{"jsonrpc":"2.0","id":1,"id":2,"method":"x","method":""}`))
	f.Fuzz(func(t *testing.T, input []byte) {
		w := pipeless(input)
		defer w.wait()
		defer w.Close()
		for range bytes.Count(input, []byte("\n")) + 2 {
			m, err := w.Read(t.Context())
			if err != nil {
				if m != nil {
					t.Errorf("%v came with %v", m, err)
				}
				return
			}
			if m == nil {
				t.Fatal("neither a message nor an error")
			}
		}
		t.Error("there is more than there was")
	})
}

func TestAWireThatIsClosedEndsItsReader(t *testing.T) {
	r, keep, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer keep.Close()
	w := newWire(nowhere{}, r, usualPace(), time.Now, 1<<20, endless{})
	ended := make(chan error, 1)
	go func() {
		_, err := w.Read(t.Context())
		ended <- err
	}()
	if err := errors.Join(w.Close(), w.Close()); err != nil {
		t.Error(err)
	}
	w.wait()
	if err := <-ended; !errors.Is(err, io.EOF) {
		t.Errorf("%v", err)
	}
}
