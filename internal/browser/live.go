package browser

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/cdp"
)

// Live is the live view of a browser: its picture as it changes, and the input of a person. There is one for each browser: however
// many watch, the browser makes one picture.
//
// One goroutine follows the current tab; it begins with the first viewer, or the first Hold, and ends with the browser.
type Live struct {
	b    *Browser
	wake wake.Signal   // holds a token while there may be something new
	lane chan struct{} // holds a token while an input is being done
	turn chan struct{} // holds a token while Hold, LetGo or Renew runs
	held atomic.Bool   // a person steers
	// renewing says that dialogs are answered so that pages can be left.
	renewing atomic.Bool
	casts    atomic.Int64 // screencasts that were started, ever

	task sync.WaitGroup
	ctx  context.Context // of what belongs to the browser and to no caller
	stop context.CancelFunc

	mu      sync.Mutex
	begun   bool
	ended   error // why there will be nothing more
	viewers map[*Viewer]struct{}
	cast    *cast
	frame   *Frame
	frames  uint64 // number of the last frame
	state   *LiveState
	states  uint64 // number of the last state

	holding *holding
	popups  []*popup
	asked   uint64 // number of the last popup
	hands   hands
}

// Frame is one picture of the current tab. It is as large as the page's window.
type Frame struct {
	// JPEG is the picture.
	JPEG []byte
	// Width and Height are of the window, in CSS pixels: the space that x and y of [LiveInput] are in.
	Width, Height int
	At            time.Time
}

// LiveState is what there is beside the picture.
type LiveState struct {
	// Tabs are the open tabs; one of them is current.
	Tabs []LiveTab `json:"tabs"`
	// URL is where the current tab is.
	URL     string `json:"url"`
	Loading bool   `json:"loading"`
	Back    bool   `json:"back"`
	Forward bool   `json:"forward"`
	// Popups wait for an answer, while the browser is held. Each is answered with the input of type answer.
	Popups []Popup `json:"popups,omitempty"`
}

// LiveTab is one open tab.
type LiveTab struct {
	ID      string `json:"id"` // its handle
	Title   string `json:"title"`
	URL     string `json:"url"`
	Current bool   `json:"current"`
	Crashed bool   `json:"crashed,omitempty"` // it has no process, and shows nothing until it is loaded again
}

// PopupKind is what a browser draws by itself, outside of its page, so that it is not in the picture.
type PopupKind string

// The kinds.
const (
	PopupAlert   PopupKind = "alert"
	PopupConfirm PopupKind = "confirm"
	PopupPrompt  PopupKind = "prompt"
	PopupLeave   PopupKind = "leave"  // the question whether to leave the page
	PopupFiles   PopupKind = "files"  // a file chooser
	PopupAuth    PopupKind = "auth"   // a site or a proxy asks for a user and a password (HTTP authentication)
	PopupSelect  PopupKind = "select" // the list of a select element
)

// Popup is a popup that waits for a person.
type Popup struct {
	ID      string    `json:"id"`
	Kind    PopupKind `json:"kind"`
	Message string    `json:"message,omitempty"` // of a dialog; of auth: the realm
	Origin  string    `json:"origin,omitempty"`  // of the page or server that asks
	Default string    `json:"default,omitempty"` // of a prompt
	// Multiple: more than one file, or option, may be chosen. Accept is what the chooser asks for, as in HTML.
	Multiple bool          `json:"multiple,omitempty"`
	Accept   string        `json:"accept,omitempty"`
	Options  []PopupOption `json:"options,omitempty"` // of a select, the first thousand
}

// PopupOption is one line of a select element's list.
type PopupOption struct {
	Label    string `json:"label"`
	Group    string `json:"group,omitempty"`
	Selected bool   `json:"selected,omitempty"`
	Disabled bool   `json:"disabled,omitempty"`
}

// LiveInput is one thing that a person does. It prints as its type, without the text that is typed.
type LiveInput struct {
	// Type is move, down, up, wheel, keydown, keyup, text, commit, compose, go, back, forward, reload, stop, tab, open, close,
	// size, copy, cut or answer.
	Type string `json:"type"`
	// X and Y are where the pointer is, in CSS pixels of the frame's window; DX and DY how far the wheel turned.
	X         float64 `json:"x,omitempty"`
	Y         float64 `json:"y,omitempty"`
	DX        float64 `json:"dx,omitempty"`
	DY        float64 `json:"dy,omitempty"`
	Button    string  `json:"button,omitempty"` // left, middle, right, back, forward
	Buttons   int     `json:"buttons,omitempty"`
	Clicks    int     `json:"clicks,omitempty"`
	Modifiers int     `json:"modifiers,omitempty"` // 1 Alt, 2 Control, 4 Meta, 8 Shift, as the protocol has them
	// Key, Code, Location and Repeat are those of a KeyboardEvent.
	Key      string `json:"key,omitempty"`
	Code     string `json:"code,omitempty"`
	Location int    `json:"location,omitempty"`
	Repeat   bool   `json:"repeat,omitempty"`
	// Text is what is pasted (text), what an input method, a dead key or the keyboard of a phone has made (commit), what is
	// being composed by one (compose, with the selection in it), or answers a prompt.
	Text  string `json:"text,omitempty"`
	Start int    `json:"start,omitempty"`
	End   int    `json:"end,omitempty"`
	URL   string `json:"url,omitempty"` // go, open
	Tab   string `json:"tab,omitempty"` // tab, close: its handle
	// Width and Height of size are what the window is to be.
	Width  int `json:"width,omitempty"`
	Height int `json:"height,omitempty"`
	// Of answer:
	Popup    string   `json:"popup,omitempty"`
	Accept   bool     `json:"accept,omitempty"`
	User     string   `json:"user,omitempty"`
	Password string   `json:"password,omitempty"`
	Files    []string `json:"files,omitempty"`   // names in the browser's folder, see [PutFile]
	Options  []int    `json:"options,omitempty"` // indexes in the popup's options
}

// inputTypes are those of [LiveInput].
func inputTypes() []string {
	return []string{"move", "down", "up", "wheel", "keydown", "keyup", "text", "commit", "compose", "go", "back", "forward",
		"reload", "stop", "tab", "open", "close", "size", "copy", "cut", "answer"}
}

// named is the input's type, if it is one.
func (in LiveInput) named() string {
	if slices.Contains(inputTypes(), in.Type) {
		return in.Type
	}
	return "unknown"
}

// Format prints the type and nothing else, whatever the verb.
func (in LiveInput) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, "input "+in.named()) }

// LogValue is the type.
func (in LiveInput) LogValue() slog.Value { return slog.StringValue("input " + in.named()) }

func newLive(b *Browser) *Live {
	return &Live{b: b, wake: wake.New(), lane: make(chan struct{}, 1), turn: make(chan struct{}, 1),
		viewers: make(map[*Viewer]struct{})}
}

// Live returns the browser's live view.
func (b *Browser) Live() *Live { return b.live }

// poke says that something may be new. It may be called with any lock held.
func (l *Live) poke() { l.wake.Send() }

// begin starts the goroutine that follows the browser, unless it runs or has ended.
func (l *Live) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.begun || l.ended != nil {
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	l.begun, l.ctx, l.stop = true, ctx, stop
	l.task.Go(func() { l.follow(ctx) })
}

// end ends all goroutines, after the connection.
func (l *Live) end() {
	l.mu.Lock()
	stop := l.stop
	if l.ended == nil {
		l.ended = l.gone()
	}
	l.tellLocked()
	l.mu.Unlock()
	if stop != nil {
		stop()
	}
	l.endHolding()
	l.task.Wait()
}

// launch runs something that goes on after its caller has left. It is false when the browser is gone.
func (l *Live) launch(run func(ctx context.Context)) bool {
	l.begin()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended != nil {
		return false
	}
	ctx := l.ctx
	l.task.Go(func() { run(ctx) })
	return true
}

// gone is why there is nothing to see any more.
func (l *Live) gone() error {
	err := l.b.conn.Err()
	if err == nil {
		err = cdp.ErrClosed
	}
	return explain(err, "watch the browser")
}

// Casts counts the screencasts that were ever started.
func (l *Live) Casts() int64 { return l.casts.Load() }
