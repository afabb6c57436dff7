package guard

import (
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/clawjail/clawjail/internal/cdp"
)

// rewriter is the code for one event: what the client sees of it, and whether it sees it.
type rewriter = func(g *Guard, m *cdp.Message) (params jsontext.Value, pass bool)

// redacted is what a client sees in place of a header's value.
const redacted = "[redacted]"

// rewrittenEvents has the code for every event that some session rewrites.
func rewrittenEvents(mode Mode) map[string]rewriter {
	request := members("url", "urlFragment", "method", "postData", "hasPostData", "postDataEntries", "mixedContentType",
		"initialPriority", "referrerPolicy", "isLinkPreload", "trustTokenParams", "isSameSite", "isAdRelated").
		with("headers", redactedHeaders)
	response := members("url", "status", "statusText", "mimeType", "charset", "connectionReused", "connectionId",
		"remoteIPAddress", "remotePort", "fromDiskCache", "fromServiceWorker", "fromPrefetchCache", "fromEarlyHints",
		"serviceWorkerRouterInfo", "encodedDataLength", "timing", "serviceWorkerResponseSource", "responseTime",
		"cacheStorageCacheName", "protocol", "alternateProtocolUsage", "securityState", "securityDetails").
		with("headers", redactedHeaders).with("requestHeaders", redactedHeaders).
		with("headersText", drop).with("requestHeadersText", drop)
	handshake := members("status", "statusText").with("headers", redactedHeaders).with("requestHeaders", redactedHeaders).
		with("headersText", drop).with("requestHeadersText", drop)
	held := members("requestId", "frameId", "resourceType", "responseErrorReason", "responseStatusCode",
		"responseStatusText", "networkId", "redirectedRequestId").
		with("request", request.event).with("responseHeaders", redactedHeaderList)
	challenged := members("requestId", "frameId", "resourceType", "authChallenge").with("request", request.event)
	if mode == Clean {
		challenged["request"], held["request"], held["responseHeaders"] = keep, keep, keep
	}

	events := map[string]rewriter{
		"Network.requestWillBeSent": members("requestId", "loaderId", "documentURL", "timestamp", "wallTime", "initiator",
			"redirectHasExtraInfo", "type", "frameId", "hasUserGesture", "renderBlockingBehavior").
			with("request", request.event).with("redirectResponse", response.event).pass(),
		"Network.requestWillBeSentExtraInfo": members("requestId", "connectTiming", "clientSecurityState",
			"siteHasCookieInOtherPartition", "appliedNetworkConditionsId").
			with("headers", redactedHeaders).with("associatedCookies", blankCookies()).
			with("deviceBoundSessionUsages", drop).pass(),
		"Network.responseReceived": members("requestId", "loaderId", "timestamp", "type", "hasExtraInfo", "frameId").
			with("response", response.event).pass(),
		"Network.responseReceivedExtraInfo": members("requestId", "resourceIPAddressSpace", "statusCode",
			"cookiePartitionKey", "cookiePartitionKeyOpaque").
			with("headers", redactedHeaders).with("headersText", drop).
			with("blockedCookies", none).with("exemptedCookies", none).pass(),
		"Network.responseReceivedEarlyHints": members("requestId").with("headers", redactedHeaders).pass(),
		"Network.webSocketWillSendHandshakeRequest": members("requestId", "timestamp", "wallTime").
			with("request", shape{"headers": redactedHeaders}.event).pass(),
		"Network.webSocketHandshakeResponseReceived": members("requestId", "timestamp").
			with("response", handshake.event).pass(),
		"Fetch.requestPaused":               requestPaused(held),
		"Fetch.authRequired":                authRequired(challenged),
		"Runtime.executionContextCreated":   contextCreated,
		"Runtime.executionContextDestroyed": contextDestroyed,
		"Runtime.executionContextsCleared":  contextsCleared,
		"Browser.downloadProgress": members("guid", "totalBytes", "receivedBytes", "state").
			with("filePath", baseName).pass(),
		"Input.dragIntercepted":   shape{"data": members("items", "dragOperationsMask").with("files", baseNames).event}.pass(),
		"Tracing.tracingComplete": tracingComplete,
	}
	targetEvents(events)
	return events
}

// pass makes the code for an event that every client of the session may see. One that is not as it should be is dropped.
func (s shape) pass() rewriter {
	return func(_ *Guard, m *cdp.Message) (jsontext.Value, bool) {
		params, err := s.event(m.Params)
		return params, err == nil
	}
}

// sensitive says whether a header carries credentials. Device-bound logins have headers of their own.
func sensitive(name []byte) bool {
	const longest = len("proxy-authorization")
	if len(name) > longest {
		return hasPrefixFold(name, "sec-session-") || hasPrefixFold(name, "secure-session-")
	}
	var buffer [longest]byte
	lower := buffer[:len(name)]
	for i, c := range name {
		if c >= 'A' && c <= 'Z' {
			c += 'a' - 'A'
		}
		lower[i] = c
	}
	switch string(lower) {
	case "cookie", "cookie2", "set-cookie", "set-cookie2", "authorization", "proxy-authorization":
		return true
	}
	return hasPrefixFold(name, "sec-session-") || hasPrefixFold(name, "secure-session-")
}

func hasPrefixFold(name []byte, prefix string) bool {
	return len(name) >= len(prefix) && strings.EqualFold(string(name[:len(prefix)]), prefix)
}

// redactedHeaders is an object of headers as a client sees it.
func redactedHeaders(value jsontext.Value) (jsontext.Value, error) {
	found := false
	err := object(value, func(name []byte, _ jsontext.Value) error {
		found = found || sensitive(name)
		return nil
	})
	if err != nil || !found {
		return value, err
	}
	var out builder
	err = object(value, func(name []byte, v jsontext.Value) error {
		if sensitive(name) {
			v = quoted(redacted)
		}
		out.add(string(name), v)
		return nil
	})
	return out.object(), err
}

// redactedHeaderList is the same for a list of names and values.
func redactedHeaderList(value jsontext.Value) (jsontext.Value, error) {
	return elements(value, func(entry jsontext.Value) (jsontext.Value, bool, error) {
		if !sensitive([]byte(findText(entry, "name"))) {
			return entry, true, nil
		}
		entry, err := members("name").with("value", func(jsontext.Value) (jsontext.Value, error) {
			return quoted(redacted), nil
		}).event(entry)
		return entry, true, err
	})
}

// framing says whether a header is about the connection or the length of a message. Those are the browser's.
func framing(name []byte) bool {
	switch strings.ToLower(string(name)) {
	case "host", "content-length", "transfer-encoding", "te", "trailer", "connection", "keep-alive", "upgrade", "expect",
		"http2-settings":
		return true
	}
	return hasPrefixFold(name, "proxy-")
}

// notOfClients says whether a client's own header is left out of requests: those that carry credentials in an
// operator's session, because a client that sends back what it was shown must not put the redaction in the place of the
// real one, and in every session those of the connection.
func notOfClients(mode Mode) func(name []byte) bool {
	return func(name []byte) bool { return framing(name) || mode == Operator && sensitive(name) }
}

// headersWithout is an object of a client's headers without some.
func headersWithout(left func(name []byte) bool) change {
	return func(value jsontext.Value) (jsontext.Value, error) {
		var out builder
		err := object(value, func(name []byte, v jsontext.Value) error {
			if !left(name) {
				out.add(string(name), v)
			}
			return nil
		})
		return out.object(), err
	}
}

// headerListWithout is the same for a list of names and values.
func headerListWithout(left func(name []byte) bool) change {
	return func(value jsontext.Value) (jsontext.Value, error) {
		if string(value) == "null" {
			return nil, nil
		}
		return elements(value, func(entry jsontext.Value) (jsontext.Value, bool, error) {
			entry, err := members("name", "value").command(entry)
			return entry, !left([]byte(findText(entry, "name"))), err
		})
	}
}

// blankCookies makes the cookies behind a request have their names and no values.
func blankCookies() change {
	cookie := members("name", "domain", "path", "expires", "size", "httpOnly", "secure", "session", "sameSite", "priority",
		"sourceScheme", "sourcePort", "partitionKey", "partitionKeyOpaque").
		with("value", func(jsontext.Value) (jsontext.Value, error) { return quoted(""), nil })
	associated := members("blockedReasons", "exemptionReason").with("cookie", cookie.event)
	return func(value jsontext.Value) (jsontext.Value, error) {
		return elements(value, func(entry jsontext.Value) (jsontext.Value, bool, error) {
			entry, err := associated.event(entry)
			return entry, true, err
		})
	}
}

// none is an empty list, for a member that clients expect to be there.
func none(jsontext.Value) (jsontext.Value, error) { return jsontext.Value("[]"), nil }

func baseNames(value jsontext.Value) (jsontext.Value, error) {
	return elements(value, func(path jsontext.Value) (jsontext.Value, bool, error) {
		path, err := baseName(path)
		return path, path != nil, err
	})
}

// authRequired shows the challenge of a server. That of a proxy is cancelled here: it is the gateway's, and a client
// that saw it could answer it.
func authRequired(s shape) rewriter {
	return func(g *Guard, m *cdp.Message) (jsontext.Value, bool) {
		id := findText(m.Params, "requestId")
		if findText(find(m.Params, "authChallenge"), "source") != "Server" {
			var params builder
			params.add("requestId", quoted(id))
			params.add("authChallengeResponse", jsontext.Value(`{"response":"CancelAuth"}`))
			g.act(m.SessionID, "Fetch.continueWithAuth", params.object())
			return nil, false
		}
		g.mu.Lock()
		remember(g.challenges, handle{m.SessionID, id}, struct{}{}, maxChallenges)
		g.mu.Unlock()
		params, err := s.event(m.Params)
		return params, err == nil
	}
}

// tracingComplete hands out the stream of a trace.
func tracingComplete(g *Guard, m *cdp.Message) (jsontext.Value, bool) {
	g.own(m.SessionID, findText(m.Params, "stream"))
	return m.Params, true
}
