package safepath

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestUsageCountsWhatIsThereOnce(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	write := func(path string, size int) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, make([]byte, size), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	const mib = 1 << 20
	write(dir+"/a/b/one", 2*mib)
	write(dir+"/two", mib)
	write(outside+"/big", 8*mib)
	for from, to := range map[string]string{outside: "/link", outside + "/big": "/a/file"} {
		if err := os.Symlink(from, dir+to); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Link(dir+"/two", dir+"/a/again"), os.WriteFile(dir+"/sparse", nil, 0o600), os.Truncate(dir+"/sparse", 64*mib)); err != nil {
		t.Fatal(err)
	}
	f, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	u, err := f.Usage(t.Context(), 100)
	if err != nil || u.Cut || u.Files != 8 || u.Bytes < 3*mib || u.Bytes > 4*mib {
		t.Errorf("%+v (%v), want eight files and 3 MiB", u, err)
	}
	if u, err := f.Usage(t.Context(), 8); err != nil || u.Cut {
		t.Errorf("of as many as may be: %+v (%v)", u, err)
	}
	if u, err := f.Usage(t.Context(), 7); err != nil || !u.Cut {
		t.Errorf("of one more than may be: %+v (%v)", u, err)
	}
	write(dir+strings.Repeat("/deep", deepest+2)+"/f", 1)
	if u, err := f.Usage(t.Context(), 1000); err != nil || !u.Cut {
		t.Errorf("in folders that are too deep: %+v (%v)", u, err)
	}
	gone, leave := context.WithCancel(t.Context())
	leave()
	if _, err := f.Usage(gone, 1000); !errors.Is(err, context.Canceled) {
		t.Errorf("for somebody who has left: %v", err)
	}
}
