package scrub

import (
	"bufio"
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/problem"
)

func (o Options) decodes() bool { return o.Compressed != egress.CompressedRefuse }

const (
	// maxCodings is how often a body may be compressed.
	maxCodings = 3
	// maxRatio is by how much a body may grow beyond the first freeRatio bytes. Text grows by ten, logs by fifty,
	// zeros by a thousand.
	maxRatio  = 250
	freeRatio = 1 << 20
)

// codingsOf are the codings of a body that are not identity, the outermost first.
func codingsOf(resp *http.Response) ([]string, error) {
	var out []string
	h := resp.Header
	content := h.Values("Content-Encoding")
	for i, list := range slices.Concat(content, h.Values("Transfer-Encoding"), resp.TransferEncoding) {
		for name := range strings.SplitSeq(list, ",") {
			name = strings.ToLower(strings.Trim(name, " \t"))
			switch {
			case name == "", name == "identity", name == "chunked" && i >= len(content):
				continue
			case name == "x-gzip":
				name = "gzip"
			}
			if name != "gzip" && name != "deflate" || len(out) == maxCodings {
				return nil, problem.New(problem.ResponseBlocked, askOperator,
					"the answer was held back: the service compressed it in a way that cannot be looked through")
			}
			out = append([]string{name}, out...)
		}
	}
	return out, nil
}

// undeclared refuses a body that is compressed once more than its header says: a client that recognises and undoes that
// would get text that was not scrubbed. A body whose header says nothing may be a file.
type undeclared struct {
	src     *bufio.Reader
	started bool
}

// Read implements io.Reader.
func (u *undeclared) Read(p []byte) (int, error) {
	if !u.started {
		u.started = true
		start, _ := u.src.Peek(4) // an error comes again
		if bytes.HasPrefix(start, []byte("\x1f\x8b")) || bytes.HasPrefix(start, []byte("\x28\xb5\x2f\xfd")) || isZlib(start) && u.inflates() {
			return 0, problem.New(problem.ResponseBlocked, askOperator,
				"the answer was held back: the service compressed it more often than it says")
		}
	}
	return u.src.Read(p)
}

// inflates says whether what begins like a zlib stream is one, and not a text that begins with the same two letters.
func (u *undeclared) inflates() bool {
	start, _ := u.src.Peek(512) // an error comes again
	plain, err := zlib.NewReader(bytes.NewReader(start))
	if err != nil {
		return errors.Is(err, zlib.ErrDictionary)
	}
	n, _ := plain.Read(make([]byte, 1)) // what it cannot read is no zlib
	return n > 0
}

// isZlib says whether a text begins as a zlib stream does (RFC 1950, 2.2), at whichever level and window.
func isZlib(start []byte) bool {
	return len(start) >= 2 && start[0]&15 == 8 && start[0]>>4 <= 7 && (int(start[0])<<8|int(start[1]))%31 == 0
}

// counter counts what is read.
type counter struct {
	io.Reader
	n int64
}

// Read implements io.Reader.
func (c *counter) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n += int64(n)
	return n, err
}

// decoder undoes one coding as it streams. It does not read before it is asked to.
type decoder struct {
	coding string
	src    counter
	limit  int64

	buffered *bufio.Reader
	plain    io.Reader
	n        int64
	err      error
}

// Read implements io.Reader.
func (d *decoder) Read(p []byte) (int, error) {
	if d.err != nil {
		return 0, d.err
	}
	n, err := d.read(p)
	d.n += int64(n)
	switch {
	case d.n > d.limit || d.n > freeRatio && d.n/maxRatio > d.src.n:
		// Nothing of what is too much is given.
		n, err = 0, problem.New(problem.ResponseBlocked, askOperator,
			"the service's compressed answer becomes too large to be looked through")
	case err == io.EOF:
		err = d.over()
	}
	d.err = err
	return n, err
}

func (d *decoder) read(p []byte) (int, error) {
	if d.plain == nil {
		d.buffered = bufio.NewReader(&d.src)
		if err := d.open(); err != nil {
			return 0, err
		}
	}
	n, err := d.plain.Read(p)
	return n, d.damaged(err)
}

// open reads the beginning. A body without a byte is empty, however it is compressed.
func (d *decoder) open() error {
	start, err := d.buffered.Peek(2)
	if len(start) == 0 {
		return err
	}
	switch {
	case d.coding == "gzip":
		d.plain, err = gzip.NewReader(d.buffered)
	case isZlib(start):
		d.plain, err = zlib.NewReader(d.buffered)
	default:
		// deflate is a zlib stream (RFC 9110, 8.4.1.2), but servers send the bare one as well.
		d.plain, err = flate.NewReader(d.buffered), nil
	}
	return d.damaged(err)
}

// damaged is an error of the format as a problem; what the source said stays what it is.
func (d *decoder) damaged(err error) error {
	switch err.(type) {
	case flate.CorruptInputError, flate.InternalError:
		return isDamaged(err)
	}
	switch err {
	case gzip.ErrHeader, gzip.ErrChecksum, zlib.ErrHeader, zlib.ErrChecksum, zlib.ErrDictionary:
		return isDamaged(err)
	}
	return err
}

func isDamaged(err error) error {
	return problem.Wrap(err, problem.ResponseBlocked, askOperator,
		"the service's compressed answer is damaged and cannot be looked through")
}

// over reads the source to its end, where its trailers are. There must be nothing else.
func (d *decoder) over() error {
	if _, err := d.buffered.ReadByte(); err != nil {
		return err
	}
	return isDamaged(errors.New("there is something behind its end"))
}
