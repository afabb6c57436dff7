package trawl

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"sync"
)

// mostHits bounds what a recorder keeps. A run that has so many needs no more.
const mostHits = 10_000

// Recorder searches what passes by, in bounded memory: logs that are written to it and answers of HTTP servers. It may
// be used from several goroutines.
type Recorder struct {
	set *Set

	mu    sync.Mutex // guards what follows, and the streams
	open  map[*stream]bool
	hits  []Hit
	known map[Hit]bool // without offsets
	stats Stats
}

// Recorder makes one that has seen nothing.
func (s *Set) Recorder() *Recorder {
	return &Recorder{set: s, open: map[*stream]bool{}, known: map[Hit]bool{}}
}

// Hits are all so far, those in what is still being written included.
func (r *Recorder) Hits() []Hit {
	r.mu.Lock()
	defer r.mu.Unlock()
	for st := range r.open {
		r.add(st.found())
	}
	return append([]Hit(nil), r.hits...)
}

// Stats say how much has passed by.
func (r *Recorder) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stats
}

// add keeps hits that are new. The lock is held.
func (r *Recorder) add(hits []Hit) {
	for _, h := range hits {
		key := h
		key.Offset = 0
		if len(r.hits) < mostHits && !r.known[key] {
			r.known[key] = true
			r.hits = append(r.hits, h)
		}
	}
}

// Log searches what is written to it as one text. Writing never fails.
func (r *Recorder) Log(where string) io.Writer {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stats.Logs++
	return &recorded{r, r.begin(where)}
}

// begin makes a stream. The lock is held.
func (r *Recorder) begin(where string) *stream {
	st := &stream{set: r.set, where: where}
	r.open[st] = true
	return st
}

// recorded is a stream with the recorder's lock.
type recorded struct {
	recorder *Recorder
	stream   *stream
}

func (w *recorded) Write(p []byte) (int, error) {
	w.recorder.mu.Lock()
	defer w.recorder.mu.Unlock()
	w.recorder.stats.Bytes += int64(len(p))
	return w.stream.Write(p)
}

// end forgets the stream and keeps what it found. Ending twice does nothing.
func (w *recorded) end() {
	w.recorder.mu.Lock()
	defer w.recorder.mu.Unlock()
	if w.recorder.open[w.stream] {
		w.recorder.add(w.stream.found())
		delete(w.recorder.open, w.stream)
	}
}

// once searches a text that is complete.
func (r *Recorder) once(where string, text []byte) {
	hits := r.set.In(where, text)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stats.Bytes += int64(len(text))
	r.add(hits)
}

// Transport searches the head, the body and the trailer of every answer that comes through base, and the texts of its
// errors. Nil is http.DefaultTransport. Requests are not searched: they carry the caller's own key. A hit says the method
// and the path, and not the query.
//
// Requests lose their Accept-Encoding, so that the transport unpacks answers before they are searched. An answer that
// comes packed all the same counts as damaged.
func (r *Recorder) Transport(base http.RoundTripper) http.RoundTripper {
	if base == nil {
		base = http.DefaultTransport
	}
	return &transport{r, base}
}

type transport struct {
	recorder *Recorder
	base     http.RoundTripper
}

func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	where := fmt.Sprintf("the answer to %s %s", req.Method, req.URL.Path)
	if req.Header.Get("Accept-Encoding") != "" {
		req = req.Clone(req.Context())
		req.Header.Del("Accept-Encoding")
	}
	resp, err := t.base.RoundTrip(req)
	if err != nil {
		t.recorder.once(where+" (error)", []byte(err.Error()))
		return resp, err
	}
	var head bytes.Buffer
	fmt.Fprintf(&head, "%s %s\r\n", resp.Proto, resp.Status)
	_ = resp.Header.Write(&head) // a buffer takes everything
	t.recorder.once(where+" (head)", head.Bytes())
	t.recorder.mu.Lock()
	t.recorder.stats.Answers++
	if resp.Header.Get("Content-Encoding") != "" {
		t.recorder.stats.Damaged++
	}
	st := t.recorder.begin(where + " (body)")
	t.recorder.mu.Unlock()
	b := &body{ReadCloser: resp.Body, response: resp, to: &recorded{t.recorder, st}, where: where}
	resp.Body = b
	if w, ok := b.ReadCloser.(io.Writer); ok {
		resp.Body = &upgraded{b, w} // after 101 Switching Protocols the body is the connection
	}
	return resp, nil
}

// body is searched while it is read.
type body struct {
	io.ReadCloser
	response *http.Response
	to       *recorded
	where    string
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		_, _ = b.to.Write(p[:n]) // it never fails
	}
	if err != nil {
		b.end()
	}
	return n, err
}

func (b *body) Close() error {
	b.end()
	return b.ReadCloser.Close()
}

// end searches the trailer too, which is there when the body has ended.
func (b *body) end() {
	b.to.end()
	if len(b.response.Trailer) > 0 {
		var trailer bytes.Buffer
		_ = b.response.Trailer.Write(&trailer) // a buffer takes everything
		b.to.recorder.once(b.where+" (trailer)", trailer.Bytes())
	}
}

// upgraded is a body that can also be written to.
type upgraded struct {
	*body
	io.Writer
}
