// Package injail is what the test of agents in jails and its two programs say to each other: plane, a control plane that
// lets the test admit a jail as an agent's, and agent, which does in that jail what an agent does.
//
// Only tests import this package, and the programs below it.
package injail

import (
	"net/netip"
	"path/filepath"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/hostd"
)

// Socket is where a plane takes orders.
func Socket(c config.Config) string { return filepath.Join(hostd.ControlDir(c), "plane.sock") }

// Order admits an address as that of an agent's jail, for as long as the connection that it came by is open.
type Order struct {
	Address netip.Addr
	Jail    string
	Agent   string // its id
}

// Admitted is the answer to an order.
type Admitted struct{ Error string }

// The commands that an agent understands.
const (
	Request    = "request" // make an HTTP request, through the proxy where Proxy is set
	Connect    = "connect" // be an MCP client at URL
	Call       = "call"    // call a tool
	Dial       = "dial"    // open a WebSocket to URL
	Send       = "send"    // send Body as a DevTools command, and wait for its reply
	AwaitClose = "ended"   // wait until the other end closes the WebSocket
)

// Command is one thing to do, a line of JSON on the agent's standard input. It is the only place where a key is.
type Command struct {
	Do                     string
	Method, URL, Key, Body string
	Host                   string // the header, when it is not that of URL
	Proxy                  string
	Tool                   string
	Arguments              map[string]any
}

// Reply says how it went, a line of JSON on the agent's standard output.
type Reply struct {
	Error    string
	Status   int
	Body     string // or the text of a tool, or a frame
	Tools    []string
	Failed   bool // the tool said so
	Pictures int  // bytes of the pictures of a tool's answer
}
