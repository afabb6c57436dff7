package browser

import (
	"context"
	_ "embed"
	"errors"
	"strconv"

	protocol "github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/dom"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/cdproto/target"
	"github.com/go-json-experiment/json"

	"github.com/clawjail/clawjail/internal/cdp"
)

// maxSteps bounds how deep an element is looked for, in frames and shadow roots.
const maxSteps = 50

//go:embed inpage/live.js
var liveJS string

// seeker finds the element under a person's pointer, or with the focus: through frames, also those in other processes, and
// shadow roots, also closed ones. It looks from isolated worlds, so that no page can lie to it. Its handles are its own; end
// gives them back.
type seeker struct {
	page     *Page
	group    string
	sessions []cdp.Session // that it looked through; those after the first it has attached
}

// sighted is what a seeker has found: an element, which is empty for none, in a document.
type sighted struct {
	session  cdp.Session
	document runtime.RemoteObjectID
	element  runtime.RemoteObjectID
	kind     string // select, or empty for anything else
}

func (p *Page) seek() *seeker {
	return &seeker{page: p, group: worldName + "-" + strconv.FormatUint(p.b.seekers.Add(1), 10), sessions: []cdp.Session{p.session}}
}

// end gives back all handles and sessions.
func (s *seeker) end() {
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	// A page that hangs keeps them until its document goes.
	_ = s.page.session.Call(ctx, runtime.ReleaseObjectGroup.Method, runtime.ReleaseObjectGroupParams{ObjectGroup: s.group}, nil)
	for _, attached := range s.sessions[1:] {
		_ = s.page.browser.Detach(ctx, attached)
	}
}

// at finds the element at a point of the page's window.
func (s *seeker) at(ctx context.Context, x, y float64) (sighted, error) {
	return s.descend(ctx, func(from *sighted, root runtime.RemoteObjectID) (runtime.RemoteObjectID, error) {
		return s.object(ctx, from.session, root, "at", x, y)
	}, func(from *sighted, frame runtime.RemoteObjectID) error {
		var inner placement
		if err := s.value(ctx, from.session, frame, "inner", &inner); err != nil {
			return err
		}
		if inner.ScaleX == 0 || inner.ScaleY == 0 {
			return errDocumentGone
		}
		x, y = (x-inner.X)/inner.ScaleX, (y-inner.Y)/inner.ScaleY
		return nil
	})
}

// focused finds the element that has the focus.
func (s *seeker) focused(ctx context.Context) (sighted, error) {
	return s.descend(ctx, func(from *sighted, root runtime.RemoteObjectID) (runtime.RemoteObjectID, error) {
		return s.object(ctx, from.session, root, "focused")
	}, func(*sighted, runtime.RemoteObjectID) error { return nil })
}

// descend goes from the page's document down to an element. next is the element in a document or shadow root, and enter is
// told of each frame element that is gone into.
func (s *seeker) descend(
	ctx context.Context, next func(from *sighted, root runtime.RemoteObjectID) (runtime.RemoteObjectID, error),
	enter func(from *sighted, frame runtime.RemoteObjectID) error,
) (sighted, error) {
	var out sighted
	world, err := s.open(ctx, s.page.session, s.page.topFrame(), &out)
	if err != nil {
		return out, err
	}
	root := out.document
	for range maxSteps {
		element, err := next(&out, root)
		if err != nil || element == "" {
			return out, err
		}
		out.element = element
		described, err := cdp.Do(ctx, out.session, dom.DescribeNode, dom.DescribeNodeParams{ObjectID: element})
		if err != nil {
			return out, err
		}
		if shadow := hostOf(described.Node); shadow != 0 {
			resolved, err := cdp.Do(ctx, out.session, dom.ResolveNode, dom.ResolveNodeParams{
				BackendNodeID: shadow, ExecutionContextID: world, ObjectGroup: s.group})
			if err != nil || resolved.Object == nil {
				return out, err
			}
			inside, err := next(&out, resolved.Object.ObjectID)
			if err != nil {
				return out, err
			}
			if inside != "" && inside != element {
				root = resolved.Object.ObjectID
				continue
			}
		}
		if err := s.value(ctx, out.session, element, "kind", &out.kind); err != nil || out.kind != "frame" {
			return out, err
		}
		if err := enter(&out, element); err != nil {
			return out, err
		}
		if described.Node == nil || described.Node.FrameID == "" {
			return out, errDocumentGone
		}
		if world, err = s.open(ctx, out.session, described.Node.FrameID, &out); err != nil {
			return out, err
		}
		root = out.document
	}
	return out, errors.New("the element is too deep in the page")
}

// hostOf is the shadow root that an element has by its page, zero when it has none.
func hostOf(node *protocol.Node) protocol.BackendNodeID {
	if node == nil {
		return 0
	}
	for _, shadow := range node.ShadowRoots {
		if shadow != nil && shadow.ShadowRootType != protocol.ShadowRootTypeUserAgent {
			return shadow.BackendNodeID
		}
	}
	return 0
}

// open looks at a frame's document, over a session of its own when the frame is in another process.
func (s *seeker) open(ctx context.Context, session cdp.Session, frame protocol.FrameID, out *sighted) (runtime.ExecutionContextID, error) {
	world := func() (page.CreateIsolatedWorldResult, error) {
		return cdp.Do(ctx, session, page.CreateIsolatedWorld, page.CreateIsolatedWorldParams{FrameID: frame, WorldName: worldName})
	}
	made, err := world()
	var refused *cdp.Error
	if errors.As(err, &refused) && frame != s.page.topFrame() {
		// Attached at the browser: at the page's session, who attends the page would attend it, too.
		if session, err = s.page.browser.Attach(ctx, target.ID(frame)); err != nil {
			return 0, gone(err)
		}
		s.sessions = append(s.sessions, session)
		made, err = world()
	}
	if err != nil {
		return 0, gone(err)
	}
	document, err := cdp.Do(ctx, session, runtime.Evaluate,
		runtime.EvaluateParams{Expression: "document", ContextID: made.ExecutionContextID, ObjectGroup: s.group})
	if err != nil {
		return 0, gone(err)
	}
	if document.Result == nil || document.Result.ObjectID == "" {
		return 0, errDocumentGone
	}
	*out = sighted{session: session, document: document.Result.ObjectID}
	return made.ExecutionContextID, nil
}

func (s *seeker) call(
	ctx context.Context, session cdp.Session, on runtime.RemoteObjectID, name string, byValue bool, args ...any,
) (*runtime.RemoteObject, error) {
	params := runtime.CallFunctionOnParams{FunctionDeclaration: inPage(liveJS, name), ObjectID: on, ReturnByValue: &byValue,
		ObjectGroup: s.group, Arguments: []*runtime.CallArgument{{ObjectID: on}}}
	for _, arg := range args {
		value, err := json.Marshal(arg)
		if err != nil {
			return nil, err
		}
		params.Arguments = append(params.Arguments, &runtime.CallArgument{Value: value})
	}
	answer, err := cdp.Do(ctx, session, runtime.CallFunctionOn, params)
	switch {
	case err != nil:
		return nil, gone(err)
	case answer.ExceptionDetails != nil || answer.Result == nil:
		return nil, thrown(answer.ExceptionDetails)
	}
	return answer.Result, nil
}

// object calls a function of live.js whose answer is an element, or none.
func (s *seeker) object(
	ctx context.Context, session cdp.Session, on runtime.RemoteObjectID, name string, args ...any,
) (runtime.RemoteObjectID, error) {
	answer, err := s.call(ctx, session, on, name, false, args...)
	if err != nil {
		return "", err
	}
	return answer.ObjectID, nil
}

// value calls a function of live.js and decodes its answer.
func (s *seeker) value(
	ctx context.Context, session cdp.Session, on runtime.RemoteObjectID, name string, result any, args ...any,
) error {
	answer, err := s.call(ctx, session, on, name, true, args...)
	if err != nil {
		return err
	}
	return cdp.Decode(answer.Value, result)
}

// topFrame is the page's main frame.
func (p *Page) topFrame() protocol.FrameID {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.top
}
