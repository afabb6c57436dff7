package link

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// ends are the two sides of a stream, and what carries it between them.
type ends struct {
	a, b    *Stream
	carried sync.WaitGroup
}

func newEnds(t *testing.T, window time.Duration) *ends {
	e := &ends{a: New(window), b: New(window)}
	t.Cleanup(func() {
		_ = errors.Join(e.a.Close(), e.b.Close())
		e.carried.Wait()
	})
	return e
}

// connect carries the stream over a new connection, each direction of which breaks after some bytes, and returns how it ended on both sides.
func (e *ends) connect(t *testing.T, breakAfter int) (ended chan error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	one, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	two, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return e.over(t, &brittle{Conn: one, left: breakAfter}, &brittle{Conn: two, left: breakAfter})
}

func (e *ends) over(t *testing.T, one, two net.Conn) (ended chan error) {
	t.Helper()
	atA, err := e.a.Take(one)
	if err != nil {
		t.Fatal(err)
	}
	atB, err := e.b.Take(two)
	if err != nil {
		t.Fatal(err)
	}
	ended = make(chan error, 2)
	e.carried.Go(func() { ended <- e.a.Carry(one, atB) })
	e.carried.Go(func() { ended <- e.b.Carry(two, atA) })
	return ended
}

// brittle is a connection that breaks in the middle of what is written.
type brittle struct {
	net.Conn
	left int
}

func (b *brittle) Write(p []byte) (int, error) {
	if len(p) > b.left {
		n, _ := b.Conn.Write(p[:b.left])
		return n, errors.Join(io.ErrClosedPipe, b.Close())
	}
	b.left -= len(p)
	return b.Conn.Write(p)
}

// send writes random bytes in pieces of random sizes, and returns them.
func send(seed uint64, to io.Writer, size int) ([]byte, error) {
	dice := rand.New(rand.NewPCG(seed, 0))
	all := make([]byte, size)
	for i := range all {
		all[i] = byte(dice.Uint32())
	}
	for rest := all; len(rest) > 0; {
		n := min(len(rest), 1+dice.IntN(100_000))
		if _, err := to.Write(rest[:n]); err != nil {
			return nil, err
		}
		rest = rest[n:]
	}
	return all, nil
}

func TestNoByteIsLostOrDoubledWhenConnectionsBreak(t *testing.T) {
	const size = 4 << 20
	e := newEnds(t, time.Minute)
	dice := rand.New(rand.NewPCG(7, 7))
	done := make(chan struct{})
	breaks := 0
	e.carried.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			ended := e.connect(t, dice.IntN(200_000))
			select {
			case <-ended:
				breaks++
			case <-done:
				return
			}
			<-ended
		}
	})
	var both sync.WaitGroup
	for seed, pair := range [][2]*Stream{{e.a, e.b}, {e.b, e.a}} {
		var sent []byte
		var wrote sync.WaitGroup
		wrote.Go(func() {
			var err error
			if sent, err = send(uint64(seed), pair[0], size); err != nil {
				t.Error(err)
			}
		})
		both.Go(func() {
			got := make([]byte, size)
			if _, err := io.ReadFull(pair[1], got); err != nil {
				t.Error(err)
			}
			wrote.Wait()
			if !bytes.Equal(got, sent) {
				t.Error("other bytes were read than were written")
			}
		})
	}
	both.Wait()
	close(done)
	_ = errors.Join(e.a.Close(), e.b.Close())
	e.carried.Wait()
	if breaks < 20 {
		t.Errorf("the connection broke %d times", breaks)
	}
}

func TestAStreamIsOverAfterItsWindow(t *testing.T) {
	e := newEnds(t, 200*time.Millisecond)
	ended := e.connect(t, 1<<30)
	if _, err := e.a.Write([]byte("before")); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 6)
	if _, err := io.ReadFull(e.b, got); err != nil || string(got) != "before" {
		t.Fatalf("%q, %v", got, err)
	}
	time.Sleep(400 * time.Millisecond) // a window goes by, with a connection
	if err := errors.Join(e.a.Err(), e.b.Err()); err != nil {
		t.Fatalf("the stream is over with a connection: %v", err)
	}
	e.a.mu.Lock()
	shut(e.a.carrier)
	e.a.mu.Unlock()
	<-ended
	<-ended
	if _, err := e.b.Read(got); !errors.Is(err, ErrLost) {
		t.Errorf("read after the window: %v", err)
	}
	if _, err := io.Copy(e.a, endless{}); !errors.Is(err, ErrLost) {
		t.Errorf("write after the window: %v", err)
	}
	if _, err := e.a.Take(nil); !errors.Is(err, ErrLost) {
		t.Errorf("taken after the window: %v", err)
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

func TestAConnectionThatTakesTheStreamReplacesTheOneBefore(t *testing.T) {
	e := newEnds(t, time.Minute)
	first := e.connect(t, 1<<30)
	// Nobody reads, so that the receiver waits for room: it must give the stream up all the same.
	wrote := make(chan error, 1)
	var sent []byte
	go func() {
		var err error
		sent, err = send(1, e.a, 3*maxUnread)
		wrote <- err
	}()
	waitUntil(t, func() bool {
		e.b.mu.Lock()
		defer e.b.mu.Unlock()
		return e.b.in.len() > maxUnread-maxData
	})
	second := e.connect(t, 1<<30)
	<-first
	<-first
	got := make([]byte, 3*maxUnread)
	if _, err := io.ReadFull(e.b, got); err != nil {
		t.Fatal(err)
	}
	if err := <-wrote; err != nil || !bytes.Equal(got, sent) {
		t.Errorf("other bytes were read than were written: %v", err)
	}
	select {
	case err := <-second:
		t.Errorf("the second connection ended: %v", err)
	default:
	}
}

func waitUntil(t *testing.T, is func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it did not come to that")
		}
	}
}

// hostile carries one side of a stream, and returns how that ends when the other side sends some bytes, and waits or leaves.
func hostile(t testing.TB, prepare func(*Stream), arrived uint64, sends []byte, leaves bool) error {
	t.Helper()
	s := New(time.Minute)
	defer func() { _ = s.Close() }()
	if prepare != nil {
		prepare(s)
	}
	one, two := net.Pipe()
	if _, err := s.Take(one); err != nil {
		t.Fatal(err)
	}
	var writing sync.WaitGroup
	writing.Go(func() { _, _ = io.Copy(io.Discard, two) })
	writing.Go(func() {
		_, _ = two.Write(sends)
		if leaves { // what it has sent before may be lost then
			_ = two.Close()
		}
	})
	err := s.Carry(one, arrived)
	_ = two.Close()
	writing.Wait()
	if over := s.Err(); errors.Is(err, ErrProtocol) != errors.Is(over, ErrProtocol) {
		t.Errorf("carried until %v, and over by %v", err, over)
	}
	return err
}

func frame(kind byte, payload []byte) []byte {
	return append(header(nil, kind, len(payload)), payload...)
}

func TestWhoDoesNotKeepToTheProtocolEndsTheStream(t *testing.T) {
	count := func(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }
	wrote := func(s *Stream) { _, _ = s.Write(make([]byte, 100)) }
	for name, c := range map[string]struct {
		arrived uint64
		sends   []byte
		bad     bool
	}{
		"nothing":                            {sends: nil},
		"data":                               {sends: frame(frameData, []byte("hello"))},
		"half a frame":                       {sends: frame(frameData, []byte("hello"))[:7]},
		"an ack of what was written":         {sends: frame(frameAck, count(100))},
		"acks of more and more":              {sends: append(frame(frameAck, count(10)), frame(frameAck, count(20))...)},
		"alive":                              {sends: frame(frameAlive, nil)},
		"resumed with what was written":      {arrived: 100},
		"an ack of more than was written":    {sends: frame(frameAck, count(101)), bad: true},
		"acks of less and less":              {sends: append(frame(frameAck, count(20)), frame(frameAck, count(10))...), bad: true},
		"resumed with more than was written": {arrived: 101, bad: true},
		"resumed with a huge number":         {arrived: 1<<64 - 1, bad: true},
		"a huge ack":                         {sends: frame(frameAck, count(1<<64-1)), bad: true},
		"a short ack":                        {sends: frame(frameAck, []byte{1}), bad: true},
		"empty data":                         {sends: frame(frameData, nil), bad: true},
		"a frame that is too long":           {sends: header(nil, frameData, maxData+1), bad: true},
		"a frame of 4 GiB":                   {sends: header(nil, frameData, 1<<32-1), bad: true},
		"alive with something":               {sends: frame(frameAlive, []byte{1}), bad: true},
		"a kind that there is not":           {sends: frame(9, nil), bad: true},
		"HTTP":                               {sends: []byte("GET / HTTP/1.1\r\n\r\n"), bad: true},
	} {
		t.Run(name, func(t *testing.T) {
			if err := hostile(t, wrote, c.arrived, c.sends, !c.bad); errors.Is(err, ErrProtocol) != c.bad {
				t.Errorf("it ended with %v", err)
			}
		})
	}
}

func TestWhoIsSentTooMuchKeepsABoundedAmount(t *testing.T) {
	e := newEnds(t, time.Minute)
	ended := e.connect(t, 1<<30)
	go func() { _, _ = io.Copy(e.a, io.LimitReader(endless{}, 64<<20)) }()
	full := func() bool {
		e.a.mu.Lock()
		defer e.a.mu.Unlock()
		return e.a.out.len() >= maxKept
	}
	waitUntil(t, full)
	time.Sleep(50 * time.Millisecond) // time for more, if it were taken
	e.b.mu.Lock()
	if n := cap(e.b.in.bytes); n > 4*maxUnread {
		t.Errorf("who does not read has %d bytes", n)
	}
	e.b.mu.Unlock()
	e.a.mu.Lock()
	if n := cap(e.a.out.bytes); n > 4*maxKept {
		t.Errorf("who writes has %d bytes", n)
	}
	e.a.mu.Unlock()
	_ = errors.Join(e.a.Close(), e.b.Close())
	<-ended
	<-ended
}

func FuzzFrames(f *testing.F) {
	f.Add([]byte("hello"), uint64(0))
	f.Add(frame(frameData, []byte("hello")), uint64(3))
	f.Add(append(frame(frameAck, binary.BigEndian.AppendUint64(nil, 7)), frame(frameAlive, nil)...), uint64(0))
	f.Add(header(nil, frameData, 1<<31), uint64(1<<63))
	f.Fuzz(func(t *testing.T, sends []byte, arrived uint64) {
		var inner *Stream
		err := hostile(t, func(s *Stream) {
			inner = s
			_, _ = s.Write(make([]byte, 10))
		}, arrived, sends, true)
		if err == nil {
			t.Error("the connection ended without an error")
		}
		inner.mu.Lock()
		defer inner.mu.Unlock()
		if inner.arrived > 10 || inner.arrived+uint64(inner.out.len()) != 10 {
			t.Errorf("of 10 bytes %d have arrived and %d are kept", inner.arrived, inner.out.len())
		}
		if uint64(inner.in.len()) != inner.got || inner.in.len() > maxUnread {
			t.Errorf("%d bytes have arrived, and %d can be read", inner.got, inner.in.len())
		}
	})
}

// Beside what a connection alone does.
func BenchmarkStream(b *testing.B) {
	pair := func(b *testing.B) (net.Conn, net.Conn) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		one, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		two, err := l.Accept()
		if err != nil {
			b.Fatal(err)
		}
		return one, two
	}
	run := func(b *testing.B, one, two io.ReadWriter, size int) {
		go func() { _, _ = io.CopyBuffer(struct{ io.Writer }{two}, struct{ io.Reader }{two}, make([]byte, size)) }()
		msg := make([]byte, size)
		b.SetBytes(int64(size))
		for b.Loop() {
			if _, err := one.Write(msg); err != nil {
				b.Fatal(err)
			}
			if _, err := io.ReadFull(one, msg); err != nil {
				b.Fatal(err)
			}
		}
	}
	for _, size := range []int{200, 200_000} {
		name := map[int]string{200: "message", 200_000: "picture"}[size]
		b.Run(name+"/connection", func(b *testing.B) {
			one, two := pair(b)
			defer func() { _ = errors.Join(one.Close(), two.Close()) }()
			run(b, one, two, size)
		})
		b.Run(name+"/stream", func(b *testing.B) {
			s, r := New(time.Minute), New(time.Minute)
			defer func() { _ = errors.Join(s.Close(), r.Close()) }()
			one, two := pair(b)
			_, err1 := s.Take(one)
			_, err2 := r.Take(two)
			if err := errors.Join(err1, err2); err != nil {
				b.Fatal(err)
			}
			go func() { _ = s.Carry(one, 0) }()
			go func() { _ = r.Carry(two, 0) }()
			run(b, s, r, size)
		})
	}
}
