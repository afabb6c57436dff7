package browser

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/chromedp/cdproto/dom"
	"github.com/chromedp/cdproto/runtime"
	"github.com/go-json-experiment/json/jsontext"

	protocol "github.com/chromedp/cdproto/cdp"

	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/problem"
)

// releaseTimeout bounds the giving back of a handle. A page that hangs keeps it until its document goes.
const releaseTimeout = 100 * time.Millisecond

// Where names an element: by a ref of a snapshot, or by a CSS selector within the main frame.
type Where struct{ Ref, Selector string }

// String is for messages.
func (w Where) String() string {
	if w.Ref != "" {
		return "ref " + bounded(w.Ref, 100)
	}
	return fmt.Sprintf("%q", bounded(w.Selector, 200))
}

// element is one element of a page, held until release.
type element struct {
	page    *Page
	frame   *frame
	session cdp.Session            // of the process that the element lives in
	object  runtime.RemoteObjectID // in the isolated world of its frame
	where   Where
}

// find looks an element up. A selector finds the first match in the main document, else in its open shadow roots. The
// codes are stale_ref for a ref of an earlier document or of an element that left its document, bad_request for what
// is neither a ref nor a selector, and act_operation_failed when nothing matches.
func (p *Page) find(ctx context.Context, where Where) (*element, error) {
	if where.Ref != "" {
		r, err := parseRef(where.Ref)
		if err != nil {
			return nil, err
		}
		if r.ax {
			return p.findNode(ctx, r, where)
		}
		return p.findRef(ctx, r, where)
	}
	if where.Selector == "" {
		return nil, problem.New(problem.BadRequest, "name an element by a ref or a CSS selector", "ref or selector is required")
	}
	f := p.mainFrame()
	found, err := f.object(ctx, remake, "query", where.Selector)
	if err == nil {
		err = f.confirms(ctx, where.Selector)
	}
	switch {
	case err != nil:
		return nil, explain(err, "look for the element")
	case found.Type == runtime.RemoteObjectTypeString:
		return nil, badSelector(where.Selector)
	case found.ObjectID == "":
		return nil, noMatch(where.Selector)
	}
	return &element{page: p, frame: f, session: f.session, object: found.ObjectID, where: where}, nil
}

func badSelector(selector string) error {
	return problem.New(problem.BadRequest, "correct the CSS selector", "%q is not a selector", bounded(selector, 200))
}

func noMatch(selector string) error {
	return problem.New(problem.ActOperationFailed, "take a snapshot to see what the page has",
		"no element matches %q", bounded(selector, 200))
}

func (p *Page) findRef(ctx context.Context, r ref, where Where) (*element, error) {
	f := p.frameOf(r.frame)
	if f == nil {
		return nil, stale(where.Ref)
	}
	found, err := f.object(ctx, remain, "element", r.number)
	if err == nil && found.ObjectID != "" {
		return &element{page: p, frame: f, session: f.session, object: found.ObjectID, where: where}, nil
	}
	if err == nil || errors.Is(err, errDocumentGone) && ctx.Err() == nil && p.open() {
		return nil, stale(where.Ref)
	}
	return nil, explain(err, "look for the element")
}

// findNode finds the element of a node of the accessibility tree; that of a text is the element around it.
func (p *Page) findNode(ctx context.Context, r ref, where Where) (*element, error) {
	f := p.mainFrame()
	// Ids of nodes begin anew in a new process: only in the document of the snapshot do they mean what they meant.
	if err := f.ask(ctx, remain, "ping", nil, nil); err != nil {
		if errors.Is(err, errDocumentGone) && p.open() {
			return nil, stale(where.Ref)
		}
		return nil, explain(err, "look for the element")
	}
	p.view.mu.Lock()
	node, known := p.view.ax.nodes[r.number]
	world := f.context
	p.view.mu.Unlock()
	if !known {
		return nil, stale(where.Ref)
	}
	resolved, err := cdp.Do(ctx, f.session, dom.ResolveNode, dom.ResolveNodeParams{
		BackendNodeID: protocol.BackendNodeID(node), ExecutionContextID: world, ObjectGroup: worldName})
	var refused *cdp.Error
	if errors.As(err, &refused) || err == nil && (resolved.Object == nil || resolved.Object.ObjectID == "") {
		return nil, stale(where.Ref)
	}
	if err != nil {
		return nil, explain(err, "look for the element")
	}
	found, err := callOn(ctx, f.session, resolved.Object.ObjectID, nearestElement, false)
	if err != nil && !errors.Is(err, errDocumentGone) {
		return nil, explain(err, "look for the element")
	}
	if err != nil || found.ObjectID == "" {
		return nil, stale(where.Ref)
	}
	return &element{page: p, frame: f, session: f.session, object: found.ObjectID, where: where}, nil
}

// The getters are taken from the prototypes: a form's own are hidden by inputs with their names.
const nearestElement = `function(){
	const get = name => Object.getOwnPropertyDescriptor(Node.prototype, name).get;
	let node = this;
	const type = get('nodeType').call(node);
	if (type === 9) node = Object.getOwnPropertyDescriptor(Document.prototype, 'documentElement').get.call(node);
	else if (type !== 1) node = get('parentElement').call(node);
	return node && get('isConnected').call(node) ? node : null;
}`

// call runs a function with the element as its first argument in the isolated world of the element's frame, and
// waits for the promise when it returns one. The result is decoded from JSON, unless it is nil. A document that went
// away meanwhile is stale_ref.
func (e *element) call(ctx context.Context, function string, result any, args ...any) error {
	all := append([]any{e.object}, args...)
	object, err := callOn(ctx, e.session, e.object, function, true, all...)
	if err != nil {
		return e.explain(err)
	}
	if result == nil {
		return nil
	}
	if err := cdp.Decode(e.page.b.clean(jsontext.Value(object.Value)), result); err != nil {
		return fmt.Errorf("read what the page answered about %s: %w", e.where, err)
	}
	return nil
}

func (e *element) explain(err error) error {
	if errors.Is(err, errDocumentGone) && e.page.open() {
		return problem.Wrap(err, problem.StaleRef, "take a new snapshot and use its refs",
			"the document of the element %s is not shown any more", e.where)
	}
	return explain(err, "use the element")
}

// elementBox measures the border box. An element that has no box has an empty one.
const elementBox = `function(element){
	const box = Element.prototype.getBoundingClientRect.call(element);
	return [box.x, box.y, box.width, box.height];
}`

// box is where the element is, in CSS pixels of the main frame's viewport. It may be outside of it.
func (e *element) box(ctx context.Context) (x, y, width, height float64, err error) {
	var box [4]float64
	if err := e.call(ctx, elementBox, &box); err != nil {
		return 0, 0, 0, 0, err
	}
	at, err := e.placement(ctx)
	if err != nil {
		return 0, 0, 0, 0, err
	}
	x, y = at.point(box[0], box[1])
	return x, y, box[2] * at.ScaleX, box[3] * at.ScaleY, nil
}

// placement is where the viewport of the element's frame is: what a point within that frame becomes.
func (e *element) placement(ctx context.Context) (placement, error) {
	at, err := e.frame.placement(ctx)
	if err != nil {
		return placement{}, e.explain(err)
	}
	return at, nil
}

// backendNode is the browser's own id of the element, for the DOM domain of e.session.
func (e *element) backendNode(ctx context.Context) (int64, error) {
	described, err := cdp.Do(ctx, e.session, dom.DescribeNode, dom.DescribeNodeParams{ObjectID: e.object})
	if err != nil {
		return 0, e.explain(gone(err))
	}
	if described.Node == nil {
		return 0, stale(e.where.String())
	}
	return int64(described.Node.BackendNodeID), nil
}

// release gives the handle back.
func (e *element) release() {
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	// The handle dies with its document in any case.
	_, _ = cdp.Do(ctx, e.session, runtime.ReleaseObject, runtime.ReleaseObjectParams{ObjectID: e.object})
}
