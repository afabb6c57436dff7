package cli

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/testenv"
)

// writeNamed gives text to a path as -o does, with a standard output of its own.
func writeNamed(t *testing.T, out *os.File, path, text string, fails error) (bool, error) {
	t.Helper()
	cmd := &cobra.Command{}
	cmd.SetOut(out)
	return output(cmd, path, 0o600, func(w io.Writer) error {
		_, err := io.WriteString(w, text)
		return errors.Join(err, fails)
	})
}

func fileContent(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// A device, a pipe and what a link of /dev leads to stay what they are when they are named with -o. A file is made anew, whole or not
// at all.
func TestWhatIsNoFileIsWrittenToAndNotReplaced(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	out, err := os.Create(at("stdout"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { out.Close() })
	kind := func(path string) os.FileMode {
		info, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info.Mode().Type()
	}

	t.Run("a pipe", func(t *testing.T) {
		if err := syscall.Mkfifo(at("pipe"), 0o600); err != nil {
			t.Fatal(err)
		}
		reader, err := os.OpenFile(at("pipe"), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer reader.Close()
		if made, err := writeNamed(t, out, at("pipe"), "log", nil); err != nil || made {
			t.Fatalf("made a file: %v, %v", made, err)
		}
		if kind(at("pipe")) != os.ModeNamedPipe {
			t.Fatalf("the pipe was replaced by %v", kind(at("pipe")))
		}
		got := make([]byte, 3)
		if _, err := io.ReadFull(reader, got); err != nil || string(got) != "log" {
			t.Fatalf("the pipe has %q, %v", got, err)
		}
	})
	t.Run("another user's", func(t *testing.T) {
		testenv.Need(t, testenv.Root)
		if err := syscall.Mkfifo(at("their pipe"), 0o666); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at("chosen"), []byte("before"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(at("chosen"), at("their link")); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{at("their pipe"), at("their link")} {
			if err := os.Lchown(path, 65534, 65534); err != nil {
				t.Fatal(err)
			}
			if made, err := writeNamed(t, out, path, "log", nil); err != nil || !made || kind(path) != 0 {
				t.Errorf("%s: made a file: %v, %v, it is %v", path, made, err, kind(path))
			}
		}
		if got := fileContent(t, at("chosen")); got != "before" {
			t.Errorf("what another user chose has %q", got)
		}
	})
	t.Run("a device behind a link", func(t *testing.T) {
		if err := os.Symlink(os.DevNull, at("null")); err != nil {
			t.Fatal(err)
		}
		if made, err := writeNamed(t, out, at("null"), "log", nil); err != nil || made {
			t.Fatalf("made a file: %v, %v", made, err)
		}
		if kind(at("null")) != os.ModeSymlink {
			t.Fatal("the link was replaced")
		}
	})
	t.Run("standard output that is a file", func(t *testing.T) {
		if err := os.Symlink(at("stdout"), at("link of stdout")); err != nil {
			t.Fatal(err)
		}
		if _, err := out.WriteString("before "); err != nil {
			t.Fatal(err)
		}
		if made, err := writeNamed(t, out, at("link of stdout"), "log", nil); err != nil || made {
			t.Fatalf("made a file: %v, %v", made, err)
		}
		if _, err := out.WriteString(" after"); err != nil {
			t.Fatal(err)
		}
		if got := fileContent(t, at("stdout")); got != "before log after" {
			t.Fatalf("standard output has %q", got)
		}
	})
	t.Run("a folder", func(t *testing.T) {
		if _, err := writeNamed(t, out, dir, "log", nil); err == nil {
			t.Fatal("a folder was written to")
		}
	})
	t.Run("a file", func(t *testing.T) {
		if err := os.Symlink(at("file"), at("link")); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{at("file"), at("file"), at("link")} { // made, replaced, replaced behind a link
			if made, err := writeNamed(t, out, path, path, nil); err != nil || !made {
				t.Fatalf("made a file: %v, %v", made, err)
			}
			if got := fileContent(t, at("file")); got != path {
				t.Fatalf("the file has %q", got)
			}
		}
		if kind(at("link")) != os.ModeSymlink {
			t.Fatal("the link was replaced")
		}
		if _, err := writeNamed(t, out, at("file"), "half", io.ErrUnexpectedEOF); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatal(err)
		}
		if got := fileContent(t, at("file")); got != at("link") {
			t.Fatalf("a file that could not be written has %q", got)
		}
	})
	t.Run("nothing is left", func(t *testing.T) {
		left, err := filepath.Glob(at(".*"))
		if err != nil || len(left) > 0 {
			t.Fatalf("%v, %v", left, err)
		}
	})
}
