package trawl

import (
	"encoding/binary"
	"errors"
	"slices"
)

// The search for many texts at once is that of Wu and Manber (A fast algorithm for multi-pattern searching, 1994):
// of every window of the data only the last block is looked at, and a table says how far on the next window may be
// in which some text can start. In data that resembles no value, five of six bytes are never looked at.

const (
	window    = MinValue // bytes at the start of a text that the index knows
	block     = 3        // bytes that are looked up
	tableBits = 17
	// maxStarts bounds the index. A value of 64 bytes has some hundreds of starts in all forms.
	maxStarts = 1 << 20
)

// index says where in data some variant may start.
type index struct {
	shift  []uint8          // by hash of a block: bytes to the next possible start
	starts map[uint64][]int // by the first bytes of a text: numbers of variants, ascending
}

func newIndex(variants []variant) (index, error) {
	x := index{shift: make([]uint8, 1<<tableBits), starts: map[uint64][]int{}}
	for i := range x.shift {
		x.shift[i] = window - block + 1
	}
	for number, v := range variants {
		v.graph.starts(func(text [window]byte) {
			key := binary.LittleEndian.Uint64(text[:])
			if slices.Contains(x.starts[key], number) || len(x.starts) > maxStarts {
				return
			}
			x.starts[key] = append(x.starts[key], number)
			for end := block; end <= window; end++ {
				h := hash(uint32(text[end-3]) | uint32(text[end-2])<<8 | uint32(text[end-1])<<16)
				x.shift[h] = min(x.shift[h], uint8(window-end))
			}
		})
	}
	if len(x.starts) > maxStarts {
		return index{}, errors.New("the values can be written in too many ways; search for fewer at a time")
	}
	return x, nil
}

// hash multiplies a block with the golden ratio, and keeps the best mixed bits.
func hash(b uint32) uint32 { return b * 0x9E3779B1 >> (32 - tableBits) }

// next is the first offset at or after from and below limit at which variants may start, and these; or -1.
func (x *index) next(data []byte, from, limit int) (int, []int) {
	shift := x.shift[:1<<tableBits]
	// end is the last byte of the window.
	last := min(len(data)-1, limit-1+window-1)
	for end := from + window - 1; end <= last; {
		// One load of four bytes is faster than three of one.
		skip := shift[hash(binary.LittleEndian.Uint32(data[end-3:])>>8)]
		if skip > 0 {
			end += int(skip)
			continue
		}
		start := end - (window - 1)
		if variants := x.starts[binary.LittleEndian.Uint64(data[start:])]; variants != nil {
			return start, variants
		}
		end++
	}
	return -1, nil
}

// find calls found for every value that starts below limit, in the order of their starts. Where a needle is written in
// a way that several forms have, the first form counts.
func (s *Set) find(data []byte, limit int, found func(v *variant, start, end int)) {
	for from := 0; ; {
		start, numbers := s.index.next(data, from, limit)
		if start < 0 {
			return
		}
		done := -1 // variants are in the order of their needles
		for _, number := range numbers {
			v := &s.variants[number]
			if v.needle == done {
				continue
			}
			if length := v.graph.match(data[start:]); length >= 0 {
				done = v.needle
				found(v, start, start+length)
			}
		}
		from = start + 1
	}
}
