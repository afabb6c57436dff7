package gateway

import (
	"bytes"
	"errors"
)

// maxOpening bounds how much of a tunnel is read before it is known what it is.
const maxOpening = 16 << 10

// openingKind is what a tunnel begins with.
type openingKind uint8

const (
	undecided openingKind = iota
	isTLS
	isHTTP
	isOther
)

// opening is what the first bytes of a tunnel say.
type opening struct {
	kind       openingKind
	serverName string // of a ClientHello; "" when it has none
	err        error  // what is wrong, when kind is isOther
}

var (
	errTooLong   = errors.New("no complete ClientHello within 16 KiB")
	errNotHello  = errors.New("TLS that does not begin with a ClientHello")
	errMalformed = errors.New("malformed ClientHello")
	errTwoNames  = errors.New("ClientHello with more than one server name")
	errUnknown   = errors.New("unknown protocol")
)

// classify looks at the bytes read so far. It asks for more by leaving the
// question undecided, and decides at the latest after maxOpening bytes.
func classify(data []byte) opening {
	if len(data) == 0 {
		return opening{}
	}
	var o opening
	if data[0] == recordHandshake {
		o = classifyTLS(data)
	} else {
		o = classifyHTTP(data)
	}
	if o.kind == undecided && len(data) >= maxOpening {
		return opening{kind: isOther, err: errTooLong}
	}
	return o
}

// longestMethod is generous: registered methods have up to 17 letters.
const longestMethod = 24

// classifyHTTP accepts what begins like a request line: a method in capital
// letters and a space. The HTTP server judges the rest. In particular blank
// lines before it, which some servers skip, are not HTTP here.
func classifyHTTP(data []byte) opening {
	for i, c := range data {
		switch {
		case c == ' ' && i > 0:
			return opening{kind: isHTTP}
		case c < 'A' || c > 'Z' || i >= longestMethod:
			return opening{kind: isOther, err: errUnknown}
		}
	}
	return opening{}
}

// The parts of TLS that are needed to find a server name (RFC 8446 §4.1.2, §5.1;
// RFC 6066 §3).
const (
	recordHandshake     = 22
	handshakeHello      = 1
	extensionServerName = 0
	nameTypeHost        = 0
	maxRecord           = 1 << 14
)

// classifyTLS puts the ClientHello together, which may lie in several records,
// and reads its server name.
func classifyTLS(data []byte) opening {
	other := func(err error) opening { return opening{kind: isOther, err: err} }
	var message []byte
	for len(data) > 0 {
		if data[0] != recordHandshake || len(data) > 1 && data[1] != 3 {
			return other(errNotHello)
		}
		if len(data) < 5 {
			return opening{}
		}
		size := int(data[3])<<8 | int(data[4])
		if size == 0 || size > maxRecord {
			return other(errMalformed)
		}
		fragment := data[5:]
		whole := len(fragment) >= size
		if whole {
			fragment = fragment[:size]
		}
		message = append(message, fragment...)
		if len(message) > 0 && message[0] != handshakeHello {
			return other(errNotHello)
		}
		if len(message) >= 4 {
			length := int(message[1])<<16 | int(message[2])<<8 | int(message[3])
			if length > maxOpening {
				return other(errTooLong)
			}
			if len(message)-4 >= length {
				name, err := serverName(message[4 : 4+length])
				if err != nil {
					return other(err)
				}
				return opening{kind: isTLS, serverName: name}
			}
		}
		if !whole {
			return opening{}
		}
		data = data[5+size:]
	}
	return opening{}
}

// field reads a vector that is preceded by its length in lengthBytes bytes.
func field(data []byte, lengthBytes int) (value, rest []byte, ok bool) {
	if len(data) < lengthBytes {
		return nil, nil, false
	}
	n := 0
	for _, b := range data[:lengthBytes] {
		n = n<<8 | int(b)
	}
	data = data[lengthBytes:]
	if len(data) < n {
		return nil, nil, false
	}
	return data[:n], data[n:], true
}

// serverName finds the host name in the body of a ClientHello; "" when there is
// none. Anything that two programs could read differently is an error.
func serverName(hello []byte) (string, error) {
	const versionAndRandom = 2 + 32
	if len(hello) < versionAndRandom {
		return "", errMalformed
	}
	rest := hello[versionAndRandom:]
	for _, lengthBytes := range []int{1, 2, 1} { // session id, cipher suites, compression
		var ok bool
		if _, rest, ok = field(rest, lengthBytes); !ok {
			return "", errMalformed
		}
	}
	if len(rest) == 0 {
		return "", nil // no extensions at all
	}
	extensions, rest, ok := field(rest, 2)
	if !ok || len(rest) != 0 {
		return "", errMalformed
	}
	name, found := "", false
	for len(extensions) > 0 {
		if len(extensions) < 2 {
			return "", errMalformed
		}
		kind := int(extensions[0])<<8 | int(extensions[1])
		var body []byte
		if body, extensions, ok = field(extensions[2:], 2); !ok {
			return "", errMalformed
		}
		if kind != extensionServerName {
			continue
		}
		if found {
			return "", errTwoNames
		}
		found = true
		var err error
		if name, err = hostName(body); err != nil {
			return "", err
		}
	}
	return name, nil
}

// hostName reads the server name extension, which must hold one host name.
func hostName(body []byte) (string, error) {
	list, rest, ok := field(body, 2)
	if !ok || len(rest) != 0 || len(list) == 0 || list[0] != nameTypeHost {
		return "", errMalformed
	}
	name, rest, ok := field(list[1:], 2)
	switch {
	case !ok || len(name) == 0 || bytes.IndexByte(name, 0) >= 0:
		return "", errMalformed
	case len(rest) != 0:
		return "", errTwoNames
	}
	return string(name), nil
}
