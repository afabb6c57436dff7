package console

import (
	"math"
	"strings"
)

// The box that charts are drawn in. A page stretches it to the width that there is.
const (
	chartWidth  = 3000
	chartHeight = 1000
	// minBar is the height of the lowest bar that can still be seen.
	minBar = 15
)

// bar is one rectangle of a chart, within its box.
type bar struct {
	X, Y, Width, Height int
	Second              bool // it is of the second series
	Label               string
}

// chart is a bar chart as a page draws it. All of it is decided here: the page only writes it down.
type chart struct {
	Title string
	Box   string // the viewBox
	Bars  []bar
	Limit int  // where the line of the limit is
	Lined bool // there is such a line
	// Most is the value at the top, First and Last are the days at the ends, and Sum is all of it.
	Max, First, Last, Sum string
	Legend                string // what the two series are, where there are two
	Said                  string // for those who cannot see it
	Empty                 bool   // there is nothing to show
}

// point is a day with the values of one or two series, which are stacked.
type point struct {
	Day           string
	First, Second float64
}

// newChart draws the days of a series. Values that are no number, or below zero, count as zero. say writes a value for people; limit is
// a line across, if it is above zero.
func newChart(title string, points []point, limit float64, say func(float64) string) chart {
	out := chart{Title: title, Box: "0 0 3000 1000", Empty: true}
	if len(points) == 0 {
		out.Said = title + ": nothing"
		return out
	}
	points = append([]point(nil), points...)
	var top, sum float64
	topDay := points[0].Day
	for n := range points {
		p := &points[n]
		p.First, p.Second = amount(p.First), amount(p.Second)
		sum = amount(sum + p.First + p.Second)
		if whole := amount(p.First + p.Second); whole > top {
			top, topDay = whole, p.Day
		}
	}
	out.Empty = top == 0
	out.First, out.Last, out.Max, out.Sum = points[0].Day, points[len(points)-1].Day, say(top), say(sum)
	scale := top
	if limit = amount(limit); limit > 0 {
		scale = max(top, limit)
		out.Lined, out.Limit = true, chartHeight-share(limit, scale)
	}
	for n, p := range points {
		left, right := n*chartWidth/len(points), (n+1)*chartWidth/len(points)
		gap := (right - left) / 6
		one := bar{X: left + gap, Width: max(1, right-left-2*gap), Label: p.Day + ": " + say(amount(p.First+p.Second))}
		whole := share(amount(p.First+p.Second), scale)
		upper := min(whole, share(p.Second, scale))
		one.Y, one.Height = chartHeight-whole+upper, whole-upper
		if one.Height > 0 {
			out.Bars = append(out.Bars, one)
		}
		if upper > 0 {
			one.Y, one.Height, one.Second = chartHeight-whole, upper, true
			out.Bars = append(out.Bars, one)
		}
	}
	out.Said = strings.Join([]string{title, "from", out.First, "to", out.Last + ":", out.Sum, "in all"}, " ")
	if !out.Empty {
		out.Said += ", most on " + topDay + ": " + out.Max
	}
	if out.Lined {
		out.Said += "; the limit is " + say(limit)
	}
	return out
}

// amount is a value that can be drawn: finite, and not below zero.
func amount(value float64) float64 {
	switch {
	case math.IsNaN(value) || value < 0:
		return 0
	case value > math.MaxFloat64/4:
		return math.MaxFloat64 / 4
	}
	return value
}

// share is how high a value is in the box. A bar above zero is high enough to be seen.
func share(value, scale float64) int {
	if value == 0 || scale == 0 {
		return 0
	}
	return min(chartHeight, max(minBar, int(math.Round(chartHeight*(value/scale)))))
}
