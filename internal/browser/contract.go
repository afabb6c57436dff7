package browser

import "time"

// The operations of the control contract and what they answer. A targetId names a tab: its handle (t1), its label, its
// raw id, or a unique beginning of one of them; empty is the current tab. Every timeoutMs that is zero has the default
// of its operation.

type (
	// Status says how the browser is doing. It is passive: nothing is started or opened for it.
	Status struct{}
	// StatusResult is the answer to [Status].
	StatusResult struct {
		Running bool   `json:"running"`
		Version string `json:"version,omitempty"`
		Tabs    int    `json:"tabs"`
		// TargetID is the handle of the current tab.
		TargetID string `json:"targetId,omitempty"`
	}

	// Tabs lists the open tabs, in the order in which they were opened.
	Tabs struct{}
	// TabsResult is the answer to [Tabs].
	TabsResult struct {
		Running bool  `json:"running"`
		Tabs    []Tab `json:"tabs"`
	}

	// OpenTab opens an address. A tab that shows that address already is focused instead, unless NewTab.
	OpenTab struct {
		URL       string `json:"url"`
		Label     string `json:"label,omitempty"`
		NewTab    bool   `json:"newTab,omitempty"`
		TimeoutMS int    `json:"timeoutMs,omitempty"`
	}
	// OpenTabResult is the answer to [OpenTab].
	OpenTabResult struct {
		Tab
		Reused  bool     `json:"reused,omitempty"` // no new one was opened
		Status  int      `json:"status,omitempty"`
		LoadMS  int64    `json:"loadMs,omitempty"`
		Dialogs []Dialog `json:"dialogs,omitempty"`
	}

	// FocusTab makes a tab the current one.
	FocusTab struct {
		TargetID string `json:"targetId"`
	}
	// CloseTab closes a tab, the current one when none is named. A page cannot prevent it.
	CloseTab struct {
		TargetID string `json:"targetId,omitempty"`
		// TargetIDMode is "raw" when TargetID is a raw id and nothing else.
		TargetIDMode string `json:"targetIdMode,omitempty"`
	}
	// TabAction is the tab operations in one: list, new, label, close, select.
	TabAction struct {
		Action   string `json:"action"`
		Index    *int   `json:"index,omitempty"` // in the list, from 0
		TargetID string `json:"targetId,omitempty"`
		Label    string `json:"label,omitempty"`
		URL      string `json:"url,omitempty"`
	}
	// Done says that something was done, and to which tab.
	Done struct {
		OK       bool   `json:"ok"`
		TargetID string `json:"targetId,omitempty"`
		Tabs     []Tab  `json:"tabs,omitempty"`
	}

	// Navigate opens an address in a tab and waits until it has loaded.
	Navigate struct {
		URL       string `json:"url"`
		TargetID  string `json:"targetId,omitempty"`
		TimeoutMS int    `json:"timeoutMs,omitempty"` // 1000 to 120000, 20000
	}

	// SetDialog answers the dialog that the tab will open next; without it dialogs are dismissed.
	SetDialog struct {
		Accept     bool   `json:"accept"`
		PromptText string `json:"promptText,omitempty"`
		TargetID   string `json:"targetId,omitempty"`
		TimeoutMS  int    `json:"timeoutMs,omitempty"` // how long the answer is kept
	}
	// Console lists what the tab's scripts have printed.
	Console struct {
		TargetID string `json:"targetId,omitempty"`
		Level    string `json:"level,omitempty"` // the least: debug, info, warning, error
		Clear    bool   `json:"clear,omitempty"`
		Max      int    `json:"limit,omitempty"`
	}
	// ConsoleResult is the answer to [Console].
	ConsoleResult struct {
		TargetID  string           `json:"targetId"`
		Messages  []ConsoleMessage `json:"messages"`
		Truncated bool             `json:"truncated,omitempty"` // there were more
	}
	// ConsoleMessage is one line of the console.
	ConsoleMessage struct {
		Level string    `json:"level"`
		Text  string    `json:"text"`
		URL   string    `json:"url,omitempty"`
		Line  int64     `json:"line,omitempty"`
		At    time.Time `json:"at"`
	}
	// Errors lists the uncaught exceptions of the tab.
	Errors struct {
		TargetID string `json:"targetId,omitempty"`
		Clear    bool   `json:"clear,omitempty"`
	}
	// ErrorsResult is the answer to [Errors].
	ErrorsResult struct {
		TargetID  string           `json:"targetId"`
		Errors    []ConsoleMessage `json:"errors"`
		Truncated bool             `json:"truncated,omitempty"`
	}
	// Requests lists what the tab has asked the network for.
	Requests struct {
		TargetID string `json:"targetId,omitempty"`
		Filter   string `json:"filter,omitempty"` // a part of the address
		Clear    bool   `json:"clear,omitempty"`
	}
	// RequestsResult is the answer to [Requests].
	RequestsResult struct {
		TargetID  string    `json:"targetId"`
		Requests  []Request `json:"requests"`
		Truncated bool      `json:"truncated,omitempty"`
	}
	// Request is one request of a tab. It has no headers and no bodies.
	Request struct {
		Method string    `json:"method"`
		URL    string    `json:"url"`
		Type   string    `json:"type"`
		Status int       `json:"status,omitempty"`
		Error  string    `json:"error,omitempty"`
		At     time.Time `json:"at"`
	}
)

type (
	// Screenshot takes a picture: of what is in view, of the whole page, or of one element.
	Screenshot struct {
		TargetID  string `json:"targetId,omitempty"`
		FullPage  bool   `json:"fullPage,omitempty"`
		Ref       string `json:"ref,omitempty"`
		Element   string `json:"element,omitempty"` // a CSS selector
		Type      string `json:"type,omitempty"`    // png or jpeg
		Quality   int    `json:"quality,omitempty"` // 1 to 100, of a jpeg
		Labels    bool   `json:"labels,omitempty"`  // draws the refs of what can be used
		Width     int    `json:"width,omitempty"`   // of the window for the picture, together with Height
		Height    int    `json:"height,omitempty"`
		TimeoutMS int    `json:"timeoutMs,omitempty"`
	}
	// Picture is the answer to [Screenshot] and to [PDF]: the bytes, and where they can be fetched again for a while.
	Picture struct {
		OK            bool      `json:"ok"`
		TargetID      string    `json:"targetId"`
		URL           string    `json:"url"`
		Media         string    `json:"media"` // an id for [GetMedia]
		ExpiresAt     time.Time `json:"expiresAt"`
		ContentType   string    `json:"contentType"`
		Bytes         int       `json:"bytes"`
		Width         int       `json:"width,omitempty"`
		Height        int       `json:"height,omitempty"`
		LabelsCount   int       `json:"labelsCount,omitempty"`
		LabelsSkipped int       `json:"labelsSkipped,omitempty"`
		// Data is not in the JSON.
		Data []byte `json:"-"`
	}
	// PDF prints the page.
	PDF struct {
		TargetID  string `json:"targetId,omitempty"`
		Landscape bool   `json:"landscape,omitempty"`
		// Paper is a4, which is the default, letter or legal.
		Paper     string `json:"paper,omitempty"`
		TimeoutMS int    `json:"timeoutMs,omitempty"`
	}
	// GetMedia returns a picture again.
	GetMedia struct {
		ID string `json:"id"`
	}

	// Query finds elements by a CSS selector.
	Query struct {
		Selector string `json:"selector"`
		TargetID string `json:"targetId,omitempty"`
		Max      int    `json:"limit,omitempty"` // 1 to 1000, 20
	}
	// QueryResult is the answer to [Query].
	QueryResult struct {
		TargetID  string    `json:"targetId"`
		Elements  []Element `json:"elements"`
		Total     int       `json:"total"`
		Truncated bool      `json:"truncated,omitempty"`
	}
	// Element is a short description of one element. The value of a password field is never in it.
	Element struct {
		Index     int    `json:"index"`
		Tag       string `json:"tag"`
		ID        string `json:"id,omitempty"`
		Class     string `json:"class,omitempty"`
		Text      string `json:"text,omitempty"`
		Value     string `json:"value,omitempty"`
		Href      string `json:"href,omitempty"`
		OuterHTML string `json:"outerHTML,omitempty"`
	}
	// DOM returns the page, or one element of it, as HTML or as text.
	DOM struct {
		Format   string `json:"format,omitempty"` // html or text; html
		TargetID string `json:"targetId,omitempty"`
		Selector string `json:"selector,omitempty"`
		MaxChars int    `json:"maxChars,omitempty"` // 1 to 2000000, 200000
	}
	// DOMResult is the answer to [DOM].
	DOMResult struct {
		TargetID  string `json:"targetId"`
		URL       string `json:"url"`
		Format    string `json:"format"`
		Text      string `json:"text"`
		Truncated bool   `json:"truncated,omitempty"`
	}
	// Eval runs JavaScript in the page's own world.
	Eval struct {
		JS        string `json:"js"`
		TargetID  string `json:"targetId,omitempty"`
		Await     bool   `json:"await,omitempty"`
		TimeoutMS int    `json:"timeoutMs,omitempty"`
	}
	// EvalResult is the answer to [Eval]: a value, or a description of what has none, or what was thrown.
	EvalResult struct {
		TargetID    string `json:"targetId"`
		Type        string `json:"type"`
		Value       any    `json:"value,omitempty"`
		Description string `json:"description,omitempty"`
		Exception   string `json:"exception,omitempty"`
		Truncated   bool   `json:"truncated,omitempty"`
	}

	// Files lists the folder of the browser: what it has downloaded and what was put there to be uploaded.
	Files struct{}
	// FilesResult is the answer to [Files].
	FilesResult struct {
		Files []File `json:"files"`
	}
	// File is one file of the browser's folder.
	File struct {
		// Name is unique in the folder, and what a page or a client is told.
		Name  string    `json:"name"`
		Kind  string    `json:"kind"`  // download or upload
		State string    `json:"state"` // complete, in_progress, canceled
		Bytes int64     `json:"bytes"`
		URL   string    `json:"url,omitempty"` // where it came from
		GUID  string    `json:"guid,omitempty"`
		At    time.Time `json:"at"`
	}
	// GetFile returns a file of the folder, by its name or the GUID of its download.
	GetFile struct {
		Name string `json:"name"`
	}
	// FileContent is the answer to [GetFile] and to [GetMedia].
	FileContent struct {
		Name        string `json:"name"`
		ContentType string `json:"contentType"`
		Data        []byte `json:"-"`
	}
	// PutFile puts a file into the folder, for uploads.
	PutFile struct {
		Name string `json:"name"`
		Data []byte `json:"-"`
	}
	// DeleteFile forgets a file.
	DeleteFile struct {
		Name string `json:"name"`
	}
	// ChooseFiles gives files of the folder to a file input, or to the file chooser that the tab opens next.
	ChooseFiles struct {
		Paths     []string `json:"paths"`         // names in the folder
		Ref       string   `json:"ref,omitempty"` // of the input, or of what opens the chooser
		InputRef  string   `json:"inputRef,omitempty"`
		Element   string   `json:"element,omitempty"` // a CSS selector of the input
		TargetID  string   `json:"targetId,omitempty"`
		TimeoutMS int      `json:"timeoutMs,omitempty"`
	}
	// WaitDownload waits for the next download to end, or the one that is under way.
	WaitDownload struct {
		TimeoutMS int `json:"timeoutMs,omitempty"` // 120000
	}
)

type (
	// Snapshot describes the page for a program that reads. See [SnapshotResult].
	Snapshot struct {
		TargetID string `json:"targetId,omitempty"`
		// Format is ai (a tree of lines with refs), aria (the accessibility tree) or domSnapshot.
		Format      string `json:"format,omitempty"`
		Max         int    `json:"limit,omitempty"`       // of nodes, aria and domSnapshot: 1 to 50000, 500
		MaxChars    int    `json:"maxChars,omitempty"`    // of ai: 40000
		Interactive bool   `json:"interactive,omitempty"` // only what can be used
		Compact     bool   `json:"compact,omitempty"`     // without what only groups
		Depth       int    `json:"depth,omitempty"`
		Selector    string `json:"selector,omitempty"` // only below this element
		URLs        bool   `json:"urls,omitempty"`     // with the addresses of links
		Mode        string `json:"mode,omitempty"`     // efficient: interactive, compact, depth 6, 8000 characters
		TimeoutMS   int    `json:"timeoutMs,omitempty"`
	}
	// SnapshotResult is the answer to [Snapshot].
	SnapshotResult struct {
		OK        bool           `json:"ok"`
		Format    string         `json:"format"`
		TargetID  string         `json:"targetId"`
		URL       string         `json:"url"`
		Title     string         `json:"title,omitempty"`
		Snapshot  string         `json:"snapshot,omitempty"` // of ai
		Nodes     []SnapshotNode `json:"nodes,omitempty"`    // of aria and domSnapshot
		Stats     SnapshotStats  `json:"stats"`
		Truncated bool           `json:"truncated,omitempty"`
		Dialogs   []Dialog       `json:"dialogs,omitempty"`
	}
	// SnapshotStats are a snapshot in numbers.
	SnapshotStats struct {
		Lines       int `json:"lines"`
		Chars       int `json:"chars"`
		Refs        int `json:"refs"`
		Interactive int `json:"interactive"`
	}
	// SnapshotNode is one node of a tree, in document order; Depth says where it hangs.
	SnapshotNode struct {
		Ref              string            `json:"ref"` // axN, of aria
		Role             string            `json:"role,omitempty"`
		Name             string            `json:"name,omitempty"`
		Value            string            `json:"value,omitempty"`
		Description      string            `json:"description,omitempty"`
		Tag              string            `json:"tag,omitempty"`        // of domSnapshot
		Text             string            `json:"text,omitempty"`       // of domSnapshot
		Attributes       map[string]string `json:"attributes,omitempty"` // of domSnapshot
		BackendDOMNodeID int64             `json:"backendDOMNodeId,omitempty"`
		Depth            int               `json:"depth"`
	}

	// Act does one thing as a person would, with real input events. Which fields count depends on Kind.
	Act struct {
		Kind      string     `json:"kind"`
		TargetID  string     `json:"targetId,omitempty"`
		Ref       string     `json:"ref,omitempty"`
		Selector  string     `json:"selector,omitempty"`
		TimeoutMS int        `json:"timeoutMs,omitempty"`
		Button    string     `json:"button,omitempty"`    // click: left, right, middle
		Modifiers []string   `json:"modifiers,omitempty"` // click: Alt, Control, ControlOrMeta, Meta, Shift
		Double    bool       `json:"doubleClick,omitempty"`
		DelayMS   int        `json:"delayMs,omitempty"` // at most 5000
		X         *float64   `json:"x,omitempty"`       // clickCoords, dragCoords
		Y         *float64   `json:"y,omitempty"`
		EndX      *float64   `json:"endX,omitempty"`
		EndY      *float64   `json:"endY,omitempty"`
		Text      *string    `json:"text,omitempty"` // type; of wait: what must appear
		Submit    bool       `json:"submit,omitempty"`
		Slowly    bool       `json:"slowly,omitempty"`
		Key       string     `json:"key,omitempty"` // press
		StartRef  string     `json:"startRef,omitempty"`
		StartSel  string     `json:"startSelector,omitempty"`
		EndRef    string     `json:"endRef,omitempty"`
		EndSel    string     `json:"endSelector,omitempty"`
		Values    []string   `json:"values,omitempty"` // select
		Fields    []ActField `json:"fields,omitempty"` // fill
		Width     int        `json:"width,omitempty"`  // resize
		Height    int        `json:"height,omitempty"`
		// Of wait:
		TimeMS    int    `json:"timeMs,omitempty"`
		TextGone  string `json:"textGone,omitempty"`
		URL       string `json:"url,omitempty"`       // a glob
		LoadState string `json:"loadState,omitempty"` // load, domcontentloaded, networkidle
		Fn        string `json:"fn,omitempty"`        // of wait and evaluate
		// Of batch:
		Actions     []Act `json:"actions,omitempty"`
		StopOnError *bool `json:"stopOnError,omitempty"` // true
	}
	// ActField is one field that fill fills.
	ActField struct {
		Ref   string `json:"ref"`
		Type  string `json:"type,omitempty"` // text, checkbox, radio, select
		Value any    `json:"value"`          // a text, a number or a truth value
	}
	// ActResult is the answer to [Act].
	ActResult struct {
		OK       bool   `json:"ok"`
		TargetID string `json:"targetId,omitempty"` // where the tab is now
		URL      string `json:"url,omitempty"`
		// Loading says that the document which the action led to had not been parsed when the time was up.
		Loading bool `json:"loading,omitempty"`
		// Value is what evaluate returned.
		Value any `json:"result,omitempty"`
		// BlockedByDialog says that the action opened a dialog, which was answered; see Dialogs.
		BlockedByDialog bool     `json:"blockedByDialog,omitempty"`
		Dialogs         []Dialog `json:"dialogs,omitempty"`
		// FileChooser says that the page waits for files: answer with [ChooseFiles].
		FileChooser bool `json:"fileChooser,omitempty"`
		// Opened are tabs that the action opened.
		Opened []Tab `json:"opened,omitempty"`
		// Downloads are files that the action began to download.
		Downloads []File `json:"downloads,omitempty"`
		// Results are those of a batch.
		Results []ActStep `json:"results,omitempty"`
	}
	// ActStep is how one action of a batch went.
	ActStep struct {
		OK    bool   `json:"ok"`
		Kind  string `json:"kind"`
		Error string `json:"error,omitempty"`
		Code  string `json:"code,omitempty"`
		Value any    `json:"result,omitempty"`
	}
)
