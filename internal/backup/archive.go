package backup

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/problem"
)

// source is a file that goes into a backup.
type source struct {
	File
	path string
}

// measure notes the size and the sum of a file. Only so much of it is taken later: some grow meanwhile.
func (s *source) measure(ctx context.Context) (err error) {
	f, err := openRegular(s.path)
	if err != nil {
		return err
	}
	defer f.Close() // only read from
	info, err := f.Stat()
	if err != nil {
		return err
	}
	s.Size, s.Mode = info.Size(), uint32(info.Mode().Perm())&0o644
	sum := sha256.New()
	if _, err := io.Copy(sum, io.LimitReader(reading{ctx, f}, s.Size)); err != nil {
		return fmt.Errorf("read %s: %w", s.Name, err)
	}
	s.SHA256 = hex.EncodeToString(sum.Sum(nil))
	return nil
}

func openRegular(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", path)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// reading ends with its context.
type reading struct {
	ctx context.Context
	r   io.Reader
}

func (r reading) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

// write writes a whole backup.
func write(ctx context.Context, w io.Writer, m Manifest, sources []source, k Keys, progress Progress) error {
	sealed, err := seal(w, k)
	if err != nil {
		return err
	}
	z, err := gzip.NewWriterLevel(sealed, gzip.BestSpeed)
	if err != nil {
		return err
	}
	t := tar.NewWriter(z)
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	if len(data) > maxManifest {
		return fmt.Errorf("the manifest has %d bytes: there are too many files", len(data))
	}
	header := func(name string, size int64, mode uint32) error {
		return t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: int64(mode), ModTime: m.Created, Format: tar.FormatPAX})
	}
	if err := header(manifestName, int64(len(data)), 0o600); err != nil {
		return err
	}
	if _, err := t.Write(data); err != nil {
		return err
	}
	done, total := int64(0), m.total()
	for _, s := range sources {
		if err := header(s.Name, s.Size, s.Mode); err != nil {
			return err
		}
		if err := s.copyTo(ctx, t, func(n int64) { progress.say("write the backup", done+n, total) }); err != nil {
			return err
		}
		done += s.Size
	}
	return errors.Join(t.Close(), z.Close(), sealed.Close())
}

// copyTo copies what was measured, and fails when it is another meanwhile.
func (s source) copyTo(ctx context.Context, w io.Writer, done func(int64)) error {
	f, err := openRegular(s.path)
	if err != nil {
		return err
	}
	defer f.Close() // only read from
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(w, sum, counting{done: done}.writer()), io.LimitReader(reading{ctx, f}, s.Size))
	if err != nil {
		return fmt.Errorf("copy %s: %w", s.Name, err)
	}
	if n != s.Size || hex.EncodeToString(sum.Sum(nil)) != s.SHA256 {
		return fmt.Errorf("%s was changed while it was being copied: try again", s.Name)
	}
	return nil
}

// counting says how many bytes have gone by.
type counting struct {
	done func(int64)
	n    int64
}

func (c counting) writer() *counting { return &c }

func (c *counting) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	if c.done != nil {
		c.done(c.n)
	}
	return len(p), nil
}

// receive gets one file of a backup: its manifest's entry and its bytes, all of which it must take.
type receive func(f File, r io.Reader) error

// read reads a whole backup. begin is called with the manifest, and then each for every file in order. Nothing is
// accepted that the manifest does not say.
func read(ctx context.Context, r io.Reader, k Keys, progress Progress, begin func(Manifest) error, each receive) (m Manifest, err error) {
	z, err := unseal(reading{ctx, r}, k)
	if err != nil {
		return m, err
	}
	t := tar.NewReader(z)
	next := func(name string, limit int64) (*tar.Header, error) {
		h, err := t.Next()
		switch {
		case err != nil:
			return nil, stopped(ctx, fmt.Errorf("look for %s: %w", name, err))
		case h.Typeflag != tar.TypeReg || h.Name != name:
			return nil, damaged(fmt.Errorf("%q stands where %s should", h.Name, name))
		case h.Size < 0 || h.Size > limit:
			return nil, damaged(fmt.Errorf("%s has %d bytes", name, h.Size))
		}
		return h, nil
	}
	h, err := next(manifestName, maxManifest)
	if err != nil {
		return m, err
	}
	data := make([]byte, h.Size)
	if _, err := io.ReadFull(t, data); err != nil {
		return m, stopped(ctx, err)
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return m, damaged(fmt.Errorf("read the manifest: %w", err))
	}
	if err := m.validate(); err != nil {
		return m, err
	}
	if err := begin(m); err != nil {
		return m, err
	}
	done, total := int64(0), m.total()
	for _, f := range m.Files {
		h, err := next(f.Name, f.Size)
		if err != nil {
			return m, err
		}
		if h.Size != f.Size {
			return m, damaged(fmt.Errorf("%s has %d bytes, and should have %d", f.Name, h.Size, f.Size))
		}
		sum := sha256.New()
		c := counting{done: func(n int64) { progress.say("read the backup", done+n, total) }}.writer()
		body := io.TeeReader(t, io.MultiWriter(sum, c))
		if err := each(f, body); err != nil {
			return m, stopped(ctx, err)
		}
		if c.n != f.Size || hex.EncodeToString(sum.Sum(nil)) != f.SHA256 {
			return m, damaged(fmt.Errorf("%s is not what its sum says", f.Name))
		}
		done += f.Size
	}
	if _, err := t.Next(); err != io.EOF {
		return m, stopped(ctx, fmt.Errorf("there is more than the manifest says (%v)", err))
	}
	// The sums of the outer layers are at their ends.
	if n, err := io.Copy(io.Discard, io.LimitReader(z, 1<<20)); err != nil || n >= 1<<20 {
		return m, stopped(ctx, fmt.Errorf("look for the end: %v", err))
	}
	return m, nil
}

// stopped tells a file that is cut off from a disk that is full, and from somebody who does not want to wait.
func stopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if full := noSpace(err); full != err {
		return full
	}
	var path *os.PathError
	if _, known := problem.As(err); known || errors.As(err, &path) {
		return err
	}
	return damaged(err)
}
