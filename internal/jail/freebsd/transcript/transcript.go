// Package transcript is the record of commands that ran on a real FreeBSD host, with how each ended and what it said. It is
// what `clawjail doctor --record` writes and what the simulator of such a host, hosttest, is compared with.
//
// A transcript is a text of JSON lines. The first describes the host:
//
//	{"v":1,"system":"FreeBSD 15.0-RELEASE amd64","recorded":"2026-05-01T12:00:00Z"}
//
// and each of the others is one command that has ended, in the order in which they ran:
//
//	{"v":1,"command":["zfs","list","-Hp","-o","name","zroot/x"],"status":1,"stderr":"cannot open 'zroot/x': dataset does not exist\n"}
//
// An unknown field, another version and a line that is no JSON are errors. Fields may be added only with a new version.
package transcript

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// Version is of the format that this package reads and writes.
const Version = 1

// MaxLine bounds a line of a transcript, and thereby what is kept of a command's output.
const MaxLine = 4 << 20

// Header is the first line: whose answers these are.
type Header struct {
	V int `json:"v"`
	// System is what uname(1) says: name, release and machine, no host name.
	System string `json:"system"`
	// Recorded is when, or empty for a transcript that no host wrote.
	Recorded string `json:"recorded,omitempty"`
	// Written says where the answers come from when no host gave them: the sources they were copied from.
	Written string `json:"written,omitempty"`
	// Datasets were there before the first command. {root} in a command or in a file of it is the folder that they, and all else,
	// lie in: empty on a host.
	Datasets []string `json:"datasets,omitempty"`
}

// Entry is one command. Its first word is a name and not a path.
type Entry struct {
	V       int      `json:"v"`
	Command []string `json:"command"`
	// Status is the exit status; -1 when a signal ended it.
	Status int    `json:"status"`
	Stdout string `json:"stdout,omitempty"`
	Stderr string `json:"stderr,omitempty"`
	// Files are those that the command reads, by their paths.
	Files map[string]string `json:"files,omitempty"`
	// Note is for people.
	Note string `json:"note,omitempty"`
	// Unchecked says that the answer is not compared: it differs from host to host (a version, a list of what is there).
	Unchecked bool `json:"unchecked,omitempty"`
}

// Writer writes a transcript.
type Writer struct{ to *json.Encoder }

// NewWriter begins a transcript of a host that has some datasets.
func NewWriter(w io.Writer, system string, recorded time.Time, datasets ...string) (*Writer, error) {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(Header{V: Version, System: system, Recorded: recorded.UTC().Format(time.RFC3339), Datasets: datasets}); err != nil {
		return nil, fmt.Errorf("begin transcript: %w", err)
	}
	return &Writer{enc}, nil
}

// Write adds a command that has ended. The version is filled in.
func (w *Writer) Write(e Entry) error {
	e.V = Version
	if err := e.valid(); err != nil {
		return err
	}
	if err := w.to.Encode(e); err != nil {
		return fmt.Errorf("write transcript: %w", err)
	}
	return nil
}

// Reader reads a transcript.
type Reader struct {
	Header Header
	lines  *bufio.Scanner
	number int
}

// NewReader reads the header of a transcript.
func NewReader(r io.Reader) (*Reader, error) {
	t := &Reader{lines: bufio.NewScanner(r)}
	t.lines.Buffer(nil, MaxLine)
	if err := t.next(&t.Header); errors.Is(err, io.EOF) {
		return nil, errors.New("transcript: it is empty")
	} else if err != nil {
		return nil, err
	}
	if t.Header.V != Version {
		return nil, fmt.Errorf("transcript: version %d, not %d", t.Header.V, Version)
	}
	if t.Header.System == "" {
		return nil, errors.New("transcript: the first line names no system")
	}
	return t, nil
}

// Next is the next command. Its error is io.EOF after the last.
func (t *Reader) Next() (Entry, error) {
	var e Entry
	if err := t.next(&e); err != nil {
		return Entry{}, err
	}
	if err := e.valid(); err != nil {
		return Entry{}, fmt.Errorf("line %d: %w", t.number, err)
	}
	return e, nil
}

// All reads what is left.
func (t *Reader) All() ([]Entry, error) {
	var out []Entry
	for {
		e, err := t.Next()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		out = append(out, e)
	}
}

// next reads one line that is not blank into to.
func (t *Reader) next(to any) error {
	for t.lines.Scan() {
		t.number++
		line := bytes.TrimSpace(t.lines.Bytes())
		if len(line) == 0 {
			continue
		}
		dec := json.NewDecoder(bytes.NewReader(line))
		dec.DisallowUnknownFields()
		if err := dec.Decode(to); err != nil {
			return fmt.Errorf("transcript, line %d: %w", t.number, err)
		}
		if dec.More() {
			return fmt.Errorf("transcript, line %d: more than one value", t.number)
		}
		return nil
	}
	if err := t.lines.Err(); err != nil {
		return fmt.Errorf("transcript, line %d: %w", t.number+1, err)
	}
	return io.EOF
}

func (e Entry) valid() error {
	if e.V != Version {
		return fmt.Errorf("transcript: version %d, not %d", e.V, Version)
	}
	if len(e.Command) == 0 || e.Command[0] == "" {
		return errors.New("transcript: an entry without a command")
	}
	return nil
}
