package guard

import (
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/clawjail/clawjail/internal/cdp"
)

// maxFilter bounds the entries of a filter of targets.
const maxFilter = 64

// targetTypes are what a client may see: pages with their frames and workers. A tab is the frame around a page, which
// Puppeteer attaches to before it attaches to the page; what can be sent there is what can be sent to a page.
func targetTypes() []string {
	return []string{"page", "iframe", "worker", "shared_worker", "service_worker", "tab"}
}

// driven says whether a client may see targets of a type.
func driven(kind string) bool {
	for _, t := range targetTypes() {
		if t == kind {
			return true
		}
	}
	return false
}

// visible says whether the client may know a target, and remembers it when it may.
func (g *Guard) visible(info jsontext.Value) bool {
	id := findText(info, "targetId")
	if id == "" || !driven(findText(info, "type")) || privileged(findText(info, "url")) || g.astray(id) {
		return false
	}
	if context := findText(info, "browserContextId"); context != "" && g.foreign(context) {
		return false
	}
	g.know(id)
	return true
}

// foreign says whether a context is another client's, or one that clients may not know of.
func (g *Guard) foreign(context string) bool {
	return g.options.Registry.foreign(g, context) || g.options.Hidden != nil && g.options.Hidden(context)
}

func (g *Guard) know(target string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	remember(g.targets, target, struct{}{}, maxTargets)
}

func (g *Guard) knows(target string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, known := g.targets[target]
	return known
}

// knownTarget makes the code for a command about a target that the client was told of. Without one the command is about
// the session's own target.
func knownTarget(name string, others ...string) func(*Guard, *cdp.Message) (jsontext.Value, error) {
	s := members(others...).with(name, keep)
	return func(g *Guard, m *cdp.Message) (jsontext.Value, error) {
		if id := find(m.Params, name); id != nil && !g.knows(findText(m.Params, name)) {
			return nil, &notFound{"No target with given id found"}
		}
		return s.command(m.Params)
	}
}

// targetCommands adds the code for the domain Target.
func targetCommands(commands map[string]rewritten) {
	commands["Target.activateTarget"] = rewritten{command: knownTarget("targetId")}
	commands["Target.closeTarget"] = rewritten{command: knownTarget("targetId")}
	commands["Target.getTargetInfo"] = rewritten{command: knownTarget("targetId")}
	commands["Target.attachToTarget"] = rewritten{command: attachToTarget}
	commands["Target.attachToBrowserTarget"] = rewritten{command: attachToBrowser, failed: (*Guard).notAttached}
	commands["Target.detachFromTarget"] = rewritten{command: shape{"sessionId": keep}.
		with("targetId", never("a session is named by its sessionId", "Give sessionId.")).only()}
	commands["Target.setAutoAttach"] = rewritten{command: setAutoAttach}
	commands["Target.setDiscoverTargets"] = rewritten{command: setDiscoverTargets}
	commands["Target.getTargets"] = rewritten{command: shape{"filter": targetFilter}.only(), reply: ownTargets}
	commands["Target.createTarget"] = rewritten{command: createTarget, reply: createdTarget}
	commands["Target.getBrowserContexts"] = rewritten{command: shape{}.only(), reply: ownContexts}
	commands["Target.createBrowserContext"] = rewritten{command: createContext, reply: createdContext,
		failed: func(g *Guard) { g.options.Registry.settle(g, "") }}
	commands["Target.disposeBrowserContext"] = rewritten{command: disposeContext, reply: disposedContext}
}

func attachToTarget(g *Guard, m *cdp.Message) (jsontext.Value, error) {
	if !isTrue(find(m.Params, "flatten")) {
		return nil, &refusal{"only flat sessions are attached: otherwise commands hide in strings", "Give flatten: true."}
	}
	return knownTarget("targetId", "flatten")(g, m)
}

// attachToBrowser lets a client have further sessions of the browser itself. They are no way past the guard: it sees
// everything that the client sends, on whatever session.
func attachToBrowser(g *Guard, m *cdp.Message) (jsontext.Value, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.browsers)+g.attaching >= maxBrowsers {
		return nil, &refusal{"the client has as many sessions of the browser as it may", "Detach some first."}
	}
	params, err := members().command(m.Params)
	if err == nil {
		g.attaching++
	}
	return params, err
}

func (g *Guard) notAttached() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.attaching--
}

// asked says whether a new session is one of the browser that the client has asked for, and remembers it then.
func (g *Guard) asked(session, kind string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if kind != "browser" || g.attaching <= 0 {
		return false
	}
	g.attaching--
	g.browsers[session] = struct{}{}
	return true
}

// onBrowser says whether a session is one of the browser itself.
func (g *Guard) onBrowser(session string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, extra := g.browsers[session]
	return session == "" || extra
}

func setAutoAttach(_ *Guard, m *cdp.Message) (jsontext.Value, error) {
	s := members("autoAttach", "waitForDebuggerOnStart", "flatten").with("filter", targetFilter)
	if isTrue(find(m.Params, "autoAttach")) && !isTrue(find(m.Params, "flatten")) {
		return nil, &refusal{"only flat sessions are attached: otherwise commands hide in strings", "Give flatten: true."}
	}
	return withFilter(s, m.Params)
}

func setDiscoverTargets(_ *Guard, m *cdp.Message) (jsontext.Value, error) {
	if !isTrue(find(m.Params, "discover")) {
		// The browser takes no filter then.
		return members("discover").with("filter", drop).command(m.Params)
	}
	return withFilter(members("discover").with("filter", targetFilter), m.Params)
}

// withFilter adds the filter that a client left out.
func withFilter(s shape, params jsontext.Value) (jsontext.Value, error) {
	out, err := s.command(params)
	if err != nil || find(out, "filter") != nil {
		return out, err
	}
	filter, err := targetFilter(jsontext.Value(`[{"type":"tab","exclude":true},{}]`))
	if err != nil {
		return nil, err
	}
	b := builder(strings.TrimSuffix(string(out), "}"))
	if len(b) == 1 {
		b = nil
	}
	b.add("filter", filter)
	return b.object(), nil
}

// targetFilter makes a filter that lets the same types through, of those that a client may see. In a filter the first
// entry that fits decides, and one without a type fits every target.
func targetFilter(value jsontext.Value) (jsontext.Value, error) {
	if string(value) == "null" {
		return nil, nil
	}
	count := 0
	out, err := elements(value, func(entry jsontext.Value) (jsontext.Value, bool, error) {
		entry, err := members("exclude", "type").command(entry)
		if count++; err != nil || count > maxFilter {
			return nil, false, &refusal{"the filter is none, or a very long one", "Leave out filter."}
		}
		kind := findText(entry, "type")
		switch {
		case isTrue(find(entry, "exclude")):
			return entry, true, nil
		case kind == "":
			all := make([]string, 0, len(targetTypes()))
			for _, t := range targetTypes() {
				all = append(all, `{"type":"`+t+`"}`)
			}
			return jsontext.Value(strings.Join(all, ",")), true, nil
		}
		return entry, driven(kind), nil
	})
	if err != nil {
		return nil, err
	}
	end := `,{"exclude":true}]`
	if len(out) == 2 {
		end = end[1:]
	}
	return append(out[:len(out)-1], end...), nil
}

func createTarget(g *Guard, m *cdp.Message) (jsontext.Value, error) {
	if err := g.usable(findText(m.Params, "browserContextId")); err != nil {
		return nil, err
	}
	const plain = "Open a plain page."
	return members("left", "top", "width", "height", "windowState", "browserContextId", "background", "focus").
		with("url", pageAddress).with("newWindow", drop).
		with("enableBeginFrameControl", neverTrue("it stops the pictures of every other client", plain)).
		with("hidden", neverTrue("a hidden page is not in the record", plain)).
		with("forTab", neverTrue("a tab is no page", plain)).command(m.Params)
}

func createdTarget(g *Guard, _ *cdp.Message, result jsontext.Value) (jsontext.Value, error) {
	if id := findText(result, "targetId"); id != "" {
		g.know(id)
	}
	return result, nil
}

func ownTargets(g *Guard, _ *cdp.Message, result jsontext.Value) (jsontext.Value, error) {
	infos := func(value jsontext.Value) (jsontext.Value, error) {
		return elements(value, func(info jsontext.Value) (jsontext.Value, bool, error) { return info, g.visible(info), nil })
	}
	return shape{"targetInfos": infos}.event(result)
}

func ownContexts(g *Guard, _ *cdp.Message, result jsontext.Value) (jsontext.Value, error) {
	ids := func(value jsontext.Value) (jsontext.Value, error) {
		return elements(value, func(id jsontext.Value) (jsontext.Value, bool, error) {
			context, err := text(id)
			return id, err == nil && !g.foreign(context), nil
		})
	}
	return shape{"browserContextIds": ids, "defaultBrowserContextId": keep}.event(result)
}

// createContext makes a context that goes the way of all others to the network and ends with its client.
func createContext(g *Guard, m *cdp.Message) (jsontext.Value, error) {
	const hint = "Leave out the proxy; every context uses the session's."
	_, err := members("disposeOnDetach").
		with("proxyServer", neverSome("a proxy of its own leaves the session's gateway", hint)).
		with("proxyBypassList", neverSome("what bypasses the proxy leaves the session's gateway", hint)).
		with("originsWithUniversalNetworkAccess", neverSome("it switches off the separation of sites", "Leave it out.")).
		command(m.Params)
	if err != nil {
		return nil, err
	}
	if !g.options.Registry.reserve(g) {
		return nil, &refusal{"the client has as many contexts as it may", "Close some first."}
	}
	return jsontext.Value(`{"disposeOnDetach":true}`), nil
}

func createdContext(g *Guard, _ *cdp.Message, result jsontext.Value) (jsontext.Value, error) {
	g.options.Registry.settle(g, findText(result, "browserContextId"))
	return result, nil
}

func disposeContext(g *Guard, m *cdp.Message) (jsontext.Value, error) {
	if id := findText(m.Params, "browserContextId"); !g.options.Registry.owns(g, id) {
		return nil, &notFound{"Failed to find context with id " + id}
	}
	return members("browserContextId").command(m.Params)
}

func disposedContext(g *Guard, m *cdp.Message, result jsontext.Value) (jsontext.Value, error) {
	g.options.Registry.remove(findText(m.Params, "browserContextId"))
	return result, nil
}

// targetEvents adds the code for the events of the domain Target.
func targetEvents(events map[string]rewriter) {
	events["Target.attachedToTarget"] = attachedToTarget
	events["Target.detachedFromTarget"] = detachedFromTarget
	events["Target.targetCreated"] = func(g *Guard, m *cdp.Message) (jsontext.Value, bool) {
		return m.Params, g.visible(find(m.Params, "targetInfo"))
	}
	events["Target.targetInfoChanged"] = func(g *Guard, m *cdp.Message) (jsontext.Value, bool) {
		info := find(m.Params, "targetInfo")
		return m.Params, g.knows(findText(info, "targetId")) && g.visible(info)
	}
	events["Target.targetDestroyed"] = func(g *Guard, m *cdp.Message) (jsontext.Value, bool) {
		id := findText(m.Params, "targetId")
		g.mu.Lock()
		defer g.mu.Unlock()
		_, known := g.targets[id]
		delete(g.targets, id)
		delete(g.addresses, id)
		return m.Params, known
	}
	events["Target.targetCrashed"] = func(g *Guard, m *cdp.Message) (jsontext.Value, bool) {
		return m.Params, g.knows(findText(m.Params, "targetId"))
	}
}

// attachedToTarget lets go at once of what the client must not see. It may be waiting for the client to let it run.
func attachedToTarget(g *Guard, m *cdp.Message) (jsontext.Value, bool) {
	if info := find(m.Params, "targetInfo"); g.visible(info) {
		g.attach(m, info)
		return m.Params, true
	}
	session := findText(m.Params, "sessionId")
	if g.asked(session, findText(find(m.Params, "targetInfo"), "type")) {
		return m.Params, true
	}
	g.mu.Lock()
	remember(g.hidden, session, struct{}{}, maxHidden)
	g.mu.Unlock()
	g.act(session, "Runtime.runIfWaitingForDebugger", nil)
	var params builder
	params.add("sessionId", quoted(session))
	g.act(m.SessionID, "Target.detachFromTarget", params.object())
	return nil, false
}

// detachedFromTarget forgets what belonged to the session.
func detachedFromTarget(g *Guard, m *cdp.Message) (jsontext.Value, bool) {
	session := findText(m.Params, "sessionId")
	g.mu.Lock()
	defer g.mu.Unlock()
	for key := range g.handles {
		if key.session == session {
			delete(g.handles, key)
			delete(g.streams, key)
		}
	}
	for key := range g.messages {
		if key.session == session {
			delete(g.messages, key)
		}
	}
	for key := range g.challenges {
		if key.session == session {
			delete(g.challenges, key)
		}
	}
	for key := range g.paused {
		if key.session == session {
			delete(g.paused, key)
		}
	}
	g.forgetContexts(session)
	_, hidden := g.hidden[session]
	delete(g.hidden, session)
	delete(g.severed, session)
	g.sessions[session].disown()
	delete(g.sessions, session)
	delete(g.browsers, session)
	return m.Params, !hidden
}
