package testenv

import (
	"bytes"
	"sync"
)

// Buffer keeps what several write to it, such as a log.
type Buffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write never fails.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

// String is all that was written.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
