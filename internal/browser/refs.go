package browser

import (
	"strconv"
	"strings"

	"github.com/clawjail/clawjail/internal/problem"
)

// ref is a name that a snapshot gave to an element: e12, f1e12 within a frame, or ax7 of the accessibility tree.
type ref struct {
	ax     bool
	frame  int // 0 is the main frame
	number int
}

// maxRef bounds the numbers in refs.
const maxRef = 1 << 30

// parseRef reads a ref as [ref.String] writes it, and nothing else.
func parseRef(text string) (ref, error) {
	var r ref
	rest := text
	if after, ok := strings.CutPrefix(rest, "ax"); ok {
		r.ax, rest = true, after
	} else {
		if after, ok := strings.CutPrefix(rest, "f"); ok {
			digits, after, found := strings.Cut(after, "e")
			if r.frame, ok = refNumber(digits); !ok || !found {
				return ref{}, badRef(text)
			}
			rest = after
		} else if rest, ok = strings.CutPrefix(rest, "e"); !ok {
			return ref{}, badRef(text)
		}
	}
	var ok bool
	if r.number, ok = refNumber(rest); !ok {
		return ref{}, badRef(text)
	}
	return r, nil
}

// refNumber reads a number from 1 on, without sign, zeros before it or anything else.
func refNumber(digits string) (int, bool) {
	if digits == "" || len(digits) > 10 || digits[0] == '0' {
		return 0, false
	}
	for _, c := range []byte(digits) {
		if c < '0' || c > '9' {
			return 0, false
		}
	}
	n, err := strconv.Atoi(digits)
	return n, err == nil && n <= maxRef
}

func badRef(text string) error {
	return problem.New(problem.BadRequest, "take a snapshot, and use a ref as it stands there, such as e12, f1e12 or ax7",
		"%q is not a ref", bounded(text, 100))
}

// String is the ref as a snapshot writes it.
func (r ref) String() string {
	switch {
	case r.ax:
		return "ax" + strconv.Itoa(r.number)
	case r.frame > 0:
		return "f" + strconv.Itoa(r.frame) + "e" + strconv.Itoa(r.number)
	}
	return "e" + strconv.Itoa(r.number)
}

// stale is the error for a ref whose element is not there any more.
func stale(text string) error {
	return problem.New(problem.StaleRef, "take a new snapshot and use its refs",
		"the ref %s is not of an element that the page shows now", bounded(text, 100))
}

// axRefs are the refs of the accessibility tree: numbers for the browser's own ids of nodes, within one document. A
// number is not given twice.
type axRefs struct {
	last    int
	numbers map[int64]int
	nodes   map[int]int64
}

// maxAXRefs bounds what is kept of a page that makes new nodes for every snapshot.
const maxAXRefs = 100_000

func (a *axRefs) clear() { a.numbers, a.nodes = nil, nil }

// number is the ref's number of a node. A node without an element gets a number that nothing is found by.
func (a *axRefs) number(node int64) int {
	if n, ok := a.numbers[node]; ok && node != 0 {
		return n
	}
	if len(a.numbers) >= maxAXRefs {
		a.clear()
	}
	if a.numbers == nil {
		a.numbers, a.nodes = make(map[int64]int), make(map[int]int64)
	}
	a.last++
	if node != 0 {
		a.numbers[node], a.nodes[a.last] = a.last, node
	}
	return a.last
}
