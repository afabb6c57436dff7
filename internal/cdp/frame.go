package cdp

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/clawjail/clawjail/internal/skim"
)

const (
	// ownOfFrame is what a message may have before the room is asked. Every event that pages and sessions are made of is
	// smaller.
	ownOfFrame = 4 << 20
	// endlessFrame is where a message is not read on, not even to leave it out.
	endlessFrame = 1 << 30
)

// firstBlock and lastBlock are the sizes of the pieces in which a message is held while it arrives. Each is four times the one
// before it: what has arrived is copied once, when it is whole.
const firstBlock, lastBlock = 1 << 10, 4 << 20

// assembly is one message while it arrives. One that is too large, or has no room, is looked at and not held.
type assembly struct {
	max     int
	share   share
	blocks  [][]byte       // with room behind the last one
	size    int            // of them together
	skimmed *skim.Envelope // not nil: it is left out
	noRoom  bool           // for want of room
}

func newAssembly(max int, room Room) *assembly {
	return &assembly{max: max, share: share{room: room, own: ownOfFrame}}
}

// space is where the next bytes go; see [assembly.took].
func (a *assembly) space() []byte {
	n := len(a.blocks)
	if n == 0 {
		a.blocks = append(a.blocks, make([]byte, 0, firstBlock))
	} else if last := a.blocks[n-1]; len(last) == cap(last) {
		a.blocks = append(a.blocks, make([]byte, 0, min(4*cap(last), lastBlock)))
	}
	last := a.blocks[len(a.blocks)-1]
	return last[len(last):cap(last)]
}

// took says that n bytes were put there.
func (a *assembly) took(n int) {
	last := &a.blocks[len(a.blocks)-1]
	*last = (*last)[:len(*last)+n]
	a.size += n
	a.noRoom = !a.share.fit(int64(a.size), 0)
	if a.noRoom || a.size > a.max {
		a.skimmed = new(skim.Envelope)
		for _, block := range a.blocks {
			a.skimmed.Look(block)
		}
		a.blocks = nil
		a.share.end()
	}
}

// add takes the next piece, which it copies.
func (a *assembly) add(piece []byte) {
	for len(piece) > 0 && a.skimmed == nil {
		n := copy(a.space(), piece)
		a.took(n)
		piece = piece[n:]
	}
	if a.skimmed != nil {
		a.skimmed.Look(piece)
	}
}

// frame is the whole message. The assembly holds nothing afterwards.
func (a *assembly) frame() []byte {
	if len(a.blocks) == 1 {
		return a.blocks[0]
	}
	frame := make([]byte, 0, a.size)
	for n, block := range a.blocks {
		frame = append(frame, block...)
		a.blocks[n] = nil
	}
	a.blocks = nil
	return frame
}

// readFrom takes all that a reader has.
func (a *assembly) readFrom(r io.Reader) error {
	for a.skimmed == nil {
		n, err := r.Read(a.space())
		if n > 0 {
			a.took(n)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
	piece := make([]byte, 32<<10)
	for a.skimmed.Size < endlessFrame {
		n, err := r.Read(piece)
		a.skimmed.Look(piece[:n])
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: more than %d bytes", ErrFrameTooLarge, endlessFrame)
}

// refusal is the error for the sender of the message, or for the caller that waits for it.
func (a *assembly) refusal(what string) *Message {
	if a.noRoom {
		return ErrorReply(CodeServerError, "There is no room for a %s of %d MiB: too many large messages are under way. "+
			"Wait until some have ended, or use smaller ones.", what, megabytes(a.skimmed.Size))
	}
	return ErrorReply(CodeServerError, "The %s has %d MiB, and one may have %d MiB. Use smaller ones.", what,
		megabytes(a.skimmed.Size), megabytes(int64(a.max)))
}

func megabytes(bytes int64) int64 { return (bytes + 1<<20 - 1) >> 20 }

// frameReader cuts a stream into NUL-delimited frames.
type frameReader struct {
	r    *bufio.Reader
	max  int
	room func() Room
}

func newFrameReader(r io.Reader, max int, room func() Room) *frameReader {
	return &frameReader{r: bufio.NewReaderSize(r, 64<<10), max: max, room: room}
}

// next returns one frame without its delimiter, in memory of its own, or what was seen of one that is left out. It holds at
// most what has arrived, so a declared or hoped-for size costs nothing. [io.EOF] is the end between two frames.
func (f *frameReader) next() (frame []byte, left *assembly, err error) {
	var a *assembly
	for {
		chunk, err := f.r.ReadSlice(0)
		if err == nil {
			chunk = chunk[:len(chunk)-1]
			if a == nil && len(chunk) <= f.max {
				return bytes.Clone(chunk), nil, nil
			}
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			if a != nil {
				a.share.end()
			}
			if err == io.EOF && (a != nil || len(chunk) > 0) {
				err = io.ErrUnexpectedEOF
			}
			return nil, nil, err
		}
		if a == nil {
			a = newAssembly(f.max, f.room())
		}
		a.add(chunk)
		if err == nil {
			a.share.end() // from here on the queue that keeps the frame counts it
			if a.skimmed != nil {
				return nil, a, nil
			}
			return a.frame(), nil, nil
		}
	}
}
