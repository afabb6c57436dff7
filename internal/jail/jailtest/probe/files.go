//go:build linux

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// openDescriptors lists "number target" of every descriptor that is not the Go runtime's own.
func openDescriptors([]string) (answer, error) {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return answer{}, err
	}
	var a answer
	for _, e := range entries {
		target, err := os.Readlink("/proc/self/fd/" + e.Name())
		if errors.Is(err, fs.ErrNotExist) {
			continue // the descriptor that the list was read through
		}
		if err != nil {
			return a, err
		}
		if strings.HasPrefix(target, "anon_inode:[event") {
			continue // the poller of the Go runtime
		}
		a.List = append(a.List, e.Name()+" "+target)
	}
	return a, nil
}

// listTree lists everything below a folder as "mode path".
func listTree(args []string) (answer, error) {
	var a answer
	err := filepath.WalkDir(args[0], func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if path != args[0] {
			a.List = append(a.List, d.Type().String()[:1]+" "+path)
		}
		return nil
	})
	slices.Sort(a.List)
	return a, err
}

// listNames lists the names in one folder.
func listNames(args []string) (answer, error) {
	entries, err := os.ReadDir(args[0])
	var a answer
	for _, e := range entries {
		a.List = append(a.List, e.Name())
	}
	return a, err
}

func readFile(args []string) (answer, error) {
	text, err := os.ReadFile(args[0])
	return answer{Text: string(text[:min(len(text), 64<<10)]), Number: int64(len(text))}, err
}

func writeFile(args []string) (answer, error) {
	f, err := os.OpenFile(args[0], os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return answer{}, err
	}
	_, err = f.WriteString(args[1])
	return answer{}, errors.Join(err, f.Close())
}

// fillFile writes up to the given number of bytes, and reports how many went in. It holds the file open in that state.
func fillFile(args []string) (answer, error) {
	f, err := os.Create(args[0])
	if err != nil {
		return answer{}, err
	}
	block := bytes.Repeat([]byte{1}, 64<<10)
	var written int64
	for written < int64(number(args[1])) {
		n, err := f.Write(block)
		written += int64(n)
		if err != nil {
			return answer{Number: written}, errors.Join(err, f.Close())
		}
	}
	return answer{Number: written}, f.Close()
}

// makeNode makes the device node of "major minor" at a path.
func makeNode(args []string) (answer, error) {
	return answer{}, unix.Mknod(args[0], unix.S_IFCHR|0o666, int(unix.Mkdev(uint32(number(args[1])), uint32(number(args[2])))))
}

// statusField reads one field of /proc/self/status.
func statusField(args []string) (answer, error) {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return answer{}, err
	}
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, args[0]+":"); ok {
			return answer{Text: strings.TrimSpace(v)}, nil
		}
	}
	return answer{}, fmt.Errorf("/proc/self/status has no %s", args[0])
}

// openMany opens a file the given number of times and keeps it open; it reports how often that worked.
func openMany(args []string) (answer, error) {
	var a answer
	for range number(args[0]) {
		if _, err := unix.Open("/proc/self/status", unix.O_RDONLY, 0); err != nil {
			return a, fmt.Errorf("open number %s: %w", strconv.FormatInt(a.Number, 10), err)
		}
		a.Number++
	}
	return a, nil
}
