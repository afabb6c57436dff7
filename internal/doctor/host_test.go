package doctor

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestHealthIsWhatTheControlPlaneSays(t *testing.T) {
	status := http.StatusOK
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/health" {
			http.NotFound(w, r)
			return
		}
		w.WriteHeader(status)
	})
	for _, serve := range []func(http.Handler) *httptest.Server{httptest.NewServer, httptest.NewTLSServer} {
		s := serve(handler)
		status = http.StatusOK
		if err := answers(t.Context(), s.URL); err != nil {
			t.Errorf("%s: %v", s.URL, err)
		}
		for _, other := range []int{http.StatusServiceUnavailable, http.StatusFound} {
			status = other
			if err := answers(t.Context(), s.URL); err == nil {
				t.Errorf("%s answers with %d and is said to be well", s.URL, other)
			}
		}
		s.Close()
		if err := answers(t.Context(), s.URL); err == nil {
			t.Errorf("%s is gone and is said to be well", s.URL)
		}
	}
}

func TestCommandsRunWithoutTheCallersEnvironment(t *testing.T) {
	t.Setenv("LC_ALL", "de_DE.UTF-8")
	t.Setenv("PATH", t.TempDir())
	out, err := command(t.Context(), "sh", "-c", `echo "$LC_ALL"`)
	if err != nil || out != "C\n" {
		t.Errorf("%q, %v", out, err)
	}
	if _, err := command(t.Context(), "sh", "-c", "echo first >&2; echo second >&2; exit 3"); err == nil ||
		!strings.Contains(err.Error(), "first") || strings.Contains(err.Error(), "second") {
		t.Errorf("%v", err)
	}
	if _, err := command(t.Context(), "no-such-program-anywhere"); err == nil {
		t.Error("a program that is not there ran")
	}
}

func TestRoomIsThatOfTheNearestFolder(t *testing.T) {
	dir := t.TempDir()
	if got := existing(filepath.Join(dir, "a", "b")); got != dir {
		t.Errorf("got %s", got)
	}
	if err := os.Mkdir(filepath.Join(dir, "a"), 0o755); err != nil {
		t.Fatal(err)
	}
	if got := existing(filepath.Join(dir, "a", "b")); got != filepath.Join(dir, "a") {
		t.Errorf("got %s", got)
	}
}
