// Package report keeps what a run of the benchmarks measured, and shows it to people: one JSON file per run that is
// never written twice, a table in which every figure stands beside what it is compared with, and the difference of two
// runs with a judgement that knows how much figures vary. A file that an older version wrote stays readable; fields are
// added and never change their meaning.
package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/base/keyfile"
)

// Run is one run, and the form of its file.
type Run struct {
	Time   time.Time         `json:"time"`             // when it began, UTC
	Commit string            `json:"commit,omitempty"` // what was measured; ends in "-dirty" where the checkout had changes
	Host   map[string]string `json:"host"`
	Only   []string          `json:"only,omitempty"`   // the parts that were asked for; nothing means all
	Took   float64           `json:"took_s,omitempty"` // seconds

	// Figures by name. A name is its subject, a colon, and what was measured.
	Figures     map[string]*Figure `json:"figures"`
	Comparisons []Comparison       `json:"comparisons,omitempty"`
	LeftOut     []LeftOut          `json:"left_out,omitempty"`
	Failed      []LeftOut          `json:"failed,omitempty"`
	Notes       []string           `json:"notes,omitempty"`
}

// Figure is one measured thing. A single value has only P50.
type Figure struct {
	Unit  string   `json:"unit"`
	N     int      `json:"n"`
	P25   float64  `json:"p25,omitempty"`
	P50   float64  `json:"p50"`
	P75   float64  `json:"p75,omitempty"`
	P95   float64  `json:"p95,omitempty"`
	Max   float64  `json:"max,omitempty"`
	Floor *float64 `json:"floor,omitempty"`    // what P50 is to be at most
	Min   bool     `json:"at_least,omitempty"` // or at least
	Met   *bool    `json:"met,omitempty"`      // whether it is; set with Floor
}

// Comparison puts a figure beside one that was measured in the same run, in turn with it.
type Comparison struct {
	Name   string  `json:"name"` // the figure that is ours
	Peer   string  `json:"peer"` // the figure beside it
	Label  string  `json:"label"`
	Ours   float64 `json:"ours"`
	Theirs float64 `json:"theirs"`
	Ratio  float64 `json:"ratio"` // Ours to Theirs
}

// LeftOut is what was not measured.
type LeftOut struct {
	What string `json:"what"`
	Why  string `json:"why"`
}

// Whole says whether every part was asked for, and none failed.
func (r *Run) Whole() bool { return len(r.Only) == 0 && len(r.Failed) == 0 }

// Samples adds what was measured several times, in its unit.
func (r *Run) Samples(name, unit string, all []float64) *Figure {
	sorted := slices.Sorted(slices.Values(all))
	f := &Figure{Unit: unit, N: len(sorted)}
	if n := len(sorted); n > 0 {
		at := func(percent int) float64 { return sorted[min(n*percent/100, n-1)] }
		f.P50 = at(50)
		if n > 1 {
			f.P25, f.P75, f.P95, f.Max = at(25), at(75), at(95), sorted[n-1]
		}
	}
	r.Figures[name] = f
	return f
}

// Times adds durations, in milliseconds.
func (r *Run) Times(name string, all []time.Duration) *Figure {
	var ms []float64
	for _, d := range all {
		ms = append(ms, float64(d.Microseconds())/1000)
	}
	return r.Samples(name, "ms", ms)
}

// Value adds what was measured once.
func (r *Run) Value(name, unit string, v float64) *Figure { return r.Samples(name, unit, []float64{v}) }

// AtMost says what a figure may be at most.
func (f *Figure) AtMost(limit float64) { f.hold(limit, false, f.P50 <= limit) }

// AtLeast says what a figure must be at least.
func (f *Figure) AtLeast(limit float64) { f.hold(limit, true, f.P50 >= limit) }

func (f *Figure) hold(limit float64, minimum, met bool) {
	met = met && f.N > 0 // what was not measured meets nothing
	f.Floor, f.Min, f.Met = &limit, minimum, &met
}

// Beside puts figures beside another one, where both were measured. The label is what the other one is to a reader.
func (r *Run) Beside(label, peer string, names ...string) {
	theirs := r.Figures[peer]
	for _, name := range names {
		if ours := r.Figures[name]; ours != nil && theirs != nil && ours.N > 0 && theirs.P50 != 0 {
			r.Comparisons = append(r.Comparisons, Comparison{Name: name, Peer: peer, Label: label, Ours: ours.P50, Theirs: theirs.P50, Ratio: ours.P50 / theirs.P50})
		}
	}
}

// FileName is what the file of a run is called: the time it began, in UTC. Two runs in the same minute cannot both write.
func (r *Run) FileName() string { return r.Time.UTC().Format("2006-01-02T1504Z") + ".json" }

// Write writes a run into a folder, and returns the path. A file is there whole or not at all, and never overwritten.
func (r *Run) Write(folder string) (string, error) {
	path := filepath.Join(folder, r.FileName())
	text, err := json.MarshalIndent(r, "", " ")
	if err == nil {
		err = os.MkdirAll(folder, 0o755)
	}
	if err == nil {
		err = keyfile.Write(path, 0o644, append(text, '\n'), os.Link)
	}
	if err != nil {
		return "", fmt.Errorf("write the results: %w", err)
	}
	return path, nil
}

// Read reads the file of a run. Fields that it does not know are an error: a misspelt one would be silently nothing.
func Read(path string) (*Run, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read results: %w", err)
	}
	var r Run
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err = d.Decode(&r); err == nil && (r.Time.IsZero() || len(r.Figures) == 0) {
		err = errors.New("it has no time or no figures")
	}
	if err != nil {
		return nil, fmt.Errorf("read results: %s: %w", path, err)
	}
	return &r, nil
}

// subject is the first half of a figure's name, and what is the other.
func subject(name string) (subject, what string) {
	subject, what, _ = strings.Cut(name, ": ")
	return subject, what
}

// shown writes a value with its unit, so that people can read it: nanoseconds become what fits.
func shown(v float64, unit string) (string, string) {
	if unit == "ns" {
		for _, larger := range []string{"µs", "ms", "s"} {
			if math.Abs(v) < 1000 {
				break
			}
			v, unit = v/1000, larger
		}
	}
	return digits(v), unit
}

// value is the middle with its unit.
func (f *Figure) value() string {
	v, unit := shown(f.P50, f.Unit)
	return strings.TrimSpace(v + " " + unit)
}

// digits writes small figures more exactly.
func digits(v float64) string {
	switch a := math.Abs(v); {
	case a >= 10_000_000:
		return fmt.Sprintf("%.1fM", v/1e6)
	case a >= 1000:
		return fmt.Sprintf("%.0f", v)
	case a >= 10 || a == 0:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}
