package session

import (
	"io"
	"strings"
	"sync"
	"unicode"
)

const (
	// tailBytes is how much of the output of a browser is kept.
	tailBytes = 64 << 10
	// shownLines and shownWidth bound what is shown of it with an ended session, in lines and characters.
	shownLines = 20
	shownWidth = 300
)

// tail keeps the end of what a jail's program prints. It grows as needed: most browsers print a few lines.
type tail struct {
	heard func([]byte) // gets everything as it is read; may be nil, must not wait, and must not keep the slice

	mu    sync.Mutex
	data  []byte
	start int // of the oldest byte, once data is full
}

// drain reads until the end or an error. It must keep reading: a full pipe would block the program.
func (t *tail) drain(r io.Reader) {
	buf := make([]byte, 4<<10)
	for {
		n, err := r.Read(buf)
		t.write(buf[:n])
		if t.heard != nil {
			t.heard(buf[:n])
		}
		if err != nil {
			return // the jail is gone, or the pipe was closed with it
		}
	}
}

func (t *tail) write(p []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if room := tailBytes - len(t.data); room > 0 {
		n := min(room, len(p))
		t.data = append(t.data, p[:n]...)
		p = p[n:]
	}
	for len(p) > 0 {
		n := copy(t.data[t.start:], p)
		t.start = (t.start + n) % tailBytes
		p = p[n:]
	}
}

// bytes are what is kept, oldest first.
func (t *tail) bytes() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]byte, 0, len(t.data))
	out = append(out, t.data[t.start:]...)
	return append(out, t.data[:t.start]...)
}

// lines are the last lines, safe to show: the program in the jail chose every byte of them, so what would move a cursor or
// colour a terminal is replaced.
func (t *tail) lines() []string {
	all := strings.FieldsFunc(string(t.bytes()), func(c rune) bool { return c == '\n' || c == '\r' })
	out := make([]string, 0, shownLines)
	for _, line := range all[max(0, len(all)-shownLines):] {
		plain := []rune(strings.Map(func(c rune) rune {
			switch {
			case c == '\t':
				return ' '
			case !unicode.IsPrint(c):
				return unicode.ReplacementChar
			}
			return c
		}, strings.ToValidUTF8(line, "\uFFFD")))
		if len(plain) > shownWidth {
			plain = append(plain[:shownWidth:shownWidth], '…')
		}
		out = append(out, string(plain))
	}
	return out
}
