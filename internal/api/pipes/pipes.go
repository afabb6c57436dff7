// Package pipes carries the stdin, stdout and stderr of a program over one WebSocket, byte by byte as they are, and at its end how
// the program ended.
//
// Messages are binary. The first byte is the channel, the rest is what goes through it; one with nothing in it is the end of
// that stream, of which the other two know nothing. Each end sends no more than a Window of a stream ahead of what the other has
// said that it took, in a message of the channel Credit: so each end always reads, finds out at once when the other is gone, and
// holds no more than a Window of each stream, however slow a program or a person is.
package pipes

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/clawjail/clawjail/internal/base/wake"
)

// The channels.
const (
	Stdin  byte = 0
	Stdout byte = 1
	Stderr byte = 2
	// Exit is the last message of the server: JSON, how the program ended, or why there is none.
	Exit byte = 3
	// Credit is the channel and, in four bytes, the most significant first, how much more may be sent through it.
	Credit byte = 4
)

const (
	// Window is how much may be under way in one channel.
	Window = 256 << 10
	// maxSent is the largest message that is sent, maxMessage the largest that is taken.
	maxSent    = 32 << 10
	maxMessage = 256 << 10

	// pingEvery is how often a silent peer is asked whether it is still there.
	pingEvery = 30 * time.Second
	// patience is how long it may take for an answer, and the connection for a message: the peer may be stopped, or on a
	// machine that sleeps. Machines that are gone are found earlier, by TCP.
	patience = 15 * time.Minute
)

// Errors that end a connection.
var (
	ErrLeft     = errors.New("the other end has left")
	ErrProtocol = errors.New("the other end does not follow the protocol")
)

// Pipes is one end of a connection. Serve must be called; it is what reads.
type Pipes struct {
	conn    *websocket.Conn
	streams [3]*stream // by channel: what is sent, or received, through it
	exit    chan []byte
}

// stream is one channel, in the direction that it has.
type stream struct {
	outgoing bool

	mu      sync.Mutex
	credit  int         // how much more may be sent, by this end or by the other
	queue   []byte      // incoming: what came and was not taken
	over    bool        // incoming: nothing more will come
	changed wake.Signal // holds at most one reason to look again
}

// NewServer makes the end of the program, NewClient the end of its user. The connection belongs to it.
func NewServer(conn *websocket.Conn) *Pipes { return newPipes(conn, [3]bool{false, true, true}) }

// NewClient is described at [NewServer].
func NewClient(conn *websocket.Conn) *Pipes { return newPipes(conn, [3]bool{true, false, false}) }

func newPipes(conn *websocket.Conn, outgoing [3]bool) *Pipes {
	conn.SetReadLimit(maxMessage)
	p := &Pipes{conn: conn, exit: make(chan []byte, 1)}
	for n := range p.streams {
		p.streams[n] = &stream{outgoing: outgoing[n], credit: Window, changed: wake.New()}
	}
	return p
}

// Serve reads until the connection ends, which it says why, or ctx does. A client's ends with nil when it was told how the
// program ended; see [Pipes.Exit].
func (p *Pipes) Serve(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	var pinging sync.WaitGroup
	defer pinging.Wait()
	defer stop()
	pinging.Go(func() { p.ping(ctx, stop) })
	for {
		kind, message, err := p.conn.Read(ctx)
		switch {
		case errors.Is(err, websocket.ErrMessageTooBig):
			return ErrProtocol
		case err != nil:
			return ErrLeft
		case kind != websocket.MessageBinary || len(message) == 0:
			return ErrProtocol
		}
		done, err := p.took(message[0], message[1:])
		if err != nil || done {
			return err
		}
	}
}

// took deals with a message.
func (p *Pipes) took(channel byte, data []byte) (done bool, err error) {
	switch channel {
	case Stdin, Stdout, Stderr:
		if s := p.streams[channel]; !s.outgoing {
			return false, s.push(data)
		}
	case Credit:
		if len(data) == 5 && data[0] <= Stderr && p.streams[data[0]].outgoing {
			return false, p.streams[data[0]].grant(binary.BigEndian.Uint32(data[1:]))
		}
	case Exit:
		if !p.streams[Stdin].outgoing {
			break // only the server knows
		}
		p.exit <- data // there is room: it is the last
		// Nothing more comes, also of a program that was never there and so has said nothing about its streams.
		p.streams[Stdout].finish()
		p.streams[Stderr].finish()
		return true, nil
	}
	return false, ErrProtocol
}

// push takes what came.
func (s *stream) push(data []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over || len(data) > s.credit {
		return ErrProtocol
	}
	s.over = len(data) == 0
	s.credit -= len(data)
	s.queue = append(s.queue, data...)
	s.poke()
	return nil
}

// finish says that nothing more comes.
func (s *stream) finish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	s.poke()
}

// grant lets more be sent.
func (s *stream) grant(n uint32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n == 0 || int64(s.credit)+int64(n) > Window {
		return ErrProtocol
	}
	s.credit += int(n)
	s.poke()
	return nil
}

func (s *stream) poke() { s.changed.Send() }

// Send sends everything that from has, to its end, and then that it is the end. It returns when that is sent, or ctx ends.
func (p *Pipes) Send(ctx context.Context, channel byte, from io.Reader) error {
	s := p.streams[channel]
	message := make([]byte, 1+maxSent)
	message[0] = channel
	for {
		room, err := s.wait(ctx, func() int { return s.credit })
		if err != nil {
			return err
		}
		n, readErr := from.Read(message[1 : 1+min(room, maxSent)])
		if n > 0 {
			s.mu.Lock()
			s.credit -= n
			s.mu.Unlock()
			if err := p.write(ctx, message[:1+n]); err != nil {
				return err
			}
		}
		if readErr != nil {
			err := p.write(ctx, message[:1])
			if errors.Is(readErr, io.EOF) {
				return err
			}
			return errors.Join(fmt.Errorf("read: %w", readErr), err)
		}
	}
}

// Receive writes everything that comes to to, to its end. When to takes no more, what comes is left where it is.
func (p *Pipes) Receive(ctx context.Context, channel byte, to io.Writer) error {
	s := p.streams[channel]
	for {
		n, err := s.wait(ctx, func() int {
			if s.over && len(s.queue) == 0 {
				return -1
			}
			return len(s.queue)
		})
		if err != nil || n < 0 {
			return err
		}
		s.mu.Lock()
		data := s.queue
		s.queue = nil
		s.mu.Unlock()
		if _, err := to.Write(data); err != nil {
			return err
		}
		s.mu.Lock()
		over := s.over
		s.credit += len(data) // before the other end hears of it
		s.mu.Unlock()
		if over {
			continue // the sender waits for no credit, and may be gone
		}
		credit := []byte{Credit, channel, 0, 0, 0, 0}
		binary.BigEndian.PutUint32(credit[2:], uint32(len(data)))
		if err := p.write(ctx, credit); err != nil {
			return err
		}
	}
}

// wait waits until there is something, and says how much.
func (s *stream) wait(ctx context.Context, there func() int) (int, error) {
	for {
		s.mu.Lock()
		n := there()
		s.mu.Unlock()
		if n != 0 {
			return n, nil
		}
		select {
		case <-s.changed:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// SendExit sends how the program ended: the last message.
func (p *Pipes) SendExit(ctx context.Context, text []byte) error {
	return p.write(ctx, append([]byte{Exit}, text...))
}

// Exit is what the server said at the end, or nil.
func (p *Pipes) Exit() []byte {
	select {
	case text := <-p.exit:
		return text
	default:
		return nil
	}
}

// write sends a message. When it fails, the connection is gone.
func (p *Pipes) write(ctx context.Context, message []byte) error {
	within, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := p.conn.Write(within, websocket.MessageBinary, message); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return ErrLeft
	}
	return nil
}

// ping finds out about a peer that is gone and has not said so.
func (p *Pipes) ping(ctx context.Context, gone func()) {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		within, cancel := context.WithTimeout(ctx, patience)
		err := p.conn.Ping(within)
		cancel()
		if err != nil {
			gone()
			return
		}
	}
}
