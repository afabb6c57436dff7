package browser

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"

	protocol "github.com/chromedp/cdproto/cdp"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/problem"
)

// worldName is that of the isolated worlds in which our own code runs. They see the page's document and share nothing
// else with it: a page that replaces Array or Element.prototype replaces its own.
const worldName = cdp.OwnWorld

// The parts of the code that is installed in a world, once for each document. See inpage/.
//
//go:embed inpage/element.js
var elementJS string

//go:embed inpage/roles.js
var rolesJS string

//go:embed inpage/snapshot.js
var snapshotJS string

//go:embed inpage/dom.js
var domJS string

// registrySource is the function that makes the registry of a document. Its argument is the highest number that a
// ref of this frame ever had: refs of earlier documents are never given again.
func registrySource() string {
	return "function(start){'use strict';\n" + concealJS + elementJS + rolesJS + snapshotJS + domJS + signInJS + "\nregistry.signIn = signIn;\nreturn registry;}"
}

// world returns the isolated world of the main frame's document. It is made once for each document; one that died with
// its document is made anew.
func (p *Page) world(ctx context.Context) (runtime.ExecutionContextID, error) {
	f := p.mainFrame()
	if err := f.ask(ctx, remake, "ping", nil, nil); err != nil {
		return 0, err
	}
	p.view.mu.Lock()
	defer p.view.mu.Unlock()
	return f.context, nil
}

// Whether a frame whose document is another one by now gets a new registry.
const (
	remake = true
	remain = false
)

// errDocumentGone says that the document that was asked is not in its frame any more.
var errDocumentGone = errors.New("the document has been replaced")

// ask calls a method of the frame's registry: result is decoded from JSON, unless nil. Without remake, a document that
// is gone is errDocumentGone.
func (f *frame) ask(ctx context.Context, again bool, method string, result, argument any) error {
	answer, err := f.answer(ctx, again, method, argument)
	if err != nil || result == nil {
		return err
	}
	if err := cdp.Decode(answer, result); err != nil {
		return fmt.Errorf("read the answer of the page's %s: %w", method, err)
	}
	return nil
}

// answer is that of a method, in JSON. A method that shows the document is called through [Browser.openly].
func (f *frame) answer(ctx context.Context, again bool, method string, argument any) (jsontext.Value, error) {
	plainly := func(method string, argument any) (jsontext.Value, error) {
		object, err := f.call(ctx, again, method, argument, true)
		if err != nil {
			return nil, err
		}
		return jsontext.Value(object.Value), nil
	}
	if method != "snapshot" && method != "dom" {
		return plainly(method, argument)
	}
	return f.page.b.openly(func(texts []string) (jsontext.Value, error) {
		if texts == nil {
			return plainly(method, argument)
		}
		return plainly("openly", []any{method, argument, texts})
	})
}

// object is ask for an answer that is an element.
func (f *frame) object(ctx context.Context, again bool, method string, argument any) (*runtime.RemoteObject, error) {
	return f.call(ctx, again, method, argument, false)
}

func (f *frame) call(
	ctx context.Context, again bool, method string, argument any, byValue bool,
) (*runtime.RemoteObject, error) {
	for attempt := 1; ; attempt++ {
		registry, err := f.registryOf(ctx, again)
		if err == nil {
			var object *runtime.RemoteObject
			object, err = callOn(ctx, f.session, registry, "function(a){return this."+method+"(a)}", byValue, argument)
			if err == nil {
				return object, nil
			}
			if errors.Is(err, errDocumentGone) {
				f.forget(registry)
			}
		}
		// A page that goes from document to document is left to its caller.
		if !again || attempt == 3 || !errors.Is(err, errDocumentGone) || errors.Is(err, cdp.ErrSessionGone) {
			return nil, err
		}
	}
}

// registryOf is the handle of the registry. It names one document of one process: unlike the number of a context, it
// never comes to mean another.
func (f *frame) registryOf(ctx context.Context, make bool) (runtime.RemoteObjectID, error) {
	f.page.view.mu.Lock()
	registry, last := f.registry, f.last
	f.page.view.mu.Unlock()
	if registry != "" {
		return registry, nil
	}
	if !make {
		return "", errDocumentGone
	}
	world, err := f.createWorld(ctx)
	if err != nil {
		return "", err
	}
	start, _ := json.Marshal(last) // a number
	made, err := cdp.Do(ctx, f.session, runtime.CallFunctionOn, runtime.CallFunctionOnParams{
		FunctionDeclaration: registrySource(), ExecutionContextID: world, ObjectGroup: worldName,
		Arguments: []*runtime.CallArgument{{Value: start}},
	})
	if err != nil {
		return "", gone(err)
	}
	if made.ExceptionDetails != nil || made.Result == nil || made.Result.ObjectID == "" {
		return "", thrown(made.ExceptionDetails)
	}
	f.page.view.mu.Lock()
	defer f.page.view.mu.Unlock()
	if f.registry == "" {
		f.registry, f.context = made.Result.ObjectID, world
	}
	return f.registry, nil
}

func (f *frame) createWorld(ctx context.Context) (runtime.ExecutionContextID, error) {
	made, err := cdp.Do(ctx, f.session, page.CreateIsolatedWorld,
		page.CreateIsolatedWorldParams{FrameID: f.id, WorldName: worldName})
	var refused *cdp.Error
	if errors.As(err, &refused) && f.parent == nil {
		// The main frame is another one after a prerendered page took its place.
		tree, treeErr := cdp.Do(ctx, f.session, page.GetFrameTree, protocol.Empty{})
		if treeErr != nil || tree.FrameTree == nil || tree.FrameTree.Frame == nil {
			return 0, gone(errors.Join(err, treeErr))
		}
		f.page.view.mu.Lock()
		f.id = tree.FrameTree.Frame.ID
		f.page.view.mu.Unlock()
		made, err = cdp.Do(ctx, f.session, page.CreateIsolatedWorld,
			page.CreateIsolatedWorldParams{FrameID: f.id, WorldName: worldName})
	}
	if err != nil {
		return 0, gone(err)
	}
	return made.ExecutionContextID, nil
}

// forget drops a registry whose document is gone, unless there is a newer one already.
func (f *frame) forget(registry runtime.RemoteObjectID) {
	f.page.view.mu.Lock()
	defer f.page.view.mu.Unlock()
	if f.registry != registry {
		return
	}
	f.registry, f.context = "", 0
	if f.parent == nil {
		f.page.view.documentGone()
	}
}

// callOn runs a function on an object of an isolated world. A handle among the arguments is a [runtime.RemoteObjectID].
func callOn(
	ctx context.Context, s cdp.Session, on runtime.RemoteObjectID, function string, byValue bool, args ...any,
) (*runtime.RemoteObject, error) {
	await := true
	params := runtime.CallFunctionOnParams{
		FunctionDeclaration: function, ObjectID: on, ReturnByValue: &byValue, AwaitPromise: &await, ObjectGroup: worldName,
	}
	for _, arg := range args {
		if handle, ok := arg.(runtime.RemoteObjectID); ok {
			params.Arguments = append(params.Arguments, &runtime.CallArgument{ObjectID: handle})
			continue
		}
		value, err := json.Marshal(arg)
		if err != nil {
			return nil, fmt.Errorf("encode an argument for the page: %w", err)
		}
		params.Arguments = append(params.Arguments, &runtime.CallArgument{Value: value})
	}
	answer, err := cdp.Do(ctx, s, runtime.CallFunctionOn, params)
	if err != nil {
		return nil, gone(err)
	}
	if answer.ExceptionDetails != nil {
		return nil, thrown(answer.ExceptionDetails)
	}
	if answer.Result == nil {
		return new(runtime.RemoteObject), nil
	}
	return answer.Result, nil
}

// gone tells the browser's refusal of a handle apart from other errors: a handle is only refused when the world that
// it was of is gone. That is also so when the session of a frame in another process has ended.
func gone(err error) error {
	var refused *cdp.Error
	if errors.As(err, &refused) || errors.Is(err, cdp.ErrSessionGone) {
		return fmt.Errorf("%w (%w)", errDocumentGone, err)
	}
	return err
}

// thrown is the error for an exception in our own code.
func thrown(details *runtime.ExceptionDetails) error {
	text := "no answer"
	if details != nil {
		text = details.Text
		if details.Exception != nil {
			text = details.Exception.Description
		}
	}
	return problem.New(problem.ActOperationFailed, "take a new snapshot and try again",
		"the page could not be examined: %s", bounded(text, 300))
}
