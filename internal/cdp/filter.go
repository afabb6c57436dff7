package cdp

// Filter decides about the messages of one client. A nil Filter passes everything.
//
// Commands are seen in the goroutine that calls [Client.Send], replies and events in the one that reads the pipe: the
// methods run at the same time and must not wait. They may change Method, Params, Result and Error in place; ids and
// sessions are restored afterwards. Values are valid JSON objects and must stay so.
type Filter interface {
	// Command sees a command before the browser does. A reply that is not nil goes to the client, and the command
	// to nobody.
	Command(command *Message) (reply *Message)
	// Reply sees a reply of the browser, with the command as it was sent and under the client's own id and session.
	Reply(command, reply *Message)
	// Event sees an event. False keeps it from the client.
	Event(event *Message) (pass bool)
}
