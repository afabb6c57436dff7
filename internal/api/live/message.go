package live

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/coder/websocket"

	"github.com/clawjail/clawjail/internal/base/strict"
	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/session"
)

// The types of messages of the client's that are looked at here.
const (
	typeShown   = "shown"
	typeVisible = "visible"
	typeCopy    = "copy"
	typeCut     = "cut"
	typeMove    = "move"
	typeWheel   = "wheel"
	typeKeyDown = "keydown"
)

// The messages of the server's, each with one member.
type (
	stateMessage struct {
		State *browser.LiveState `json:"state"`
	}

	controlMessage struct {
		Control *inControl `json:"control"`
	}

	errorMessage struct {
		Error failure `json:"error"`
	}

	copiedMessage struct {
		Copied string `json:"copied"`
	}

	endMessage struct {
		End ending `json:"end"`
	}
)

// inControl is who has the browser in hand. Mine says that it is who watches.
type inControl struct {
	By    string    `json:"by"`
	Name  string    `json:"name,omitempty"`
	Since time.Time `json:"since"`
	Mine  bool      `json:"mine"`
}

func controlOf(s session.Sight) *inControl {
	if s.Control == nil {
		return nil
	}
	return &inControl{By: s.Control.By, Name: s.Control.Name, Since: s.Control.Since, Mine: s.Mine}
}

// failure is what did not work, and ending why there is nothing more.
type (
	failure struct {
		Code    string `json:"code"`
		Message string `json:"message"`
		Hint    string `json:"hint,omitempty"`
	}

	ending struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}
)

// frame is a frame as it is sent.
func frame(f *browser.Frame) ([]byte, error) {
	about, err := json.Marshal(struct {
		Width  int       `json:"width"`
		Height int       `json:"height"`
		At     time.Time `json:"at"`
	}{f.Width, f.Height, f.At})
	if err != nil {
		return nil, fmt.Errorf("describe a frame: %w", err)
	}
	out := make([]byte, 0, 4+len(about)+len(f.JPEG))
	out = binary.BigEndian.AppendUint32(out, uint32(len(about)))
	return append(append(out, about...), f.JPEG...), nil
}

// tell sends a message.
func (c *connection) tell(ctx context.Context, message any) error {
	text, err := json.Marshal(message) // what pages chose is made valid UTF-8 by it
	if err != nil {
		return fmt.Errorf("encode a message: %w", err)
	}
	return c.write(ctx, websocket.MessageText, text)
}

// write sends what is no last message. When it fails, the client is gone.
func (c *connection) write(ctx context.Context, kind websocket.MessageType, text []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return errLeft
	}
	within, cancel := context.WithTimeout(ctx, writeLimit)
	defer cancel()
	if c.conn.Write(within, kind, text) != nil {
		return errLeft
	}
	return nil
}

// last sends the last message, and says whether it was.
func (c *connection) last(message any) bool {
	within, cancel := context.WithTimeout(context.Background(), endLimit)
	defer cancel()
	// A client that does not read the message in time is not waited for.
	defer context.AfterFunc(within, func() { _ = c.conn.CloseNow() })()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	text, err := json.Marshal(message)
	return err == nil && c.conn.Write(within, websocket.MessageText, text) == nil
}

// read reads one message.
func read(ctx context.Context, conn *websocket.Conn) ([]byte, error) {
	kind, from, err := conn.Reader(ctx)
	if err != nil {
		return nil, errLeft
	}
	if kind != websocket.MessageText {
		return nil, noMessage("it is not a text")
	}
	text, err := io.ReadAll(io.LimitReader(from, MaxMessage+1))
	if err == nil && len(text) > MaxMessage {
		// The rest is read and not held: the next message begins behind it.
		if _, err = io.Copy(io.Discard, io.LimitReader(from, endlessMessage)); err == nil {
			_, err = from.Read(make([]byte, 1))
		}
		switch {
		case err == io.EOF:
			return nil, errTooLarge
		case err == nil:
			return nil, noMessage(fmt.Sprintf("it has more than %d bytes", endlessMessage))
		}
	}
	if err != nil {
		return nil, errLeft
	}
	return text, nil
}

var errTooLarge = problem.New(problem.TooLarge, "send it in parts",
	"a message has more than %d bytes, and nothing of it was done", MaxMessage)

// errNoMessage is what ends a connection: the other end does not follow the protocol.
var errNoMessage = errors.New("no message of the live view")

func noMessage(why string) error {
	return problem.Wrap(errNoMessage, problem.BadJSON, protocolHint, "a message is not one of the live view: %s", why)
}

const protocolHint = "the messages are in docs/live.md"

// said is a message of the client's: one of the three.
type said struct {
	shown   bool
	visible *bool
	input   browser.LiveInput
}

// parse reads a message of the client's, with the strictness of bodies. An error that is errNoMessage is of what is no JSON.
func parse(text []byte) (said, error) {
	if !json.Valid(text) {
		return said{}, noMessage("it is not JSON")
	}
	var head struct {
		Type string `json:"type"`
	}
	_ = json.Unmarshal(text, &head) // what is wrong with it, one of the three below says
	var out said
	var err error
	switch head.Type {
	case typeShown:
		err = strict.Object(text, &head, protocolHint)
		out.shown = true
	case typeVisible:
		var message struct {
			Type    string `json:"type"`
			Visible *bool  `json:"visible"`
		}
		err = strict.Object(text, &message, protocolHint)
		if out.visible = message.Visible; err == nil && out.visible == nil {
			err = problem.New(problem.BadRequest, protocolHint, "a message of the type visible lacks the field visible")
		}
	default:
		if err = strict.Object(text, &out.input, protocolHint); err == nil && out.input.Type == "" {
			err = problem.New(problem.BadRequest, protocolHint, "a message has no type")
		}
	}
	if err != nil {
		return said{}, err
	}
	return out, nil
}
