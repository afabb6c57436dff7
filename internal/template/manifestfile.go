package template

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// manifestHeader is the first line of a manifest.
const manifestHeader = "clawjail-manifest 1\n"

// writeManifest writes the entries of a tree to a file.
func writeManifest(path string, entries []entry) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return fmt.Errorf("write the manifest: %w", err)
	}
	z, err := gzip.NewWriterLevel(f, gzip.BestSpeed)
	if err != nil {
		return errors.Join(fmt.Errorf("write the manifest: %w", err), f.Close())
	}
	err = formatManifest(z, entries)
	if err := errors.Join(err, z.Close(), f.Chmod(0o644), f.Close()); err != nil {
		return fmt.Errorf("write the manifest: %w", err)
	}
	return nil
}

// formatManifest writes one line for each entry: its stamp, then what the digest covers.
func formatManifest(w io.Writer, entries []entry) error {
	out := bufio.NewWriterSize(w, 64<<10)
	line := []byte(manifestHeader)
	for i := range entries {
		line = append(entries[i].appendLine(line), '\n')
		if _, err := out.Write(line); err != nil {
			return err
		}
		line = line[:0]
	}
	if _, err := out.Write(line); err != nil { // the header of an empty manifest
		return err
	}
	return out.Flush()
}

func (e *entry) appendLine(line []byte) []byte {
	line = strconv.AppendInt(line, e.stamp.mtime, 10)
	line = append(line, ' ')
	line = strconv.AppendInt(line, e.stamp.ctime, 10)
	line = append(line, ' ')
	line = strconv.AppendUint(line, e.stamp.inode, 10)
	line = append(line, ' ')
	return e.promised(line)
}

// readManifest reads what writeManifest wrote.
func readManifest(path string) ([]entry, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(z)
	if err := errors.Join(err, z.Close()); err != nil {
		return nil, err
	}
	return parseManifest(data)
}

var errManifest = errors.New("the manifest is damaged")

// parseManifest reads the text of a manifest. It accepts exactly what formatManifest writes.
func parseManifest(data []byte) ([]entry, error) {
	rest, ok := bytes.CutPrefix(data, []byte(manifestHeader))
	if !ok {
		return nil, errManifest
	}
	entries := make([]entry, 0, bytes.Count(rest, []byte{'\n'}))
	for number := 2; len(rest) > 0; number++ {
		end := bytes.IndexByte(rest, '\n')
		if end < 0 {
			return nil, fmt.Errorf("%w: line %d is cut off", errManifest, number)
		}
		e, err := parseEntry(string(rest[:end]))
		if err != nil {
			return nil, fmt.Errorf("%w: line %d", errManifest, number)
		}
		if len(entries) > 0 && entries[len(entries)-1].path >= e.path {
			return nil, fmt.Errorf("%w: line %d is out of order", errManifest, number)
		}
		entries = append(entries, e)
		rest = rest[end+1:]
	}
	return entries, nil
}

func parseEntry(line string) (entry, error) {
	var e entry
	fields := strings.SplitN(line, " ", 11)
	if len(fields) != 11 || len(fields[3]) != 1 {
		return e, errManifest
	}
	var errs [6]error
	var mode, uid, gid uint64
	e.stamp.mtime, errs[0] = strconv.ParseInt(fields[0], 10, 64)
	e.stamp.ctime, errs[1] = strconv.ParseInt(fields[1], 10, 64)
	e.stamp.inode, errs[2] = strconv.ParseUint(fields[2], 10, 64)
	e.kind = fields[3][0]
	mode, errs[3] = strconv.ParseUint(fields[4], 8, 12)
	uid, errs[4] = strconv.ParseUint(fields[5], 10, 32)
	gid, errs[5] = strconv.ParseUint(fields[6], 10, 32)
	if err := errors.Join(errs[:]...); err != nil {
		return e, err
	}
	e.mode, e.uid, e.gid = uint32(mode), uint32(uid), uint32(gid)
	size, err := strconv.ParseInt(fields[7], 10, 64)
	if err != nil {
		return e, err
	}
	e.size, e.sum, e.attr = size, fields[8], fields[9]
	quoted, err := strconv.QuotedPrefix(fields[10])
	if err != nil {
		return e, err
	}
	if e.path, err = strconv.Unquote(quoted); err != nil {
		return e, err
	}
	link, ok := strings.CutPrefix(fields[10][len(quoted):], " ")
	if !ok {
		return e, errManifest
	}
	if e.link, err = strconv.Unquote(link); err != nil {
		return e, err
	}
	// Numbers and quotes can be written in several ways; only ours is accepted, so that parsing loses nothing.
	if line != string(e.appendLine(make([]byte, 0, len(line)))) {
		return e, errManifest
	}
	return e, nil
}
