package guard

import (
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/clawjail/clawjail/internal/cdp"
)

// inContexts says that a client may run its script where a command says: in no world of clawjail's, which it could name or
// whose number it could guess, and otherwise in a context that it was told of.
func (g *Guard) inContexts(m *cdp.Message) error {
	if !strings.HasPrefix(m.Method, "Runtime.") && m.Method != "DOM.resolveNode" &&
		m.Method != "Page.createIsolatedWorld" && m.Method != "Page.addScriptToEvaluateOnNewDocument" || len(m.Params) == 0 {
		return nil
	}
	return object(m.Params, func(name []byte, value jsontext.Value) error {
		switch string(name) {
		case "worldName", "executionContextName":
			if world, err := text(value); err != nil || world == cdp.OwnWorld {
				return &refusal{"this world is clawjail's own", "Give the world another name."}
			}
		case "contextId", "executionContextId", "uniqueContextId":
			id := string(value)
			if value.Kind() == '"' {
				id, _ = text(value)
			}
			if !g.knowsContext(handle{m.SessionID, id}) {
				return &notFound{"Cannot find context with specified id"}
			}
		}
		return nil
	})
}

func (g *Guard) knowsContext(key handle) bool {
	if key.id == "null" {
		return true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	_, known := g.contexts[key]
	return known
}

// tellContext remembers what the client may name. When there are too many, it cannot name some of them.
func (g *Guard) tellContext(session string, ids ...string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, id := range ids {
		if id != "" {
			remember(g.contexts, handle{session, id}, struct{}{}, maxWorlds)
		}
	}
}

// forgetContexts needs the lock.
func (g *Guard) forgetContexts(session string) {
	for key := range g.contexts {
		if key.session == session {
			delete(g.contexts, key)
		}
	}
}

// ownContext remembers the context that a reply hands out.
func ownContext(g *Guard, m *cdp.Message, result jsontext.Value) (jsontext.Value, error) {
	g.tellContext(m.SessionID, string(find(result, "executionContextId")))
	return result, nil
}

func contextCreated(g *Guard, m *cdp.Message) (jsontext.Value, bool) {
	made := find(m.Params, "context")
	if findText(made, "name") == cdp.OwnWorld {
		return nil, false
	}
	g.tellContext(m.SessionID, string(find(made, "id")), findText(made, "uniqueId"))
	return m.Params, true
}

func contextDestroyed(g *Guard, m *cdp.Message) (jsontext.Value, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.contexts, handle{m.SessionID, string(find(m.Params, "executionContextId"))})
	delete(g.contexts, handle{m.SessionID, findText(m.Params, "executionContextUniqueId")})
	return m.Params, true
}

func contextsCleared(g *Guard, m *cdp.Message) (jsontext.Value, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.forgetContexts(m.SessionID)
	return m.Params, true
}
