package texts

import (
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

// TailBytes is how much a Tail keeps.
const TailBytes = 64 << 10

// Tail keeps the last TailBytes of what is written to it. It grows as needed, since most programs print a few lines. The
// zero value is ready, and several goroutines may use it.
type Tail struct {
	mu    sync.Mutex
	data  []byte
	start int // of the oldest byte, once data is full
}

// Write implements io.Writer. It never fails.
func (t *Tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	written := len(p)
	if room := TailBytes - len(t.data); room > 0 {
		n := min(room, len(p))
		t.data = append(t.data, p[:n]...)
		p = p[n:]
	}
	for len(p) > 0 {
		n := copy(t.data[t.start:], p)
		t.start = (t.start + n) % TailBytes
		p = p[n:]
	}
	return written, nil
}

// String is what is kept, oldest first.
func (t *Tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.data[t.start:]) + string(t.data[:t.start])
}

// Lines are the last lines that are not blank: up to limit lines, each of up to width characters. They are safe to show,
// since characters that would move a cursor or colour a terminal are replaced.
func (t *Tail) Lines(limit, width int) []string {
	all := strings.FieldsFunc(strings.ToValidUTF8(t.String(), string(utf8.RuneError)), func(r rune) bool { return r == '\n' || r == '\r' })
	var out []string
	for _, line := range slices.Backward(all) {
		if len(out) == limit {
			break
		}
		line = strings.TrimRight(Printable(strings.ReplaceAll(line, "\t", " "), utf8.RuneError), " ")
		if line != "" {
			out = append(out, Fit(line, width))
		}
	}
	slices.Reverse(out)
	return out
}
