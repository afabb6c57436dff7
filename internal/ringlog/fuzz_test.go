package ringlog

import "testing"

// The names in a folder are read as segments only when they are written the one way that this package writes them.
func FuzzSegmentName(f *testing.F) {
	for _, s := range []string{"0000000000000000000.log", "9223372036854775807.log", "9223372036854775808.log", "-000000000000000001.log", "x", ".log", "0.log"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		start, ok := parseSegment(name)
		if !ok {
			return
		}
		if start < 0 || (segment{start: start}).name() != name {
			t.Errorf("%q was read as %d", name, start)
		}
	})
}
