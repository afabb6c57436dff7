package ringlog_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/ringlog"
	"github.com/clawjail/clawjail/internal/testenv"
)

// child moves what comes out of the FIFO "pipe" into a log until it is killed.
func child(dir string) {
	pipe, err := os.OpenFile(filepath.Join(dir, "pipe"), os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		panic(err)
	}
	l, err := ringlog.Open(filepath.Join(dir, "log"), ringlog.Options{Keep: 1 << 30, Segment: 1 << 20})
	if err != nil {
		panic(err)
	}
	fmt.Println("ready")
	for {
		if _, err := l.Splice(pipe, 1<<20); err != nil {
			panic(err)
		}
	}
}

// The process that moves the lines is killed again and again, at any instant: no line is lost, and none is there twice.
func TestKilledProcessLosesNothing(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	pipe, err := os.OpenFile(filepath.Join(dir, "pipe"), os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	stop := make(chan struct{})
	var printing sync.WaitGroup
	printed := 0
	ended := make(chan struct{})
	printing.Go(func() {
		defer close(ended)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := fmt.Fprintf(pipe, "line %d\n", printed); err != nil {
				t.Error(err)
				return
			}
			printed++
		}
	})
	reader := ringlog.OpenReader(filepath.Join(dir, "log"))
	run := func(until func(end int64) bool) {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "RINGLOG_TEST_CHILD="+dir)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			t.Error(err)
		}
		testenv.Eventually(t, 20*time.Second, func() bool {
			c, err := reader.Read(t.Context(), -1, 1, 0)
			return err == nil && until(c.End)
		}, "too few lines are in the log")
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	}
	for range 12 {
		c, err := reader.Read(t.Context(), -1, 1, 0)
		if err != nil {
			t.Fatal(err)
		}
		run(func(end int64) bool { return end > c.End+100_000 })
	}
	close(stop)
	run(func(int64) bool { // one more line may be waiting for room, which this child makes
		left, err := unix.IoctlGetInt(fd(t, pipe), unix.TIOCINQ)
		select {
		case <-ended:
			return err == nil && left == 0
		default:
			return false
		}
	})
	printing.Wait()
	got, first := all(t, reader)
	lines := bytes.Split(bytes.TrimSuffix(got, []byte("\n")), []byte("\n"))
	if first != 0 || len(lines) != printed {
		t.Fatalf("%d lines were printed, %d are in the log", printed, len(lines))
	}
	for i, line := range lines {
		if string(line) != fmt.Sprintf("line %d", i) {
			t.Fatalf("line %d is %q", i, line)
		}
	}
}

// The disk is full for a while: whoever prints does not wait for it, what was dropped is counted, and the log goes on.
func TestFullDiskDropsAndGoesOn(t *testing.T) {
	testenv.Need(t, testenv.Root)
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=512k,mode=0700"); err != nil {
		testenv.Missing(t, "a tmpfs ("+err.Error()+")", "allow mounts")
	}
	t.Cleanup(func() {
		if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	for _, how := range []string{"write", "splice"} {
		t.Run(how, func(t *testing.T) {
			l := open(t, filepath.Join(disk, how), 1<<20)
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			defer w.Close()
			block := bytes.Repeat([]byte("0123456789abcde\n"), 2048) // 32 KiB
			print := func() {
				if how == "write" {
					if n, err := l.Write(block); n != len(block) || err != nil {
						t.Fatal(n, err)
					}
					return
				}
				if _, err := w.Write(block); err != nil {
					t.Fatal(err)
				}
				for moved := int64(0); moved < int64(len(block)); {
					n, err := l.Splice(r, 1<<20)
					if err != nil {
						t.Fatal(err)
					}
					moved += n
				}
			}
			for range 40 {
				print()
			}
			if l.End() != 40*int64(len(block)) || l.Dropped() == 0 {
				t.Fatalf("the end is %d, %d were dropped", l.End(), l.Dropped())
			}
			kept, _ := all(t, l)
			if int64(len(kept)) != l.End()-l.Dropped() {
				t.Errorf("%d of %d bytes are there, %d were dropped", len(kept), l.End(), l.Dropped())
			}
			segments, err := filepath.Glob(filepath.Join(disk, how, "*.log"))
			if err != nil || len(segments) < 2 {
				t.Fatal(segments, err)
			}
			if err := os.Remove(segments[1]); err != nil { // room
				t.Fatal(err)
			}
			end, dropped := l.End(), l.Dropped()
			print()
			c, err := l.Read(t.Context(), end, 1<<20, 0)
			if err != nil || c.Offset != end || !bytes.Equal(c.Data, block[:len(c.Data)]) || l.Dropped() != dropped {
				t.Errorf("after there was room, %d bytes at %d (asked for %d), %d dropped, %v", len(c.Data), c.Offset, end, l.Dropped()-dropped, err)
			}
			for range 20 {
				print()
			}
			end = l.End()
			_ = l.Close() // what is kept goes
			again := open(t, filepath.Join(disk, how), 1<<20)
			if again.End() != end || l.Dropped() == dropped {
				t.Errorf("opened again on a full disk, the end is %d and was %d", again.End(), end)
			}
			_ = again.Close() // what is kept goes
			if err := ringlog.Remove(filepath.Join(disk, how)); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestSpliceEndsWithThePipe(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "log"), segment)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := r.SetReadDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Splice(r, 10); !os.IsTimeout(err) {
		t.Errorf("past the deadline the error is %v", err)
	}
	if err := r.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	if n, err := l.Splice(r, 10); n != 0 || err != io.EOF {
		t.Errorf("at its end: %d, %v", n, err)
	}
}

// A file is no pipe: what does not go by the kernel's way goes by ours.
func TestSpliceWithoutTheKernel(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "log"), segment)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	r, w := os.NewFile(uintptr(pair[0]), "r"), os.NewFile(uintptr(pair[1]), "w")
	defer r.Close()
	if _, err := w.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	for {
		if _, err := l.Splice(r, 2); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if got, _ := all(t, l); string(got) != "hello" {
		t.Errorf("%q was kept", got)
	}
}

func fd(t *testing.T, f *os.File) (n int) {
	t.Helper()
	raw, err := f.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { n = int(fd) })
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// Output without end is read at a pace, and a writer that has rested may print more at once.
func TestDrainHasAPace(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	l, err := ringlog.Open(t.TempDir(), ringlog.Options{Keep: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	began, printed := time.Now(), 0
	done := make(chan error)
	go func() { done <- l.Drain(read) }()
	for block := bytes.Repeat([]byte("x"), 64<<10); printed < 16<<20; {
		n, err := write.Write(block)
		printed += n
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := write.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, io.EOF) {
		t.Errorf("it ends with %v", err)
	}
	if took := time.Since(began); took < time.Second*9/10 {
		t.Errorf("16 MiB went in %v: 8 were in hand, and 8 take a second", took)
	}
}
