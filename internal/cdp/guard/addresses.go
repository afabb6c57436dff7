package guard

import (
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/clawjail/clawjail/internal/cdp"
)

// A target is judged by its address again whenever that changes, and before every command. The browser tells where a frame
// is going before the frame is there, and before the frame has a target of its own: the guard asks for these events on
// every session that it lets a client have, whether the client asks for them or not.

// attached is a session of a client.
type attached struct {
	target string
	parent string // the session that it was attached under, which can end it
	kind   string // of the target
	quiet  bool   // the events of the domain Page are the guard's alone: the client has not asked for them
	// release is there while the client answers the page's dialogs: it has asked for these events.
	release func()
}

// disown says that the client answers the dialogs of a session's page no more.
func (s attached) disown() {
	if s.release != nil {
		s.release()
	}
}

// privileged says whether an address is anything but a page of the web or an empty one: one of the browser's own pages, whose
// scripts may do what no web page may, or a local file. The error page in place of one that did not load is neither. An
// empty address is one that is not known yet, see [Guard.known].
func privileged(url string) bool {
	scheme, rest, found := strings.Cut(url, ":")
	switch scheme = strings.ToLower(scheme); {
	case url == "":
		return false
	case !found:
		return true
	}
	switch scheme {
	case "http", "https", "data", "chrome-error":
		return false
	case "blob":
		inner, _, _ := strings.Cut(strings.ToLower(rest), ":")
		return inner != "http" && inner != "https" && !strings.HasPrefix(inner, "null/")
	case "about":
		page, _, _ := strings.Cut(strings.ToLower(rest), "#")
		page, _, _ = strings.Cut(page, "?")
		return page != "blank" && page != "srcdoc"
	}
	return true
}

// browsers says whether an address is certainly one of the browser's own, or of a local file.
func browsers(url string) bool {
	scheme, _, _ := strings.Cut(strings.ToLower(url), ":")
	switch scheme {
	case "about", "file", "filesystem", "view-source":
		return privileged(url)
	}
	return strings.HasPrefix(scheme, "chrome-") && privileged(url) || scheme == "chrome" || scheme == "devtools"
}

// astray says whether a target is on its way to a page of the browser's own.
func (g *Guard) astray(target string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return privileged(g.addresses[target])
}

// known says whether the address of a session's target is known. Pages begin as an empty one, which is their opener's. A
// frame that moves to a process of its own is a new target without an address until it is there.
func (g *Guard) known(session string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	s, ok := g.sessions[session]
	if !ok || s.kind == "page" || s.kind == "tab" {
		return true
	}
	return g.addresses[s.target] != "" && !privileged(g.addresses[s.target])
}

// preparing says whether a command may be sent to a target whose address is not known yet: it runs no script there, and
// reads nothing. Clients send these before they let a new frame run.
func preparing(method string) bool {
	switch method {
	case "Runtime.runIfWaitingForDebugger", "Page.setLifecycleEventsEnabled", "Page.getFrameTree", "Network.setCacheDisabled":
		return true
	}
	return strings.HasSuffix(method, ".enable") || strings.HasSuffix(method, ".disable") ||
		strings.HasPrefix(method, "Target.") || strings.HasPrefix(method, "Emulation.")
}

// attach remembers a session that the client is told of, and asks for the addresses of its frames.
func (g *Guard) attach(m *cdp.Message, info jsontext.Value) {
	session := findText(m.Params, "sessionId")
	s := attached{target: findText(info, "targetId"), parent: m.SessionID, kind: findText(info, "type")}
	s.quiet = s.kind == "page" || s.kind == "iframe"
	g.mu.Lock()
	g.sessions[session] = s
	g.mu.Unlock()
	if s.quiet {
		g.act(session, "Page.enable", nil)
	}
}

// watch learns from an event where targets are and where they go. It says whether the client may see the event.
func (g *Guard) watch(event *cdp.Message) bool {
	switch event.Method {
	case "Target.targetInfoChanged", "Target.targetCreated", "Target.attachedToTarget":
		info := find(event.Params, "targetInfo")
		g.at(findText(info, "targetId"), findText(info, "url"))
	case "Page.frameStartedNavigating":
		// A link may also go to another program, such as one for mail, and then the frame stays where it is.
		if url := findText(event.Params, "url"); browsers(url) || !privileged(url) {
			g.at(findText(event.Params, "frameId"), url)
		}
	case "Page.frameNavigated":
		frame := find(event.Params, "frame")
		url := findText(frame, "url")
		g.at(findText(frame, "id"), url)
		if privileged(url) {
			// A frame of the browser's own is in the process of the page: a client that is attached to the page has the frame, too.
			g.sever(func(id string, _ attached) bool { return id == event.SessionID })
		}
	}
	if !strings.HasPrefix(event.Method, "Page.") {
		return true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.sessions[event.SessionID].quiet
}

// at notes the address of a target. When that is privileged, the client loses its session with the target.
func (g *Guard) at(target, url string) {
	if target == "" || url == "" {
		return
	}
	g.mu.Lock()
	if _, known := g.addresses[target]; !known && len(g.addresses) >= maxTargets {
		for other := range g.addresses {
			delete(g.addresses, other)
			break
		}
	}
	g.addresses[target] = scheme(url)
	g.mu.Unlock()
	if privileged(url) {
		g.sever(func(_ string, s attached) bool { return s.target == target })
	}
}

// scheme is the part of an address that decides: a page can make long ones.
func scheme(url string) string {
	if privileged(url) {
		name, _, _ := strings.Cut(url, ":")
		return name[:min(len(name), 32)] + ":"
	}
	return "https:"
}

// sever ends sessions of the client. It is told as it is when a target goes away, and whatever it sends there from now
// on is refused.
func (g *Guard) sever(which func(id string, s attached) bool) {
	type end struct{ session, parent string }
	var ends []end
	g.mu.Lock()
	for id, s := range g.sessions {
		if _, done := g.severed[id]; !done && which(id, s) {
			g.severed[id] = struct{}{}
			ends = append(ends, end{id, s.parent})
		}
	}
	g.mu.Unlock()
	for _, e := range ends {
		var params builder
		params.add("sessionId", quoted(e.session))
		g.act(e.parent, "Target.detachFromTarget", params.object())
	}
}

// judge decides about the target of a command.
func (g *Guard) judge(command *cdp.Message) *cdp.Message {
	if g.isHidden(command.SessionID) {
		return cdp.ErrorReply(cdp.CodeSessionUnknown, "Session with given id not found.")
	}
	if !preparing(command.Method) && !g.known(command.SessionID) {
		return g.refuse(command.Method, "its frame has no address yet")
	}
	if command.Method == "Page.enable" || command.Method == "Page.disable" {
		g.mu.Lock()
		defer g.mu.Unlock()
		if s, ok := g.sessions[command.SessionID]; ok {
			s.quiet = command.Method == "Page.disable"
			switch {
			case s.quiet:
				s.disown()
				s.release = nil
			case s.release == nil && s.kind == "page" && g.options.Dialogs != nil:
				s.release = g.options.Dialogs(s.target)
			}
			g.sessions[command.SessionID] = s
			if s.quiet {
				return cdp.ResultReply(jsontext.Value("{}"))
			}
		}
	}
	return nil
}
