package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/clawjail/clawjail/internal/testenv"
)

// golden compares a text with a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	testenv.Golden(t, filepath.Join("testdata", name), got)
	for line := range strings.Lines(got) {
		if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > Width && !strings.HasPrefix(line, "|") {
			t.Errorf("a line has %d columns: %s", n, line)
		}
	}
}

// run is one with something of everything. slower makes what is ours slower, and machine everything.
func run(slower, machine float64) *Run {
	r := &Run{Time: time.Date(2026, 11, 22, 23, 31, 7, 0, time.UTC), Commit: "3a4c4aa0f3de-dirty", Host: map[string]string{"cpus": "2", "kernel": "6.12.0",
		"load_before": "0.01 0.02 0.03 1/90 1234"}, Took: 801, Figures: map[string]*Figure{}}
	times := func(name string, middle float64) {
		var all []time.Duration
		for n := range 21 {
			all = append(all, time.Duration((middle+float64(n-10)*middle/200)*machine*float64(time.Millisecond)))
		}
		r.Times(name, all)
	}
	times("start: clawjail, cold", 107.5*slower)
	times("start: clawjail, warm", 4.4)
	times("start: plain Chromium", 91.5)
	times("start: docker run", 297)
	r.Figures["start: clawjail, cold"].AtMost(133.9)
	for _, peer := range []string{"plain Chromium", "docker run", "what was not measured"} {
		r.Beside(peer, "start: "+peer, "start: clawjail, cold", "start: clawjail, warm")
	}
	r.Value("growth: descriptors, over 1000 cycles", "", -19).AtMost(0)
	r.Value("gateway: throughput against bare", "×", 0.61/slower).AtLeast(0.65)
	r.Value("gateway: 1000 idle tunnels, clients and servers of the same process included", "MB", 18.3)
	r.Samples("gateway: Go, policy Decide/10000", "ns", []float64{812 * slower, 820 * slower, 833 * slower})
	r.Samples("start: Go, jail/linux Jail/crun", "ns", []float64{212_000_000, 239_000_000})
	r.Samples("agents: Go, ringlog Write, lines", "lines/s", []float64{11_070_305})
	r.Value("moon: distance", "km", 384_400)
	r.LeftOut = []LeftOut{{"docker run", "Docker is not installed"}}
	r.Failed = []LeftOut{{"console", "live view: an idle page: no picture came: context deadline exceeded while the machine did something else that took very long"}}
	r.Notes = []string{"the heaviest pages: /agents 94 KB"}
	return r
}

func TestTableShowsEveryFigureBesideItsPeers(t *testing.T) {
	r := run(1, 1)
	var b bytes.Buffer
	if err := r.Table(&b, "bench/results/2026-11-22T2331Z.json"); err != nil {
		t.Fatal(err)
	}
	golden(t, "table.txt", b.String())
	for name := range r.Figures {
		_, what := subject(name)
		if strings.HasPrefix(name, "start: plain") || name == "start: docker run" {
			what = "| " + what
		}
		words := strings.Fields(what)
		if first := strings.Join(words[:min(2, len(words))], " "); !strings.Contains(b.String(), first) {
			t.Errorf("%s is not in the table", name)
		}
	}
	if got := r.Missed(); !slices.Equal(got, []string{"gateway: throughput against bare"}) {
		t.Errorf("missed: %q", got)
	}
}

func TestWhatWasNotMeasuredMeetsNoFloor(t *testing.T) {
	r := &Run{Figures: map[string]*Figure{}}
	r.Times("start: clawjail, cold", nil).AtMost(100)
	if len(r.Missed()) != 1 {
		t.Error("a floor is met by nothing")
	}
}

func TestRunIsReadAsItWasWrittenAndNeverOverwritten(t *testing.T) {
	folder := t.TempDir()
	r := run(1, 1)
	path, err := r.Write(folder)
	if err != nil {
		t.Fatal(err)
	}
	if filepath.Base(path) != "2026-11-22T2331Z.json" {
		t.Errorf("the file is %s", path)
	}
	got, err := Read(path)
	if err != nil || !reflect.DeepEqual(got, r) {
		t.Errorf("%v, read:\n%+v\nwritten:\n%+v", err, got, r)
	}
	other := run(2, 1)
	if _, err := other.Write(folder); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second run of the same minute: %v", err)
	}
	if again, err := Read(path); err != nil || !reflect.DeepEqual(again, r) {
		t.Error("the first run was overwritten")
	}
	if files, err := os.ReadDir(folder); err != nil || len(files) != 1 {
		t.Errorf("%d files are left, %v", len(files), err)
	}
}

func TestFileThatIsNoRunIsRefused(t *testing.T) {
	for name, text := range map[string]string{
		"no JSON":       "cold 107",
		"unknown field": `{"time":"2026-11-22T23:31:07Z","host":{},"figures":{"a: b":{"unit":"ms","n":1,"p50":1}},"figurs":{}}`,
		"no figures":    `{"time":"2026-11-22T23:31:07Z","host":{},"figures":{}}`,
		"no time":       `{"host":{},"figures":{"a: b":{"unit":"ms","n":1,"p50":1}}}`,
	} {
		path := filepath.Join(t.TempDir(), "r.json")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(path); err == nil {
			t.Errorf("%s was read", name)
		}
	}
}

func TestDifferenceOfTwoRunsKnowsHowMuchFiguresVary(t *testing.T) {
	a, b := run(1, 1), run(1.4, 1.02)
	b.Time = b.Time.Add(time.Hour)
	b.Value("growth: descriptors, over 1000 cycles", "", -3).AtMost(0)
	delete(b.Figures, "moon: distance")
	b.Value("moon: phases", "", 8)
	var out bytes.Buffer
	if err := Difference(&out, a, b); err != nil {
		t.Fatal(err)
	}
	golden(t, "difference.txt", out.String())
	want := map[string]Verdict{
		"start: clawjail, cold":                 Worse,
		"gateway: throughput against bare":      Worse,
		"gateway: Go, policy Decide/10000":      Worse,
		"start: clawjail, warm":                 Same, // two per cent are what figures vary by
		"growth: descriptors, over 1000 cycles": Same, // its floor is met, before and after
		"moon: distance":                        Gone,
		"moon: phases":                          Added,
	}
	for _, c := range Compare(a, b) {
		if v, ok := want[c.Name]; ok && v != c.Verdict {
			t.Errorf("%s is %s, not %s", c.Name, c.Verdict, v)
		}
	}
	for _, c := range Compare(b, a) {
		if c.Verdict == Worse {
			t.Errorf("back again, %s is worse", c.Name)
		}
	}
}

func TestDifferenceWithinWhatARunVariedByIsNone(t *testing.T) {
	for _, c := range []struct {
		name string
		a, b []float64
		want Verdict
	}{
		{"close together", []float64{100, 100, 101, 101}, []float64{120, 120, 121, 121}, Worse},
		{"far apart", []float64{60, 80, 100, 140}, []float64{70, 90, 120, 150}, Same},
		{"one value each", []float64{100}, []float64{120}, Same},
		{"one value each, far", []float64{100}, []float64{140}, Worse},
	} {
		a, b := &Run{Figures: map[string]*Figure{}}, &Run{Figures: map[string]*Figure{}}
		a.Samples("x: y", "ms", c.a)
		b.Samples("x: y", "ms", c.b)
		if got := Compare(a, b)[0].Verdict; got != c.want {
			t.Errorf("%s: %s, not %s", c.name, got, c.want)
		}
	}
}

// newestWhole is the last run in a folder that measured everything, and its file.
func newestWhole(t *testing.T, folder string) (string, *Run) {
	paths, err := filepath.Glob(filepath.Join(folder, "*.json"))
	for _, path := range slices.Backward(paths) { // their names are sorted by time
		if r, err := Read(path); err == nil && r.Whole() {
			return filepath.Base(path), r
		}
	}
	t.Fatalf("%s has no results of a whole run: %v", folder, err)
	return "", nil
}

// TestFiguresOfThePageAreThoseOfTheNewestRun keeps docs/figures.md from saying what was not measured.
func TestFiguresOfThePageAreThoseOfTheNewestRun(t *testing.T) {
	top := testenv.Repository(t)
	name, r := newestWhole(t, filepath.Join(top, "bench", "results"))
	text, err := os.ReadFile(filepath.Join(top, "docs", "figures.md"))
	if err != nil {
		t.Fatal(err)
	}
	file := "bench/results/" + name
	if want := r.Page(file); !strings.Contains(string(text), pageBegin+"\n"+want+"\n"+pageEnd) {
		t.Errorf("docs/figures.md has other figures; bin/bench -page %s writes them\n%s", file, want)
	}
}

func TestFiguresOfAPartAreNotForThePage(t *testing.T) {
	folder := t.TempDir()
	page := filepath.Join(folder, "figures.md")
	text := "# x\n\n" + pageBegin + pageEnd + "\nend\n"
	if err := os.WriteFile(page, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	part, whole := run(1, 1), run(1, 1)
	part.Only, part.Failed, whole.Failed = []string{"start"}, nil, nil
	whole.Time = whole.Time.Add(-time.Hour)
	for r, wanted := range map[*Run]bool{part: false, whole: true} {
		path, err := r.Write(filepath.Join(folder, "results"))
		if err != nil {
			t.Fatal(err)
		}
		if err := WritePage(page, path); (err == nil) != wanted {
			t.Errorf("%v: %v", r.Only, err)
		}
	}
	got, err := os.ReadFile(page)
	if err != nil || !strings.Contains(string(got), "| start of headless-shell until it answers, cold | 107.5 ms (112.3) | plain Chromium: 91.5 ms, 1.17 ×; docker run: 297.0 ms, 0.36 × | ≤ 133.9, met |") ||
		!strings.HasSuffix(string(got), "\nend\n") {
		t.Errorf("%v:\n%s", err, got)
	}
	if newest, _ := newestWhole(t, filepath.Join(folder, "results")); newest != whole.FileName() {
		t.Errorf("the newest whole run is %s", newest)
	}
}

// TestEveryCommittedRunIsReadable also holds the rows of docs/figures.md to names that were measured.
func TestEveryCommittedRunIsReadable(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join(testenv.Repository(t), "bench", "results", "*.json"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("found %d runs, %v", len(paths), err)
	}
	measured := map[string]bool{}
	for _, path := range paths {
		r, err := Read(path)
		if err != nil {
			t.Error(err)
			continue
		}
		if r.FileName() != filepath.Base(path) {
			t.Errorf("%s began at %s", path, r.Time)
		}
		for name, f := range r.Figures {
			measured[name] = true
			if s, what := subject(name); s == "" || what == "" {
				t.Errorf("%s: %q has no subject", path, name)
			}
			if (f.Floor == nil) != (f.Met == nil) {
				t.Errorf("%s: %q has half a floor", path, name)
			}
		}
		if text, err := json.Marshal(r); err != nil || len(text) == 0 {
			t.Error(err)
		}
	}
	for _, row := range pageRows() {
		if !measured[row.name] {
			t.Errorf("docs/figures.md is to have %q, which no run measured", row.name)
		}
	}
}
