package template

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/clawjail/clawjail/internal/problem"
)

// buildArchive makes the tree from a file with an image in it: an OCI layout as a tar file, or what docker save writes.
// Either may be compressed with gzip.
func (b *build) buildArchive(ctx context.Context) error {
	file := b.source.value
	b.out.stage(StageUnpack, "bytes", 0, nil)
	if info, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) || err == nil && !info.Mode().IsRegular() {
		return problem.New(problem.BadTemplate, "give the path of a tar file, for example one of: docker save -o FILE IMAGE", "there is no file %s", file)
	} else if err != nil {
		return fmt.Errorf("look at the archive: %w", err)
	}
	sum, isLayout, err := inspectArchive(ctx, file)
	if err != nil {
		return err
	}
	image, err := b.openArchive(ctx, file, isLayout)
	if err != nil {
		return err
	}
	if err := b.unpackImage(ctx, image, nil); err != nil {
		return err
	}
	b.template.Source = fmt.Sprintf("oci-archive:%s sha256:%s", file, sum)
	return nil
}

// inspectArchive reads an archive once: its checksum, and whether it is an OCI layout.
func inspectArchive(ctx context.Context, file string) (sum string, isLayout bool, err error) {
	f, err := os.Open(file)
	if err != nil {
		return "", false, fmt.Errorf("open the archive: %w", err)
	}
	defer f.Close()
	hash := sha256.New()
	raw := io.TeeReader(f, hash)
	stream, err := gunzip(raw)
	if err != nil {
		return "", false, err
	}
	isImage := false
	err = eachEntry(ctx, stream, func(header *tar.Header, _ io.Reader) error {
		switch path.Clean(header.Name) {
		case "oci-layout":
			isLayout = true
		case "manifest.json":
			isImage = true
		}
		return nil
	})
	if err != nil {
		return "", false, notAnImage(file, err)
	}
	if !isLayout && !isImage {
		return "", false, notAnImage(file, nil)
	}
	if _, err := io.Copy(io.Discard, raw); err != nil {
		return "", false, fmt.Errorf("read the archive: %w", err)
	}
	return hex.EncodeToString(hash.Sum(nil)), isLayout, nil
}

func notAnImage(file string, err error) error {
	e := problem.New(problem.BadTemplate, "make one with docker save, podman save or skopeo copy", "%s has no image in it", file)
	e.Err = err
	return e
}

// gunzip unpacks a stream that is compressed with gzip, and passes any other through.
func gunzip(r io.Reader) (io.Reader, error) {
	buffered := bufio.NewReaderSize(r, 64<<10)
	magic, err := buffered.Peek(2)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read the archive: %w", err)
	}
	if !bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		return buffered, nil
	}
	z, err := gzip.NewReader(buffered)
	if err != nil {
		return nil, fmt.Errorf("read the archive: %w", err)
	}
	return z, nil
}

// eachEntry calls do for every entry of a tar stream.
func eachEntry(ctx context.Context, stream io.Reader, do func(*tar.Header, io.Reader) error) error {
	reader := tar.NewReader(stream)
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := do(header, reader); err != nil {
			return err
		}
	}
}

// openArchive opens the image of an archive.
func (b *build) openArchive(ctx context.Context, file string, isLayout bool) (v1.Image, error) {
	if isLayout {
		dir := filepath.Join(b.work, "layout")
		if err := unpackLayout(ctx, file, dir); err != nil {
			return nil, err
		}
		index, err := layout.ImageIndexFromPath(dir)
		if err != nil {
			return nil, notAnImage(file, err)
		}
		image, err := pickImage(index, b.platform(), 0)
		if err != nil {
			return nil, notAnImage(file, err)
		}
		if image == nil {
			return nil, problem.New(problem.BadTemplate, "save the image for linux/"+b.store.arch, "%s has no image for linux/%s", file, b.store.arch)
		}
		return image, nil
	}
	image, err := tarball.Image(func() (io.ReadCloser, error) {
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		stream, err := gunzip(f)
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		return struct {
			io.Reader
			io.Closer
		}{stream, f}, nil
	}, nil)
	if err != nil {
		return nil, notAnImage(file, err)
	}
	return image, nil
}

// unpackLayout unpacks the files of an OCI layout. A blob that has not the checksum which is its name is an error, so
// that what is read later can be believed.
func unpackLayout(ctx context.Context, file, dir string) error {
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("open the archive: %w", err)
	}
	defer f.Close()
	stream, err := gunzip(f)
	if err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("unpack the archive: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("unpack the archive: %w", err)
	}
	defer root.Close()
	return eachEntry(ctx, stream, func(header *tar.Header, content io.Reader) error {
		if header.Typeflag != tar.TypeReg {
			return nil
		}
		file := path.Clean(header.Name)
		isBlob := strings.HasPrefix(file, "blobs/sha256/") && strings.Count(file, "/") == 2
		if !isBlob && file != "oci-layout" && file != "index.json" {
			return nil
		}
		if err := root.MkdirAll(path.Dir(file), 0o700); err != nil {
			return fmt.Errorf("unpack the archive: %w", err)
		}
		out, err := root.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
		if err != nil {
			return fmt.Errorf("unpack the archive: %w", err)
		}
		hash := sha256.New()
		_, err = io.Copy(io.MultiWriter(out, hash), content)
		if err := errors.Join(err, out.Close()); err != nil {
			return fmt.Errorf("unpack the archive: %w", err)
		}
		if got := hex.EncodeToString(hash.Sum(nil)); isBlob && got != path.Base(file) {
			return problem.New(problem.BadTemplate, "save the image again", "the archive is damaged: %s has the checksum %s", file, got)
		}
		return nil
	})
}

// maxIndexDepth is how deep indexes may be nested.
const maxIndexDepth = 4

// pickImage returns the first image of an index that is for the platform, or nil. An image whose platform the index
// does not name is taken to be the right one; its configuration is looked at later.
func pickImage(index v1.ImageIndex, want v1.Platform, depth int) (v1.Image, error) {
	if depth > maxIndexDepth {
		return nil, errors.New("indexes are nested too deep")
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	for _, descriptor := range manifest.Manifests {
		switch {
		case descriptor.MediaType.IsIndex():
			child, err := index.ImageIndex(descriptor.Digest)
			if err != nil {
				return nil, err
			}
			if image, err := pickImage(child, want, depth+1); err != nil || image != nil {
				return image, err
			}
		case descriptor.MediaType.IsImage():
			if p := descriptor.Platform; p == nil || p.OS == want.OS && p.Architecture == want.Architecture {
				return index.Image(descriptor.Digest)
			}
		}
	}
	return nil, nil
}
