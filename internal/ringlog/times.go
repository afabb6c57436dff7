package ringlog

import (
	"encoding/binary"
	"io"
	"math"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Mark says when the bytes of a log were written, from an offset up to the next mark.
type Mark struct {
	Offset int64 `json:"offset"`
	At     int64 `json:"at"` // nanoseconds of Unix time
}

const (
	timesSuffix = ".times"
	markSize    = 16
	// A segment has at most firstMarks marks, and one more for each bytesPerMark that were written to it.
	firstMarks, bytesPerMark = 1024, 128
)

// timesName is the file with the marks of a segment.
func (s segment) timesName() string { return strings.TrimSuffix(s.name(), segmentSuffix) + timesSuffix }

// maxMarks is how many marks a segment may have.
func (s segment) maxMarks(written int64) int64 { return firstMarks + written/bytesPerMark }

// note marks the end of the newest segment, where bytes have just been written. Those that get no mark, for want of room, have
// that of the bytes before. l.writing is held.
func (l *Log) note() {
	l.mu.Lock()
	s := l.pieces[len(l.pieces)-1]
	end := l.end
	l.mu.Unlock()
	if l.times == nil {
		f, err := l.root.OpenFile(s.timesName(), os.O_RDWR|os.O_CREATE|unix.O_NONBLOCK, 0o600)
		if err != nil {
			return
		}
		info, err := f.Stat()
		if err != nil || !info.Mode().IsRegular() {
			_ = f.Close() // nothing was written to it
			return
		}
		l.times, l.marks = f, info.Size()/markSize
	}
	if l.marks >= s.maxMarks(s.size) {
		return
	}
	var mark [markSize]byte
	binary.BigEndian.PutUint64(mark[:8], uint64(end))
	binary.BigEndian.PutUint64(mark[8:], uint64(l.options.Now().UnixNano()))
	if n, err := l.times.WriteAt(mark[:], l.marks*markSize); n == markSize && err == nil {
		l.marks++ // else the next one takes its place
	}
}

// leaveTimes is done with the marks of the newest segment.
func (l *Log) leaveTimes() {
	if l.times != nil {
		_ = l.times.Close() // everything is with the kernel, and is not forced to the disk
		l.times, l.marks = nil, 0
	}
}

// Marks implements Reader.
func (l *Log) Marks(c Chunk) []Mark {
	l.mu.Lock()
	_, s, _ := l.pieces.at(c.Offset, l.end, 1)
	closed := l.closed
	l.mu.Unlock()
	if closed {
		return files{l.dir}.Marks(c)
	}
	return readMarks(l.root, s, c)
}

// Marks implements Reader.
func (f files) Marks(c Chunk) []Mark {
	root, err := os.OpenRoot(f.dir)
	if err != nil {
		return nil
	}
	defer root.Close() // only read from
	all, err := scan(root)
	if err != nil || len(all) == 0 {
		return nil
	}
	_, s, _ := all.at(c.Offset, all[len(all)-1].end(), 1)
	return readMarks(root, s, c)
}

// readMarks reads the marks of a piece of a segment. Damaged ones are left out: nothing but times is lost with them.
func readMarks(root *os.Root, s segment, c Chunk) []Mark {
	end := c.Offset + int64(len(c.Data))
	if len(c.Data) == 0 || s.size == 0 || c.Offset < s.start || end > s.end() {
		return nil
	}
	f, err := root.OpenFile(s.timesName(), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	defer f.Close() // only read from
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return nil
	}
	data, err := io.ReadAll(io.LimitReader(f, s.maxMarks(s.size)*markSize))
	if err != nil {
		return nil
	}
	return marksIn(data, c.Offset, end)
}

// marksIn are the marks of the bytes from begin to end. The first may be of bytes before, and is at begin then.
func marksIn(data []byte, begin, end int64) (out []Mark) {
	last := int64(-1)
	for ; len(data) >= markSize; data = data[markSize:] {
		offset, at := binary.BigEndian.Uint64(data[:8]), binary.BigEndian.Uint64(data[8:])
		if offset > math.MaxInt64 || at > math.MaxInt64 || int64(offset) <= last {
			continue
		}
		if last = int64(offset); last >= end {
			break
		}
		if last <= begin {
			out = append(out[:0], Mark{begin, int64(at)})
			continue
		}
		out = append(out, Mark{last, int64(at)})
	}
	return out
}

// parseTimes reads the name of a file with marks, as that of its segment.
func parseTimes(name string) (segmentName string, ok bool) {
	digits, ok := strings.CutSuffix(name, timesSuffix)
	if !ok {
		return "", false
	}
	_, ok = parseSegment(digits + segmentSuffix)
	return digits + segmentSuffix, ok
}
