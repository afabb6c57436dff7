package mcpserver

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/time/rate"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/skim"
)

// Bounds of what a server may send.
const (
	// ownOfMessage is what a message may have before the room is asked, which is asked for as much at a time.
	ownOfMessage = 1 << 20
	// maxParts and maxDepth bound what a message becomes when it is decoded: a value of a few bytes takes many in memory.
	maxParts = 100_000
	maxDepth = 64
	// A server that says more than this is read more slowly, and then waits with its pipe full.
	bytesPerSecond = 8 << 20
	bytesAtOnce    = 16 << 20
	// maxStray is how many messages and lines that no call has asked for a server may send within strayWindow.
	maxStray    = 10_000
	strayWindow = 10 * time.Second
	maxReplies  = 16 // refusals that wait to be written
)

// wire is the connection to a server over its pipes. It lets through what answers the client's own questions, and
// nothing else: whatever the server says of itself is handled here, in bounded memory, or dropped.
type wire struct {
	in    io.WriteCloser // the server's standard input
	out   io.ReadCloser  // its standard output
	lines *bufio.Reader
	rate  *rate.Limiter
	pace  pace
	now   func() time.Time
	limit int   // bytes of a message
	room  room  // of large messages
	taken int64 // of the room, by the message that is read
	// changed and progress are told of the two notifications that matter; they must not block. stray gets lines that are no
	// messages.
	changed  func()
	progress func(progressNote)
	// patience is how long the server may leave unread what it is sent now.
	patience func() time.Duration
	stray    func(line []byte)

	writing chan struct{} // holds the right to write
	replies chan []byte
	ended   chan struct{} // closed by Close
	close   sync.Once
	replier sync.WaitGroup

	strayCount int       // of the reading goroutine
	strayFrom  time.Time // likewise

	mu  sync.Mutex
	why error // what the server did wrong; set once
}

// progressNote is a notification that a call goes on.
type progressNote struct {
	Token    any     `json:"progressToken"`
	Progress float64 `json:"progress"`
	Total    float64 `json:"total"`
	Message  string  `json:"message"`
}

// room is the memory that large messages may take, together with those of other servers. It does not wait.
type room interface {
	Take(n int64) bool
	Give(n int64)
}

// newWire starts a wire, on which a message has up to limit bytes. Close ends it.
func newWire(in io.WriteCloser, out io.ReadCloser, p pace, now func() time.Time, limit int, room room) *wire {
	w := &wire{in: in, out: out, lines: bufio.NewReaderSize(out, 64<<10), rate: rate.NewLimiter(bytesPerSecond, bytesAtOnce), pace: p, now: now,
		limit: limit, room: room,
		changed: func() {}, progress: func(progressNote) {}, stray: func([]byte) {}, patience: func() time.Duration { return p.write },
		writing: make(chan struct{}, 1), replies: make(chan []byte, maxReplies), ended: make(chan struct{})}
	w.replier.Go(w.reply)
	return w
}

// Connect implements sdk.Transport.
func (w *wire) Connect(context.Context) (sdk.Connection, error) { return w, nil }

// SessionID implements sdk.Connection.
func (w *wire) SessionID() string { return "" }

// Close implements sdk.Connection. It may be repeated.
func (w *wire) Close() error {
	var err error
	w.close.Do(func() {
		close(w.ended)
		err = errors.Join(ignoreClosed(w.in.Close()), ignoreClosed(w.out.Close()))
	})
	return err
}

// wait returns when nothing of the wire is left. It is called after Close.
func (w *wire) wait() { w.replier.Wait() }

// fault is what the server did wrong, nil when it did nothing.
func (w *wire) fault() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.why
}

func (w *wire) blame(err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.why == nil {
		w.why = err
	}
	return w.why
}

// Read implements sdk.Connection.
func (w *wire) Read(ctx context.Context) (_ jsonrpc.Message, err error) {
	defer func() {
		if err != nil {
			w.giveBack() // nothing more is read
		}
	}()
	for {
		line, left, err := w.line(ctx)
		if err != nil {
			return nil, err
		}
		var answer jsonrpc.Message
		if left != nil {
			answer, err = w.leaveOut(left)
		} else {
			answer, err = w.take(line)
		}
		if err != nil || answer != nil {
			return answer, err
		}
	}
}

// leftOut is what is known of a message that is not held, and what was wrong with it.
type leftOut struct {
	skim.Envelope
	why string
}

// line reads one line, or looks at one that cannot be held. The bytes are good until the next call.
func (w *wire) line(ctx context.Context) (whole []byte, left *leftOut, err error) {
	w.giveBack()
	for n := 0; ; {
		part, err := w.lines.ReadSlice('\n')
		n += len(part)
		if err := w.spend(ctx, len(part)); err != nil {
			return nil, nil, err
		}
		if why := w.holds(n); left == nil && why != "" {
			left = &leftOut{why: why}
			left.Look(whole)
			whole = nil
			w.giveBack()
		}
		switch {
		case errors.Is(err, os.ErrClosed):
			return nil, nil, io.EOF
		case err != nil && !errors.Is(err, bufio.ErrBufferFull) && (!errors.Is(err, io.EOF) || n == 0):
			return nil, nil, err
		case left != nil:
			left.Look(part)
		case err == nil && whole == nil:
			return part, nil, nil
		default:
			whole = append(whole, part...)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return whole, left, nil
		}
	}
}

// holds says why a message of n bytes cannot be held.
func (w *wire) holds(n int) string {
	if n > w.limit {
		return fmt.Sprintf("has more than %s", config.Bytes(w.limit))
	}
	for int64(n) > ownOfMessage+w.taken {
		if !w.room.Take(ownOfMessage) {
			return "is large, and there is no room: other large answers are under way"
		}
		w.taken += ownOfMessage
	}
	return ""
}

func (w *wire) giveBack() {
	if w.taken > 0 {
		w.room.Give(w.taken)
		w.taken = 0
	}
}

// codeLeftOut is the code of the error that takes the place of an answer that was left out.
const codeLeftOut = -32098

// leaveOut answers in the place of a server whose answer is left out. A message that is no answer is only counted: no call waits for it.
func (w *wire) leaveOut(left *leftOut) (jsonrpc.Message, error) {
	if left.Method == "" && left.ID != "" && left.ID != "null" {
		m, err := jsonrpc.DecodeMessage(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":%q}}`, left.ID, codeLeftOut, left.why))
		if err == nil {
			return m, nil
		}
	}
	return nil, w.count()
}

// spend waits when the server has said too much too fast.
func (w *wire) spend(ctx context.Context, n int) error {
	pause := w.rate.ReserveN(w.now(), n).DelayFrom(w.now())
	if pause <= 0 {
		return nil
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-w.ended:
		return io.EOF
	case <-ctx.Done():
		return ctx.Err()
	}
}

// envelope is what tells one kind of message from another.
type envelope struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
}

// take does with a line what is to be done, and returns it when it is an answer. Everything else returns neither a message
// nor an error, unless there is too much of it.
func (w *wire) take(line []byte) (jsonrpc.Message, error) {
	line = bytes.TrimSpace(line)
	if len(line) == 0 {
		return nil, w.count()
	}
	if line[0] != '{' {
		// Many programs print something before, or beside, what they should.
		w.stray(line)
		return nil, w.count()
	}
	if why := measure(line); why != "" {
		left := &leftOut{why: why}
		left.Look(line)
		return w.leaveOut(left)
	}
	var e envelope
	if err := json.Unmarshal(line, &e); err != nil {
		w.stray(line)
		return nil, w.count()
	}
	asked := len(e.ID) > 0 && string(e.ID) != "null"
	switch {
	case e.Method == "" && asked:
		m, err := jsonrpc.DecodeMessage(line)
		if err != nil {
			w.stray(line)
			return nil, w.count()
		}
		return m, nil
	case e.Method == "ping" && asked && len(e.ID) <= 64:
		w.answer(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":{}}`, e.ID))
	case asked && len(e.ID) <= 64:
		w.answer(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"this client does not do that"}}`, e.ID))
	case e.Method == "notifications/tools/list_changed", e.Method == "notifications/resources/list_changed",
		e.Method == "notifications/prompts/list_changed":
		w.changed()
	case e.Method == "notifications/progress":
		var note progressNote
		if json.Unmarshal(e.Params, &note) == nil {
			w.progress(note)
		}
	}
	return nil, w.count()
}

// count counts messages and lines that no call has asked for.
func (w *wire) count() error {
	if now := w.now(); now.Sub(w.strayFrom) >= strayWindow {
		w.strayFrom, w.strayCount = now, 0
	}
	if w.strayCount++; w.strayCount > maxStray {
		return w.blame(fmt.Errorf("it sent more than %d messages that nobody asked for within %s", maxStray, strayWindow))
	}
	return nil
}

// measure says why a message becomes too much when it is decoded.
func measure(line []byte) string {
	parts, depth, quoted := 0, 0, false
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			parts++
			depth++
		case c == '}' || c == ']':
			depth--
		case c == ',':
			parts++
		}
		if depth > maxDepth {
			return fmt.Sprintf("is nested more than %d deep", maxDepth)
		}
		if parts > maxParts {
			return fmt.Sprintf("has more than %d values", maxParts)
		}
	}
	return ""
}

// answer queues an answer to a question of the server. One that asks and does not read the answers gets none.
func (w *wire) answer(message []byte) {
	select {
	case w.replies <- append(message, '\n'):
	default:
	}
}

func (w *wire) reply() {
	for {
		select {
		case message := <-w.replies:
			if w.write(context.Background(), message) != nil {
				return
			}
		case <-w.ended:
			return
		}
	}
}

// Write implements sdk.Connection.
func (w *wire) Write(ctx context.Context, m jsonrpc.Message) error {
	data, err := jsonrpc.EncodeMessage(m)
	if err != nil {
		return err
	}
	return w.write(ctx, append(data, '\n'))
}

// write writes whole lines. A server that does not read for a while is given up: half a line cannot be taken back.
func (w *wire) write(ctx context.Context, data []byte) error {
	select {
	case w.writing <- struct{}{}:
	case <-w.ended:
		return io.ErrClosedPipe
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-w.writing }()
	patience := w.patience()
	late := time.AfterFunc(patience, func() {
		_ = w.blame(fmt.Errorf("it did not read what it was sent within %s", patience))
		_ = w.Close() // the write fails with it, and that is told
	})
	defer late.Stop()
	_, err := w.in.Write(data)
	return err
}

func ignoreClosed(err error) error {
	if errors.Is(err, os.ErrClosed) || errors.Is(err, io.ErrClosedPipe) {
		return nil
	}
	return err
}
