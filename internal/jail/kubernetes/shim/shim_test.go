package shim

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/libp2p/go-yamux/v5"
	"go.uber.org/goleak"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/kubernetes/link"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixture is a server, and pods that are anything but the real ones.
type fixture struct {
	t       *testing.T
	server  *Server
	address string
	arrived chan *Pod
	pin     string
}

func newFixture(t *testing.T, window time.Duration) *fixture {
	t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	side, pin, err := ServerTLS(key)
	if err != nil {
		t.Fatal(err)
	}
	w := &fixture{t: t, arrived: make(chan *Pod, 64), pin: pin}
	w.server = NewServer(Options{
		TLS: side,
		Who: func(_ context.Context, token string, _ netip.Addr) (string, any, error) {
			if name, ok := strings.CutPrefix(token, "token of "); ok {
				return name, nil, nil
			}
			return "", nil, problem.New(problem.Unauthorized, "use the token of the pod", "the token is of no pod")
		},
		Arrived: func(p *Pod) { w.arrived <- p }, Window: window, Log: slog.New(slog.DiscardHandler),
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.address = l.Addr().String()
	l = &scarce{Listener: l}
	served := make(chan struct{})
	go func() {
		w.server.Serve(l)
		close(served)
	}()
	t.Cleanup(func() {
		_ = l.Close()
		w.server.Close()
		<-served
	})
	return w
}

// scarce is a listener that has no descriptor left for its first connection.
type scarce struct {
	net.Listener
	once sync.Once
}

func (s *scarce) Accept() (conn net.Conn, err error) {
	s.once.Do(func() { err = syscall.EMFILE })
	if err == nil {
		conn, err = s.Listener.Accept()
	}
	return conn, err
}

// dial connects from an address, without a word.
func (w *fixture) dial(from string) *tls.Conn {
	w.t.Helper()
	d := tls.Dialer{NetDialer: &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}, Config: ClientTLS(w.pin)}
	conn, err := d.DialContext(w.t.Context(), "tcp", w.address)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = conn.Close() })
	return conn.(*tls.Conn)
}

// hello says something, and returns the answer.
func (w *fixture) hello(conn net.Conn, h Hello) Welcome {
	w.t.Helper()
	if h.Version == 0 {
		h.Version = Version
	}
	var answer Welcome
	if err := errors.Join(WriteMessage(conn, h), ReadMessage(conn, &answer)); err != nil {
		w.t.Fatal(err)
	}
	return answer
}

// fake is a pod that keeps to the protocol as far as a test wants.
type fake struct {
	stream  *link.Stream
	session *yamux.Session
	conn    net.Conn
	pod     *Pod
	link    string
}

func (w *fixture) fake(name string) *fake {
	w.t.Helper()
	conn := w.dial("127.0.0.1")
	f := &fake{stream: link.New(time.Minute), conn: conn}
	welcome := w.hello(conn, Hello{Token: "token of " + name})
	if err := welcome.Refused.Err(); err != nil {
		w.t.Fatal(err)
	}
	f.link = welcome.Link
	if _, err := f.stream.Take(conn); err != nil {
		w.t.Fatal(err)
	}
	carried := make(chan struct{})
	go func() {
		_ = f.stream.Carry(conn, welcome.Arrived)
		close(carried)
	}()
	w.t.Cleanup(func() {
		_ = f.stream.Close()
		<-carried
	})
	f.pod = <-w.arrived
	return f
}

// speak has it speak yamux.
func (w *fixture) speak(f *fake) *fake {
	w.t.Helper()
	session, err := yamux.Server(f.stream, Session(256), nil)
	if err != nil {
		w.t.Fatal(err)
	}
	f.session = session
	w.t.Cleanup(func() { _ = session.Close() })
	return f
}

// replies answers every request with some bytes.
func (w *fixture) replies(f *fake, answer func(st *yamux.Stream, r Request)) {
	go func() {
		for {
			st, err := f.session.AcceptStream()
			if err != nil {
				return
			}
			go func() {
				var r Request
				if ReadMessage(st, &r) == nil {
					answer(st, r)
				}
			}()
		}
	}()
}

func (w *fixture) lost(p *Pod) {
	w.t.Helper()
	select {
	case <-p.Done():
	case <-time.After(20 * time.Second):
		w.t.Fatal("the pod is not lost")
	}
}

func code(err error) string {
	var p *problem.Error
	if !errors.As(err, &p) {
		return ""
	}
	return p.Code
}

func TestAPodIsLetInByItsToken(t *testing.T) {
	w := newFixture(t, time.Minute)
	one, two, apart := w.fake("one"), w.fake("two"), w.fake("apart")
	for name, c := range map[string]struct {
		from  string
		hello Hello
		want  string
	}{
		"another pod":                       {"127.0.0.1", Hello{Token: "token of three"}, ""},
		"a token of nobody":                 {"127.0.0.1", Hello{Token: "made up"}, problem.Unauthorized},
		"no token":                          {"127.0.0.1", Hello{}, problem.Unauthorized},
		"another version":                   {"127.0.0.1", Hello{Version: 2, Token: "token of three"}, problem.Unsupported},
		"a stream that there is not":        {"127.0.0.1", Hello{Token: "token of one", Link: "made up"}, problem.NotFound},
		"another pod's stream":              {"127.0.0.1", Hello{Token: "token of one", Link: two.link}, problem.NotFound},
		"a stream without a token":          {"127.0.0.1", Hello{Link: one.link}, problem.Unauthorized},
		"one's own stream from elsewhere":   {"127.0.0.2", Hello{Token: "token of one", Link: one.link}, problem.NotFound},
		"one's own stream":                  {"127.0.0.1", Hello{Token: "token of one", Link: one.link}, ""},
		"a stream that goes on too far off": {"127.0.0.1", Hello{Token: "token of two", Link: two.link, Arrived: 1 << 40}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := w.hello(w.dial(c.from), c.hello)
			if err := got.Refused.Err(); code(err) != c.want || c.want == "" && got.Link == "" {
				t.Errorf("the answer is %+v: %v", got, err)
			}
		})
	}
	w.lost(two.pod) // it has said that more has arrived than was sent
	select {
	case <-apart.pod.Done():
		t.Error("another pod is lost as well")
	default:
	}
}

// Who has the token of a pod, as its programs do, cannot take its place.
func TestAPodThatRunsSomethingIsNotReplaced(t *testing.T) {
	w := newFixture(t, time.Minute)
	f := w.speak(w.fake("one"))
	w.replies(f, func(st *yamux.Stream, r Request) {
		if r.Do == DoRun {
			_ = WriteMessage(st, Reply{PID: 7})
		}
	})
	next := w.speak(w.fake("one")) // nothing has begun
	w.lost(f.pod)
	w.replies(next, func(st *yamux.Stream, r Request) {
		if r.Do == DoRun {
			_ = WriteMessage(st, Reply{PID: 7})
		}
	})
	var theirs [3]*os.File
	for n := range theirs {
		r, wr, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		if theirs[n] = wr; n == 0 {
			theirs[n], r = r, wr
		}
		t.Cleanup(func() { _ = r.Close() })
	}
	if _, err := next.pod.Run(t.Context(), Run{Main: true, Program: jail.Program{Argv: []string{"/bin/true"}}, Home: "/"}, theirs); err != nil {
		t.Fatal(err)
	}
	if got := w.hello(w.dial("127.0.0.1"), Hello{Token: "token of one"}); code(got.Refused.Err()) != problem.Conflict {
		t.Errorf("the answer is %+v", got)
	}
	select {
	case <-next.pod.Done():
		t.Error("the pod is lost")
	default:
	}
}

func TestAHostilePodLosesItselfAlone(t *testing.T) {
	w := newFixture(t, time.Minute)
	good := w.speak(w.fake("good"))
	w.replies(good, func(st *yamux.Stream, _ Request) { _ = WriteMessage(st, Reply{Usage: &jail.Usage{Tasks: 3}}) })
	message := func(n uint32, body string) []byte { return append(binary.BigEndian.AppendUint32(nil, n), body...) }
	usage := func(ctx context.Context, p *Pod) error {
		ctx, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		defer cancel()
		_, err := p.Usage(ctx)
		return err
	}
	answers := func(body []byte) func(*fixture, *fake) {
		return func(w *fixture, f *fake) {
			w.replies(w.speak(f), func(st *yamux.Stream, _ Request) { _, _ = st.Write(body) })
		}
	}
	for name, c := range map[string]struct {
		does func(*fixture, *fake)
		lost bool
	}{
		"no yamux": {func(_ *fixture, f *fake) { _, _ = f.stream.Write(bytes.Repeat([]byte("hello"), 100)) }, true},
		"a window that it has not": {func(w *fixture, f *fake) {
			w.speak(f)
			go func() { // past the library, which would keep to the window
				st, err := f.session.AcceptStream()
				if err != nil {
					return
				}
				frame := append([]byte{0, 0, 0, 2}, binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, st.StreamID()), 16<<20)...)
				_, _ = f.stream.Write(append(frame, make([]byte, 1<<20)...))
			}()
		}, true},
		"streams of its own": {func(w *fixture, f *fake) {
			w.speak(f)
			for range 1000 {
				if st, err := f.session.OpenStream(t.Context()); err == nil {
					_, _ = st.Write([]byte("hello"))
				}
			}
		}, false},
		"pings": {func(_ *fixture, f *fake) {
			_, _ = f.stream.Write(bytes.Repeat([]byte{0, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0, 7}, 200_000))
		}, false},
		"no answer":            {func(w *fixture, f *fake) { w.replies(w.speak(f), func(*yamux.Stream, Request) {}) }, false},
		"an answer of 4 GiB":   {answers(message(1<<32-1, "")), false},
		"half an answer":       {answers(message(10, "{")), false},
		"no JSON":              {answers(message(5, "hello")), false},
		"an unknown answer":    {answers(message(16, `{"launched":true}`)), false},
		"a doubled answer":     {answers(message(20, `{"pid":1,"pid":2}   `)), false},
		"a refusal":            {answers(message(48, `{"refused":{"code":"conflict","message":"hello"}}`)), false},
		"too deep an answer":   {answers(message(100_000, strings.Repeat(`{"usage":`, 100_000/9)+" ")), false},
		"a list and no object": {answers(message(2, "[]")), false},
	} {
		t.Run(name, func(t *testing.T) {
			f := w.fake("bad")
			used := testenv.Allocated(func() {
				c.does(w, f)
				if err := usage(t.Context(), f.pod); err == nil {
					t.Error("what it says is believed")
				}
			})
			if used > 64<<20 {
				t.Errorf("%d bytes were needed", used)
			}
			if c.lost {
				w.lost(f.pod)
			}
			if u, err := good.pod.Usage(t.Context()); err != nil || u.Tasks != 3 {
				t.Errorf("the other pod says %+v, %v", u, err)
			}
			f.pod.Forget()
			w.lost(f.pod)
		})
	}
}

func TestWhoSaysNothingTakesNoPlaceOfOthers(t *testing.T) {
	w := newFixture(t, time.Minute)
	var silent []net.Conn
	for range maxHellosOf {
		silent = append(silent, w.dial("127.0.0.2"))
	}
	more, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP("127.0.0.2")}}).Dial("tcp", w.address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = more.Close() }()
	if _, err := io.ReadAll(more); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error(err)
	}
	if got := w.hello(w.dial("127.0.0.1"), Hello{Token: "token of one"}); got.Refused != nil {
		t.Errorf("another pod is refused: %+v", got)
	}
	if err := silent[0].Close(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 5*time.Second, func() bool {
		w.server.mu.Lock()
		defer w.server.mu.Unlock()
		return w.server.hellos[netip.MustParseAddr("127.0.0.2")] == maxHellosOf-1
	}, "its place is free")
	if got := w.hello(w.dial("127.0.0.2"), Hello{Token: "token of two"}); got.Refused != nil {
		t.Errorf("it is refused: %+v", got)
	}
	long := w.dial("127.0.0.1")
	if _, err := long.Write(binary.BigEndian.AppendUint32(nil, maxHello+1)); err != nil {
		t.Fatal(err)
	}
	if _, err := long.Read(make([]byte, 1)); err == nil {
		t.Error("who has much to say before it is known is answered")
	}
}

func FuzzMessages(f *testing.F) {
	for _, seed := range []any{Hello{Version: 1, Token: "x", Link: "y", Arrived: 7}, Request{Do: DoRun, Run: &Run{Program: jail.Program{Argv: []string{"/x"}}}},
		Reply{Exit: &jail.Exit{Code: 1, Signal: "killed", At: time.Unix(0, 0)}}} {
		var b bytes.Buffer
		if err := WriteMessage(&b, seed); err != nil {
			f.Fatal(err)
		}
		f.Add(b.Bytes())
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, into := range []any{new(Hello), new(Welcome), new(Request), new(Reply)} {
			if readMessage(bytes.NewReader(text), maxHello, into) != nil {
				continue
			}
			var back bytes.Buffer
			if err := WriteMessage(&back, into); err != nil {
				t.Fatalf("what was read of %q cannot be written: %v", text, err)
			}
		}
	})
}

// What a pod sends is anything.
func FuzzPod(f *testing.F) {
	f.Add([]byte{0, 1, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 6, 0, 0, 0, 2, '{', '}'})
	f.Add([]byte("hello"))
	f.Fuzz(func(t *testing.T, sends []byte) {
		ours, theirs := link.New(time.Minute), link.New(time.Minute)
		a, b := net.Pipe()
		_, err1 := ours.Take(a)
		_, err2 := theirs.Take(b)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		carried := make(chan struct{}, 2)
		go func() {
			_ = ours.Carry(a, 0)
			carried <- struct{}{}
		}()
		go func() {
			_ = theirs.Carry(b, 0)
			carried <- struct{}{}
		}()
		session, err := yamux.Client(ours, Session(0), nil)
		if err != nil {
			t.Fatal(err)
		}
		p := &Pod{name: "x", stream: ours, session: session, done: make(chan struct{})}
		go func() {
			_, _ = theirs.Write(sends)
			_, _ = io.CopyN(io.Discard, theirs, 30) // a request's beginning
			_ = session.Close()
		}()
		if _, err := p.Prepare(t.Context(), Prepare{}); err == nil && !bytes.Contains(sends, []byte("report")) {
			t.Error("it was prepared")
		}
		_ = errors.Join(session.Close(), ours.Close(), theirs.Close())
		<-carried
		<-carried
	})
}
