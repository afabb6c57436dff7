package redact

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"slices"
	"sort"
)

// finder looks for many patterns at once by the method of Wu and Manber: it looks at the last three bytes of a window
// as long as the shortest pattern, and learns from them how far the window can move. Most bytes are never looked at.
// The case of ASCII letters does not count: servers and pages write what they repeat in capitals.
type finder struct {
	window   int
	longest  int
	held     int          // how much is held back: longest, rounded up, so that it does not tell how long a value is
	lines    bool         // no pattern goes beyond a control character
	width    uint         // of a hash, in bits
	shift    []uint8      // by the hash of three bytes
	tails    []tail       // in the order of their hashes
	patterns [][]byte     // in small letters
	texts    []*text      // the same, with the ways to write their letters
	starting [256][]*text // by their first byte
	escapes  *places
}

// tail is a pattern under the hash of the last three bytes of its window.
type tail struct {
	hash    uint32
	pattern []byte
}

// The table of shifts has a place for about every tenth hash, so that few bytes look like others. The largest is still
// in the first cache of any processor; a small one is made faster than a short answer is read.
const (
	fewestBits = 10
	maxBits    = 15
	sparsity   = 10
)

// hash is that of the three bytes before end; there are four.
func (f *finder) hash(text []byte, end int) uint32 {
	return f.mixed(binary.LittleEndian.Uint32(text[end-4:]) >> 8)
}

// mixed is the hash of three bytes. The bit in which capital and small letters differ is set in all of them.
func (f *finder) mixed(three uint32) uint32 { return (three | 0x202020) * 2654435761 >> (32 - f.width) }

// small is an ASCII letter as a small one, and any other byte as it is.
func small(c byte) byte {
	if c-'A' < 26 {
		return c | 0x20
	}
	return c
}

// starts says whether text starts with a pattern.
func starts(text, pattern []byte) bool {
	if len(text) < len(pattern) {
		return false
	}
	for i, c := range pattern {
		if small(text[i]) != c {
			return false
		}
	}
	return true
}

// newFinder makes a finder, or nil when there is nothing to find. No pattern is shorter than [Shortest]. The patterns are
// the finder's from then on.
func newFinder(patterns [][]byte) *finder {
	if len(patterns) == 0 {
		return nil
	}
	for _, p := range patterns {
		for i, c := range p {
			p[i] = small(c)
		}
	}
	f := &finder{window: min(len(patterns[0]), 64), patterns: unique(patterns), lines: true}
	letters := spelling{}
	for _, p := range f.patterns {
		t := letters.text(p)
		f.texts = append(f.texts, t)
		f.window = min(f.window, len(p))
		f.longest = max(f.longest, t.longest)
		for _, c := range t.begins() {
			f.starting[c] = append(f.starting[c], t)
		}
		f.lines = f.lines && bytes.IndexFunc(p, isControl) < 0
	}
	f.escapes = newPlaces(f.texts)
	f.held = max(fewestHeld, 1<<bits.Len(uint(f.longest-1)))
	entries := len(f.patterns) * (f.window - 2)
	f.width = uint(min(max(bits.Len(uint(entries*sparsity)), fewestBits), maxBits))
	f.shift = bytes.Repeat([]byte{uint8(f.window - 2)}, 1<<f.width)
	f.tails = make([]tail, 0, len(f.patterns))
	for _, p := range f.patterns {
		// The first three bytes have none before them.
		h := f.mixed(uint32(p[0]) | uint32(p[1])<<8 | uint32(p[2])<<16)
		f.shift[h] = min(f.shift[h], uint8(f.window-3))
		for end := 4; end <= f.window; end++ {
			h = f.hash(p, end)
			f.shift[h] = min(f.shift[h], uint8(f.window-end))
		}
		f.tails = append(f.tails, tail{h, p})
	}
	slices.SortStableFunc(f.tails, func(a, b tail) int { return int(a.hash) - int(b.hash) })
	return f
}

// ending are the patterns whose windows end in a hash.
func (f *finder) ending(h uint32) []tail {
	i := sort.Search(len(f.tails), func(i int) bool { return f.tails[i].hash >= h })
	end := i
	for end < len(f.tails) && f.tails[end].hash == h {
		end++
	}
	return f.tails[i:end]
}

// next is the start of the first pattern in text, however its letters are written, that starts at from or later; -1 when there is
// none.
func (f *finder) next(text []byte, from int) int {
	plain := f.nextPlain(text, from)
	to := len(text)
	if plain >= 0 {
		to = plain
	}
	if escaped := f.escapes.next(text, from, to); escaped >= 0 && escaped < to {
		return escaped
	}
	return plain
}

// nextPlain is next for patterns of which no letter is escaped.
func (f *finder) nextPlain(text []byte, from int) int {
	for i := from + f.window; i <= len(text); {
		h := f.hash(text, i)
		if move := int(f.shift[h]); move > 0 {
			i += move
			continue
		}
		start := i - f.window
		for _, t := range f.ending(h) {
			if starts(text[start:], t.pattern) {
				return start
			}
		}
		i++
	}
	return -1
}

// endOf is where the longest pattern ends that starts at start; start when none does.
func (f *finder) endOf(text []byte, start int) int {
	end := 0
	for _, t := range f.starting[text[start]] {
		some, _ := t.along(text[start:], whole)
		end = max(end, some)
	}
	return start + end
}

// settled is the first index at from or later where a pattern could start that needs more than there is, whatever stands there.
// A reader who sees what is held back learns nothing of the patterns: only where lines end, and not what is in them, moves it.
func (f *finder) settled(text []byte, from int) int {
	at := max(from, len(text)-f.held+1)
	if f.lines && at < len(text) {
		at += 1 + bytes.LastIndexFunc(text[at:], isControl)
	}
	return min(at, len(text))
}

// fewestHeld is held back at least.
const fewestHeld = 64

// isControl says whether a character is one that ends lines and events of a stream.
func isControl(c rune) bool { return c < ' ' }

// opens is the first index in the unsettled part of text where [Shortest] bytes of a pattern stand, and no whole one; the length of text
// when there is none. Later bytes do not count, so that the sender does not learn whether they go on as the pattern does.
func (f *finder) opens(text []byte, whole []span) int {
	for start := f.settled(text, 0); start+Shortest <= len(text); start++ {
		if i := slices.IndexFunc(whole, func(s span) bool { return s.start <= start && start < s.end }); i >= 0 {
			start = whole[i].end - 1
			continue
		}
		if f.begins(text[start : start+Shortest]) {
			return start
		}
	}
	return len(text)
}

// undecided is the first index at from or later where a pattern could start that needs more than there is; the length of
// text when there is none.
func (f *finder) undecided(text []byte, from int) int {
	for start := max(from, len(text)-f.longest+1); start < len(text); start++ {
		if f.begins(text[start:]) {
			return start
		}
	}
	return len(text)
}

// begins says whether text is the beginning of a pattern, and not all of it.
func (f *finder) begins(raw []byte) bool {
	return slices.ContainsFunc(f.starting[raw[0]], func(t *text) bool {
		_, more := t.along(raw, whole)
		return more
	})
}

// all are the places of all patterns, joined where they overlap.
func (f *finder) all(text []byte) []span {
	var out []span
	for start := f.next(text, 0); start >= 0; start = f.next(text, start+1) {
		out = append(out, span{start, f.endOf(text, start)})
	}
	return merged(out)
}

func (f *finder) wipe() {
	for _, p := range f.patterns {
		clear(p)
	}
	for _, t := range f.texts {
		for _, l := range t.escaped {
			for _, way := range l.ways {
				clear(way)
			}
		}
	}
	clear(f.shift)
	clear(f.tails)
	clear(f.starting[:])
}
