package secretscan

import (
	"bytes"
	"compress/gzip"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
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

// places are those of hits, sorted, without the folder that all are in.
func places(hits []Hit, top string) (out []string) {
	for _, h := range hits {
		out = append(out, strings.TrimPrefix(h.Where, top+"/"))
	}
	slices.Sort(out)
	return out
}

// TestACanaryInEveryPlaceOfATreeIsFound plants one, looks for it and for another value.
func TestACanaryInEveryPlaceOfATreeIsFound(t *testing.T) {
	yellow, other := New(t, map[string]string{"canary": canary}), New(t, map[string]string{"other": "another value"})
	escaped := url.PathEscape(canary)
	for name, test := range map[string]struct {
		plant func(t *testing.T, path string)
		where string // behind the path
	}{
		"file":   {func(t *testing.T, path string) { write(t, path, "x="+canary) }, ""},
		"folder": {func(t *testing.T, path string) { must(t, os.Mkdir(path, 0o700)); write(t, path+"/.hidden", canary) }, "/.hidden"},
		"name":   {func(t *testing.T, path string) { write(t, path+escaped, "") }, escaped + " (name)"},
		"names": {func(t *testing.T, path string) {
			must(t, os.Mkdir(path+"canary", 0o700))
			write(t, path+"canary/Value+7", "")
		}, "canary/Value+7 (name)"},
		"name of a folder": {func(t *testing.T, path string) { must(t, os.Mkdir(path+escaped, 0o700)) }, escaped + " (name)"},
		"link":             {func(t *testing.T, path string) { must(t, os.Symlink("/nowhere/"+canary, path)) }, " (target of the link)"},
		"attribute": {func(t *testing.T, path string) {
			write(t, path, "")
			must(t, unix.Setxattr(path, "user.other", []byte("x"), 0))
			must(t, unix.Setxattr(path, "user.note", []byte(canary), 0))
		}, " (attribute user.note)"},
		"attribute of a folder": {func(t *testing.T, path string) {
			must(t, os.Mkdir(path, 0o700))
			must(t, unix.Setxattr(path, "user.note", []byte(canary), 0))
		}, " (attribute user.note)"},
		"name of an attribute": {func(t *testing.T, path string) {
			write(t, path, "")
			must(t, unix.Setxattr(path, "user."+escaped, []byte("x"), 0))
		}, " (names of attributes)"},
		"gzip":            {func(t *testing.T, path string) { write(t, path+".gz", gzipped(t, canary)) }, ".gz (unpacked)"},
		"gzip after gzip": {func(t *testing.T, path string) { write(t, path, gzipped(t, "x")+gzipped(t, canary)) }, " (unpacked)"},
		"gzip that is still written": {func(t *testing.T, path string) {
			text := gzipped(t, canary+"\n")
			write(t, path, text[:len(text)-5])
		}, " (unpacked)"},
		"gzip in name alone": {func(t *testing.T, path string) { write(t, path, "\x1f\x8bxxxx"+canary) }, ""},
		"bind mount": {func(t *testing.T, path string) {
			testenv.Need(t, testenv.Root)
			source := t.TempDir()
			write(t, source+"/file", canary)
			must(t, os.Mkdir(path, 0o700))
			must(t, unix.Mount(source, path, "", unix.MS_BIND, ""))
			t.Cleanup(func() { must(t, unix.Unmount(path, unix.MNT_DETACH)) })
		}, "/file"},
		"file beside one of a namespace": {func(t *testing.T, path string) {
			testenv.Need(t, testenv.Root)
			write(t, path+".net", "")
			must(t, unix.Mount("/proc/self/ns/net", path+".net", "", unix.MS_BIND, ""))
			t.Cleanup(func() { must(t, unix.Unmount(path+".net", unix.MNT_DETACH)) })
			write(t, path, canary)
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			top := t.TempDir()
			write(t, top+"/harmless", "nothing to see")
			test.plant(t, top+"/x")
			hits, files, err := yellow.Files([]string{top}, nil)
			if want := "x" + test.where; err != nil || files == 0 || !slices.Equal(places(hits, top), []string{want}) {
				t.Errorf("found %v in %d files, %v; want %s", hits, files, err, want)
			}
			if hits, again, err := other.Files([]string{top}, nil); err != nil || again != files || len(hits) > 0 {
				t.Errorf("without it: %v in %d files, %v", hits, again, err)
			}
		})
	}
}

func TestACanaryInADatabaseIsFound(t *testing.T) {
	yellow, other := New(t, map[string]string{"canary": canary}), New(t, map[string]string{"other": "another value"})
	top := t.TempDir()
	db, err := sql.Open("sqlite", "file:"+top+"/rows.db?_pragma=journal_mode(wal)")
	must(t, err)
	t.Cleanup(func() { must(t, db.Close()) })
	db.SetMaxOpenConns(1)
	for _, step := range []struct{ query, where string }{
		{"create table notes (text text); insert into notes values ('text " + canary + "')", "rows.db-wal"},
		{"pragma wal_checkpoint(truncate)", "rows.db"},
		// SQLite leaves what it deletes where it was.
		{"pragma secure_delete=off; delete from notes; pragma wal_checkpoint(truncate)", "rows.db"},
	} {
		_, err = db.ExecContext(t.Context(), step.query)
		must(t, err)
		hits, files, err := yellow.Files([]string{top}, nil)
		if err != nil || files < 2 || !slices.Equal(places(hits, top), []string{step.where}) {
			t.Errorf("after %s: found %v in %d files, %v", step.query, hits, files, err)
		}
		if hits, _, err := other.Files([]string{top}, nil); err != nil || len(hits) > 0 {
			t.Errorf("without it: %v, %v", hits, err)
		}
	}
}

func TestLinksAreNotFollowedExceptTheRoot(t *testing.T) {
	yellow := New(t, map[string]string{"canary": canary})
	outside, top := t.TempDir(), t.TempDir()
	write(t, outside+"/file", canary)
	must(t, os.Symlink(outside, top+"/folder"))
	must(t, os.Symlink(outside+"/file", top+"/file"))
	must(t, syscall.Mkfifo(top+"/fifo", 0o600))
	if hits, _, err := yellow.Files([]string{top}, nil); err != nil || len(hits) > 0 {
		t.Errorf("through a link: %v, %v", hits, err)
	}
	for _, root := range []string{top + "/folder", top + "/file", outside + "/file"} {
		if hits, _, err := yellow.Files([]string{root}, nil); err != nil || len(hits) != 1 {
			t.Errorf("%s as the root: %v, %v", root, hits, err)
		}
	}
	// They may have been put there after the folder was listed.
	for path, want := range map[string]error{top + "/file": syscall.ELOOP, top + "/fifo": nil} {
		if hits, err := yellow.file(yellow.buffer(), path); !errors.Is(err, want) || len(hits) > 0 || want != nil && !gone(err) {
			t.Errorf("in the place of a file: %v, %v", hits, err)
		}
	}
}

func TestWhatCannotBeSearchedIsSaid(t *testing.T) {
	yellow := New(t, map[string]string{"canary": canary})
	top := t.TempDir()
	write(t, top+"/file", canary)
	hits, _, err := yellow.Files([]string{top + "/missing", top}, nil)
	if !errors.Is(err, fs.ErrNotExist) || len(hits) != 1 {
		t.Errorf("a root that is missing: %v, %v", hits, err)
	}
	// A file that not even root can read: what is first in memory is nothing.
	hits, files, err := yellow.Files([]string{"/proc/self/mem", top}, nil)
	if !errors.Is(err, syscall.EIO) || files != 1 || len(hits) != 1 {
		t.Errorf("a file that cannot be read: %v in %d files, %v", hits, files, err)
	}
	if hits, _, err := yellow.Files([]string{top}, func(path string) bool { return path == top }); err != nil || len(hits) > 0 {
		t.Errorf("what is left out: %v, %v", hits, err)
	}
}

func TestFilesThatVanishAreNoError(t *testing.T) {
	yellow := New(t, map[string]string{"canary": canary})
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
	if hits, files, err := yellow.Files([]string{top}, remove); err != nil || files != 1 || len(hits) != 1 {
		t.Errorf("found %v in %d files, error %v", hits, files, err)
	}
}

// process starts a shell that waits, and ends with the test.
func process(t *testing.T, change func(*exec.Cmd)) int {
	t.Helper()
	cmd := exec.Command(testenv.Tool(t, "sh"), "-c", "read line")
	cmd.Env = []string{"A=b"}
	change(cmd)
	in, err := cmd.StdinPipe()
	must(t, errors.Join(err, cmd.Start()))
	t.Cleanup(func() { must(t, in.Close()); _ = cmd.Wait() }) // without a line it fails
	// The kernel shows the arguments and the environment a moment after the program has been started.
	testenv.Eventually(t, 10*time.Second, func() bool {
		environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", cmd.Process.Pid))
		return err == nil && bytes.Contains(environment, []byte("A=b\x00"))
	}, "the environment of process %d is not there", cmd.Process.Pid)
	return cmd.Process.Pid
}

func TestACanaryInEveryPlaceOfAProcessIsFound(t *testing.T) {
	yellow, other := New(t, map[string]string{"canary": canary, "name": "canary-value-7"}), New(t, map[string]string{"other": "another value"})
	link := t.TempDir() + "/canary-value-7"
	must(t, os.Symlink(testenv.Tool(t, "sh"), link))
	for where, change := range map[string]func(*exec.Cmd){
		" (cmdline)": func(cmd *exec.Cmd) { cmd.Args = append(cmd.Args, "--key="+canary) },
		" (environ)": func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, "KEY="+canary) },
		" (comm)":    func(cmd *exec.Cmd) { cmd.Path = link },
		"":           func(*exec.Cmd) {},
	} {
		pid := process(t, change)
		var want []string
		if where != "" {
			want = []string{fmt.Sprintf("process %d%s", pid, where)}
		}
		all, err := AllProcesses()
		if err != nil || !slices.Contains(all, pid) {
			t.Errorf("process %d is not among %v, %v", pid, all, err)
		}
		if hits, n, err := yellow.Processes([]int{pid}); err != nil || n != 1 || !slices.Equal(places(hits, ""), want) {
			t.Errorf("found %v in %d processes, %v; want %q", hits, n, err, want)
		}
		if hits, n, err := other.Processes([]int{pid}); err != nil || n != 1 || len(hits) > 0 {
			t.Errorf("without it: %v in %d processes, %v", hits, n, err)
		}
	}
}

func TestProcessesThatEndAreNoError(t *testing.T) {
	testenv.Need(t, testenv.Root) // others may not ask a zombie for its environment
	yellow := New(t, map[string]string{"canary": canary})
	cmd := exec.Command(testenv.Tool(t, "sh"), "-c", "exit 0")
	must(t, cmd.Start())
	pids := []int{cmd.Process.Pid, os.Getpid()}
	testenv.Eventually(t, 10*time.Second, func() bool {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pids[0]))
		return err == nil && bytes.Contains(status, []byte("State:\tZ"))
	}, "process %d does not end", pids[0])
	if hits, n, err := yellow.Processes(pids); err != nil || n != 2 || len(hits) > 0 {
		t.Errorf("with a zombie: %v in %d processes, %v", hits, n, err)
	}
	must(t, cmd.Wait())
	if hits, n, err := yellow.Processes(pids); err != nil || n != 1 || len(hits) > 0 {
		t.Errorf("with one that has ended: %v in %d processes, %v", hits, n, err)
	}
}
