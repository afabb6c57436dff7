package session

import "io"

// drain keeps the end of what a jail's program prints, and looks through it. It must keep reading: a full pipe would block
// the program.
func (i *instance) drain(r io.Reader) {
	buf := make([]byte, 4<<10)
	for {
		n, err := r.Read(buf)
		_, _ = i.tail.Write(buf[:n]) // it never fails
		i.heard(buf[:n])
		if err != nil {
			return // the jail is gone, or the pipe was closed with it
		}
	}
}

// lines are the last lines that the program printed. It chose every byte of them.
func (i *instance) lines() []string { return i.tail.Lines(20, 300) }
