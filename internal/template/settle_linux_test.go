package template

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/clawjail/clawjail/internal/testenv"
)

// rebooted are trees that are empty until they are settled, as datasets are that nothing has mounted.
type rebooted struct {
	PlainTrees
	away    string // where what is to be mounted lies; empty when it is mounted
	settled []string
	fails   error
}

func (r *rebooted) Settle(path string) error {
	r.settled = append(r.settled, path)
	if r.fails != nil || r.away == "" {
		return r.fails
	}
	from := r.away
	r.away = ""
	return errors.Join(os.Remove(path), os.Rename(from, path))
}

// unmount empties the tree of a template.
func (r *rebooted) unmount(t *testing.T, tree string) {
	t.Helper()
	r.away, r.settled = tree+".away", nil
	must(t, os.Rename(tree, r.away), os.Mkdir(tree, 0o755))
}

func TestATemplateThatIsNotMountedIsMountedBeforeItIsRead(t *testing.T) {
	testenv.Need(t, testenv.Root)
	trees := &rebooted{}
	s := testStore(t, func(c *Config) { c.Trees = trees })
	source := t.TempDir()
	put(t, source, map[string]string{"bin/sh": "#!/bin/true\n", "etc/hostname": "x\n"})
	must(t, os.Chmod(filepath.Join(source, "bin/sh"), 0o755))
	ctx := context.Background()
	built, err := s.Build(ctx, BuildOptions{Name: "clawbot", From: "dir:" + source})
	if err != nil {
		t.Fatal(err)
	}
	for _, quick := range []bool{true, false} {
		trees.unmount(t, built.RootFS())
		if r, err := s.Verify(ctx, "clawbot", VerifyOptions{Quick: quick}); err != nil || !slices.Equal(trees.settled, []string{built.RootFS()}) {
			t.Errorf("verify: %+v, %v, settled %v", r, err, trees.settled)
		}
	}
	trees.unmount(t, built.RootFS())
	var archive bytes.Buffer
	if image, err := s.Export(ctx, "clawbot", ExportOptions{Tag: "clawjail/clawbot"}, &archive); err != nil || image.Size == 0 {
		t.Errorf("export: %+v, %v", image, err)
	}
	trees.fails = errors.New("pool is suspended")
	if _, err := s.Verify(ctx, "clawbot", VerifyOptions{}); !errors.Is(err, trees.fails) {
		t.Errorf("a tree that cannot be mounted is read: %v", err)
	}
}
