package template

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func sample() []entry {
	sum := strings.Repeat("ab", 32)
	return []entry{
		{path: ".", kind: 'd', mode: 0o755, sum: "-", attr: "-", stamp: stamp{1, 2, 3}},
		{path: "a\nb \"c\" \xff", kind: 'f', mode: 0o4755, uid: 1000, gid: 4294967294, size: 1 << 40, sum: sum, attr: sum, stamp: stamp{-5, 6, 7}},
		{path: "link", kind: 'l', mode: 0o777, sum: "-", attr: "-", link: "../ü \\n", stamp: stamp{8, 9, 10}},
	}
}

func TestManifestReadsBackWhatWasWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "manifest.gz")
	want := sample()
	if err := writeManifest(path, want); err != nil {
		t.Fatal(err)
	}
	got, err := readManifest(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(entry{}, stamp{})); diff != "" {
		t.Error(diff)
	}
}

func FuzzManifestParsesToTheSameBytes(f *testing.F) {
	var good bytes.Buffer
	if err := formatManifest(&good, sample()); err != nil {
		f.Fatal(err)
	}
	f.Add(good.Bytes())
	f.Add([]byte(manifestHeader))
	f.Add([]byte(manifestHeader + "1 2 3 f 755 0 0 1 - - \"a\" \"\"\n"))
	f.Add([]byte(manifestHeader + "1 2 3 f 0755 0 0 +1 - - `a` \"\"\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		entries, err := parseManifest(data)
		if err != nil {
			return
		}
		var again bytes.Buffer
		if err := formatManifest(&again, entries); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(data, again.Bytes()) {
			t.Fatalf("read %q, wrote %q", data, again.Bytes())
		}
	})
}

func TestManifestRefusesDamage(t *testing.T) {
	line := `1 2 3 f 755 0 0 1 - - "a" ""` + "\n"
	for name, text := range map[string]string{
		"no header":        line,
		"cut off":          manifestHeader + line[:len(line)-1],
		"out of order":     manifestHeader + strings.Replace(line, `"a"`, `"b"`, 1) + line,
		"twice":            manifestHeader + line + line,
		"number with zero": manifestHeader + "0" + line,
		"mode too large":   manifestHeader + strings.Replace(line, "755", "17777", 1),
		"raw quotes":       manifestHeader + strings.Replace(line, `"a"`, "`a`", 1),
		"too few fields":   manifestHeader + "1 2 3\n",
	} {
		if _, err := parseManifest([]byte(text)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestDigestCoversEverythingThatIsPromisedAndNothingElse(t *testing.T) {
	base := digestOf(sample())
	for name, change := range map[string]func(*entry){
		"path":       func(e *entry) { e.path += "x" },
		"kind":       func(e *entry) { e.kind = 'd' },
		"mode":       func(e *entry) { e.mode ^= 1 },
		"uid":        func(e *entry) { e.uid++ },
		"gid":        func(e *entry) { e.gid-- },
		"size":       func(e *entry) { e.size++ },
		"content":    func(e *entry) { e.sum = strings.Repeat("cd", 32) },
		"attributes": func(e *entry) { e.attr = "-" },
		"link":       func(e *entry) { e.link = "x" },
	} {
		entries := sample()
		change(&entries[1])
		if digestOf(entries) == base {
			t.Errorf("another %s has the same digest", name)
		}
	}
	entries := sample()
	entries[1].stamp = stamp{100, 200, 300}
	if digestOf(entries) != base {
		t.Error("the digest depends on when and where the tree was written")
	}
	if digestOf(sample()[:2]) == base {
		t.Error("a removed entry does not change the digest")
	}
}

func TestTreeIsReadInOrderWithHardLinksOnce(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, map[string]string{"b": "hello", "a/z": "x", "a-b": "", "empty/": "", "l": "->nowhere"})
	if err := os.Link(filepath.Join(dir, "b"), filepath.Join(dir, "c")); err != nil {
		t.Fatal(err)
	}
	entries, err := statTree(context.Background(), dir)
	if err != nil {
		t.Fatal(err)
	}
	var advanced int64
	if err := readContents(context.Background(), dir, entries, every(len(entries)), func(n int64) { advanced = max(advanced, n) }); err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, e := range entries {
		paths = append(paths, e.path)
	}
	if diff := cmp.Diff([]string{".", "a", "a-b", "a/z", "b", "c", "empty", "l"}, paths); diff != "" {
		t.Error(diff)
	}
	const hello = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
	if entries[4].sum != hello || entries[5].sum != hello || entries[7].link != "nowhere" {
		t.Errorf("read %+v", entries)
	}
	if got := sizeOf(entries); got != 6 {
		t.Errorf("the size is %d, want 6: a file with two names counts once", got)
	}
	if advanced != int64(len(entries)) {
		t.Errorf("%d files of %d were counted", advanced, len(entries))
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := readContents(ctx, dir, entries, every(len(entries)), nil); err == nil {
		t.Error("a cancelled context was ignored")
	}
	if err := os.WriteFile(filepath.Join(dir, "b"), []byte("longer than before"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := readContents(context.Background(), dir, entries, every(len(entries)), nil); err == nil {
		t.Error("a file that grew meanwhile was accepted")
	}
}

func TestComparisonNamesWhatDiffers(t *testing.T) {
	want := []entry{{path: "a", kind: 'f', sum: "1"}, {path: "b", kind: 'f'}, {path: "c", kind: 'l', link: "x"}}
	got := []entry{{path: "a", kind: 'f', sum: "2", mode: 1, uid: 1}, {path: "aa", kind: 'd'}, {path: "c", kind: 'd'}}
	var r Report
	r.compare(want, got, match(want, got))
	wantReport := Report{
		Changed:      []Change{{"/a", []string{"content", "mode", "owner"}}, {"/c", []string{"type", "link"}}},
		Added:        []string{"/aa"},
		Removed:      []string{"/b"},
		ChangedCount: 2, AddedCount: 1, RemovedCount: 1,
	}
	if diff := cmp.Diff(wantReport, r, cmpopts.EquateEmpty()); diff != "" {
		t.Error(diff)
	}
	if r.OK() {
		t.Error("a report with differences is OK")
	}
	if got := r.Summary(); got != "2 files were changed, the first is /a (content, mode, owner); /aa was added; /b was removed" {
		t.Error(got)
	}
}

func TestReportIsBoundedAndCountsAll(t *testing.T) {
	var got []entry
	for i := range 3 * maxListed {
		got = append(got, entry{path: strings.Repeat("x", i+1)})
	}
	var r Report
	r.compare(nil, got, match(nil, got))
	if len(r.Added) != maxListed || r.AddedCount != 3*maxListed {
		t.Errorf("%d are listed, %d counted", len(r.Added), r.AddedCount)
	}
}
