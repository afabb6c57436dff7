package ringlog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// segment is one file of a log: the bytes from start on.
type segment struct{ start, size int64 }

const (
	segmentDigits = 19 // of the largest offset
	segmentSuffix = ".log"
	// maxPieces bounds what is read of a folder that somebody else has filled.
	maxPieces = 100_000
)

func (s segment) end() int64 { return s.start + s.size }

func (s segment) name() string { return fmt.Sprintf("%0*d%s", segmentDigits, s.start, segmentSuffix) }

// parseSegment reads the name of a segment. There is one way to write each offset.
func parseSegment(name string) (start int64, ok bool) {
	digits, ok := strings.CutSuffix(name, segmentSuffix)
	if !ok || len(digits) != segmentDigits {
		return 0, false
	}
	for i := range len(digits) {
		if digits[i] < '0' || digits[i] > '9' {
			return 0, false
		}
	}
	start, err := strconv.ParseInt(digits, 10, 64)
	return start, err == nil
}

// segments are those of a log, oldest first. There may be gaps between them, where the disk was full.
type segments []segment

// scan lists the segments of a folder. Files with other names are not looked at.
func scan(root *os.Root) (segments, error) {
	dir, err := root.Open(".")
	if err != nil {
		return nil, err
	}
	defer dir.Close() // only read from
	names, err := dir.Readdirnames(maxPieces)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	var all segments
	for _, name := range names {
		start, ok := parseSegment(name)
		if !ok {
			continue
		}
		info, err := root.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it went meanwhile
		}
		if err != nil {
			return nil, err
		}
		if info.Mode().IsRegular() && info.Size() <= math.MaxInt64-start {
			all = append(all, segment{start, info.Size()})
		}
	}
	slices.SortFunc(all, func(a, b segment) int {
		if a.start < b.start {
			return -1
		}
		return 1
	})
	for i := 1; i < len(all); i++ { // what two files claim belongs to the newer one
		all[i-1].size = min(all[i-1].size, all[i].start-all[i-1].start)
	}
	return all, nil
}

// sweep removes what has the name of a file of the log and is none: a new segment could not be made in its place.
func sweep(root *os.Root) error {
	dir, err := root.Open(".")
	if err != nil {
		return err
	}
	defer dir.Close() // only read from
	entries, err := dir.ReadDir(maxPieces)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	there := map[string]bool{}
	for _, e := range entries {
		there[e.Name()] = true
	}
	for _, e := range entries {
		_, isSegment := parseSegment(e.Name())
		of, isTimes := parseTimes(e.Name())
		// Marks without a segment are left of one that went.
		if (isSegment || isTimes) && !e.Type().IsRegular() || isTimes && !there[of] {
			if err := root.Remove(e.Name()); err != nil {
				return err
			}
		}
	}
	return nil
}

// at says what a read from an offset gives: a Chunk without its data, and where that is.
func (all segments) at(offset, end int64, limit int) (c Chunk, s segment, size int) {
	c = Chunk{First: end, End: end}
	if len(all) > 0 {
		c.First = all[0].start
	}
	if offset < 0 {
		offset = max(end+max(offset, -end), 0)
	}
	c.Offset = min(max(offset, c.First), end)
	i, _ := slices.BinarySearchFunc(all, c.Offset, func(s segment, at int64) int {
		if s.end() <= at {
			return -1
		}
		return 1
	})
	for i < len(all) && all[i].size == 0 { // the newest, or one that a host which lost its power has left
		i++
	}
	if i == len(all) {
		c.Offset = end
		return c, segment{}, 0
	}
	s = all[i]
	c.Offset = max(c.Offset, s.start) // over a gap
	return c, s, int(min(int64(limit), s.end()-c.Offset))
}

func readPiece(root *os.Root, s segment, offset int64, size int) ([]byte, error) {
	// A pipe in the place of a segment must not make anybody wait.
	f, err := root.OpenFile(s.name(), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close() // only read from
	data := make([]byte, size)
	n, err := f.ReadAt(data, offset-s.start)
	if n > 0 {
		err = nil
	}
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("segment %s is shorter than it was", s.name())
	}
	return data[:n], err
}

// files reads a log that another process writes, or that is not written any more.
type files struct{ dir string }

// lookEvery is how often a Reader of a folder looks whether something came.
const lookEvery = 50 * time.Millisecond

// OpenReader returns a Reader of a log that need not be open. It holds nothing open between two reads. A log that is not
// there is empty.
func OpenReader(dir string) Reader { return files{dir} }

// Read implements Reader.
func (f files) Read(ctx context.Context, offset int64, limit int, wait time.Duration) (Chunk, error) {
	limit = bounded(limit)
	patience := time.NewTimer(wait)
	defer patience.Stop()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for over := wait <= 0; ; {
		if err := ctx.Err(); err != nil {
			return Chunk{}, err
		}
		c, err := f.read(offset, limit)
		switch {
		case errors.Is(err, fs.ErrNotExist) && !over: // a segment went, or nothing was written yet
		case errors.Is(err, fs.ErrNotExist):
			return c, nil
		case err != nil || len(c.Data) > 0 || over:
			return c, err
		default:
			offset = c.Offset
		}
		select {
		case <-look.C:
		case <-patience.C:
			over = true
		case <-ctx.Done():
			return Chunk{}, ctx.Err()
		}
	}
}

func (f files) read(offset int64, limit int) (Chunk, error) {
	root, err := os.OpenRoot(f.dir)
	if err != nil {
		return Chunk{}, err
	}
	defer root.Close() // only read from
	all, err := scan(root)
	if err != nil {
		return Chunk{}, err
	}
	end := int64(0)
	if len(all) > 0 {
		end = all[len(all)-1].end()
	}
	c, s, size := all.at(offset, end, limit)
	if size > 0 {
		c.Data, err = readPiece(root, s, c.Offset, size)
	}
	return c, err
}

// Remove removes a log that is not being written. A log that is not there is removed already; files that are not of a log are left, and
// are an error.
func Remove(dir string) error {
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove a log: %w", err)
	}
	defer root.Close() // its content goes
	entries, err := fs.ReadDir(root.FS(), ".")
	errs := []error{err}
	for _, e := range entries {
		_, isSegment := parseSegment(e.Name())
		_, isTimes := parseTimes(e.Name())
		if isSegment || isTimes {
			if err := root.Remove(e.Name()); !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	if err := os.Remove(dir); !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove a log: %w", err)
	}
	return nil
}
