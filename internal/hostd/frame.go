package hostd

import (
	"encoding/binary"
	"fmt"
	"io"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	jsonv1 "github.com/go-json-experiment/json/v1"

	"github.com/clawjail/clawjail/internal/problem"
)

// A frame is a length of four bytes, big endian, and JSON of that length.
const (
	headerSize = 4
	// maxRequest bounds what a caller may send. The largest request is a Create with jail.MaxHomeFiles bytes
	// of staged files, which base64 makes a third longer.
	maxRequest = 2 << 20
	// maxAnswer bounds what the client reads. The largest answer is a list of jails.
	maxAnswer = 32 << 20
)

// request is the one frame of a caller.
type request struct {
	Protocol  int            `json:"protocol"`
	Operation Operation      `json:"op"`
	Arguments jsontext.Value `json:"args"`
}

// answer is the one frame of the host daemon: a result or an error.
type answer struct {
	Result jsontext.Value `json:"result,omitzero"`
	Error  *wireError     `json:"error,omitzero"`
}

// durations is how a time.Duration stands in JSON: as a number of nanoseconds.
func durations() json.Options { return jsonv1.FormatDurationAsNano(true) }

// strict refuses members that are not known. Duplicate names, names in another case, invalid UTF-8 and data
// after the value are refused by the package json itself.
func strict() json.Options { return json.JoinOptions(durations(), json.RejectUnknownMembers(true)) }

// decodeRequest reads the body of a request frame.
func decodeRequest(body []byte) (request, error) {
	var r request
	if err := json.Unmarshal(body, &r, strict()); err != nil {
		return request{}, badJSON(err)
	}
	if r.Protocol != protocolVersion {
		return request{}, problem.New(problem.Conflict, "restart clawjail, so that both halves are of one version",
			"the caller speaks version %d of the protocol, this host daemon version %d", r.Protocol, protocolVersion)
	}
	return r, nil
}

// decodeArguments reads the arguments of one operation. They are required, also when they are empty: {}.
func decodeArguments[A any](r request) (A, error) {
	var a A
	if r.Arguments.Kind() != '{' {
		return a, problem.New(problem.BadJSON, "send an object", "the arguments of %s are missing", r.Operation)
	}
	if err := json.Unmarshal(r.Arguments, &a, strict()); err != nil {
		return a, badJSON(err)
	}
	return a, nil
}

func badJSON(err error) error {
	return problem.Wrap(err, problem.BadJSON, "both halves of clawjail must be of one version", "the request is not understood")
}

// readFrame reads one frame of at most limit bytes.
func readFrame(r io.Reader, limit int) ([]byte, error) {
	var header [headerSize]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return nil, err
	}
	return readBody(r, header, limit)
}

// readBody reads what follows a header. The buffer grows with what arrives, so that a length alone takes no
// memory.
func readBody(r io.Reader, header [headerSize]byte, limit int) ([]byte, error) {
	n := int64(binary.BigEndian.Uint32(header[:]))
	if n > int64(limit) {
		return nil, problem.New(problem.BadRequest, "send less", "a frame of %d bytes is larger than %d", n, limit)
	}
	body, err := io.ReadAll(io.LimitReader(r, n))
	if err == nil && int64(len(body)) < n {
		err = io.ErrUnexpectedEOF
	}
	return body, err
}

// encodeFrame makes one frame of at most limit bytes.
func encodeFrame(v any, limit int, options ...json.Options) ([]byte, error) {
	body, err := json.Marshal(v, append(options, durations())...)
	if err != nil {
		return nil, err
	}
	if len(body) > limit {
		return nil, problem.New(problem.BadRequest, "send less", "a frame of %d bytes is larger than %d", len(body), limit)
	}
	frame := make([]byte, headerSize, headerSize+len(body))
	binary.BigEndian.PutUint32(frame, uint32(len(body)))
	return append(frame, body...), nil
}

// encodeAnswer makes the frame that answers a request. It cannot fail: what cannot be encoded becomes an error
// that can. Text that is not UTF-8, which a foreign tool may have said, is made so.
func encodeAnswer(result any, err error) []byte {
	tolerant := jsontext.AllowInvalidUTF8(true)
	if err == nil {
		var a answer
		if a.Result, err = json.Marshal(result, durations(), tolerant); err == nil {
			var frame []byte
			if frame, err = encodeFrame(a, maxAnswer, tolerant); err == nil {
				return frame
			}
		}
		err = fmt.Errorf("encode the answer: %w", err)
	}
	frame, err2 := encodeFrame(answer{Error: toWire(err)}, maxAnswer, tolerant)
	if err2 != nil { // details that have no JSON form, or are huge
		body := `{"error":{"code":"internal","message":"the answer cannot be encoded","text":"the answer cannot be encoded"}}`
		frame = append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
	}
	return frame
}
