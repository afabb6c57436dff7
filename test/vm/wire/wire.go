// Package wire is what a test and the agent in its guest say to each other: one JSON value a line, over a serial port.
package wire

// Port is the name of the serial port.
const Port = "clawjail-test"

// Request asks the agent for one thing: to run a program, to write a file, or to read one.
type Request struct {
	ID int `json:"id"`
	// Run is a program with its arguments. It ends when Seconds are over, with all of its process group.
	Run     []string `json:"run,omitempty"`
	Env     []string `json:"env,omitempty"`
	Stdin   []byte   `json:"stdin,omitempty"`
	Seconds int      `json:"seconds,omitempty"`
	// Put is the path of a file that gets Stdin as its content, and Mode as its mode.
	Put  string `json:"put,omitempty"`
	Mode uint32 `json:"mode,omitempty"`
	// Get is the path of a file whose content is the Stdout of the reply.
	Get string `json:"get,omitempty"`
}

// Reply answers the request with the same ID. The agent says once, with the ID 0, that it is there.
type Reply struct {
	ID     int    `json:"id"`
	Stdout []byte `json:"stdout,omitempty"`
	Stderr []byte `json:"stderr,omitempty"`
	// Status is what the program ended with, 128 and the number of the signal that ended it included.
	Status int `json:"status"`
	// Error says why there is no status: the program could not be started, or its time was over.
	Error string `json:"error,omitempty"`
}
