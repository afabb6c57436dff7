package template

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

func TestATemplateThatSeveralWantAtOnceIsBuiltOnce(t *testing.T) {
	testenv.Need(t, testenv.Root)
	s, ctx := testStore(t), context.Background()
	source := t.TempDir()
	put(t, source, map[string]string{"bin/sh": "#!/bin/true\n"})
	must(t, os.Chmod(filepath.Join(source, "bin/sh"), 0o755))
	// The first goes on when the second is known to wait.
	const several = 4
	waits, all := make(chan struct{}, several), sync.WaitGroup{}
	var mu sync.Mutex
	var builds int
	var digests []string
	for range several {
		all.Go(func() {
			first := true
			t1, built, err := s.Ensure(ctx, BuildOptions{Name: "clawbot", From: "dir:" + source, Progress: func(p Progress) {
				switch {
				case p.Stage == StageWait:
					waits <- struct{}{}
				case first:
					first = false
					for range several - 1 {
						<-waits
					}
				}
			}})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Error(err)
			}
			if built {
				builds++
			}
			digests = append(digests, t1.Digest)
		})
	}
	all.Wait()
	for _, d := range digests {
		if d == "" || d != digests[0] {
			t.Errorf("they have %v", digests)
		}
	}
	if builds != 1 {
		t.Errorf("it was built %d times", builds)
	}
	if _, built, err := s.Ensure(ctx, BuildOptions{Name: "clawbot", From: "dir:" + source}); err != nil || built {
		t.Errorf("one that is there: %v, %v", built, err)
	}
	// A damaged template is there, and is not built again.
	must(t, os.WriteFile(filepath.Join(s.dir, "clawbot", metadataName), []byte("{"), 0o644))
	if got, built, err := s.Ensure(ctx, BuildOptions{Name: "clawbot", From: "dir:" + source}); err != nil || built || got.Name != "clawbot" || got.Digest != "" {
		t.Errorf("one that was changed: %+v, %v, %v", got, built, err)
	}
	// A caller that waits gives up with its context.
	done, err := lockFile(ctx, filepath.Join(s.dir, firstPrefix+"other"), nil)
	must(t, err)
	defer done()
	gone, cancel := context.WithCancel(ctx)
	_, _, err = s.Ensure(gone, BuildOptions{Name: "other", From: "dir:" + source, Progress: func(p Progress) {
		if p.Stage == StageWait {
			cancel()
		}
	}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("who waits and is told to end: %v", err)
	}
}

func TestOnlyAFileOfATemplateSaysWhichItIs(t *testing.T) {
	for kind, file := range archives(t, imageOf(t, sampleLayers()...)) {
		if name, err := Exported(t.Context(), file); problem.CodeOf(err) != problem.BadTemplate || name != "" {
			t.Errorf("another image (%s): %q, %v", kind, name, err)
		}
	}
	dir := t.TempDir()
	put(t, dir, map[string]string{"text": "no archive", "empty": ""})
	for _, name := range []string{"text", "empty", "missing", "."} {
		if got, err := Exported(t.Context(), filepath.Join(dir, name)); problem.CodeOf(err) != problem.BadTemplate || got != "" {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}
