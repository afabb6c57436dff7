package console

import (
	"math"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/clawjail/clawjail/internal/testenv/property"
)

func plain(v float64) string { return strconv.FormatFloat(v, 'g', 6, 64) }

func TestBarsStayInsideTheBoxWhateverTheValues(t *testing.T) {
	value := rapid.OneOf(rapid.Float64(), rapid.Float64Range(0, 1000), rapid.SampledFrom([]float64{0, math.NaN(), math.Inf(1), math.Inf(-1), -1, math.MaxFloat64, math.SmallestNonzeroFloat64}))
	property.Check(t, func(t *rapid.T) {
		points := make([]point, rapid.IntRange(0, 400).Draw(t, "days"))
		for n := range points {
			points[n] = point{Day: "day " + strconv.Itoa(n), First: value.Draw(t, "first"), Second: value.Draw(t, "second")}
		}
		c := newChart("Requests", points, value.Draw(t, "limit"), plain)
		lowest := map[int]int{} // the upper end of the first series, by place
		last := -1
		for _, b := range c.Bars {
			if b.X < 0 || b.Y < 0 || b.Width < 1 || b.Height < 1 || b.X+b.Width > chartWidth || b.Y+b.Height > chartHeight {
				t.Fatalf("a bar is outside: %+v", b)
			}
			if !b.Second {
				if b.X <= last {
					t.Fatalf("bars overlap: %+v begins before %d", b, last)
				}
				lowest[b.X] = b.Y
			} else if y, below := lowest[b.X]; below && b.Y+b.Height != y {
				t.Fatalf("the second series is not on top of the first: %+v, which ends at %d", b, y)
			}
			last = b.X + b.Width - 1
			if b.Second {
				last = max(last, b.X)
			}
		}
		if c.Lined && (c.Limit < 0 || c.Limit > chartHeight) {
			t.Fatalf("the limit is at %d", c.Limit)
		}
		if c.Empty != (len(c.Bars) == 0) {
			t.Fatalf("empty is %v, with %d bars", c.Empty, len(c.Bars))
		}
		for _, text := range []string{c.Said, c.Max, c.Sum} {
			if strings.Contains(text, "NaN") || strings.Contains(text, "Inf") {
				t.Fatalf("it says %q", text)
			}
		}
	})
}

func TestAChartIsSaidAndDrawnToScale(t *testing.T) {
	c := newChart("Tokens a day", []point{{"2026-01-01", 30, 10}, {"2026-01-02", 0, 0}, {"2026-01-03", 80, 0}}, 160, plain)
	want := []bar{
		{X: 166, Y: 1000 - 188, Width: 668, Height: 188 - 0, Label: "2026-01-01: 40"},
		{X: 166, Y: 750, Width: 668, Height: 63, Second: true, Label: "2026-01-01: 40"},
		{X: 2166, Y: 500, Width: 668, Height: 500, Label: "2026-01-03: 80"},
	}
	want[0].Y, want[0].Height = 750+63, 250-63
	if len(c.Bars) != len(want) {
		t.Fatalf("the bars are %+v", c.Bars)
	}
	for n := range want {
		if c.Bars[n] != want[n] {
			t.Errorf("bar %d is %+v and not %+v", n, c.Bars[n], want[n])
		}
	}
	if !c.Lined || c.Limit != 0 {
		t.Errorf("the limit is at %d", c.Limit)
	}
	if c.Said != "Tokens a day from 2026-01-01 to 2026-01-03: 120 in all, most on 2026-01-03: 80; the limit is 160" {
		t.Errorf("it says %q", c.Said)
	}
}

func TestNumbersAreWrittenForPeople(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -1000: "-1,000", math.MaxInt64: "9,223,372,036,854,775,807"} {
		if got := grouped(n); got != want {
			t.Errorf("%d is %q", n, got)
		}
	}
	for v, want := range map[float64]string{0: "0", 0.5: "0.5000", 1: "1.00", 0.999: "0.9990", 1.999: "2.00", 1234.565: "1,234.57", 1e15: "1e+15"} {
		if got := money(v); got != want {
			t.Errorf("%g is %q", v, got)
		}
	}
}
