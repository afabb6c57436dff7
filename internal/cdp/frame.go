package cdp

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// frameReader cuts a stream into NUL-delimited frames.
type frameReader struct {
	r   *bufio.Reader
	max int
}

func newFrameReader(r io.Reader, max int) *frameReader {
	return &frameReader{r: bufio.NewReaderSize(r, 64<<10), max: max}
}

// next returns one frame without its delimiter, in memory of its own. It holds at most what has arrived, so a
// declared or hoped-for size costs nothing. [io.EOF] is the end between two frames.
func (f *frameReader) next() ([]byte, error) {
	var frame []byte
	for {
		chunk, err := f.r.ReadSlice(0)
		if err == nil {
			chunk = chunk[:len(chunk)-1]
		}
		if len(chunk) > f.max-len(frame) {
			return nil, fmt.Errorf("%w: more than %d bytes", ErrFrameTooLarge, f.max)
		}
		switch {
		case err == nil && frame == nil:
			return bytes.Clone(chunk), nil
		case err == nil:
			return append(frame, chunk...), nil
		case errors.Is(err, bufio.ErrBufferFull):
			frame = append(frame, chunk...)
		case err == io.EOF && len(frame)+len(chunk) > 0:
			return nil, io.ErrUnexpectedEOF
		default:
			return nil, err
		}
	}
}
