package cdp

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// wide is how much of a command the kernel holds between here and the browser, in bytes.
const wide = 1 << 20

// widen makes the pipe to the browser hold more. With every piece that Chromium reads of a command it looks through all that it
// has: in pieces of a megabyte that is a sixteenth of the work of the usual ones. Where the kernel refuses, or there is another
// kind of file, everything is as it was.
func widen(w io.Writer) {
	file, ok := w.(*os.File)
	if !ok {
		return
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { _, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, wide) })
}
