package trawl

// graph is every way to write a value in a form. Node i stands before byte i of the value (in base64, before character
// i of the encoded value), and its edges are the ways to write what follows.
type graph [][]edge

// edge writes the next bytes of a value as a text.
type edge struct {
	takes int // bytes of the value, 1 to 4
	text  string
}

// maxTakes is the most bytes of an edge: those of a character in UTF-8.
const maxTakes = 4

// variant is one way in which one needle is written.
type variant struct {
	needle, form int
	graph        graph
}

// match is the most bytes at the start of data that are the value, or -1.
func (g graph) match(data []byte) int {
	// The offsets in data that each of the next nodes was reached at. No edge goes further than the ring is long.
	var ring [maxTakes + 1][]int
	ring[0] = []int{0}
	live := 1
	for i, edges := range g {
		here := i % len(ring)
		for _, at := range ring[here] {
			for _, e := range edges {
				end := at + len(e.text)
				if end > len(data) || string(data[at:end]) != e.text {
					continue
				}
				next := &ring[(i+e.takes)%len(ring)]
				if !contains(*next, end) {
					*next = append(*next, end)
					live++
				}
			}
		}
		live -= len(ring[here])
		ring[here] = ring[here][:0]
		if live == 0 {
			return -1
		}
	}
	longest := -1
	for _, end := range ring[len(g)%len(ring)] {
		longest = max(longest, end)
	}
	return longest
}

// contains looks from the end, where the newest are.
func contains(list []int, v int) bool {
	for i := len(list) - 1; i >= 0; i-- {
		if list[i] == v {
			return true
		}
	}
	return false
}

// span is the fewest and the most bytes of the value in this form.
func (g graph) span() (shortest, longest int) {
	low, high := make([]int, len(g)+1), make([]int, len(g)+1)
	for i := len(g) - 1; i >= 0; i-- {
		for n, e := range g[i] {
			l, h := low[i+e.takes]+len(e.text), high[i+e.takes]+len(e.text)
			if n == 0 || l < low[i] {
				low[i] = l
			}
			high[i] = max(high[i], h)
		}
	}
	return low[0], high[0]
}

// starts calls add with every text that the value can begin with, cut to the window. One text may come several times.
func (g graph) starts(add func([window]byte)) {
	var walk func(node, have int, text [window]byte)
	walk = func(node, have int, text [window]byte) {
		if have == window {
			add(text)
			return
		}
		for _, e := range g[node] {
			next := text
			walk(node+e.takes, have+copy(next[have:], e.text), next)
		}
	}
	walk(0, 0, [window]byte{})
}
