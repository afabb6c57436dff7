package cdp

import (
	"context"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"
)

// Filter decides about the messages of one client. A nil Filter passes everything.
//
// Commands are seen in the goroutine that calls [Client.Send], replies and events in the one that reads the pipe: the
// methods run at the same time and must not wait. They may change Method, Params, Result and Error in place; ids and
// sessions are restored afterwards. Sessions are those that the client knows: its browser session is empty. Values are
// valid JSON objects and must stay so.
type Filter interface {
	// Command sees a command before the browser does. A reply that is not nil goes to the client, and the command
	// to nobody.
	Command(command *Message) (reply *Message)
	// Reply sees a reply of the browser, with the command as it was sent and under the client's own id and session.
	Reply(command, reply *Message)
	// Event sees an event. False keeps it from the client.
	Event(event *Message) (pass bool)
}

// ActingFilter is a [Filter] with commands of its own: it lets go of what the browser attached to its client and the
// client must not see.
type ActingFilter interface {
	Filter
	// Started is called once, before any message. act sends a command in the client's name; the reply goes to
	// nobody. An empty session is the client's browser session. act does not wait, and may be called from the other
	// methods. Too many commands at once end the client.
	Started(act func(sessionID, method string, params jsontext.Value))
	// Ended is called once, when nothing of the client is left in the browser.
	Ended()
}

// maxActs bounds the commands of a filter that were not sent yet.
const maxActs = 1024

// act queues a command of the filter's. It runs in the reader of the pipe too, which must not wait for the writer.
func (c *Client) act(sessionID, method string, params jsontext.Value) {
	select {
	case c.acts <- &Message{Kind: Command, SessionID: sessionID, Method: method, Params: params}:
	default:
		c.end(fmt.Errorf("%w: more than %d commands of its filter are waiting", ErrSlowClient, maxActs))
	}
}

// sendActs sends what the filter queued, until the client's end.
func (c *Client) sendActs() {
	for {
		select {
		case <-c.done:
			return
		case m := <-c.acts:
			if m.SessionID == "" {
				m.SessionID = c.sessionID()
			}
			// The reply is not needed, and an error means that the connection is gone.
			_ = c.conn.submit(context.Background(), c.done, m, func(*Message, error) {})
		}
	}
}
