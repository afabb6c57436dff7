package firefox

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestParsePartition(t *testing.T) {
	tests := []struct {
		key, site string
		ancestor  bool
		bad       bool
	}{
		{"(https,example.com)", "https://example.com", false, false},
		{"(http,example.com)", "http://example.com", false, false},
		{"(https,example.com,8443)", "https://example.com", false, false},
		{"(https,example.com,f)", "https://example.com", true, false},
		{"(https,example.com,8443,f)", "https://example.com", true, false},
		{"(https,f)", "https://f", false, false},
		{"", "", false, true}, {"()", "", false, true}, {"(https)", "", false, true}, {"(https,)", "", false, true},
		{"https,example.com", "", false, true}, {"(https,example.com", "", false, true}, {"(ftp,example.com)", "", false, true},
		{"(https,example.com,x)", "", false, true}, {"(https,example.com,1,2)", "", false, true}, {"(https,example.com,99999)", "", false, true},
		{"example.com", "", false, true},
	}
	for _, tt := range tests {
		site, ancestor, err := ParsePartition(tt.key)
		if site != tt.site || ancestor != tt.ancestor || (err != nil) != tt.bad {
			t.Errorf("%q: %q, %v, %v", tt.key, site, ancestor, err)
		}
	}
}

func FuzzAttributes(f *testing.F) {
	for _, seed := range []string{"", "^userContextId=2&partitionKey=%28https%2Cexample.com%29", "^partitionKey=%", "^&&=", "^partitionKey=%28https%2C%2C%2Cf%29"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, attributes string) {
		in, partition := jarOf(attributes)
		if attributes != "" && in == defaultJar && attributes[0] != '^' {
			t.Fatalf("%q is the default container", attributes)
		}
		if site, _, err := ParsePartition(partition); err == nil && site == "" {
			t.Fatalf("%q is a partition without a site", partition)
		}
	})
}

func TestTheCopyIsPrivate(t *testing.T) {
	source := filepath.Join(t.TempDir(), Database)
	for _, part := range []string{"", "-wal", "-shm"} {
		if err := os.WriteFile(source+part, []byte("content"+part), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	path, remove, err := snapshot(t.Context(), source, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]fs.FileMode{filepath.Dir(path): 0o700 | fs.ModeDir, path: 0o600, path + "-wal": 0o600, path + "-shm": 0o600} {
		info, err := os.Stat(name)
		if err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
	if err := remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Dir(path)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the copy is left: %v", err)
	}
}

func TestAPartThatGoesAwayIsLeftOutOfTheNextCopy(t *testing.T) {
	source, private := filepath.Join(t.TempDir(), Database), filepath.Join(t.TempDir(), Database)
	for _, path := range []string{source, private, private + "-wal"} {
		if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if same, err := copyOnce(t.Context(), source, private); err != nil || !same {
		t.Fatalf("%v, %v", same, err)
	}
	if _, err := os.Stat(private + "-wal"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the log of the first try is left: %v", err)
	}
}
