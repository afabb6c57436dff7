// Package link carries a stream of bytes in both directions over connections that may break. When one has broken and another one takes
// its place within the window, the stream goes on with no byte lost and none doubled: each side keeps what it has written until the
// other has said that it arrived. After the window the stream is over.
//
// A connection carries frames of five bytes and a payload: the kind, and the length of the payload as a big-endian number.
//
//	data   1 to 32768 bytes of the stream
//	ack    8 bytes: how many bytes of the stream have arrived since its beginning
//	alive  nothing; a side sends it that has sent nothing for a while
//
// Frames of the other side are checked: an ack of bytes that were never sent ends the stream, as does an unknown frame.
package link

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/base/wake"
)

const (
	// maxData is how many bytes are in one frame.
	maxData = 32 << 10
	// maxKept is how many bytes are kept that were written and have not been said to have arrived. A writer waits then.
	maxKept = 1 << 20
	// maxUnread is how many bytes are kept that have arrived and were not read. Then no more are taken off the connection.
	maxUnread = 256 << 10
	// An ack is sent when so much has arrived since the last one, or after so long.
	ackBytes = 64 << 10
	ackDelay = 50 * time.Millisecond
	// Silence is how long the other side may send nothing before its connection counts as broken. It sends something
	// every third of it.
	Silence = 15 * time.Second

	headerSize = 5
	ackSize    = 8
)

// The kinds of frames.
const (
	frameData  = 1
	frameAck   = 2
	frameAlive = 3
)

// frameRoom is room for what is sent or received at once. A stream on which nothing happens has none: there may be thousands of them.
type frameRoom [2*headerSize + ackSize + maxData]byte

var frames = sync.Pool{New: func() any { return new(frameRoom) }}

// ErrLost is the end of a stream whose connection broke, and in whose window there was no other one.
var ErrLost = errors.New("the connection broke, and was not resumed in time")

// errReplaced is the end of a connection whose place another one has taken.
var errReplaced = errors.New("another connection carries the stream")

// ErrProtocol is the end of a stream whose other side does not keep to the protocol.
var ErrProtocol = errors.New("the other side does not keep to the protocol")

// Stream is one side of a stream. It is a net.Conn without deadlines: it ends with its window.
type Stream struct {
	more wake.Signal // there may be something to send

	mu      sync.Mutex // guards what follows
	window  time.Duration
	changed *sync.Cond
	out     queue  // what was written and is not known to have arrived
	arrived uint64 // how many bytes of ours have arrived
	in      queue  // what has arrived and was not read
	got     uint64 // how many bytes have arrived here
	carrier net.Conn
	wanted  bool // another connection waits for the stream
	carried bool // since the window began
	expiry  *time.Timer
	err     error // why the stream is over
}

// New makes a stream, which is over when nothing carries it within the window.
func New(window time.Duration) *Stream {
	s := &Stream{window: window, more: wake.New()}
	s.changed = sync.NewCond(&s.mu)
	s.expiry = time.AfterFunc(window, func() { s.end(ErrLost) })
	return s
}

// SetWindow sets the window when the first connection has told how long the other side waits.
func (s *Stream) SetWindow(window time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.window = window
}

// Take gives the stream to a connection, in the place of the one that carried it, and says how many bytes have arrived. No more
// arrive before Carry, so that this can be told to the other side. A caller that does not call Carry calls Leave.
func (s *Stream) Take(conn net.Conn) (arrived uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.carrier != nil && s.err == nil {
		s.wanted = true
		shut(s.carrier) // its Carry fails, and leaves
		s.changed.Broadcast()
		s.changed.Wait()
	}
	if s.err != nil {
		return 0, s.err
	}
	s.carrier, s.wanted = conn, false
	return s.got, nil
}

// shut closes a connection at once. Closing TLS would send a close_notify, and wait for a peer that does not read.
func shut(conn net.Conn) {
	if secured, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = secured.NetConn()
	}
	_ = conn.Close() // it has broken, or is not needed
}

// Leave takes the stream from a connection and closes that. The window begins, if it has carried the stream.
func (s *Stream) Leave(conn net.Conn) {
	shut(conn)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.carrier != conn {
		return
	}
	s.carrier = nil
	if s.carried && s.err == nil {
		s.expiry.Reset(s.window)
	}
	s.carried = false
	s.changed.Broadcast()
}

// Carry carries the stream over the connection that has taken it, until that breaks or the stream is over. arrived is how many
// bytes have arrived at the other side.
func (s *Stream) Carry(conn net.Conn, arrived uint64) error {
	defer s.Leave(conn)
	s.mu.Lock()
	if s.carrier != conn || s.err != nil {
		defer s.mu.Unlock()
		return errors.Join(errReplaced, s.err)
	}
	got := s.got
	err := s.acknowledge(arrived)
	if err == nil {
		s.expiry.Stop()
		s.carried = true
	}
	s.mu.Unlock()
	if err != nil {
		s.end(err)
		return err
	}
	stop, sent := make(chan struct{}), make(chan error, 1)
	go func() {
		err := s.send(conn, arrived, got, stop)
		shut(conn) // so that nothing is received either
		sent <- err
	}()
	err = s.receive(conn)
	shut(conn) // so that nothing is sent either
	close(stop)
	if errors.Is(err, ErrProtocol) {
		s.end(err)
	}
	return errors.Join(err, <-sent)
}

// acknowledge forgets what has arrived at the other side.
func (s *Stream) acknowledge(arrived uint64) error {
	if arrived < s.arrived || arrived > s.arrived+uint64(s.out.len()) {
		return fmt.Errorf("%w: it says that %d bytes have arrived, which are between %d and %d", ErrProtocol, arrived, s.arrived, s.arrived+uint64(s.out.len()))
	}
	s.out.drop(int(arrived - s.arrived))
	s.arrived = arrived
	s.changed.Broadcast()
	return nil
}

// send sends what is written, from an offset on, and says what has arrived. The other side knows that got bytes have.
func (s *Stream) send(conn net.Conn, next, got uint64, stop <-chan struct{}) error {
	late, idle := time.NewTimer(ackDelay), time.NewTimer(Silence/3)
	defer late.Stop()
	defer idle.Stop()
	due, alive := false, false
	var room *frameRoom
	for {
		if room == nil {
			room = frames.Get().(*frameRoom)
		}
		s.mu.Lock()
		arrived := s.got
		// Bytes that the other side has acknowledged meanwhile on another connection are not sent.
		next = max(next, s.arrived)
		data := s.out.from(int(next-s.arrived), maxData)
		buf := room[:0]
		if len(data) > 0 {
			buf = append(header(buf, frameData, len(data)), data...)
			next += uint64(len(data))
		}
		s.mu.Unlock()
		if arrived != got && (due || len(data) > 0 || arrived-got >= ackBytes) {
			buf = binary.BigEndian.AppendUint64(header(buf, frameAck, ackSize), arrived)
			got = arrived
		}
		if len(buf) == 0 && alive {
			buf = header(buf, frameAlive, 0)
		}
		due, alive = false, false
		if len(buf) > 0 {
			if _, err := conn.Write(buf); err != nil {
				return fmt.Errorf("send: %w", err)
			}
			idle.Reset(Silence / 3)
			continue
		}
		if arrived != got {
			late.Reset(ackDelay)
		}
		frames.Put(room) // until there is something to send
		room = nil
		select {
		case <-s.more:
		case <-late.C:
			due = true
		case <-idle.C:
			alive = true
		case <-stop:
			return nil
		}
	}
}

func header(b []byte, kind byte, length int) []byte {
	return binary.BigEndian.AppendUint32(append(b, kind), uint32(length))
}

// receive takes in what the other side sends.
func (s *Stream) receive(conn net.Conn) error {
	from := bufio.NewReader(conn)
	var head [headerSize]byte
	for {
		if err := conn.SetReadDeadline(time.Now().Add(Silence)); err != nil {
			return fmt.Errorf("receive: %w", err)
		}
		if _, err := io.ReadFull(from, head[:]); err != nil {
			return fmt.Errorf("receive: %w", err)
		}
		kind, length := head[0], binary.BigEndian.Uint32(head[1:])
		if kind == frameData && (length == 0 || length > maxData) || kind == frameAck && length != ackSize || kind == frameAlive && length != 0 || kind < frameData || kind > frameAlive {
			return fmt.Errorf("%w: a frame of kind %d has %d bytes", ErrProtocol, kind, length)
		}
		if err := s.receiveBody(conn, from, kind, int(length)); err != nil {
			return err
		}
	}
}

// receiveBody takes in what is behind the header of a frame.
func (s *Stream) receiveBody(conn net.Conn, from io.Reader, kind byte, length int) error {
	room := frames.Get().(*frameRoom)
	defer frames.Put(room)
	body := room[:length]
	if _, err := io.ReadFull(from, body); err != nil {
		return fmt.Errorf("receive: %w", err)
	}
	switch kind {
	case frameData:
		return s.take(conn, body)
	case frameAck:
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.acknowledge(binary.BigEndian.Uint64(body))
	}
	return nil
}

// take keeps what has arrived, and waits for room.
func (s *Stream) take(conn net.Conn, data []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.in.len()+len(data) > maxUnread && s.err == nil && !s.wanted {
		s.changed.Wait()
	}
	if s.err != nil || s.wanted {
		return errors.Join(errReplaced, s.err) // the other side sends it again
	}
	s.in.push(data)
	s.got += uint64(len(data))
	s.changed.Broadcast()
	s.more.Send()
	return nil
}

// Read implements net.Conn. It returns all bytes that have arrived before the error that ended the stream.
func (s *Stream) Read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.in.len() == 0 && s.err == nil && len(p) > 0 {
		s.changed.Wait()
	}
	if s.in.len() == 0 {
		return 0, s.err
	}
	n := copy(p, s.in.from(0, len(p)))
	s.in.drop(n)
	s.changed.Broadcast()
	return n, nil
}

// Write implements net.Conn. It waits while too much is kept, also without a connection.
func (s *Stream) Write(p []byte) (n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n < len(p) {
		for s.out.len() >= maxKept && s.err == nil {
			s.changed.Wait()
		}
		if s.err != nil {
			return n, s.err
		}
		part := p[n:min(len(p), n+maxKept-s.out.len())]
		s.out.push(part)
		n += len(part)
		s.more.Send()
	}
	return n, nil
}

// Close ends the stream on this side, at once. The other side's is over after its window.
func (s *Stream) Close() error {
	s.end(net.ErrClosed)
	return nil
}

func (s *Stream) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return
	}
	s.err = err
	s.expiry.Stop()
	if s.carrier != nil {
		shut(s.carrier) // its Carry fails, and leaves
	}
	s.changed.Broadcast()
}

// Err is why the stream is over, or nil.
func (s *Stream) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// LocalAddr implements net.Conn. A stream has no address.
func (s *Stream) LocalAddr() net.Addr { return address{} }

// RemoteAddr implements net.Conn.
func (s *Stream) RemoteAddr() net.Addr { return address{} }

type address struct{}

func (address) Network() string { return "link" }
func (address) String() string  { return "link" }

// SetDeadline implements net.Conn.
func (s *Stream) SetDeadline(time.Time) error { return os.ErrNoDeadline }

// SetReadDeadline implements net.Conn.
func (s *Stream) SetReadDeadline(time.Time) error { return os.ErrNoDeadline }

// SetWriteDeadline implements net.Conn. It does nothing: a write waits for the window.
func (s *Stream) SetWriteDeadline(time.Time) error { return nil }
