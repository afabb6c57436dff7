package gateway

import (
	"io"
	"net/http"
	"sync"
	"time"
)

// Write waits for a peer that does not read no longer than for anything else that does not move. The deadline is moved when
// an eighth of the time is over, and not with every answer.
func (c *conn) Write(b []byte) (int, error) {
	if c.patience > 0 {
		until := time.Now().Add(c.patience) // by the system's clock, as all deadlines of sockets are
		if moved := until.UnixNano(); moved-c.writeUntil.Load() > int64(c.patience/8) {
			if err := c.SetWriteDeadline(until); err != nil {
				return 0, err
			}
			c.writeUntil.Store(moved)
		}
	}
	return c.Conn.Write(b)
}

// soon is when the next part of a body must be there.
func (c *conn) soon() time.Time { return time.Now().Add(c.bodies) }

// patientBody is the body of a request, whose next part is waited for no longer than that. It also holds for what the
// server does by itself: before it answers, it reads what is left.
type patientBody struct {
	io.ReadCloser
	conn *conn

	mu   sync.Mutex // guards what follows
	over bool       // the request: the connection is the next one's
}

// patient gives a request such a body. Done is called when the request is over.
func patient(c *conn, r *http.Request) (done func()) {
	if r.Body == nil || r.Body == http.NoBody || c.bodies <= 0 {
		return func() {}
	}
	b := &patientBody{ReadCloser: r.Body, conn: c}
	b.wait(c.soon())
	r.Body = b
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.over = true
	}
}

// wait sets until when a read may wait; zero for ever. A connection that takes no deadline is closed.
func (b *patientBody) wait(until time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.over {
		_ = b.conn.SetReadDeadline(until)
	}
}

// Read implements io.Reader. At the end the server watches the connection itself, and takes no time for that.
func (b *patientBody) Read(p []byte) (int, error) {
	b.wait(b.conn.soon())
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		b.wait(time.Time{})
	}
	return n, err
}
