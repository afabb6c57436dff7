package guard

import (
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/clawjail/clawjail/internal/cdp"
)

// withBody are the methods with which a client may send a body. Many servers leave that of a GET unread and keep the
// connection, and then read what is in it as the next request: the browser's own, cookies and all, would follow as its body.
var withBody = []string{"POST", "PUT", "PATCH"}

// paused is what the guard knows of a request that waits for a client.
type paused struct {
	method string
	body   bool
}

// requestPaused shows a request that waits for the client.
func requestPaused(s shape) rewriter {
	return func(g *Guard, m *cdp.Message) (jsontext.Value, bool) {
		request := find(m.Params, "request")
		p := paused{findText(request, "method"), isTrue(find(request, "hasPostData")) || find(request, "postData") != nil}
		g.mu.Lock()
		remember(g.paused, handle{m.SessionID, findText(m.Params, "requestId")}, p, maxPaused)
		g.mu.Unlock()
		params, err := s.event(m.Params)
		return params, err == nil
	}
}

// continueRequest lets a request go on that the client was told of. A change of its method or of its body is decided about
// with both in view.
func continueRequest(s shape) func(*Guard, *cdp.Message) (jsontext.Value, error) {
	return func(g *Guard, m *cdp.Message) (jsontext.Value, error) {
		key := handle{m.SessionID, findText(m.Params, "requestId")}
		g.mu.Lock()
		was, known := g.paused[key]
		g.mu.Unlock()
		method, body := find(m.Params, "method"), find(m.Params, "postData")
		if method == nil && body == nil {
			return g.finish(key, s, m)
		}
		if !known {
			return nil, &notFound{"Invalid InterceptionId."}
		}
		is := was
		if method != nil {
			is.method, _ = text(method) // lines.go has looked at it
		}
		if body != nil {
			is.body = string(body) != `""`
		}
		if is.body && (body != nil || is != was) && !slices.Contains(withBody, is.method) {
			return nil, &refusal{"a server may take the body of a " + is.method + " for another request",
				"Send a body with POST, PUT or PATCH; postData \"\" takes one away."}
		}
		return g.finish(key, s, m)
	}
}

// finish makes the parameters of a command with which a request goes on, and forgets the request.
func (g *Guard) finish(key handle, s shape, m *cdp.Message) (jsontext.Value, error) {
	out, err := s.command(m.Params)
	if err == nil && !isTrue(find(m.Params, "interceptResponse")) {
		g.mu.Lock()
		delete(g.paused, key)
		g.mu.Unlock()
	}
	return out, err
}
