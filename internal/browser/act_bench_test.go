//go:build unix

package browser

import "testing"

// BenchmarkAct measures whole actions. A click includes the grace of 250 ms in which it may lead somewhere.
func BenchmarkAct(b *testing.B) {
	s := play(b, `<input id=i><button id=b>x</button>`)
	for _, act := range []Act{
		{Kind: "hover", Selector: "#b"}, click("#b"), typing("#i", "x"), {Kind: "wait", Selector: "#b"}, {Kind: "evaluate", Fn: "1"},
	} {
		b.Run(act.Kind, func(b *testing.B) {
			for b.Loop() {
				s.do(act)
			}
		})
	}
}
