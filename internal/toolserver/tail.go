package toolserver

import (
	"io"
	"strings"
	"sync"
)

const maxTail = 64 << 10 // bytes

// tail keeps the last of what a server prints beside its messages.
type tail struct {
	mu   sync.Mutex
	data []byte
}

// Write implements io.Writer. It never fails.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(p) >= maxTail {
		t.data = append(t.data[:0], p[len(p)-maxTail:]...)
		return len(p), nil
	}
	if over := len(t.data) + len(p) - maxTail; over > 0 {
		t.data = append(t.data[:0], t.data[over:]...)
	}
	t.data = append(t.data, p...)
	return len(p), nil
}

// drain reads a pipe to its end.
func (t *tail) drain(from io.Reader) {
	// A fault of this pipe is one of the server, and the other pipe tells it.
	_, _ = io.CopyBuffer(struct{ io.Writer }{t}, struct{ io.Reader }{from}, make([]byte, 8<<10))
}

// text is what was printed last, without what would move a terminal's cursor.
func (t *tail) text(most int) string {
	t.mu.Lock()
	text := string(t.data)
	t.mu.Unlock()
	text = visible(text, maxTail)
	if len(text) > most {
		text = text[len(text)-most:]
		if _, after, found := strings.Cut(text, "\n"); found {
			text = after
		}
	}
	return strings.ToValidUTF8(text, "")
}
