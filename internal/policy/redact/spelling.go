package redact

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// text is what is looked for. Each of its letters stands as it is or escaped, whatever is done to the others: a page puts a part
// of an address through an encoder that leaves some, a browser encodes some more, and JSON or HTML around it the rest.
type text struct {
	plain   []byte // in small letters
	escaped []letter
	longest int // with the longest way to write each letter
}

// letter is one that somebody escapes.
type letter struct {
	at, size int      // in plain
	ways     [][]byte // to write it otherwise, in small letters
}

// isPlain says whether everybody leaves the byte as it is.
func isPlain(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.'
}

// A run of more backslashes than maxApart is one letter, all of it written in one way: each may be one, two or four, and no more
// than maxReadings of what that gives are kept.
const maxApart = (maxReadings - 1) / 3

// spelling makes texts. Letters that are the same share their ways.
type spelling map[string][][]byte

func (s spelling) text(plain []byte) *text {
	t := &text{plain: plain, longest: len(plain)}
	for at := 0; at < len(plain); {
		_, size := utf8.DecodeRune(plain[at:])
		if run := len(plain[at:]) - len(bytes.TrimLeft(plain[at:], `\`)); run > maxApart {
			size = run
		}
		if !isPlain(plain[at]) {
			ways := s.ways(string(plain[at : at+size]))
			t.escaped = append(t.escaped, letter{at, size, ways})
			t.longest += len(slices.MaxFunc(ways, func(a, b []byte) int { return len(a) - len(b) })) - size
		}
		at += size
	}
	return t
}

// begins are the bytes with which it can begin.
func (t *text) begins() (out []byte) {
	out = append(out, t.plain[0])
	if c := t.plain[0]; c >= 'a' && c <= 'z' {
		out = append(out, c-'a'+'A')
	}
	if len(t.escaped) > 0 && t.escaped[0].at == 0 {
		for _, way := range t.escaped[0].ways {
			out = append(out, way[0])
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Letters that JSON writes with a backslash and another one, and those that HTML has names for.
var (
	shortJSON = strings.NewReplacer("\"", `\"`, `\`, `\\`, "/", `\/`, "\b", `\b`, "\f", `\f`, "\n", `\n`, "\r", `\r`, "\t", `\t`)
	namesHTML = map[string][]string{"&": {"&amp;"}, "<": {"&lt;"}, ">": {"&gt;"}, `"`: {"&quot;"}, "'": {"&apos;", "&#039;"}}
)

// ways are how a letter is written: in addresses and posted forms, in JSON, in HTML, in JSON with HTML in it, and in JSON within
// a text of JSON.
func (s spelling) ways(of string) [][]byte {
	if ways, ok := s[of]; ok {
		return ways
	}
	if strings.HasPrefix(of, `\\`) { // a run
		for _, way := range s.ways(`\`) {
			s[of] = append(s[of], bytes.Repeat(way, len(of)))
		}
		return s[of]
	}
	var percent, units strings.Builder
	for i := range len(of) {
		fmt.Fprintf(&percent, "%%%02x", of[i])
	}
	r, _ := utf8.DecodeRuneInString(of) // what is no UTF-8 is U+FFFD to encoders of JSON
	for _, unit := range utf16.AppendRune(nil, r) {
		fmt.Fprintf(&units, `\u%04x`, unit)
	}
	json := []string{units.String(), shortJSON.Replace(of)}
	if names := namesHTML[of]; names != nil {
		for _, name := range append(slices.Clone(names), fmt.Sprintf("&#%d;", r), fmt.Sprintf("&#x%x;", r)) {
			json = append(json, name, strings.Replace(name, "&", `\u0026`, 1))
		}
	}
	ways := append(json, percent.String())
	for _, once := range json {
		ways = append(ways, shortJSON.Replace(once), strings.ReplaceAll(once, `\`, `\\`))
	}
	// In posted forms, and as a browser reads an address.
	if other := map[string]string{" ": "+", `\`: "/"}[of]; other != "" {
		ways = append(ways, other)
		for _, way := range s.ways(other) {
			ways = append(ways, string(way))
		}
	}
	slices.Sort(ways)
	out := make([][]byte, 0, len(ways))
	for _, way := range slices.Compact(ways) {
		if way != of {
			out = append(out, []byte(way))
		}
	}
	s[of] = out
	return out
}

// Bounds of what is tried, for values and texts that somebody has made so that much of them looks alike: the ways to read what is
// written up to one letter, the letters that one escape may be the first of, and the bytes before them that are compared.
const (
	maxReadings = 32
	maxFirsts   = 16
	maxCompared = 16 << 10
)

// whole is for all of a text, instead of the number of a letter.
const whole = -1

// along follows a text from its beginning on, or from one of its letters that is escaped: end is where the longest way to write
// it ends in raw, 0 if there is none, and more says whether raw ends before that is known.
func (t *text) along(raw []byte, number int) (end int, more bool) {
	at, letters, escaped := 0, t.escaped, number != whole
	if escaped {
		at, letters = t.escaped[number].at, t.escaped[number:]
	}
	var few [2][4]int
	ends, next := append(few[0][:0], 0), few[1][:0]
	// add goes on behind what agrees with a part of the text.
	add := func(from int, part []byte) {
		left := raw[from:]
		if len(left) < len(part) {
			more = more || starts(left, part[:len(left)])
			return
		}
		if len(next) < maxReadings && starts(left, part) && !slices.Contains(next, from+len(part)) {
			next = append(next, from+len(part))
		}
	}
	for at < len(t.plain) && len(ends) > 0 {
		size, ways := len(t.plain)-at, [][]byte(nil)
		switch {
		case len(letters) > 0 && letters[0].at == at:
			size, ways = letters[0].size, letters[0].ways
			letters = letters[1:]
		case len(letters) > 0:
			size = letters[0].at - at
		}
		next = next[:0]
		for _, from := range ends {
			if !escaped {
				add(from, t.plain[at:at+size])
			}
			for _, way := range ways {
				if from == len(raw) || raw[from] == way[0] {
					add(from, way)
				}
			}
		}
		ends, next, escaped = next, ends, false
		at += size
	}
	if len(ends) == 0 {
		return 0, more
	}
	return slices.Max(ends), more
}

// places are where texts have letters that may be escaped, for looking for the first escape of what is written in a mixture.
type places struct {
	marks  []byte // escapes begin with one of these
	behind [256][]place
	first  []place // letters with nothing before them
	before int     // the most that stands before such a letter
}

// place is an escaped letter of a text.
type place struct {
	*text
	number int
}

func newPlaces(texts []*text) *places {
	p := new(places)
	for _, t := range texts {
		for n, l := range t.escaped {
			p.before = max(p.before, l.at)
			if l.at == 0 {
				p.first = append(p.first, place{t, n})
			} else {
				p.behind[t.plain[l.at-1]] = append(p.behind[t.plain[l.at-1]], place{t, n})
			}
			for _, way := range l.ways {
				if bytes.IndexByte(p.marks, way[0]) < 0 {
					p.marks = append(p.marks, way[0])
				}
			}
		}
	}
	for _, list := range p.behind {
		// The place with the most before it begins first.
		slices.SortStableFunc(list, func(a, b place) int { return b.escaped[b.number].at - a.escaped[a.number].at })
	}
	return p
}

// next is the start of the first text in raw, at from or later and before to, of which a letter is escaped; -1 when there is none.
func (p *places) next(raw []byte, from, to int) int {
	found := -1
	last := min(len(raw), to+p.before) // no first escape of such a text is here or later
	var known [8]int                   // where the marks come next
	for at := from; ; at++ {
		mark := last
		for i, c := range p.marks {
			if known[i] < at || at == from {
				known[i] = last
				if n := bytes.IndexByte(raw[min(at, last):last], c); n >= 0 {
					known[i] = at + n
				}
			}
			mark = min(mark, known[i])
		}
		if mark >= last {
			return found
		}
		at = mark
		tried, compared := 0, 0
		try := func(l place) {
			before := l.plain[:l.escaped[l.number].at]
			start := at - len(before)
			if start < from || found >= 0 && start >= found || tried == maxFirsts || compared > maxCompared {
				return
			}
			for n := len(before) - 1; n >= 0; n-- {
				compared++
				if small(raw[start+n]) != before[n] {
					return
				}
			}
			tried++
			if end, _ := l.along(raw[at:], l.number); end > 0 {
				found = start
				last = min(last, found+p.before)
			}
		}
		if at > from {
			for _, l := range p.behind[small(raw[at-1])] {
				try(l)
			}
		}
		for _, l := range p.first {
			try(l)
		}
	}
}
