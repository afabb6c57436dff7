package access

import (
	"errors"
	"io"
	"net/http"
	"time"
)

// Patience is how long a client may take for the next part of its request, or to read the next part of the answer.
const Patience = 60 * time.Second

// Patient returns a writer for the answer, and gives the request a body, that do not wait for a silent client for longer
// than [Patience]. That also holds for what the server does by itself: before it answers it reads what is left of a body.
// Done is called at the end: the connection may have other requests after this one.
func Patient(w http.ResponseWriter, r *http.Request, now func() time.Time) (out http.ResponseWriter, done func()) {
	p := &patient{ResponseWriter: w, control: http.NewResponseController(w), now: now}
	if r.Body != nil && r.Body != http.NoBody {
		// A writer that takes no deadlines is no network connection.
		_ = p.control.SetReadDeadline(now().Add(Patience))
		r.Body = &patientBody{ReadCloser: r.Body, patient: p}
	}
	// The server takes back deadlines for reading before it reads the next request, but not those for writing.
	return p, func() { _ = p.control.SetWriteDeadline(time.Time{}) }
}

type patient struct {
	http.ResponseWriter
	control *http.ResponseController
	now     func() time.Time
}

// wait gives the client time for the next write. A writer that takes no deadlines is no network connection.
func (p *patient) wait() error {
	if err := p.control.SetWriteDeadline(p.now().Add(Patience)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// Write implements io.Writer.
func (p *patient) Write(b []byte) (int, error) {
	if err := p.wait(); err != nil {
		return 0, err
	}
	return p.ResponseWriter.Write(b)
}

// FlushError is what http.ResponseController calls.
func (p *patient) FlushError() error {
	if err := p.wait(); err != nil {
		return err
	}
	return p.control.Flush()
}

// WriteHeader drops interim answers (1xx): they would carry an upstream's headers past the rules for final ones.
func (p *patient) WriteHeader(status int) {
	if status >= 200 {
		p.ResponseWriter.WriteHeader(status)
	}
}

type patientBody struct {
	io.ReadCloser
	patient *patient
}

// Read waits for the client, and takes the deadline back at the end: the server watches the connection from then on.
func (b *patientBody) Read(into []byte) (int, error) {
	p := b.patient
	if err := p.control.SetReadDeadline(p.now().Add(Patience)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return 0, err
	}
	n, err := b.ReadCloser.Read(into)
	if errors.Is(err, io.EOF) {
		_ = p.control.SetReadDeadline(time.Time{})
	}
	return n, err
}
