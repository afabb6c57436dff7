package redact

import (
	"bytes"
	"slices"
	"strings"
)

// part is a part of an address, as a browser writes it.
type part struct {
	kept string // left as it is, beside what is plain
	ends string // what ends the part where it stands as it is
}

// Parts of addresses, as Chromium writes them. What it leaves is less than the URL standard has it leave in a path.
const (
	inUser = iota
	inPath
	inQuery
	inFragment
)

// chromiums are the parts of an address in the order in which they stand there.
func chromiums() [4]part {
	return [4]part{
		inUser:     {kept: "!$%&()*+,~"},
		inPath:     {kept: "!$%&'()*+,/:;=@[]~", ends: "?#"},
		inQuery:    {kept: "!$%&()*+,/:;=?@[\\]^`{|}~", ends: "#"},
		inFragment: {kept: "!#$%&'()*+,/:;=?@[\\]^_{|}~"},
	}
}

// browserForms are how a browser writes a value that a page puts into an address as it is: what begins the next part
// there begins it, or is encoded when the page sets that one part.
func browserForms(out [][]byte, value []byte) [][]byte {
	if !slices.ContainsFunc(value, func(c byte) bool { return !isPlain(c) }) {
		return out
	}
	for at := inUser; at <= inFragment; at++ {
		out = append(out, spelled(value, at, false))
		if slices.ContainsFunc(value, func(c byte) bool { return c == '?' || c == '#' }) {
			out = append(out, spelled(value, at, true))
		}
	}
	return out
}

// spelled writes a value from a part of an address on; with set it is all of it in that part.
func spelled(value []byte, at int, set bool) []byte {
	parts := chromiums()
	out := make([]byte, 0, 3*len(value))
	for _, c := range value {
		switch {
		case !set && strings.IndexByte(parts[at].ends, c) >= 0:
			out = append(out, c)
			if at = inQuery; c == '#' {
				at = inFragment
			}
		case isPlain(c) || strings.IndexByte(parts[at].kept, c) >= 0:
			out = append(out, c)
		case c == '\\' && at == inPath:
			out = append(out, '/')
		default:
			out = append(out, '%', highDigits[c>>4], highDigits[c&15])
		}
	}
	return out
}

// fileForms are how a browser and clawjail write a value into the name of a file: what no name may have becomes _. One of
// which too little is left would be found in ordinary names.
func fileForms(out [][]byte, value []byte) [][]byte {
	for _, set := range []string{`<>:"|?*`, `<>:"|?*/\`, `<>:"|?*/\~`} {
		left := len(value)
		form := bytes.Clone(value)
		for i, c := range value {
			if strings.IndexByte(set, c) >= 0 {
				form[i] = '_'
				left--
			}
		}
		if left >= Shortest && left < len(value) {
			out = append(out, form)
		}
	}
	return out
}
