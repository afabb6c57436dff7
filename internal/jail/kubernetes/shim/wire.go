package shim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/go-json-experiment/json"
	jsonv1 "github.com/go-json-experiment/json/v1"
	"github.com/libp2p/go-yamux/v5"

	"github.com/clawjail/clawjail/internal/base/strict"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// Version is that of what both sides say to each other.
const Version = 1

const (
	// maxHello bounds a message of somebody who is not known yet: a token of Kubernetes has about 1 KiB.
	maxHello = 16 << 10
	// maxMessage bounds the others: the files of a home directory are in one, in base64.
	maxMessage = 2*jail.MaxHomeFiles + 512<<10
	// maxWindow bounds how much is buffered of a stream that is not read.
	maxWindow = 512 << 10
)

// Hello is the first message of a connection, from the pod.
type Hello struct {
	Version int    `json:"version"`
	Token   string `json:"token"`
	// Link is the stream that goes on over this connection, and Arrived how many of its bytes have arrived in the pod.
	Link    string `json:"link,omitempty"`
	Arrived uint64 `json:"arrived,omitempty"`
}

// Welcome is the answer.
type Welcome struct {
	// Link is known to the two sides alone.
	Link    string `json:"link,omitempty"`
	Arrived uint64 `json:"arrived,omitempty"`
	// WindowMS is how long the stream waits for a connection, in milliseconds.
	WindowMS int64    `json:"window_ms,omitempty"`
	Refused  *Refusal `json:"refused,omitempty"`
}

// Refusal is a problem, as it is sent.
type Refusal struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
}

// RefusalOf is what is sent of an error.
func RefusalOf(err error) *Refusal {
	var p *problem.Error
	if !errors.As(err, &p) {
		return &Refusal{Code: problem.Internal, Message: err.Error()}
	}
	return &Refusal{Code: p.Code, Message: p.Message, Hint: p.Hint}
}

// Err is the problem.
func (r *Refusal) Err() error {
	if r == nil {
		return nil
	}
	return problem.New(r.Code, r.Hint, "%s", r.Message)
}

// The requests.
const (
	DoPrepare = "prepare" // confine the shim, and say how it is confined
	DoReady   = "ready"   // say to Kubernetes that the pod is ready
	DoStdio   = "stdio"   // this is the stdin, stdout or stderr of a program that is named later
	DoRun     = "run"     // start a program
	DoToken   = "token"   // put a token into the folder of jail.TokenDir
	DoDial    = "dial"    // connect to a port on the loopback of the pod
	DoUsage   = "usage"   // say what the pod consumes
	DoEnd     = "end"     // end the program of this stream, or else the pod
)

// Request is the first message of a yamux stream, which the control plane opens for it.
type Request struct {
	Do      string   `json:"do"`
	Prepare *Prepare `json:"prepare,omitempty"`
	Run     *Run     `json:"run,omitempty"`
	Port    uint16   `json:"port,omitempty"`
	Token   []byte   `json:"token,omitempty"`
	// GraceMS is how long programs have to end by themselves, in milliseconds.
	GraceMS int64 `json:"grace_ms,omitempty"`
}

// Prepare says how the pod should be confined.
type Prepare struct {
	Profile jail.Profile `json:"profile"`
	Probes  []Probe      `json:"probes,omitempty"`
	// Sandbox asks to try whether a program can make what browsers make their own sandbox of.
	Sandbox bool `json:"sandbox,omitempty"`
}

// Probe is something that must not be reached from the pod.
type Probe struct {
	Name string `json:"name"` // to people
	// Network is tcp, where a connection must not be made, or dns, where a question by UDP must not be answered.
	Network string         `json:"network"`
	Address netip.AddrPort `json:"address"`
}

// Report is what the pod says of itself before any program has run in it. The kernel's word is in it, and what was tried.
type Report struct {
	// Observed has the numbers of users as the pod sees them; Host is what its user is outside, as far as the pod can know.
	Observed jail.Observed `json:"observed"`
	Host     uint32        `json:"host"`
	// Addresses are those of the interfaces.
	Addresses []netip.Addr `json:"addresses,omitempty"`
	// Reached are the names of the probes that reached something.
	Reached []string `json:"reached,omitempty"`
	// Unsandboxed is why the sandbox could not be made; empty where it could, or was not tried.
	Unsandboxed string `json:"unsandboxed,omitempty"`
}

// Run is a program to start.
type Run struct {
	// Main is the pod's own program, with whose end everything in the pod ends.
	Main      bool         `json:"main,omitempty"`
	Program   jail.Program `json:"program"`
	Home      string       `json:"home"`
	HomeFiles []jail.File  `json:"home_files,omitempty"`
	// Make are folders that are made before it begins, each in one that is there.
	Make []string `json:"make,omitempty"`
	// Stdio are the numbers of the streams that are its stdin, stdout and stderr.
	Stdio [3]uint32 `json:"stdio"`
}

// Reply is what comes back. A program is replied to twice: when it has been started, and when it has ended.
type Reply struct {
	Refused *Refusal    `json:"refused,omitempty"`
	Report  *Report     `json:"report,omitempty"`
	Usage   *jail.Usage `json:"usage,omitempty"`
	PID     int         `json:"pid,omitempty"`
	Exit    *jail.Exit  `json:"exit,omitempty"`
}

// WriteMessage writes a message: its length, as four bytes, and JSON.
func WriteMessage(w io.Writer, message any) error {
	body, err := json.Marshal(message, durations())
	if err != nil {
		return fmt.Errorf("write a message: %w", err)
	}
	if len(body) > maxMessage {
		return problem.New(problem.TooLarge, "stage less", "a message to a pod has %d bytes, more than %d", len(body), maxMessage)
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...))
	return err
}

// ReadMessage reads one, and nothing behind it.
func ReadMessage(r io.Reader, into any) error { return readMessage(r, maxMessage, into) }

func readMessage(r io.Reader, limit uint32, into any) error {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	length := binary.BigEndian.Uint32(head[:])
	if length > limit {
		return problem.New(problem.TooLarge, "", "a message has %d bytes, more than %d", length, limit)
	}
	// Memory is taken for bytes that have arrived, not for the announced length.
	body, err := io.ReadAll(io.LimitReader(r, int64(length)))
	if err == nil && len(body) < int(length) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return err
	}
	return strict.Object(body, into, "use the clawjail-shim of the same version as the control plane", durations())
}

func durations() json.Options { return jsonv1.FormatDurationAsNano(true) }

// Session is how yamux is used on both sides. A side accepts at most incoming streams of the other one.
func Session(incoming uint32) *yamux.Config {
	c := yamux.DefaultConfig()
	c.EnableKeepAlive = false // the link knows whether the other side is there
	c.MeasureRTTInterval = time.Hour
	c.AcceptBacklog = 64
	c.MaxIncomingStreams = incoming
	c.MaxStreamWindowSize = maxWindow
	c.LogOutput = io.Discard // what it says is of what the other side sends
	return c
}
