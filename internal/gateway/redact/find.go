package redact

import "bytes"

// finder looks for many patterns at once by the method of Wu and Manber: it looks at the last three bytes of a window
// as long as the shortest pattern, and learns from them how far the window can move. Most bytes are never looked at.
type finder struct {
	window   int
	shift    []uint8 // by the hash of three bytes
	buckets  map[uint16][][]byte
	patterns [][]byte
}

// hashBits keeps the table of shifts in the first cache of any processor.
const hashBits = 15

func hash(b []byte) uint16 {
	return uint16((uint32(b[0])<<10 ^ uint32(b[1])<<5 ^ uint32(b[2])) * 2654435761 >> (32 - hashBits))
}

// newFinder makes a finder, or nil when there is nothing to find. No pattern is shorter than [Shortest].
func newFinder(patterns [][]byte) *finder {
	if len(patterns) == 0 {
		return nil
	}
	f := &finder{window: len(patterns[0]), buckets: make(map[uint16][][]byte)}
	for _, p := range patterns {
		f.window = min(f.window, len(p))
	}
	f.window = min(f.window, 64)
	f.shift = bytes.Repeat([]byte{uint8(f.window - 2)}, 1<<hashBits)
	seen := make(map[string]bool, len(patterns))
	for _, p := range patterns {
		if seen[string(p)] {
			continue
		}
		seen[string(p)] = true
		f.patterns = append(f.patterns, p)
		for i := 0; i+3 <= f.window; i++ {
			h := hash(p[i : i+3])
			f.shift[h] = min(f.shift[h], uint8(f.window-3-i))
		}
		h := hash(p[f.window-3 : f.window])
		f.buckets[h] = append(f.buckets[h], p)
	}
	return f
}

// next is the start of the first pattern in text that starts at from or later; -1 when there is none.
func (f *finder) next(text []byte, from int) int {
	for i := from + f.window; i <= len(text); {
		h := hash(text[i-3 : i])
		if move := int(f.shift[h]); move > 0 {
			i += move
			continue
		}
		start := i - f.window
		for _, p := range f.buckets[h] {
			if bytes.HasPrefix(text[start:], p) {
				return start
			}
		}
		i++
	}
	return -1
}

// all are the places of all patterns, joined where they overlap.
func (f *finder) all(text []byte) []span {
	var out []span
	for start := f.next(text, 0); start >= 0; start = f.next(text, start+1) {
		h := hash(text[start+f.window-3 : start+f.window])
		end := start
		for _, p := range f.buckets[h] {
			if bytes.HasPrefix(text[start:], p) {
				end = max(end, start+len(p))
			}
		}
		out = append(out, span{start, end})
	}
	return merged(out)
}

func (f *finder) wipe() {
	for _, p := range f.patterns {
		clear(p)
	}
	clear(f.shift)
	clear(f.buckets)
}
