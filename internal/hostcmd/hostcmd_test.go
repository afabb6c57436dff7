//go:build unix

package hostcmd

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/testenv"
)

func script(t *testing.T, text string) Runner {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "tool"), []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return Runner{Dir: dir}
}

func TestACommandGetsNothingOfOurEnvironment(t *testing.T) {
	t.Setenv("CLAWJAIL_CANARY", "x")
	out, err := script(t, `env; pwd; cat`).Run(t.Context(), "tool")
	if err != nil || strings.Contains(out, "CANARY") || !strings.Contains(out, "LC_ALL=C") || !strings.Contains(out, "\n/\n") {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := script(t, `cat`).RunWith(t.Context(), "given", "tool"); out != "given" || err != nil {
		t.Errorf("standard input: %q, %v", out, err)
	}
}

func TestAFailureSaysWhatWasRunAndWhatItSaid(t *testing.T) {
	_, err := script(t, `echo "cannot: busy" >&2; echo more >&2; exit 3`).Run(t.Context(), "tool", "a", "b")
	var f *Failure
	if !errors.As(err, &f) || f.Code != 3 || err.Error() != "tool a b: cannot: busy" || !Says(err, "busy") || Says(err, "gone") {
		t.Errorf("%v", err)
	}
	if _, err := (Runner{Dir: t.TempDir()}).Run(t.Context(), "tool"); !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("a command that is missing: %v", err)
	}
}

// cancelled runs a script whose first argument is a file, and ends its context once the script has made that file.
func cancelled(t *testing.T, text string) (file string, err error) {
	t.Helper()
	r := script(t, text)
	file = filepath.Join(r.Dir, "file")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := r.Run(ctx, "tool", file)
		ended <- err
	}()
	testenv.Eventually(t, 10*time.Second, func() bool {
		_, err := os.Stat(file)
		return err == nil
	}, "the script runs")
	cancel()
	return file, <-ended
}

func TestACommandIsNotEndedHalfWay(t *testing.T) {
	file, err := cancelled(t, `: >"$1"; sleep 0.3; echo done >"$1"`)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if text, err := os.ReadFile(file); string(text) != "done\n" {
		t.Errorf("%q, %v", text, err)
	}
}

func TestACommandEndsWithItsContext(t *testing.T) {
	began := time.Now()
	if _, err := cancelled(t, `: >"$1"; sleep 20 & wait`); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
}
