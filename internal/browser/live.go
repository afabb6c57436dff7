package browser

import (
	"context"
	"time"
)

// Live is the picture of a browser as it changes, and the hands of a person in it. There is one for each browser: however
// many watch, the browser makes one picture.
type Live struct{ b *Browser }

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

// Popup is one of them, waiting.
type Popup struct {
	ID      string    `json:"id"`
	Kind    PopupKind `json:"kind"`
	Message string    `json:"message,omitempty"` // of a dialog; of auth: the realm
	Origin  string    `json:"origin,omitempty"`  // who asks
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

// LiveInput is one thing that a person does. It prints as its type: what is typed is nobody's business.
type LiveInput struct {
	// Type is move, down, up, wheel, keydown, keyup, text, compose, go, back, forward, reload, stop, tab, open, close, size,
	// copy or answer.
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
	// Text is what is inserted (text), is being composed by an input method (compose, with the selection in it), or
	// answers a prompt.
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

// Viewer is one who watches. Next is called by one goroutine at a time.
type Viewer struct{ l *Live }

// Live returns the browser's.
func (b *Browser) Live() *Live { panic("contract") }

// Watch adds a viewer, which is visible. The screencast begins with the first visible one, and ends with the last.
func (l *Live) Watch() *Viewer { panic("contract") }

// Next waits for something new to show: a frame, which is always the latest, or a state; one of them is nil. After a frame
// there is no other before [Viewer.Shown]. The error is why there will be nothing more, or ctx's.
func (v *Viewer) Next(ctx context.Context) (*Frame, *LiveState, error) { panic("contract") }

// Shown says that the last frame was drawn, so that the next may come.
func (v *Viewer) Shown() {}

// Visible says whether anybody looks. While nobody of all viewers does, no picture is made.
func (v *Viewer) Visible(visible bool) {}

// Close ends it. It may be called twice.
func (v *Viewer) Close() {}

// Hold gives the browser's own popups to a person, until LetGo: dialogs wait, file choosers wait, and sites that ask for a
// password wait. Before it, dialogs are answered as [SetDialog] says.
func (l *Live) Hold(ctx context.Context) error { panic("contract") }

// LetGo ends Hold. What waits is dismissed; keys and buttons that are down go up. What the pages' logs (console, requests, dialogs) have from
// the time in between is forgotten, so that nobody reads there what the person did.
func (l *Live) LetGo(ctx context.Context) error { panic("contract") }

// Renew replaces every document of every tab by a fresh one of the same address, without anything that a script had put
// there: listeners, bindings, workers (service workers are unregistered). What was typed into pages is lost. Tabs and their handles stay.
func (l *Live) Renew(ctx context.Context) error { panic("contract") }

// Secrets says in which tabs a password field has text in it, by their handles.
func (l *Live) Secrets(ctx context.Context) ([]string, error) { panic("contract") }

// Do does one thing, in the order in which it is called. The answer is text that was copied, of the type copy; otherwise it is empty.
// The code is bad_request for what cannot be done.
func (l *Live) Do(ctx context.Context, in LiveInput) (copied string, err error) { panic("contract") }

// Thumbnail is a small JPEG of the current tab, 320 pixels wide. It does not disturb who uses the tab.
func (l *Live) Thumbnail(ctx context.Context) ([]byte, error) { panic("contract") }
