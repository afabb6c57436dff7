package guard

import (
	"encoding/base64"
	"errors"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/clawjail/clawjail/internal/cdp"
)

// Bodies come in base64, in pieces and as mail, where a value does not stand in the message as it would in a text. They are
// decoded here and looked through as what they are; the search in the whole message comes on top.

// conversation is one direction of what a request of a session says in messages.
type conversation struct{ session, request, way string }

// maxConversations bounds those of which a possible beginning of a value is remembered.
const maxConversations = 1024

// bodies takes the values out of the body in a reply.
func (g *Guard) bodies(command *cdp.Message, result jsontext.Value) (jsontext.Value, error) {
	var change func(raw jsontext.Value) (jsontext.Value, error)
	name := ""
	switch command.Method {
	case "IO.read":
		if g.options.Scrub.Empty() {
			return result, nil
		}
		return g.readPiece(command, result)
	case "Network.getResponseBody", "Fetch.getResponseBody":
		name, change = "body", g.encoded
	case "Network.getRequestPostData":
		name, change = "postData", g.encoded
	case "Page.getResourceContent":
		name, change = "content", g.encoded
	case "Page.printToPDF":
		name, change = "data", g.encoded
	case "Page.captureSnapshot":
		name, change = "data", func(raw jsontext.Value) (jsontext.Value, error) {
			return texts(raw, func(text string) string { return g.options.Scrub.Mail(text) })
		}
	case "Target.getTargetInfo":
		return g.titles(result, "targetInfo", "title")
	case "Target.getTargets":
		name, change = "targetInfos", g.titlesOf
	case "Page.getNavigationHistory":
		name, change = "entries", g.titlesOf
	case "Network.streamResourceContent":
		key := conversation{command.SessionID, findText(command.Params, "requestId"), "data"}
		name, change = "bufferedData", func(raw jsontext.Value) (jsontext.Value, error) {
			g.forget(key) // the reply has all that came until now
			return g.message(key, raw, true)
		}
	default:
		return result, nil
	}
	if g.options.Scrub.Empty() {
		return result, nil
	}
	if said := find(result, "base64Encoded"); said != nil && !isTrue(said) {
		return result, nil // a text, in which values stand as they do in every text
	}
	return inside(result, change, name)
}

// encoded takes the values out of a body in base64. A text that is not base64 stays as it is.
func (g *Guard) encoded(raw jsontext.Value) (jsontext.Value, error) {
	return texts(raw, func(text string) string {
		plain, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return text
		}
		clean := g.options.Scrub.Text(string(plain))
		if clean == string(plain) {
			return text
		}
		return base64.StdEncoding.EncodeToString([]byte(clean))
	})
}

// readPiece gives what is decided of a stream by the piece that was read.
func (g *Guard) readPiece(command *cdp.Message, result jsontext.Value) (jsontext.Value, error) {
	key := handle{command.SessionID, findText(command.Params, "handle")}
	g.mu.Lock()
	if _, own := g.handles[key]; !own {
		g.mu.Unlock()
		return nil, &notFound{"Invalid stream handle"} // it was closed meanwhile
	}
	stream := g.streams[key]
	if stream == nil {
		stream = g.options.Scrub.NewStream()
		g.streams[key] = stream
	}
	g.mu.Unlock()
	data, err := text(find(result, "data"))
	if find(result, "data") == nil {
		data, err = "", nil
	}
	plain, binary := []byte(data), isTrue(find(result, "base64Encoded"))
	if err == nil && binary {
		plain, err = base64.StdEncoding.DecodeString(data)
	}
	if err != nil {
		return nil, errUnreadable
	}
	last := isTrue(find(result, "eof"))
	clean, err := stream.Next(plain, last)
	if err != nil {
		return nil, errUnreadable
	}
	if last {
		g.mu.Lock()
		delete(g.streams, key)
		g.mu.Unlock()
	}
	if string(clean) == string(plain) {
		return result, nil
	}
	binary = binary || !utf8.Valid(clean) // a piece may now begin or end within a letter
	var out builder
	if binary {
		out.add("base64Encoded", jsontext.Value("true"))
		out.add("data", quoted(base64.StdEncoding.EncodeToString(clean)))
	} else {
		out.add("data", quoted(string(clean)))
	}
	eof := jsontext.Value("false")
	if last {
		eof = jsontext.Value("true")
	}
	out.add("eof", eof)
	return out.object(), nil
}

var errUnreadable = errors.New("the body cannot be looked through")

// pieces takes the values out of an event with a piece of a body. An error means that it must not be seen.
func (g *Guard) pieces(event *cdp.Message) (jsontext.Value, error) {
	var path []string
	binary := false
	key := conversation{session: event.SessionID, way: "data"}
	switch event.Method {
	case "Network.webSocketFrameReceived", "Network.webSocketFrameSent":
		key.way, path = event.Method, []string{"response", "payloadData"}
		binary = string(find(find(event.Params, "response"), "opcode")) != "1"
	case "Network.eventSourceMessageReceived":
		key.way, path = event.Method, []string{"data"}
	case "Network.dataReceived":
		path, binary = []string{"data"}, true
	case "Network.requestWillBeSent", "Fetch.requestPaused", "Fetch.authRequired":
		if g.options.Scrub.Empty() {
			return event.Params, nil
		}
		return inside(event.Params, g.entries, "request", "postDataEntries")
	case "Target.targetCreated", "Target.targetInfoChanged", "Target.attachedToTarget":
		return g.titles(event.Params, "targetInfo", "title")
	case "Network.webSocketClosed", "Network.loadingFinished", "Network.loadingFailed":
		id := findText(event.Params, "requestId")
		for _, way := range []string{"data", "Network.webSocketFrameReceived", "Network.webSocketFrameSent",
			"Network.eventSourceMessageReceived"} {
			g.forget(conversation{event.SessionID, id, way})
		}
		return event.Params, nil
	default:
		return event.Params, nil
	}
	if g.options.Scrub.Empty() {
		return event.Params, nil
	}
	key.request = findText(event.Params, "requestId")
	return inside(event.Params, func(raw jsontext.Value) (jsontext.Value, error) { return g.message(key, raw, binary) }, path...)
}

// entries takes the values out of the parts of a posted body, each in base64, which follow each other.
func (g *Guard) entries(raw jsontext.Value) (jsontext.Value, error) {
	body := g.options.Scrub.NewMessages()
	return elements(raw, func(entry jsontext.Value) (jsontext.Value, bool, error) {
		entry, err := inside(entry, func(raw jsontext.Value) (jsontext.Value, error) {
			return inBase64(raw, func(part []byte) []byte { return body.Next(part, false) })
		}, "bytes")
		return entry, true, err
	})
}

// titles takes the values out of a title that the browser has cut.
func (g *Guard) titles(raw jsontext.Value, path ...string) (jsontext.Value, error) {
	if len(raw) < cdp.LongestTitle || g.options.Scrub.Empty() {
		return raw, nil
	}
	return inside(raw, func(raw jsontext.Value) (jsontext.Value, error) {
		return texts(raw, func(title string) string {
			if len(utf16.Encode([]rune(title))) < cdp.LongestTitle {
				return title
			}
			return g.options.Scrub.CutText(title)
		})
	}, path...)
}

// titlesOf is titles for a list of what has one.
func (g *Guard) titlesOf(raw jsontext.Value) (jsontext.Value, error) {
	return elements(raw, func(one jsontext.Value) (jsontext.Value, bool, error) {
		one, err := g.titles(one, "title")
		return one, true, err
	})
}

// message takes the values out of a message of a conversation.
func (g *Guard) message(key conversation, raw jsontext.Value, binary bool) (jsontext.Value, error) {
	g.mu.Lock()
	said, full := g.messages[key], len(g.messages) >= maxConversations
	g.mu.Unlock()
	known := said != nil
	if !known {
		said = g.options.Scrub.NewMessages()
	}
	next := func(message []byte) []byte { return said.Next(message, full && !known) }
	change := func(raw jsontext.Value) (jsontext.Value, error) {
		return texts(raw, func(text string) string { return string(next([]byte(text))) })
	}
	if binary {
		change = func(raw jsontext.Value) (jsontext.Value, error) { return inBase64(raw, next) }
	}
	out, err := change(raw)
	g.mu.Lock()
	defer g.mu.Unlock()
	if said.Rests() {
		delete(g.messages, key)
	} else {
		g.messages[key] = said
	}
	return out, err
}

// forget ends a conversation.
func (g *Guard) forget(key conversation) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.messages, key)
}

// texts changes a text. One that is not changed stays as it is written; what is no text stays too.
func texts(raw jsontext.Value, change func(text string) string) (jsontext.Value, error) {
	was, err := text(raw)
	if err != nil {
		return raw, nil
	}
	if is := change(was); is != was {
		return quoted(is), nil
	}
	return raw, nil
}

// inBase64 changes what a text in base64 stands for.
func inBase64(raw jsontext.Value, change func(plain []byte) []byte) (jsontext.Value, error) {
	was, err := text(raw)
	if err != nil {
		return raw, nil
	}
	plain, err := base64.StdEncoding.DecodeString(was)
	if err != nil {
		return nil, errUnreadable
	}
	if is := change(plain); string(is) != string(plain) {
		return quoted(base64.StdEncoding.EncodeToString(is)), nil
	}
	return raw, nil
}

// inside changes the member of an object that a path leads to, when it is there, and nothing else.
func inside(raw jsontext.Value, change change, path ...string) (jsontext.Value, error) {
	was := find(raw, path[0])
	if was == nil {
		return raw, nil
	}
	var is jsontext.Value
	var err error
	if len(path) > 1 {
		is, err = inside(was, change, path[1:]...)
	} else {
		is, err = change(was)
	}
	if err != nil || string(is) == string(was) {
		return raw, err
	}
	out := make(builder, 0, len(raw)+16)
	err = object(raw, func(name []byte, value jsontext.Value) error {
		if string(name) == path[0] {
			value = is
		}
		out.add(string(name), value)
		return nil
	})
	return out.object(), err
}
