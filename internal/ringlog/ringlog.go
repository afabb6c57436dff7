// Package ringlog keeps the newest part of a stream of bytes in files, read by offset while it is written.
//
// A log is a folder of segments, each named after the offset of its first byte. Offsets count from the first byte that was
// ever written and never begin anew. When there is more than is to be kept the oldest segment goes. A process that is killed
// loses nothing that a Write or Splice had returned for; what a full disk does not take is counted and its place is left out.
package ringlog

import (
	"context"
	"time"
)

// Options bound a log.
type Options struct {
	// Keep is how many bytes are kept at least; up to one Segment more are there. Required.
	Keep int64
	// Segment is the size of one file; default Keep/8, at least 64 KiB.
	Segment int64
}

// Chunk is a piece of a log.
type Chunk struct {
	Data   []byte
	Offset int64 // of Data[0]
	First  int64 // of the oldest byte that is kept
	End    int64 // behind the newest
}

// Reader reads a log. *Log is one.
type Reader interface {
	// Read returns up to limit bytes from offset on: at once when there are any, else when some come, or wait is over, or the
	// log is closed. A negative offset counts from the end. An offset that is not kept any more is moved to First, and one
	// behind the end to End: the Chunk says.
	Read(ctx context.Context, offset int64, limit int, wait time.Duration) (Chunk, error)
}
