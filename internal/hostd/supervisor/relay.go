package supervisor

import (
	"bytes"
	"io"
	"sync"
)

// longestLine is cut there, so that a child without line ends takes no memory.
const longestLine = 16 << 10

// relay writes whole lines with a prefix, never two of different children into one.
type relay struct {
	out    io.Writer
	mu     *sync.Mutex // of out
	prefix string
	rest   []byte // a line that has not ended
}

// Write implements io.Writer. It takes everything: that the output is gone must not end the child.
func (r *relay) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		i := bytes.IndexByte(p, '\n')
		take := i
		if i < 0 {
			take = len(p)
		}
		take = min(take, longestLine-len(r.rest))
		r.rest = append(r.rest, p[:take]...)
		p = p[take:]
		switch {
		case len(p) > 0 && p[0] == '\n':
			p = p[1:]
			r.flushLine()
		case len(r.rest) >= longestLine:
			r.flushLine()
		}
	}
	return n, nil
}

// flush writes what has not ended with a line end.
func (r *relay) flush() {
	if len(r.rest) > 0 {
		r.flushLine()
	}
}

func (r *relay) flushLine() {
	line := append(append([]byte(r.prefix), r.rest...), '\n')
	r.rest = r.rest[:0]
	r.mu.Lock()
	defer r.mu.Unlock()
	_, _ = r.out.Write(line)
}
