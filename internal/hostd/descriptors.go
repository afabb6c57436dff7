package hostd

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// stdioCount is the number of descriptors of a jail's stdio.
const stdioCount = 3

// sendWithFiles writes a frame and some descriptors, for example the caller's ends of a jail's pipes. The descriptors travel
// with the header, which is small enough never to be split. They stay open here: the caller closes them.
func sendWithFiles(conn *net.UnixConn, frame []byte, files ...*os.File) error {
	fds := make([]int, len(files))
	release, err := borrow(fds, files...)
	if err != nil {
		return err
	}
	defer release()
	n, _, err := conn.WriteMsgUnix(frame[:headerSize], unix.UnixRights(fds...), nil)
	if err == nil && n != headerSize {
		err = io.ErrShortWrite
	}
	if err == nil {
		_, err = conn.Write(frame[headerSize:])
	}
	return err
}

// borrow duplicates descriptors, so that they stay valid even if somebody closes the files meanwhile. Fd() is
// not used: it would take a pipe out of the runtime's poller for both of its owners.
func borrow(into []int, files ...*os.File) (release func(), err error) {
	var taken []int
	release = func() {
		for _, fd := range taken {
			_ = unix.Close(fd) // a duplicate: nothing is lost
		}
	}
	for i, f := range files {
		raw, err := f.SyscallConn()
		if err != nil {
			release()
			return nil, err
		}
		var dupErr error
		err = raw.Control(func(fd uintptr) {
			into[i], dupErr = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
		})
		if err = errors.Join(err, dupErr); err != nil {
			release()
			return nil, fmt.Errorf("duplicate a descriptor: %w", err)
		}
		taken = append(taken, into[i])
	}
	return release, nil
}

// readFrameWithFiles reads one frame and whatever descriptors come with it. They are the caller's to close, also
// beside an error. package net receives them close-on-exec.
func readFrameWithFiles(conn *net.UnixConn, limit int) (body []byte, files []*os.File, err error) {
	var header [headerSize]byte
	oob := make([]byte, unix.CmsgSpace(2*stdioCount*4))
	for got := 0; got < headerSize; {
		n, oobn, flags, _, err := conn.ReadMsgUnix(header[got:], oob)
		if oobn > 0 {
			received, err := parseFiles(oob[:oobn])
			files = append(files, received...)
			if err != nil {
				return nil, files, err
			}
		}
		switch {
		case err != nil:
			return nil, files, err
		case n == 0:
			return nil, files, io.ErrUnexpectedEOF
		case flags&unix.MSG_CTRUNC != 0:
			return nil, files, errors.New("more descriptors came than were expected")
		}
		got += n
	}
	body, err = readBody(conn, header, limit)
	return body, files, err
}

func parseFiles(oob []byte) (files []*os.File, err error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("read a control message: %w", err)
	}
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			continue // another kind of message, without descriptors
		}
		for _, fd := range fds {
			// Pipes that do not block belong to the runtime's poller: a Close then ends a Read.
			_ = syscall.SetNonblock(fd, true)
			files = append(files, os.NewFile(uintptr(fd), "jail"))
		}
	}
	return files, nil
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close() // nothing was written to it
		}
	}
}
