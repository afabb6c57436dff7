package cli

import (
	"bytes"
	"io"
)

// Unquoted is where the standard library may write its log. Of each line it keeps what stands before the first quotation mark:
// net/http logs by itself what a server sends without being asked, up to 4 KiB of it, and a server that repeats what it was
// sent puts the credential there.
func Unquoted(w io.Writer) io.Writer { return unquoted{w} }

type unquoted struct{ io.Writer }

// Write implements io.Writer. The log package calls it once a line.
func (u unquoted) Write(line []byte) (int, error) {
	if before, _, quotes := bytes.Cut(line, []byte(`"`)); quotes {
		if _, err := u.Writer.Write(append(bytes.TrimRight(before, " "), '\n')); err != nil {
			return 0, err
		}
		return len(line), nil
	}
	return u.Writer.Write(line)
}
