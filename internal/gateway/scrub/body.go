package scrub

import (
	"bufio"
	"errors"
	"io"
	"net/http"
	"sync"

	"github.com/clawjail/clawjail/internal/policy/redact"
	"github.com/clawjail/clawjail/internal/problem"
)

// wrap puts the search between the answer and its reader.
func (s *scrubber) wrap(o Options) error {
	resp := s.resp
	codings, err := codingsOf(resp)
	if err != nil {
		return err
	}
	if len(codings) > 0 && !o.decodes() {
		return problem.New(problem.ResponseBlocked, askOperator+" Its setting compressed can be decode.",
			"the answer was held back: the service compressed it although it was asked not to")
	}
	src := io.Reader(resp.Body)
	for _, coding := range codings {
		src = &decoder{coding: coding, src: counter{Reader: src}, limit: o.maxDecoded()}
	}
	if len(resp.Header.Values("Content-Encoding")) > 0 {
		src = &undeclared{src: bufio.NewReader(src)}
	}
	if !s.block || len(codings) > 0 {
		for _, name := range describing() {
			resp.Header.Del(name)
		}
		resp.Header.Del("Content-Length")
		resp.Header.Del("Content-Encoding")
		resp.ContentLength = -1
		resp.TransferEncoding = []string{"chunked"}
	}
	resp.Header.Del("Transfer-Encoding")
	resp.Header.Del("Accept-Ranges") // ranges are not asked for
	resp.Body = &body{scrubber: s, src: s.values.NewReader(src, redact.StreamOptions{Block: s.block}), closer: resp.Body}
	return nil
}

// body is a body without the values.
type body struct {
	*scrubber
	closer io.Closer

	mu  sync.Mutex // held while reading, guards what follows
	src io.Reader
	err error
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return 0, b.err
	}
	n, err := b.src.Read(p)
	if err != nil {
		b.err = b.ended(err)
	}
	return n, b.err
}

// ended is what an error of the source means to a reader. Trailers are there now.
func (b *body) ended(err error) error {
	trailers := b.trailers()
	switch {
	case err == io.EOF:
		if trailers != nil {
			return trailers
		}
		return io.EOF
	case errors.Is(err, redact.ErrFound):
		return b.found()
	case errors.Is(err, redact.ErrWiped):
		return wiped(err)
	}
	return err
}

// trailers takes the values out of the trailers that there are.
func (b *body) trailers() error {
	err := b.header(b.resp.Trailer)
	if b.values.Wiped() {
		err = wiped(redact.ErrWiped)
	}
	if err != nil {
		clear(b.resp.Trailer)
	}
	return err
}

// Close implements io.Closer. It may make the source read its trailers.
func (b *body) Close() error {
	err := b.closer.Close()
	// A reader at the same time looks at the trailers itself when it ends, which is now.
	if b.mu.TryLock() {
		defer b.mu.Unlock()
		if b.err == nil {
			b.err = http.ErrBodyReadAfterClose
		}
		// No reader is left to tell; what was found is gone.
		_ = b.trailers()
	}
	return err
}
