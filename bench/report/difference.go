package report

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
)

// How much a figure of an unchanged program may differ between two runs.
const (
	// calm is of one that was measured often, and whose middle half lies close together.
	calm = 0.05
	// unknown is of one of which there is a single value: nothing says how much it varies.
	unknown = 0.25
)

// Verdict is what can be said of a figure in two runs.
type Verdict string

// The verdicts.
const (
	Better Verdict = "better"
	Worse  Verdict = "worse"
	Same   Verdict = "same" // the difference is no greater than what figures vary by
	Added  Verdict = "new"
	Gone   Verdict = "gone"
	Other  Verdict = "other unit"
)

// Change is one figure in two runs.
type Change struct {
	Name    string
	A, B    *Figure
	Factor  float64 // B to A, of their medians
	Noise   float64 // the part of A by which figures vary
	Verdict Verdict
}

// Compare judges every figure of two runs, in the order of their names.
func Compare(a, b *Run) (all []Change) {
	names := maps.Collect(maps.All(a.Figures))
	maps.Copy(names, b.Figures)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		c := Change{Name: name, A: a.Figures[name], B: b.Figures[name]}
		switch {
		case c.A == nil:
			c.Verdict = Added
		case c.B == nil:
			c.Verdict = Gone
		case c.A.Unit != c.B.Unit:
			c.Verdict = Other
		default:
			c.judge()
		}
		all = append(all, c)
	}
	return all
}

// judge takes a difference for one only where it is greater than what either run varied by in itself.
func (c *Change) judge() {
	c.Factor, c.Noise = c.B.P50/c.A.P50, max(c.A.varies(), c.B.varies())
	same := math.Abs(c.Factor-1) <= c.Noise
	if c.A.P50 <= 0 || c.B.P50 <= 0 { // nothing can be a part of it, as of growth: what counts is the floor
		c.Factor, c.Noise = math.Inf(1), 0
		same = c.A.P50 == c.B.P50 || c.A.Met != nil && c.B.Met != nil && *c.A.Met == *c.B.Met
	}
	switch {
	case same:
		c.Verdict = Same
	case (c.B.P50 > c.A.P50) == c.A.moreIsBetter():
		c.Verdict = Better
	default:
		c.Verdict = Worse
	}
}

// varies is by what part of it a figure varied within its run.
func (f *Figure) varies() float64 {
	switch {
	case f.N <= 1 || f.P50 == 0:
		return unknown
	case f.P75 > 0:
		return max(calm, (f.P75-f.P25)/math.Abs(f.P50))
	default: // an old file has no quarters
		return max(calm, (f.P95-f.P50)/math.Abs(f.P50))
	}
}

// moreIsBetter is so of what is done in a time, and of what has to be at least something.
func (f *Figure) moreIsBetter() bool { return f.Min || strings.HasSuffix(f.Unit, "/s") }

// Difference prints two runs: what is better or worse, what is in one of them only, and how many are the same.
func Difference(w io.Writer, a, b *Run) error {
	out := bufio.NewWriter(w)
	fmt.Fprintf(out, "A %s %s\nB %s %s\n", a.Time.UTC().Format("2006-01-02 15:04 UTC"), a.Commit, b.Time.UTC().Format("2006-01-02 15:04 UTC"), b.Commit)
	for _, k := range slices.Sorted(maps.Keys(a.Host)) {
		if a.Host[k] != b.Host[k] {
			fmt.Fprintf(out, "%s: %s, then %s\n", strings.ReplaceAll(k, "_", " "), a.Host[k], b.Host[k])
		}
	}
	if factor, n := machine(a, b); n > 0 {
		item(out, "", fmt.Sprintf("What is not ours took %.2f × as long in B (median of %d that both measured): so much is the machine.", factor, n))
	}
	byVerdict := map[Verdict][]Change{}
	for _, c := range Compare(a, b) {
		byVerdict[c.Verdict] = append(byVerdict[c.Verdict], c)
	}
	for _, v := range []Verdict{Worse, Better, Other} {
		if len(byVerdict[v]) == 0 {
			continue
		}
		fmt.Fprintln(out)
		columns(out, 60, string(v), fmt.Sprintf("  %10s %10s %9s  noise", "A", "B", "B to A"))
		slices.SortStableFunc(byVerdict[v], func(one, other Change) int { return cmp.Compare(other.weight(), one.weight()) })
		for _, c := range byVerdict[v] {
			c.row(out)
		}
	}
	fmt.Fprintf(out, "\nsame: %d, new: %d, gone: %d\n", len(byVerdict[Same]), len(byVerdict[Added]), len(byVerdict[Gone]))
	for _, c := range slices.Concat(byVerdict[Added], byVerdict[Gone]) {
		item(out, string(c.Verdict), c.Name)
	}
	return out.Flush()
}

// weight orders changes: how often the noise a difference is.
func (c Change) weight() float64 { return math.Abs(c.Factor-1) / max(c.Noise, calm) }

func (c Change) row(out *bufio.Writer) {
	value := func(f *Figure) string {
		if v, unit := shown(f.P50, f.Unit); len([]rune(unit)) > 4 { // it has no room behind a value
			return v
		}
		return f.value()
	}
	factor, noise := digits(c.Factor)+" ×", fmt.Sprintf("%6.0f %%", c.Noise*100)
	switch {
	case c.Verdict == Other:
		factor, noise = "", ""
	case math.IsInf(c.Factor, 0):
		factor = "-"
	}
	columns(out, 60, "  "+c.Name, fmt.Sprintf("  %10s %10s %9s%s", value(c.A), value(c.B), factor, noise))
}

// machine is how much longer what is not ours took in the second run, in the middle, of what both measured as times: that
// is what the machine did, since nothing of the program is in it.
func machine(a, b *Run) (factor float64, n int) {
	factors := map[string]float64{}
	for _, c := range a.Comparisons {
		before, after := a.Figures[c.Peer], b.Figures[c.Peer]
		if before != nil && after != nil && before.Unit == "ms" && after.Unit == "ms" && before.P50 != 0 && after.P50 != 0 {
			factors[c.Peer] = after.P50 / before.P50
		}
	}
	if len(factors) == 0 {
		return 0, 0
	}
	return slices.Sorted(maps.Values(factors))[len(factors)/2], len(factors)
}
