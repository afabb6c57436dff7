package guard

import (
	"fmt"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/clawjail/clawjail/internal/cdp"
)

// rewritten is the code for one command.
type rewritten struct {
	command func(g *Guard, m *cdp.Message) (jsontext.Value, error)
	reply   func(g *Guard, m *cdp.Message, result jsontext.Value) (jsontext.Value, error)
	failed  func(g *Guard)
}

// rewrittenCommands has the code for every command that some session rewrites.
func rewrittenCommands(mode Mode) map[string]rewritten {
	world := members("frameId", "worldName", "grantUniveralAccess", "contentSecurityPolicy")
	request := members("requestId", "method", "postData", "interceptResponse").with("url", webAddress).
		with("headers", headerListWithout(notOfClients(mode)))
	if mode == Operator {
		world["grantUniveralAccess"] = drop
	}
	response := members("requestId", "responseCode", "responsePhrase").
		with("responseHeaders", headerListWithout(sensitive)).with("binaryResponseHeaders", noBinaryHeaders)
	fulfil := members("requestId", "responseCode", "responsePhrase", "body").
		with("responseHeaders", headerListWithout(sensitive)).with("binaryResponseHeaders", noBinaryHeaders)
	commands := map[string]rewritten{
		"Runtime.evaluate": {command: members("expression", "objectGroup", "silent", "contextId", "returnByValue",
			"generatePreview", "userGesture", "awaitPromise", "throwOnSideEffect", "timeout", "disableBreaks", "replMode",
			"allowUnsafeEvalBlockedByCSP", "uniqueContextId", "serializationOptions").with("includeCommandLineAPI", drop).only()},
		"Runtime.runScript": {command: members("scriptId", "executionContextId", "objectGroup", "silent", "returnByValue",
			"generatePreview", "awaitPromise").with("includeCommandLineAPI", drop).only()},
		"Debugger.evaluateOnCallFrame": {command: members("callFrameId", "expression", "objectGroup", "silent", "returnByValue",
			"generatePreview", "throwOnSideEffect", "timeout", "scopeNumber").with("includeCommandLineAPI", drop).only()},
		"Page.addScriptToEvaluateOnNewDocument": {command: members("source", "worldName", "runImmediately").
			with("includeCommandLineAPI", drop).only()},
		"Page.createIsolatedWorld": {command: world.only(), reply: ownContext},
		"Page.navigate": {command: members("referrer", "transitionType", "frameId", "referrerPolicy").
			with("url", pageAddress).only()},
		"Page.printToPDF": {command: members("landscape", "displayHeaderFooter", "printBackground", "scale", "paperWidth",
			"paperHeight", "marginTop", "marginBottom", "marginLeft", "marginRight", "pageRanges", "headerTemplate",
			"footerTemplate", "preferCSSPageSize", "transferMode", "generateTaggedPDF", "generateDocumentOutline").only(),
			reply: ownStream},
		"Network.enable": {command: members("maxTotalBufferSize", "maxResourceBufferSize", "maxPostDataSize").
			with("enableDurableMessages", drop).with("reportDirectSocketTraffic", drop).only()},
		"Network.setExtraHTTPHeaders": {command: shape{"headers": headersWithout(notOfClients(mode))}.only()},
		"Fetch.enable":                {command: fetchEnable},
		"Fetch.continueRequest":       {command: continueRequest(request)},
		"Fetch.fulfillRequest":        {command: fulfil.only()},
		"Fetch.continueResponse":      {command: response.only()},
		"Fetch.continueWithAuth":      {command: continueWithAuth},
		"Fetch.takeResponseBodyAsStream": {
			command: members("requestId").only(), reply: ownStream,
		},
		"IO.read":  {command: readStream},
		"IO.close": {command: closeStream},
		"Tracing.start": {command: members("categories", "options", "bufferUsageReportingInterval", "transferMode",
			"streamFormat", "streamCompression", "traceConfig", "screenshotMaxSize", "screenshotMaxCount").
			with("perfettoConfig", never("a raw configuration may name a file to write to", "Use categories or traceConfig.")).
			with("tracingBackend", never("another tracing service is not the browser's", "Leave it out.")).only()},
		"Storage.getCookies":         {command: inContext("browserContextId")},
		"Storage.setCookies":         {command: inContext("browserContextId", "cookies")},
		"Storage.clearCookies":       {command: inContext("browserContextId")},
		"Browser.setPermission":      {command: inContext("browserContextId", "permission", "setting", "origin", "embeddedOrigin")},
		"Browser.grantPermissions":   {command: inContext("browserContextId", "permissions", "origin")},
		"Browser.resetPermissions":   {command: inContext("browserContextId")},
		"Browser.cancelDownload":     {command: inContext("browserContextId", "guid")},
		"Browser.getWindowForTarget": {command: knownTarget("targetId")},
	}
	fileCommands(commands)
	targetCommands(commands)
	return commands
}

// only makes the code for a command whose parameters are decided one by one.
func (s shape) only() func(*Guard, *cdp.Message) (jsontext.Value, error) {
	return func(_ *Guard, m *cdp.Message) (jsontext.Value, error) { return s.command(m.Params) }
}

// never refuses a parameter.
func never(reason, hint string) change {
	return func(jsontext.Value) (jsontext.Value, error) { return nil, &refusal{reason, hint} }
}

// neverTrue refuses a parameter that is true, and leaves it out otherwise.
func neverTrue(reason, hint string) change {
	return func(value jsontext.Value) (jsontext.Value, error) {
		if string(value) != "false" && string(value) != "null" {
			return nil, &refusal{reason, hint}
		}
		return nil, nil
	}
}

// neverSome refuses a parameter that says something, and leaves it out otherwise: clients send empty ones.
func neverSome(reason, hint string) change {
	return func(value jsontext.Value) (jsontext.Value, error) {
		switch string(value) {
		case `""`, `[]`, `null`:
			return nil, nil
		}
		return nil, &refusal{reason, hint}
	}
}

// noBinaryHeaders refuses headers that cannot be looked at.
func noBinaryHeaders(value jsontext.Value) (jsontext.Value, error) {
	return neverSome("headers in binary form may set cookies", "Use responseHeaders.")(value)
}

// inContext makes the code for a command about a browser context that must not be another client's.
func inContext(name string, others ...string) func(*Guard, *cdp.Message) (jsontext.Value, error) {
	s := members(others...).with(name, keep)
	return func(g *Guard, m *cdp.Message) (jsontext.Value, error) {
		if err := g.usable(findText(m.Params, name)); err != nil {
			return nil, err
		}
		return s.command(m.Params)
	}
}

// usable says that a context may be named by the client.
func (g *Guard) usable(context string) error {
	if context != "" && g.foreign(context) {
		return &notFound{"Failed to find browser context with id " + context}
	}
	return nil
}

// webAddress is where a held request may go instead.
func webAddress(value jsontext.Value) (jsontext.Value, error) { return address(value, "http", "https") }

// pageAddress accepts the addresses that a page may go to. data: and blob: hold only what the client gives, and about:blank nothing.
func pageAddress(value jsontext.Value) (jsontext.Value, error) {
	return address(value, "http", "https", "data", "blob", "about")
}

// address accepts the schemes that are listed. It reads an address as browsers do: blanks around it and line breaks and
// tabs inside do not count (URL standard, section 4.4). The address that is passed on has none, so that there is one reading of it.
func address(value jsontext.Value, schemes ...string) (jsontext.Value, error) {
	given, err := text(value)
	if err != nil {
		return nil, &refusal{"the address is no text", "Give an http or https address."}
	}
	url := strings.TrimFunc(given, func(r rune) bool { return r <= ' ' })
	url = strings.NewReplacer("\t", "", "\n", "", "\r", "").Replace(url)
	if url == "" {
		return quoted("about:blank"), nil
	}
	scheme, rest, found := strings.Cut(url, ":")
	scheme = strings.ToLower(scheme)
	ok := false
	for _, s := range schemes {
		ok = ok || found && s == scheme
	}
	switch scheme {
	case "about":
		page, _, _ := strings.Cut(strings.ToLower(rest), "#")
		page, _, _ = strings.Cut(page, "?")
		ok = ok && page == "blank"
	case "blob":
		inner, _, _ := strings.Cut(strings.ToLower(rest), ":")
		ok = ok && (inner == "http" || inner == "https" || strings.HasPrefix(inner, "null/"))
	}
	if !ok {
		return nil, &refusal{fmt.Sprintf("%.40q is not an address of the web", scheme), "Use " + strings.Join(schemes, ", ") + "."}
	}
	return quoted(url), nil
}

// fetchEnable stops the requests of pages. On the browser itself it would stop those of every client.
func fetchEnable(g *Guard, m *cdp.Message) (jsontext.Value, error) {
	if g.onBrowser(m.SessionID) {
		return nil, &refusal{"on the browser it would stop the requests of every client", "Enable it on the session of a page."}
	}
	return members("patterns", "handleAuthRequests").command(m.Params)
}

// continueWithAuth answers a challenge that the client was told of. The challenges of a proxy never get to a client, so
// that nobody can answer the gateway.
func continueWithAuth(g *Guard, m *cdp.Message) (jsontext.Value, error) {
	key := handle{m.SessionID, findText(m.Params, "requestId")}
	g.mu.Lock()
	_, known := g.challenges[key]
	g.mu.Unlock()
	if !known {
		return nil, &notFound{"Invalid InterceptionId."}
	}
	answer := members("response").with("username", keep).with("password", keep)
	if g.options.Mode == Operator {
		no := neverSome("a login of the client's own would take the place of the operator's", "Answer Default or CancelAuth.")
		answer["username"], answer["password"] = no, no
		answer["response"] = func(value jsontext.Value) (jsontext.Value, error) {
			if response, _ := text(value); response != "Default" && response != "CancelAuth" {
				return nil, &refusal{"a login of the client's own would take the place of the operator's", "Answer Default or CancelAuth."}
			}
			return value, nil
		}
	}
	out, err := members("requestId").with("authChallengeResponse", answer.command).command(m.Params)
	if err == nil {
		g.mu.Lock()
		delete(g.challenges, key)
		g.mu.Unlock()
	}
	return out, err
}

// ownStream remembers the stream that a reply hands out.
func ownStream(g *Guard, m *cdp.Message, result jsontext.Value) (jsontext.Value, error) {
	g.own(m.SessionID, findText(result, "stream"))
	return result, nil
}

// own remembers a stream. When there are too many, the client cannot read some of them.
func (g *Guard) own(session, stream string) {
	if stream == "" {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	remember(g.handles, handle{session, stream}, struct{}{}, maxHandles)
	for key := range g.streams {
		if _, own := g.handles[key]; !own {
			delete(g.streams, key)
		}
	}
}

// stream says that the client was given the stream that a command names.
func (g *Guard) stream(m *cdp.Message) (handle, error) {
	key := handle{m.SessionID, findText(m.Params, "handle")}
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, own := g.handles[key]; !own {
		return key, &notFound{"Invalid stream handle"}
	}
	return key, nil
}

func readStream(g *Guard, m *cdp.Message) (jsontext.Value, error) {
	if _, err := g.stream(m); err != nil {
		return nil, err
	}
	if !g.options.Scrub.Empty() && find(m.Params, "offset") != nil {
		return nil, &refusal{"what is read out of order cannot be looked through", "Read from the beginning, without an offset."}
	}
	return members("handle", "offset", "size").command(m.Params)
}

func closeStream(g *Guard, m *cdp.Message) (jsontext.Value, error) {
	key, err := g.stream(m)
	if err != nil {
		return nil, err
	}
	out, err := members("handle").command(m.Params)
	if err == nil {
		g.mu.Lock()
		delete(g.handles, key)
		delete(g.streams, key)
		g.mu.Unlock()
	}
	return out, err
}
