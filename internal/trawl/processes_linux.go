package trawl

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

const (
	// mostProcesses is the most that Linux can have.
	mostProcesses = 1 << 22
	// mostArguments bounds what is read of one process. The kernel allows 6 MiB of arguments and environment.
	mostArguments = 64 << 20
)

// Processes searches the arguments, the environment and the name of processes. Their memory is not searched: values
// are there while they are used. For a moment while it starts a program, a process shows neither arguments nor an
// environment. One that ends meanwhile is no error; one that may not be read is, and the others are searched all the
// same.
func (s *Set) Processes(ctx context.Context, o ProcessOptions) ([]Hit, Stats, error) {
	list := o.PIDs
	if list == nil {
		list = AllProcesses
	}
	pids, err := list()
	if err != nil {
		return nil, Stats{}, fmt.Errorf("list the processes: %w", err)
	}
	if len(pids) > mostProcesses {
		return nil, Stats{}, fmt.Errorf("%d processes are more than there can be", len(pids))
	}
	w := s.walk(ctx, FileOptions{})
	if err := w.options.fill(); err != nil {
		return nil, Stats{}, err
	}
	seen := map[[2]uint64]bool{}
	for _, pid := range pids {
		if ctx.Err() != nil {
			w.errs = append(w.errs, context.Cause(ctx))
			break
		}
		if w.process(pid) && o.DeletedFiles {
			w.deletedFiles(pid, seen)
		}
	}
	return w.hits, w.stats, w.err()
}

// AllProcesses are the numbers of all processes that this one sees, ascending.
func AllProcesses() ([]int, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }() // it was only read
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids, nil
}

// process searches one process and says whether it was there.
func (w *walk) process(pid int) bool {
	for _, part := range []struct{ file, is string }{
		{"comm", "name"}, {"cmdline", "arguments"}, {"environ", "environment"},
	} {
		where := fmt.Sprintf("process %d (%s)", pid, part.is)
		f, err := os.Open(fmt.Sprintf("/proc/%d/%s", pid, part.file))
		if err == nil {
			w.stream.reset(where)
			counted := &counter{r: contextReader{w.ctx, f}}
			err = w.stream.readFrom(counted, mostArguments)
			w.hits = append(w.hits, w.stream.found()...)
			w.stats.Bytes += counted.n
			_ = f.Close() // it was only read
		}
		if gone(err) && part.file != "comm" {
			// Kernel threads and zombies are there and have neither arguments nor an environment.
			_, err = os.Lstat(fmt.Sprintf("/proc/%d", pid))
		}
		if err != nil {
			w.fail("read", where, err)
			return false
		}
	}
	w.stats.Processes++
	return true
}

// deletedFiles searches the open files of a process that are in no folder. Those that seen has are known already.
func (w *walk) deletedFiles(pid int, seen map[[2]uint64]bool) {
	folder := fmt.Sprintf("/proc/%d/fd", pid)
	where := fmt.Sprintf("process %d (open files)", pid)
	entries, err := os.ReadDir(folder)
	if err != nil {
		w.fail("list", where, err)
		return
	}
	for _, entry := range entries {
		path := filepath.Join(folder, entry.Name())
		// The kind of the descriptor must be known before it is opened: opening a device can do something.
		info, err := os.Stat(path)
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				w.fail("look at", where, err)
			}
			continue
		}
		if !deleted(info) {
			continue
		}
		target, err := os.Readlink(path)
		if err != nil {
			w.fail("look at", where, err)
			continue
		}
		file := fmt.Sprintf("process %d, open file %s", pid, strings.ReplaceAll(target, "\n", " "))
		w.file(path, file, func(info fs.FileInfo) bool {
			st, ok := info.Sys().(*syscall.Stat_t)
			if !ok || !deleted(info) || seen[[2]uint64{st.Dev, st.Ino}] {
				return false
			}
			seen[[2]uint64{st.Dev, st.Ino}] = true
			w.stats.Names++
			w.bytes(fmt.Sprintf("process %d, name of a deleted file", pid), []byte(target))
			return true
		})
	}
}

func deleted(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && info.Mode().IsRegular() && st.Nlink == 0
}
