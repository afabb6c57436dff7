package browser

import (
	"context"
	_ "embed"
	"encoding/base64"
	"errors"
	"slices"
	"time"

	protocol "github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/dom"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/cdproto/target"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	// chunkBytes is how much of a file travels in one message.
	chunkBytes = 1 << 20
	// hiddenKept bounds the ids of hidden contexts that are remembered: events about one may come after its end.
	hiddenKept = 64
	// disposeTimeout bounds the end of a hidden page, which takes 10 ms.
	disposeTimeout = 2 * time.Second
)

// filesScript is the one function that runs in a hidden page; see the file.
//
//go:embed inpage/files.js
var filesScript string

// hiddenPage is an empty page of our own, in a context of its own, which reads and writes the files of the folder: the
// control plane cannot see the file system that the browser sees. No page of anybody else's reaches it.
type hiddenPage struct {
	b       *Browser
	session cdp.Session
	context string
	frame   string
	tools   runtime.RemoteObjectID // what filesScript returned
}

// hiddenContext says whether a browser context is one of a hidden page, also for a while after its end, or that of the mark.
func (b *Browser) hiddenContext(id string) bool {
	if mark, _, _ := b.network.state(); id != "" && id == mark {
		return true
	}
	b.folder.mu.Lock()
	defer b.folder.mu.Unlock()
	return id != "" && slices.Contains(b.folder.hidden, id)
}

// HiddenContext says whether a browser context is one of the browser's own errands, which clients and viewers are not shown.
func (b *Browser) HiddenContext(id string) bool { return b.hiddenContext(id) }

func (b *Browser) hide(id string) {
	b.folder.mu.Lock()
	defer b.folder.mu.Unlock()
	b.folder.hidden = append(b.folder.hidden, id)
	if extra := len(b.folder.hidden) - hiddenKept; extra > 0 {
		b.folder.hidden = slices.Delete(b.folder.hidden, 0, extra)
	}
}

// withHidden runs something with a hidden page. One is open at a time.
func (b *Browser) withHidden(ctx context.Context, run func(ctx context.Context, h *hiddenPage) error) (err error) {
	b.folder.mu.Lock()
	turn := b.folder.turn
	b.folder.mu.Unlock()
	if turn == nil {
		return noFolder()
	}
	release, err := hold(ctx, turn)
	if err != nil {
		return err
	}
	defer release()
	// It is known as hidden before any client can be told of it.
	made, err := cdp.DoSeen(ctx, b.conn.Browser(), target.CreateBrowserContext, target.CreateBrowserContextParams{},
		func(made target.CreateBrowserContextResult) { b.hide(string(made.BrowserContextID)) })
	if err != nil {
		return err
	}
	h := &hiddenPage{b: b, context: string(made.BrowserContextID)}
	defer func() {
		tidy, cancel := context.WithTimeout(context.WithoutCancel(ctx), disposeTimeout)
		defer cancel()
		// Chromium ends itself a minute after a context whose hidden page was still there when it was disposed of.
		if h.frame != "" {
			_, closeErr := cdp.Do(tidy, b.conn.Browser(), target.CloseTarget, target.CloseTargetParams{TargetID: target.ID(h.frame)})
			if err != nil {
				err = errors.Join(err, closeErr)
			}
		}
		_, disposeErr := cdp.Do(tidy, b.conn.Browser(), target.DisposeBrowserContext,
			target.DisposeBrowserContextParams(made))
		if err != nil {
			err = errors.Join(err, disposeErr)
		}
	}()
	if err := h.open(ctx); err != nil {
		return err
	}
	return run(ctx, h)
}

func noFolder() error {
	return problem.New(problem.Unsupported, "use a browser of a session, or the host browser", "this browser has no folder for files")
}

func (h *hiddenPage) open(ctx context.Context) error {
	root := h.b.conn.Browser()
	hide := true // a browser with a window would show it otherwise
	made, err := cdp.Do(ctx, root, target.CreateTarget, target.CreateTargetParams{
		URL: blank, BrowserContextID: protocol.BrowserContextID(h.context), Hidden: &hide})
	if err != nil {
		return err
	}
	h.frame = string(made.TargetID)
	if h.session, err = root.Attach(ctx, made.TargetID); err != nil {
		return err
	}
	world, err := cdp.Do(ctx, h.session, page.CreateIsolatedWorld, page.CreateIsolatedWorldParams{FrameID: protocol.FrameID(h.frame)})
	if err != nil {
		return err
	}
	tools, err := cdp.Do(ctx, h.session, runtime.Evaluate,
		runtime.EvaluateParams{Expression: filesScript, ContextID: world.ExecutionContextID})
	if err != nil {
		return err
	}
	if tools.Result == nil || tools.Result.ObjectID == "" {
		return errors.New("the hidden page did not take its script")
	}
	h.tools = tools.Result.ObjectID
	return nil
}

// do calls one of the page's tools by its name. A result may be nil.
func (h *hiddenPage) do(ctx context.Context, name string, result any, args ...any) error {
	list := []any{map[string]any{"value": name}}
	for _, arg := range args {
		list = append(list, map[string]any{"value": arg})
	}
	var answer struct {
		Result struct {
			Value jsontext.Value `json:"value"`
		} `json:"result"`
		Exception *struct {
			Text string `json:"text"`
		} `json:"exceptionDetails"`
	}
	err := h.session.Call(ctx, runtime.CallFunctionOn.Method, map[string]any{
		"functionDeclaration": "function(name, ...args) { return this[name](...args) }", "objectId": h.tools,
		"arguments": list, "returnByValue": true, "awaitPromise": true, "userGesture": true,
	}, &answer)
	if err != nil {
		return err
	}
	if answer.Exception != nil {
		return problem.New(problem.NotFound, "list the files again", "the file is not there, or cannot be read any more")
	}
	if result == nil {
		return nil
	}
	return cdp.Decode(answer.Result.Value, result)
}

// load gives a file of the folder to the page and returns its size.
func (h *hiddenPage) load(ctx context.Context, path string) (int64, error) {
	input, err := cdp.Do(ctx, h.session, runtime.CallFunctionOn, runtime.CallFunctionOnParams{
		FunctionDeclaration: "function() { return this.input }", ObjectID: h.tools})
	if err != nil {
		return 0, err
	}
	if input.Result == nil {
		return 0, errors.New("the hidden page has no input")
	}
	_, err = cdp.Do(ctx, h.session, dom.SetFileInputFiles,
		dom.SetFileInputFilesParams{Files: []string{path}, ObjectID: input.Result.ObjectID})
	if err != nil {
		return 0, err
	}
	var size int64
	return size, h.do(ctx, "size", &size)
}

// read returns a file of the folder.
func (h *hiddenPage) read(ctx context.Context, path string) ([]byte, error) {
	size, err := h.load(ctx, path)
	if err != nil {
		return nil, err
	}
	if size < 0 || size > MaxFile {
		return nil, problem.New(problem.BadRequest, "", "the file has %d bytes; %d can be fetched", size, MaxFile)
	}
	var data []byte
	for from := int64(0); from < size; from += chunkBytes {
		var text string
		if err := h.do(ctx, "slice", &text, from, min(from+chunkBytes, size)); err != nil {
			return nil, err
		}
		chunk, err := base64.StdEncoding.DecodeString(text)
		if err != nil || int64(len(chunk)) != min(chunkBytes, size-from) {
			return nil, problem.New(problem.Conflict, "try again", "the file changed while it was read")
		}
		data = append(data, chunk...)
	}
	return data, nil
}

// write makes a file in a new place of the folder and returns its path. The browser may change the name.
func (h *hiddenPage) write(ctx context.Context, place, name string, data []byte) (string, error) {
	for from := 0; from < len(data); from += chunkBytes {
		chunk := base64.StdEncoding.EncodeToString(data[from:min(from+chunkBytes, len(data))])
		if err := h.do(ctx, "add", nil, chunk); err != nil {
			return "", err
		}
	}
	return h.save(ctx, place, name, "saveParts", int64(len(data)))
}

// save lets the page download what it has under a name, and verifies what was written by reading its size.
func (h *hiddenPage) save(ctx context.Context, place, name, how string, size int64) (string, error) {
	if err := h.b.saveTo(ctx, h.context, "allow", place); err != nil {
		return "", err
	}
	f := &h.b.folder
	e := &fileWrite{frame: h.frame, path: place + "/" + name}
	f.mu.Lock()
	f.fileWrite = e
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.fileWrite = nil
	}()
	if err := h.do(ctx, how, nil, name); err != nil {
		return "", err
	}
	var path, state string
	err := f.wait(ctx, func() bool {
		path, state = e.path, e.state
		return state == complete || state == canceled
	})
	if err != nil {
		return "", err
	}
	if state != complete {
		return "", problem.New(problem.DiskFull, "delete files, or put a smaller one", "the browser did not write the file")
	}
	if path == "" {
		path = place + "/" + name // a browser that does not say
	}
	if !rightBelow(path, place) {
		return "", errors.New("the browser wrote the file somewhere else")
	}
	written, err := h.load(ctx, path)
	if err != nil {
		return "", err
	}
	if written != size {
		return "", problem.New(problem.DiskFull, "delete files, or put a smaller one",
			"%d of %d bytes were written", written, size)
	}
	return path, nil
}
