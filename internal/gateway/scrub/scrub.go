// Package scrub takes a credential out of the answer to the request that it went into: out of the header, out of the
// body as it streams, and out of the trailers.
//
// It covers values as they are and in the encodings of package redact. It is for accidents, such as a page that repeats
// the header it was asked with; a server that wants to give the credential away can. The limits of it are in
// docs/scrubbing.md, which the tests of this package write. An answer that cannot be looked through is not passed on.
package scrub

import (
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strings"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/policy/redact"
	"github.com/clawjail/clawjail/internal/problem"
)

// DefaultMaxDecoded is what a compressed body may become by default, in bytes.
const DefaultMaxDecoded = 256 << 20

// Options are the settings of a service.
type Options struct {
	Scrub      egress.Scrub      // redact when it is empty
	Compressed egress.Compressed // decode when it is empty
	// MaxDecoded bounds a body that arrives compressed, in bytes after decoding; DefaultMaxDecoded when it is zero.
	MaxDecoded int64
}

// Validate reports everything that is wrong.
func (o Options) Validate() error {
	var errs []error
	switch o.Scrub {
	case "", egress.ScrubRedact, egress.ScrubBlock, egress.ScrubOff:
	default:
		errs = append(errs, fmt.Errorf("scrub is %q, not redact, block or off", o.Scrub))
	}
	switch o.Compressed {
	case "", egress.CompressedDecode, egress.CompressedRefuse:
	default:
		errs = append(errs, fmt.Errorf("compressed is %q, not decode or refuse", o.Compressed))
	}
	if o.MaxDecoded < 0 {
		errs = append(errs, fmt.Errorf("max decoded is %d bytes", o.MaxDecoded))
	}
	return errors.Join(errs...)
}

func (o Options) maxDecoded() int64 {
	if o.MaxDecoded == 0 {
		return DefaultMaxDecoded
	}
	return o.MaxDecoded
}

// PrepareRequest changes the header of a request, so that its answer can be looked through: it comes whole, and is not
// compressed by a server that keeps to the standard. With scrubbing off nothing is changed.
func PrepareRequest(h http.Header, o Options) {
	if o.Scrub == egress.ScrubOff {
		return
	}
	// A value that is cut by ranges, or was there before a difference to it, would not be seen. An upgraded connection is
	// no answer any more.
	for _, name := range []string{"Range", "If-Range", "A-Im", "Te"} {
		h.Del(name)
	}
	if h.Get("Upgrade") != "" {
		for _, name := range []string{"Upgrade", "Connection", "Http2-Settings"} {
			h.Del(name)
		}
	}
	h.Set("Accept-Encoding", "identity")
}

// Response makes an answer lose the values: they are replaced or, with block, end it. Its error is a
// [problem.Error] that is for the caller in place of the answer: then nothing of the answer may be passed on. The caller
// closes the body of the answer in any case.
//
// A value in the body is found as it streams, after the header has been passed on. With block, and when a compressed
// body is damaged or too large, reading it fails then, and so must the answer: as a transfer that broke off, never as one
// that is short and complete. httputil.ReverseProxy does this by itself.
//
// Trailers are clean once the body has been read to its end or closed. They are read from resp and not from a copy.
func Response(resp *http.Response, v *redact.Values, o Options) error {
	if err := o.Validate(); err != nil {
		return problem.Wrap(err, problem.ResponseBlocked, askOperator,
			"the answer was held back: the settings of the service are invalid")
	}
	if o.Scrub == egress.ScrubOff || v.Empty() && v.Skipped() == 0 {
		return nil
	}
	if err := searchable(resp, v); err != nil {
		return err
	}
	s := &scrubber{resp: resp, values: v, block: o.Scrub == egress.ScrubBlock}
	if err := s.header(resp.Header); err != nil {
		return err
	}
	// Names of trailers that were announced; their values come later.
	if err := s.header(resp.Trailer); err != nil {
		return err
	}
	status := v.Text(resp.Status)
	if status != resp.Status && s.block {
		return s.found()
	}
	resp.Status = status
	if v.Wiped() { // meanwhile, so that the rest was not found
		return wiped(redact.ErrWiped)
	}
	if hasNoBody(resp) {
		return nil
	}
	return s.wrap(o)
}

const askOperator = "Do not try again: an operator has to change the service (clawjail service)."

// searchable says why an answer cannot be looked through.
func searchable(resp *http.Response, v *redact.Values) error {
	kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil {
		kind = strings.ToLower(resp.Header.Get("Content-Type"))
	}
	switch {
	case v.Skipped() > 0:
		return problem.New(problem.ResponseBlocked, askOperator+" A longer credential can be looked for.",
			"the answer was held back: the service's credential is shorter than %d bytes and cannot be looked for", redact.Shortest)
	case resp.StatusCode == http.StatusSwitchingProtocols:
		return problem.New(problem.ResponseBlocked, "Use the service without WebSockets and other upgrades.",
			"the service changed to another protocol, in which its credential cannot be looked for")
	case resp.StatusCode == http.StatusPartialContent, resp.StatusCode == http.StatusIMUsed,
		strings.HasPrefix(kind, "multipart/byteranges"):
		return problem.New(problem.ResponseBlocked, "Ask for the whole answer, without Range.",
			"the service sent a part of its answer, in which its credential cannot be looked for")
	}
	return nil
}

// hasNoBody says whether an answer ends with its header, whatever its header says.
func hasNoBody(resp *http.Response) bool {
	return resp.Body == nil || resp.Body == http.NoBody && len(resp.Trailer) == 0 ||
		resp.StatusCode == http.StatusNoContent || resp.StatusCode == http.StatusNotModified ||
		resp.Request != nil && resp.Request.Method == http.MethodHead
}

// describing are the headers that are about the bytes of a body, which are others when it is changed.
func describing() []string {
	return []string{
		"Etag", "Content-Md5", "Digest", "Repr-Digest", "Content-Digest", "Signature", "Signature-Input", "X-Goog-Hash",
		"X-Amz-Checksum-Crc32", "X-Amz-Checksum-Crc32c", "X-Amz-Checksum-Crc64nvme", "X-Amz-Checksum-Sha1",
		"X-Amz-Checksum-Sha256",
	}
}

// scrubber is the work on one answer.
type scrubber struct {
	resp   *http.Response
	values *redact.Values
	block  bool
}

// header takes the values out of a header or of trailers, or says that they are there. A name with a value in it is no
// name to keep.
func (s *scrubber) header(h http.Header) error {
	for name, list := range h {
		if s.values.Has(name) {
			if s.block {
				return s.found()
			}
			delete(h, name)
			continue
		}
		for i, value := range list {
			clean := s.values.Text(value)
			if clean != value && s.block {
				return s.found()
			}
			list[i] = clean
		}
	}
	return nil
}

func wiped(err error) error {
	return problem.Wrap(err, problem.ResponseBlocked, "Try again.",
		"the answer was held back: it came after the credential was discarded")
}

func (s *scrubber) found() error {
	return problem.New(problem.ResponseBlocked, "Do not try again: the service repeats the credential it is used with.",
		"the answer was held back because it has the service's credential in it")
}
