package api

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime/debug"
	"time"
)

// patient waits for a body only as long as one may take, and not at all for one that nobody reads: a request that
// announces a body and never sends it would otherwise be answered never, and keep the server from ending.
func (a *API) patient(limit time.Duration, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer a.panicked(r)
		if r.ContentLength == 0 {
			next.ServeHTTP(w, r)
			return
		}
		control := http.NewResponseController(w)
		until := func(at time.Time) {
			if err := supported(control.SetReadDeadline(at)); err != nil {
				a.Log.Debug("bound the body of a request", "error", err) // the connection is gone
			}
		}
		until(time.Now().Add(limit)) // by the system's clock, which is the connection's
		body := &timedBody{ReadCloser: r.Body, ended: func() { until(time.Time{}) }}
		r.Body = body
		next.ServeHTTP(w, r)
		if body.done {
			return
		}
		// The answer is sent after this, and the server reads what it was promised first. A small body that is there already
		// is taken now: a bound that stays behind it would end the requests that come next on the connection.
		var err error
		if r.ContentLength > 0 && r.ContentLength <= maxTake {
			until(time.Now().Add(takeLimit))
			_, err = io.Copy(io.Discard, body)
		}
		switch {
		case body.done:
		case errors.Is(err, http.ErrBodyReadAfterClose): // the server has taken it, for an answer that it has begun to send
			until(time.Time{})
		default:
			until(time.Now().Add(-time.Second)) // the connection ends with the answer
		}
	})
}

// A body that nobody read is taken when it is of a length that the server takes itself, and as long as one takes that is on
// its way.
const (
	maxTake   = 256 << 10
	takeLimit = 50 * time.Millisecond
)

// timedBody takes the bound away when the body has come to its end: the request may last longer.
type timedBody struct {
	io.ReadCloser
	ended func()
	done  bool
}

// Read implements io.Reader.
func (b *timedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF && !b.done {
		b.done = true
		b.ended()
	}
	return n, err
}

// panicked logs the type of a panic of a handler and the stack, never its value. The connection is broken off as ever.
func (a *API) panicked(r *http.Request) {
	p := recover()
	if p == nil {
		return
	}
	if p != http.ErrAbortHandler {
		a.Log.Error("a request ended in a panic", "method", r.Method, "route", r.Pattern, "panic", fmt.Sprintf("%T", p), "stack", string(debug.Stack()))
	}
	panic(http.ErrAbortHandler)
}
