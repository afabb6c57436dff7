package browser

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode"

	devtools "github.com/chromedp/cdproto/browser"

	"github.com/clawjail/clawjail/internal/cdp"
)

const (
	// maxFiles bounds the list of files; what a page downloads beyond is canceled until some are deleted.
	maxFiles = 500
	// MaxFile bounds one download and maxFolderBytes all files of the list: what a page sends fills the jail's
	// memory, or the disk of the host browser's user.
	MaxFile        = 256 << 20
	maxFolderBytes = 1 << 30
	// maxFileName bounds the name that is made of a page's suggestion, in bytes.
	maxFileName = 150
	// downloadTimeout bounds one command about downloads; it takes a few milliseconds.
	downloadTimeout = 5 * time.Second
)

// Kinds and states of a [File].
const (
	download = "download"
	upload   = "upload"

	complete   = "complete"
	inProgress = "in_progress"
	canceled   = "canceled"
)

// folder is the browser's folder as far as the control plane knows it: from what the browser says. It is never looked
// into. The zero value is no folder.
type folder struct {
	turn chan struct{} // holds a token while a hidden page is open; made by UseFolder
	task sync.WaitGroup

	mu        sync.Mutex
	clock     func() time.Time // nil is the time
	path      string
	files     []*stored
	changed   chan struct{} // closed and made anew with every change; nil while no call waits
	hidden    []string      // ids of the last hidden contexts
	fileWrite *fileWrite    // the file that is being written
	armed     map[*Page]*arming
}

// stored is one file of the folder.
type stored struct {
	File
	path  string
	ended time.Time
	told  bool // WaitDownload has returned it
}

// fileWrite is the writing of one file by a hidden page: the download of that page is ours, and no page's.
type fileWrite struct {
	frame string
	guid  string
	size  int64
	path  string
	state string
}

func (f *folder) now() time.Time {
	if f.clock != nil {
		return f.clock()
	}
	return time.Now()
}

// UseFolder names the browser's folder, as the browser sees it: an absolute path below which only the browser writes.
// Downloads go there from now on. A browser without one has no files.
func (b *Browser) UseFolder(path string) {
	f := &b.folder
	f.mu.Lock()
	first := f.path == ""
	f.path = strings.TrimSuffix(path, "/")
	if first {
		f.turn = make(chan struct{}, 1)
	}
	f.mu.Unlock()
	if first && path != "" {
		f.task.Go(b.watchDownloads)
	}
}

// DownloadsPath is where downloads are, as the browser sees it; empty without a folder.
func (b *Browser) DownloadsPath() string {
	b.folder.mu.Lock()
	defer b.folder.mu.Unlock()
	if b.folder.path == "" {
		return ""
	}
	return b.folder.path + "/downloads"
}

// ReapplyDownloads tells the browser again where downloads go, in every context: another DevTools client that leaves
// takes the setting with it.
func (b *Browser) ReapplyDownloads(ctx context.Context) error {
	path := b.DownloadsPath()
	if path == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, downloadTimeout)
	defer cancel()
	others, listErr := b.Contexts(ctx)
	errs := []error{listErr}
	for _, id := range append([]string{""}, others[:min(len(others), maxContexts)]...) {
		// A context may have gone since it was listed; the default one does not go.
		if err := b.saveTo(ctx, id, devtools.SetDownloadBehaviorBehaviorAllowAndName, path); err != nil && id == "" {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return explain(err, "say where downloads go")
	}
	return nil
}

// maxContexts bounds the contexts of clients that are told about downloads.
const maxContexts = 100

func (b *Browser) saveTo(ctx context.Context, id string, how devtools.SetDownloadBehaviorBehavior, path string) error {
	return b.conn.Call(ctx, "", devtools.SetDownloadBehavior.Method, struct {
		inContext
		Behavior devtools.SetDownloadBehaviorBehavior `json:"behavior"`
		Path     string                               `json:"downloadPath"`
		// Events is of the whole connection, whichever context is named.
		Events bool `json:"eventsEnabled"`
	}{inContext{id}, how, path, true}, nil)
}

// watchDownloads keeps the list of files until the connection ends.
func (b *Browser) watchDownloads() {
	events, err := b.conn.Browser().Subscribe(devtools.DownloadWillBegin.Method, devtools.DownloadProgress.Method)
	if err != nil {
		return // the browser is gone
	}
	defer events.Close()
	// When it fails, downloads are refused by the browser: nothing goes where it should not.
	_ = b.ReapplyDownloads(context.Background())
	for {
		event, err := events.Next(context.Background())
		var lost *cdp.LostError
		if errors.As(err, &lost) {
			continue // a file may be said to be in progress for good
		}
		if err != nil {
			return
		}
		event.Params = b.clean(event.Params) // a name is shortened, and has other characters, afterwards
		switch event.Method {
		case devtools.DownloadWillBegin.Method:
			var begun devtools.EventDownloadWillBegin
			if cdp.Decode(event.Params, &begun) == nil && !b.folder.begin(begun) {
				b.cancelDownload(begun.GUID)
			}
		case devtools.DownloadProgress.Method:
			var progress devtools.EventDownloadProgress
			if cdp.Decode(event.Params, &progress) == nil && !b.folder.progress(progress) {
				b.cancelDownload(progress.GUID)
			}
		}
	}
}

// cancelDownload ends a download, in whichever context it is.
func (b *Browser) cancelDownload(guid string) {
	ctx, cancel := context.WithTimeout(context.Background(), downloadTimeout)
	defer cancel()
	params := devtools.CancelDownloadParams{GUID: guid}
	if _, err := cdp.Do(ctx, b.conn.Browser(), devtools.CancelDownload, params); err == nil {
		return
	}
	others, err := b.Contexts(ctx)
	if err != nil {
		return // the browser is gone, and the download with it
	}
	for _, id := range others[:min(len(others), maxContexts)] {
		// Every context but one refuses: it does not know the download.
		_ = b.conn.Call(ctx, "", devtools.CancelDownload.Method, struct {
			inContext
			GUID string `json:"guid"`
		}{inContext{id}, guid}, nil)
	}
}

// isGUID knows what Chromium names the file of a download by.
func isGUID(text string) bool {
	return text != "" && len(text) <= 64 && strings.Trim(text, "0123456789abcdefABCDEF-") == ""
}

// ofTheWeb says whether a download comes from the network, or was made by a page. A local file, or a page of the browser's
// own, is nothing that a session may take home.
func ofTheWeb(address string) bool {
	scheme, rest, _ := strings.Cut(strings.ToLower(strings.TrimSpace(address)), ":")
	switch scheme {
	case "http", "https", "data":
		return true
	case "blob":
		inner, _, _ := strings.Cut(rest, ":")
		return inner == "http" || inner == "https" || strings.HasPrefix(inner, "null")
	}
	return false
}

// begin takes a new download in; false means that it must not go on.
func (f *folder) begin(e devtools.EventDownloadWillBegin) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.path == "" || !isGUID(e.GUID) || !ofTheWeb(e.URL) {
		return false
	}
	if f.fileWrite != nil && f.fileWrite.frame == string(e.FrameID) {
		if f.fileWrite.guid == "" {
			f.fileWrite.guid = e.GUID
		}
		return true
	}
	if f.byGUID(e.GUID) != nil {
		return true
	}
	f.makeRoom()
	if len(f.files) >= maxFiles || f.weight() >= maxFolderBytes {
		return false
	}
	f.add(&stored{path: f.path + "/downloads/" + e.GUID, File: File{
		Name: f.unused(safeName(e.SuggestedFilename)), Kind: download, State: inProgress,
		URL: bounded(e.URL, maxURL), GUID: e.GUID, At: f.now(),
	}})
	return true
}

// progress follows a download; false means that it must not go on.
func (f *folder) progress(e devtools.EventDownloadProgress) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fileWrite != nil && f.fileWrite.guid == e.GUID {
		f.fileWrite.size, f.fileWrite.path, f.fileWrite.state = int64(e.ReceivedBytes), e.FilePath, stateOf(e.State)
		f.tell()
		return true
	}
	file := f.byGUID(e.GUID)
	if file == nil || file.State != inProgress {
		return true
	}
	file.Bytes = int64(max(e.ReceivedBytes, 0))
	file.State = stateOf(e.State)
	if file.State != inProgress {
		file.ended = f.now()
		f.tell()
		return true
	}
	return e.TotalBytes <= MaxFile && file.Bytes <= MaxFile && f.weight() <= maxFolderBytes
}

func stateOf(state devtools.DownloadProgressState) string {
	switch state {
	case devtools.DownloadProgressStateCompleted:
		return complete
	case devtools.DownloadProgressStateCanceled:
		return canceled
	}
	return inProgress
}

// The functions below are called with f.mu held.

func (f *folder) add(file *stored) {
	f.files = append(f.files, file)
	f.tell()
}

// tell wakes those who wait.
func (f *folder) tell() {
	if f.changed != nil {
		close(f.changed)
		f.changed = nil
	}
}

func (f *folder) byGUID(guid string) *stored {
	for _, file := range f.files {
		if file.GUID == guid && guid != "" {
			return file
		}
	}
	return nil
}

// find is a file by its name or its GUID.
func (f *folder) find(name string) *stored {
	for _, file := range f.files {
		if file.Name == name {
			return file
		}
	}
	return f.byGUID(name)
}

func (f *folder) forget(file *stored) {
	for n, other := range f.files {
		if other == file {
			f.files = append(f.files[:n], f.files[n+1:]...)
			f.tell()
			return
		}
	}
}

// makeRoom forgets the first download that came to nothing, when the list is full.
func (f *folder) makeRoom() {
	if len(f.files) < maxFiles {
		return
	}
	for _, file := range f.files {
		if file.State == canceled {
			f.forget(file)
			return
		}
	}
}

func (f *folder) weight() int64 {
	var sum int64
	for _, file := range f.files {
		if file.State != canceled {
			sum += file.Bytes
		}
	}
	return sum
}

// unused makes a name that no other file has, in any case of its letters.
func (f *folder) unused(name string) string {
	base, ext := name, ""
	if dot := strings.LastIndexByte(name, '.'); dot > 0 {
		base, ext = name[:dot], name[dot:]
	}
	taken := func(name string) bool {
		for _, file := range f.files {
			if strings.EqualFold(file.Name, name) {
				return true
			}
		}
		return false
	}
	// With maxFiles names taken, one of the first maxFiles+1 is free.
	for n := 2; taken(name); n++ {
		name = fmt.Sprintf("%s (%d)%s", base, n, ext)
	}
	return name
}

// safeName makes the name of a file out of what a page suggests. It has no separators, control characters or marks
// that turn the direction of text, does not begin or end with a dot or a space, and keeps a short ending.
func safeName(suggested string) string {
	name := bounded(suggested, maxText)
	if cut := strings.LastIndexAny(name, `/\`); cut >= 0 {
		name = name[cut+1:]
	}
	name = safeCharacters(name)
	name = strings.Trim(name, ". \t\u00a0")
	if dot := strings.LastIndexByte(name, '.'); len(name) > maxFileName && dot > 0 && len(name)-dot <= 20 {
		name = bounded(name[:dot], maxFileName-(len(name)-dot)) + name[dot:]
	}
	name = strings.TrimRight(bounded(name, maxFileName), ". ")
	if name == "" {
		return "download"
	}
	return name
}

// safeCharacters replaces what no name may have: control characters, marks that turn text around, and what some file
// systems refuse.
func safeCharacters(name string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || strings.ContainsRune(`<>:"|?*`, r) {
			return '_'
		}
		return r
	}, name)
}
