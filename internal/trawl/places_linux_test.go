package trawl

import (
	"bytes"
	"compress/gzip"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	_ "modernc.org/sqlite"

	"github.com/clawjail/clawjail/internal/testenv"
)

const canary = "canary/Value+7"

// twoSets are one that finds the canary and one that finds nothing.
func twoSets(t testing.TB) (yellow, other *Set) {
	return newTestSet(t, Needle{"canary", []byte(canary)}), newTestSet(t, Needle{"other", []byte("another value")})
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t testing.TB, path, text string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(text), 0o600))
}

func gzipped(t testing.TB, text string) string {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err := w.Write([]byte(text))
	must(t, errors.Join(err, w.Close()))
	return out.String()
}

// wheres are the places of hits, without the folder that all are in.
func wheres(hits []Hit, top string) []string {
	var out []string
	for _, h := range hits {
		out = append(out, h.Form+" "+strings.TrimPrefix(h.Where, top+"/"))
	}
	slices.Sort(out)
	return out
}

// TestACanaryInEveryPlaceOfATreeIsFound plants one, looks for it and for another value, and takes it away again.
func TestACanaryInEveryPlaceOfATreeIsFound(t *testing.T) {
	yellow, other := twoSets(t)
	escaped := url.PathEscape(canary)
	for name, test := range map[string]struct {
		plant func(t *testing.T, top string)
		want  []string
	}{
		"file":        {func(t *testing.T, top string) { write(t, top+"/a/log", "x="+canary) }, []string{"raw a/log"}},
		"hidden file": {func(t *testing.T, top string) { write(t, top+"/.hidden", canary) }, []string{"raw .hidden"}},
		"name of a file": {func(t *testing.T, top string) { write(t, top+"/a/cookie-"+escaped, "") },
			[]string{"url a/cookie-[canary] (name)"}},
		"name of a folder": {func(t *testing.T, top string) {
			must(t, os.Mkdir(top+"/"+escaped, 0o700))
			write(t, top+"/"+escaped+"/file", "harmless")
		}, []string{"url [canary] (name)"}},
		"names of a folder and a file": {func(t *testing.T, top string) {
			must(t, os.Mkdir(top+"/canary", 0o700))
			write(t, top+"/canary/Value+7", "")
		}, []string{"raw [canary] (name)"}},
		"link": {func(t *testing.T, top string) { must(t, os.Symlink("/nowhere/"+canary, top+"/a/link")) },
			[]string{"raw a/link (target of the link)"}},
		"attribute": {func(t *testing.T, top string) { must(t, unix.Setxattr(top+"/a/b", "user.note", []byte(canary), 0)) },
			[]string{"raw a/b (attribute user.note)"}},
		"attribute of a folder": {func(t *testing.T, top string) { must(t, unix.Setxattr(top+"/a", "user.note", []byte(canary), 0)) },
			[]string{"raw a (attribute user.note)"}},
		"name of an attribute": {func(t *testing.T, top string) {
			must(t, unix.Setxattr(top+"/a/b", "user."+escaped, []byte("x"), 0))
		}, []string{"url a/b (name of an attribute)"}},
		"gzip": {func(t *testing.T, top string) { write(t, top+"/log.gz", gzipped(t, canary)) }, []string{"raw log.gz (unpacked)"}},
		"gzip after gzip, without a name for it": {func(t *testing.T, top string) {
			write(t, top+"/log.1", gzipped(t, "x")+gzipped(t, canary))
		}, []string{"raw log.1 (unpacked)"}},
		"gzip that is still written": {func(t *testing.T, top string) {
			text := gzipped(t, canary+"\n")
			write(t, top+"/log.gz", text[:len(text)-5])
		}, []string{"raw log.gz (unpacked)"}},
		"after a hole": {func(t *testing.T, top string) {
			f, err := os.Create(top + "/sparse")
			must(t, err)
			_, err = f.WriteAt([]byte(canary), 1<<40)
			must(t, errors.Join(err, f.Truncate(1<<41), f.Close()))
		}, []string{"raw sparse"}},
	} {
		t.Run(name, func(t *testing.T) {
			top := t.TempDir()
			must(t, os.Mkdir(top+"/a", 0o700))
			write(t, top+"/a/b", "nothing to see")
			test.plant(t, top)
			hits, stats, err := yellow.Files(t.Context(), []string{top}, FileOptions{})
			must(t, err)
			if got := wheres(hits, top); !slices.Equal(got, test.want) {
				t.Errorf("found %q, want %q", got, test.want)
			}
			if stats.Files == 0 || stats.Names < 3 || stats.Bytes == 0 || stats.Bytes > 1<<20 {
				t.Errorf("looked at %+v", stats)
			}
			hits, again, err := other.Files(t.Context(), []string{top}, FileOptions{})
			if err != nil || len(hits) > 0 || again.Files != stats.Files || again.Names != stats.Names {
				t.Errorf("without it: %v, %+v, %v", hits, again, err)
			}
		})
	}
}

func TestACanaryInADatabaseIsFound(t *testing.T) {
	yellow, other := twoSets(t)
	top := t.TempDir()
	db, err := sql.Open("sqlite", "file:"+top+"/rows.db?_pragma=journal_mode(wal)")
	must(t, err)
	t.Cleanup(func() { must(t, db.Close()) })
	db.SetMaxOpenConns(1)
	_, err = db.ExecContext(t.Context(), "create table notes (text text)")
	must(t, err)
	_, err = db.ExecContext(t.Context(), "insert into notes values (?)", "text "+canary)
	must(t, err)
	search := func(s *Set, want ...string) {
		t.Helper()
		hits, stats, err := s.Files(t.Context(), []string{top}, FileOptions{})
		must(t, err)
		if got := wheres(hits, top); !slices.Equal(got, want) || stats.Files < 2 {
			t.Errorf("found %q, want %q; looked at %+v", got, want, stats)
		}
	}
	search(yellow, "raw rows.db-wal")
	search(other)
	_, err = db.ExecContext(t.Context(), "pragma wal_checkpoint(truncate)")
	must(t, err)
	search(yellow, "raw rows.db")
	// SQLite leaves what it deletes where it was.
	_, err = db.ExecContext(t.Context(), "pragma secure_delete=off; delete from notes; pragma wal_checkpoint(truncate)")
	must(t, err)
	search(yellow, "raw rows.db")
}

func TestTheNumbersSayWhatWasLookedAt(t *testing.T) {
	yellow, _ := twoSets(t)
	top := t.TempDir()
	must(t, os.Mkdir(top+"/folder", 0o700))
	write(t, top+"/folder/ten", "0123456789")
	write(t, top+"/empty", "")
	write(t, top+"/packed", gzipped(t, "0123456789"))
	write(t, top+"/no-gzip", "\x1f\x8bxxxx")
	must(t, os.Symlink("12345", top+"/link"))
	must(t, unix.Setxattr(top+"/empty", "user.a", []byte("123"), 0))
	must(t, syscall.Mkfifo(top+"/fifo", 0o600))
	_, got, err := yellow.Files(t.Context(), []string{top}, FileOptions{})
	must(t, err)
	size := int64(10 + len(gzipped(t, "0123456789")) + 10 + 6 + 5 + len("user.a") + 3)
	if want := (Stats{Files: 4, Names: 8, Links: 1, Attributes: 1, Unpacked: 1, Damaged: 1, Bytes: size}); got != want {
		t.Errorf("looked at\n%+v, want\n%+v", got, want)
	}
}

func TestLinksAreNotFollowedExceptTheRoot(t *testing.T) {
	yellow, _ := twoSets(t)
	outside, top := t.TempDir(), t.TempDir()
	write(t, outside+"/file", canary)
	must(t, os.Symlink(outside, top+"/folder"))
	must(t, os.Symlink(outside+"/file", top+"/file"))
	hits, _, err := yellow.Files(t.Context(), []string{top}, FileOptions{})
	if err != nil || len(hits) > 0 {
		t.Errorf("through a link: %v, %v", hits, err)
	}
	for _, root := range []string{top + "/folder", top + "/file", outside + "/file"} {
		hits, _, err = yellow.Files(t.Context(), []string{root}, FileOptions{})
		if err != nil || len(hits) != 1 {
			t.Errorf("%s as the root: %v, %v", root, hits, err)
		}
	}
}

func TestWhatCannotBeSearchedIsSaid(t *testing.T) {
	yellow, _ := twoSets(t)
	top := t.TempDir()
	write(t, top+"/file", canary)
	missing := top + "/" + url.PathEscape(canary)
	hits, _, err := yellow.Files(t.Context(), []string{missing, top}, FileOptions{})
	if !errors.Is(err, fs.ErrNotExist) || len(hits) != 1 {
		t.Errorf("a root that is missing: %v, %v", hits, err)
	}
	if len(yellow.In("", []byte(err.Error()))) > 0 {
		t.Error("the error shows the value")
	}
	write(t, top+"/bomb.gz", gzipped(t, strings.Repeat("0", 1001)))
	if _, _, err := yellow.Files(t.Context(), []string{top}, FileOptions{MaxUnpacked: 1000}); err == nil {
		t.Error("more is unpacked than allowed")
	}
	if _, _, err := yellow.Files(t.Context(), []string{top}, FileOptions{MaxUnpacked: 1001}); err != nil {
		t.Error(err)
	}
	if _, _, err := yellow.Files(t.Context(), []string{top}, FileOptions{MaxFiles: 2}); err == nil {
		t.Error("more files are searched than allowed")
	}
	if _, _, err := yellow.Files(t.Context(), []string{top}, FileOptions{MaxFiles: -1}); err == nil {
		t.Error("a negative limit is accepted")
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	cancel(why)
	if _, stats, err := yellow.Files(ctx, []string{top}, FileOptions{}); !errors.Is(err, why) || stats.Files > 0 {
		t.Errorf("after the end of the context: %+v, %v", stats, err)
	}
	if _, stats, err := yellow.Processes(ctx, ProcessOptions{}); !errors.Is(err, why) || stats.Processes > 0 {
		t.Errorf("after the end of the context: %+v, %v", stats, err)
	}
}

// TestAFileThatMayNotBeReadIsAnError runs without root's right to read everything.
func TestAFileThatMayNotBeReadIsAnError(t *testing.T) {
	if os.Getenv("TRAWL_TOP") == "" {
		top := t.TempDir()
		write(t, top+"/closed", canary)
		must(t, os.Chmod(top+"/closed", 0))
		write(t, top+"/open", canary)
		must(t, os.Chmod(top+"/open", 0o644))
		for dir := top; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
			must(t, os.Chmod(dir, 0o755))
		}
		if os.Geteuid() != 0 {
			t.Setenv("TRAWL_TOP", top)
			checkClosed(t)
			return
		}
		// The test's own program is in a folder of root's.
		program, err := os.ReadFile("/proc/self/exe")
		must(t, err)
		must(t, os.WriteFile(filepath.Join(filepath.Dir(top), "program"), program, 0o755))
		cmd := exec.CommandContext(t.Context(), filepath.Join(filepath.Dir(top), "program"),
			"-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Dir = "/"
		cmd.Env = []string{"TRAWL_TOP=" + top, "TMPDIR=" + top}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := cmd.CombinedOutput()
		if err != nil || !bytes.Contains(out, []byte("--- PASS")) {
			t.Errorf("as nobody: %v\n%s", err, out)
		}
		return
	}
	checkClosed(t)
}

func checkClosed(t *testing.T) {
	t.Helper()
	yellow, _ := twoSets(t)
	top := os.Getenv("TRAWL_TOP")
	hits, stats, err := yellow.Files(t.Context(), []string{top}, FileOptions{})
	if !errors.Is(err, fs.ErrPermission) || stats.Files != 1 || len(hits) != 1 {
		t.Errorf("a closed file: %v, %+v, %v", hits, stats, err)
	}
	closed := func(path string) bool { return filepath.Base(path) == "closed" }
	_, _, err = yellow.Files(t.Context(), []string{top}, FileOptions{Skip: closed})
	if err != nil {
		t.Errorf("a closed file that is left out: %v", err)
	}
}

func TestFilesThatVanishAreNoError(t *testing.T) {
	yellow, _ := twoSets(t)
	top := t.TempDir()
	for n := range 4 {
		must(t, os.Mkdir(fmt.Sprintf("%s/%d", top, n), 0o700))
		write(t, fmt.Sprintf("%s/%d/file", top, n), canary)
	}
	// The search has listed the folders when it asks about the first; then they go.
	remove := func(path string) bool {
		if path == top+"/0" {
			for n := 1; n < 4; n++ {
				must(t, os.RemoveAll(fmt.Sprintf("%s/%d", top, n)))
			}
		}
		return false
	}
	hits, stats, err := yellow.Files(t.Context(), []string{top}, FileOptions{Skip: remove})
	if err != nil || len(hits) != 1 || stats.Vanished != 3 {
		t.Errorf("found %v, looked at %+v, error %v", hits, stats, err)
	}
}

func TestOtherMountsAreLeftOutUnlessAskedFor(t *testing.T) {
	testenv.Need(t, testenv.Root)
	yellow, _ := twoSets(t)
	top, source := t.TempDir(), t.TempDir()
	write(t, source+"/file", canary)
	write(t, top+"/file", "")
	// A bind mount has the same device as the tree around it.
	for name, mount := range map[string]func(string) error{
		"bind":  func(target string) error { return unix.Mount(source, target, "", unix.MS_BIND, "") },
		"tmpfs": func(target string) error { return unix.Mount("tmpfs", target, "tmpfs", 0, "size=1m") },
	} {
		target := filepath.Join(top, name)
		must(t, os.Mkdir(target, 0o700))
		if err := mount(target); err != nil {
			testenv.Missing(t, "right to mount", "run the tests as root: "+err.Error())
		}
		t.Cleanup(func() { must(t, unix.Unmount(target, unix.MNT_DETACH)) })
		write(t, target+"/file", canary)
	}
	hits, stats, err := yellow.Files(t.Context(), []string{top}, FileOptions{})
	if err != nil || len(hits) > 0 || stats.OtherMounts != 2 {
		t.Errorf("found %v, looked at %+v, error %v", hits, stats, err)
	}
	write(t, top+"/net", "") // a file of a namespace, which has nothing in it
	must(t, unix.Mount("/proc/self/ns/net", top+"/net", "", unix.MS_BIND, ""))
	t.Cleanup(func() { must(t, unix.Unmount(top+"/net", unix.MNT_DETACH)) })
	hits, stats, err = yellow.Files(t.Context(), []string{top}, FileOptions{OtherMounts: true})
	if err != nil || len(hits) != 2 || stats.OtherMounts != 0 {
		t.Errorf("with other mounts: found %v, looked at %+v, error %v", hits, stats, err)
	}
}

// TestValuesThatEndInHolesAreFound has values with zeros at their ends, and reads little of the holes.
func TestValuesThatEndInHolesAreFound(t *testing.T) {
	s := newTestSet(t, Needle{"tail", []byte("tail\x01\x02\x00\x00\x00\x00\x00\x00")},
		Needle{"head", []byte("\x00\x00\x00\x00\x00\x00head\x01\x02")})
	path := t.TempDir() + "/sparse"
	f, err := os.Create(path)
	must(t, err)
	const page, far = 4096, 1 << 35
	_, err = f.WriteAt(append(bytes.Repeat([]byte{1}, page-6), "tail\x01\x02"...), far)
	must(t, err)
	_, err = f.WriteAt(append([]byte("head\x01\x02"), bytes.Repeat([]byte{1}, page-6)...), 2*far)
	must(t, errors.Join(err, f.Truncate(3*far), f.Close()))
	hits, stats, err := s.Files(t.Context(), []string{path}, FileOptions{})
	must(t, err)
	want := []Hit{{"tail", "raw", path, far + page - 6}, {"head", "raw", path, 2*far - 6}}
	if !slices.Equal(hits, want) {
		t.Errorf("found %v, want %v", hits, want)
	}
	if stats.Bytes > 1<<20 {
		t.Errorf("read %d bytes of holes", stats.Bytes)
	}
}

// TestALinkInThePlaceOfAFileIsNotFollowed is about one that is put there after its folder was listed.
func TestALinkInThePlaceOfAFileIsNotFollowed(t *testing.T) {
	yellow, _ := twoSets(t)
	top := t.TempDir()
	write(t, top+"/target", canary)
	must(t, os.Symlink("target", top+"/link"))
	must(t, syscall.Mkfifo(top+"/fifo", 0o600))
	w := yellow.walk(t.Context(), FileOptions{})
	must(t, w.options.fill())
	w.file(top+"/link", top+"/link", nil)
	w.file(top+"/fifo", top+"/fifo", nil)
	if err := w.err(); err != nil || len(w.hits) > 0 || w.stats != (Stats{Vanished: 1}) {
		t.Errorf("found %v, looked at %+v, error %v", w.hits, w.stats, err)
	}
}

func TestFilesThatSayTheyAreEmptyAreRead(t *testing.T) {
	yellow, _ := twoSets(t)
	// The second also says that it is one hole, of which as much is read as a value can take.
	short := *yellow
	short.longest = window
	for path, size := range map[string]int64{"/proc/self/status": 100, "/proc/sys/kernel/random/boot_id": 36} {
		_, stats, err := short.Files(t.Context(), []string{path}, FileOptions{})
		if err != nil || stats.Files != 1 || stats.Bytes < size {
			t.Errorf("%s: looked at %+v, error %v", path, stats, err)
		}
	}
}

// process starts a shell that waits, and ends with the test.
func process(t *testing.T, change func(*exec.Cmd)) int {
	t.Helper()
	shell := testenv.Tool(t, "sh")
	cmd := exec.Command(shell, "-c", "read line; exit 0")
	cmd.Env = []string{"A=b"}
	change(cmd)
	in, err := cmd.StdinPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() { must(t, errors.Join(in.Close(), ignoreStatus(cmd.Wait()))) })
	// The kernel shows the arguments and the environment a moment after the program has been started.
	testenv.Eventually(t, 10*time.Second, func() bool {
		environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", cmd.Process.Pid))
		return err == nil && bytes.Contains(environment, []byte("A=b\x00"))
	}, "the environment of process %d is not there", cmd.Process.Pid)
	return cmd.Process.Pid
}

// ignoreStatus leaves out that the shell ended without a line.
func ignoreStatus(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil
	}
	return err
}

func TestACanaryInEveryPlaceOfAProcessIsFound(t *testing.T) {
	yellow, other := twoSets(t)
	for name, test := range map[string]struct {
		change func(*testing.T, *exec.Cmd)
		want   string
	}{
		"arguments":   {func(_ *testing.T, cmd *exec.Cmd) { cmd.Args = append(cmd.Args, "--key="+canary) }, "raw process %d (arguments)"},
		"environment": {func(_ *testing.T, cmd *exec.Cmd) { cmd.Env = append(cmd.Env, "KEY="+canary) }, "raw process %d (environment)"},
		"nothing":     {func(*testing.T, *exec.Cmd) {}, ""},
		"deleted file": {func(t *testing.T, cmd *exec.Cmd) {
			f, err := os.CreateTemp(t.TempDir(), "open")
			must(t, err)
			_, err = f.WriteString(canary)
			must(t, errors.Join(err, os.Remove(f.Name())))
			t.Cleanup(func() { must(t, f.Close()) })
			cmd.ExtraFiles = []*os.File{f, f}
		}, "raw process %d, open file "},
		"memory file": {func(t *testing.T, cmd *exec.Cmd) {
			fd, err := unix.MemfdCreate("note", unix.MFD_CLOEXEC)
			must(t, err)
			f := os.NewFile(uintptr(fd), "note")
			_, err = f.WriteString(canary)
			must(t, err)
			t.Cleanup(func() { must(t, f.Close()) })
			cmd.ExtraFiles = []*os.File{f}
		}, "raw process %d, open file /memfd:note"},
		"name of a memory file": {func(t *testing.T, cmd *exec.Cmd) {
			fd, err := unix.MemfdCreate(url.PathEscape(canary), unix.MFD_CLOEXEC)
			must(t, err)
			f := os.NewFile(uintptr(fd), "note")
			t.Cleanup(func() { must(t, f.Close()) })
			cmd.ExtraFiles = []*os.File{f}
		}, "url process %d, name of a deleted file"},
		"open file that is not deleted": {func(t *testing.T, cmd *exec.Cmd) {
			path := t.TempDir() + "/file"
			write(t, path, canary)
			f, err := os.Open(path)
			must(t, err)
			t.Cleanup(func() { must(t, f.Close()) })
			cmd.ExtraFiles = []*os.File{f}
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			pid := process(t, func(cmd *exec.Cmd) { test.change(t, cmd) })
			o := ProcessOptions{PIDs: func() ([]int, error) { return []int{pid}, nil }, DeletedFiles: true}
			hits, stats, err := yellow.Processes(t.Context(), o)
			must(t, err)
			got := wheres(hits, "")
			right := len(got) == 0
			if test.want != "" {
				right = len(got) == 1 && strings.HasPrefix(got[0], fmt.Sprintf(test.want, pid))
			}
			if !right {
				t.Errorf("found %q, want %q", got, test.want)
			}
			if stats.Processes != 1 || stats.Bytes == 0 {
				t.Errorf("looked at %+v", stats)
			}
			if hits, stats, err := other.Processes(t.Context(), o); err != nil || len(hits) > 0 || stats.Processes != 1 {
				t.Errorf("without it: %v, %+v, %v", hits, stats, err)
			}
		})
	}
	t.Run("without deleted files", func(t *testing.T) {
		pid := process(t, func(cmd *exec.Cmd) {
			fd, err := unix.MemfdCreate("note", unix.MFD_CLOEXEC)
			must(t, err)
			f := os.NewFile(uintptr(fd), "note")
			_, err = f.WriteString(canary)
			must(t, err)
			t.Cleanup(func() { must(t, f.Close()) })
			cmd.ExtraFiles = []*os.File{f}
		})
		hits, _, err := yellow.Processes(t.Context(), ProcessOptions{PIDs: func() ([]int, error) { return []int{pid}, nil }})
		if err != nil || len(hits) > 0 {
			t.Errorf("found %v, error %v", hits, err)
		}
	})
}

func TestTheNameOfAProcessIsSearched(t *testing.T) {
	s := newTestSet(t, Needle{"canary", []byte("canary-value-7")})
	link := filepath.Join(t.TempDir(), "canary-value-7")
	must(t, os.Symlink(testenv.Tool(t, "sh"), link))
	pid := process(t, func(cmd *exec.Cmd) { cmd.Path = link })
	hits, _, err := s.Processes(t.Context(), ProcessOptions{PIDs: func() ([]int, error) { return []int{pid}, nil }})
	if want := fmt.Sprintf("raw process %d (name)", pid); err != nil || !slices.Equal(wheres(hits, ""), []string{want}) {
		t.Errorf("found %v, error %v", hits, err)
	}
}

func TestEveryProcessIsSearched(t *testing.T) {
	testenv.Need(t, testenv.Root)
	yellow, other := twoSets(t)
	pid := process(t, func(cmd *exec.Cmd) { cmd.Args = append(cmd.Args, canary) })
	hits, stats, err := yellow.Processes(t.Context(), ProcessOptions{})
	// In some containers not even root may read the first process.
	if err != nil && !errors.Is(err, fs.ErrPermission) {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("raw process %d (arguments)", pid); !slices.Equal(wheres(hits, ""), []string{want}) || stats.Processes < 2 {
		t.Errorf("found %v, looked at %+v", hits, stats)
	}
	if hits, _, _ := other.Processes(t.Context(), ProcessOptions{}); len(hits) > 0 {
		t.Errorf("without it: %v", hits)
	}
}

func TestProcessesThatEndAreNoError(t *testing.T) {
	yellow, _ := twoSets(t)
	cmd := exec.Command(testenv.Tool(t, "sh"), "-c", "exit 0")
	must(t, cmd.Run())
	gone := func() ([]int, error) { return []int{cmd.Process.Pid, os.Getpid()}, nil }
	hits, stats, err := yellow.Processes(t.Context(), ProcessOptions{PIDs: gone, DeletedFiles: true})
	if err != nil || len(hits) > 0 || stats.Vanished != 1 || stats.Processes != 1 {
		t.Errorf("found %v, looked at %+v, error %v", hits, stats, err)
	}
	broken := errors.New("broken")
	_, _, err = yellow.Processes(t.Context(), ProcessOptions{PIDs: func() ([]int, error) { return nil, broken }})
	if !errors.Is(err, broken) {
		t.Errorf("a list that fails: %v", err)
	}
}

func TestAZombieIsNoError(t *testing.T) {
	testenv.Need(t, testenv.Root) // others may not ask a zombie for its environment
	yellow, _ := twoSets(t)
	cmd := exec.Command(testenv.Tool(t, "sh"), "-c", "exit 0")
	must(t, cmd.Start())
	pid := cmd.Process.Pid
	testenv.Eventually(t, 10*time.Second, func() bool {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		return err == nil && bytes.Contains(status, []byte("State:\tZ"))
	}, "process %d does not end", pid)
	_, stats, err := yellow.Processes(t.Context(), ProcessOptions{PIDs: func() ([]int, error) { return []int{pid}, nil }})
	must(t, errors.Join(err, cmd.Wait()))
	if stats.Vanished != 0 || stats.Processes != 1 {
		t.Errorf("looked at %+v", stats)
	}
}
