package cli

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/testenv"
)

// A command that is interrupted says so with the status that shells have for it, and one that fails does not.
func TestAnInterruptedCommandHasAStatusOfItsOwn(t *testing.T) {
	t.Setenv("CLAWJAIL_CONFIG", settings(t, t.TempDir()))
	t.Setenv("CLAWJAIL_KEY", "cjop_abc")
	for name, want := range map[string]int{"interrupted": exitInterrupted, "refused": exitFailure, "misspelt": exitUsage} {
		t.Run(name, func(t *testing.T) {
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if name == "interrupted" {
					interrupt()
					<-r.Context().Done()
				}
				w.WriteHeader(http.StatusForbidden)
			}))
			defer server.Close()
			t.Setenv("CLAWJAIL_URL", server.URL)
			args := []string{"session", "ls"}
			if name == "misspelt" {
				args = append(args, "--jason")
			}
			var out, errs bytes.Buffer
			if status := Main(ctx, "v1.2.3", args, &out, &errs); status != want {
				t.Errorf("the status is %d, want %d: %s", status, want, errs.String())
			}
		})
	}
}

func TestAnAnswerThatCannotBeWrittenIsAnError(t *testing.T) {
	full, err := unix.Open("/dev/full", unix.O_WRONLY, 0)
	if err != nil {
		testenv.Missing(t, "/dev/full", "run the test on Linux or FreeBSD")
	}
	out := os.NewFile(uintptr(full), os.Stdout.Name())
	defer func() { _ = out.Close() }()
	var errs strings.Builder
	if status := Main(t.Context(), "1", []string{"version"}, out, &errs); status != exitFailure ||
		!strings.Contains(errs.String(), "error: the answer could not be written to standard output: no space left on device\n") || !strings.Contains(errs.String(), "hint: what the command makes may be there") {
		t.Errorf("%d %s", status, errs.String())
	}
}
