package template

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// labelTemplate is the label of an image that names its template.
const labelTemplate = "clawjail.template"

// Image is what Export has written.
type Image struct {
	// Tag is the name with a tag, and ID the digest of the configuration: what engines call the image by.
	Tag string `json:"tag"`
	ID  string `json:"id"`
	// Size is how many bytes the archive has.
	Size int64 `json:"size"`
}

// ExportOptions say what an image is like.
type ExportOptions struct {
	Tag string // the name of the image
	// Shim is the file of clawjail-shim, which goes into the image as jail.ShimPath: for pods of Kubernetes. Empty is none.
	Shim string
}

// Export writes a template as an image: a tar file that is an OCI layout and what `docker load` reads. It has one layer, runs
// as the jail's user in /state, and starts the template's main program, else its shell. The tree is looked at before, so that what
// was changed or has a credential in it is not given away. The codes are those of Verify, and bad_template for a tag that is
// none. Output from before an error is of no use.
func (s *Store) Export(ctx context.Context, templateName string, o ExportOptions, w io.Writer) (Image, error) {
	tag, repository, err := imageTag(o.Tag)
	if err != nil {
		return Image{}, err
	}
	if _, err := s.Verify(ctx, templateName, VerifyOptions{Quick: true}); err != nil {
		return Image{}, err
	}
	t, err := s.load(templateName)
	if err != nil {
		return Image{}, err
	}
	entries, err := statTree(ctx, t.RootFS())
	if err != nil {
		return Image{}, fmt.Errorf("read template %s: %w", templateName, err)
	}
	// The archive says how long the layer is before it has it, so it is made twice; it is the same both times.
	write := func(w io.Writer) error { return writeLayer(ctx, t.RootFS(), entries, o.Shim, w) }
	layer, err := measure(write)
	if err != nil {
		return Image{}, fmt.Errorf("read template %s: %w", templateName, err)
	}
	a, err := describeImage(t, tag, repository, layer)
	if err != nil {
		return Image{}, fmt.Errorf("describe the image of template %s: %w", templateName, err)
	}
	out := &counter{w: w, hash: sha256.New()}
	if err := a.write(out, write); err != nil {
		return Image{}, fmt.Errorf("write the image of template %s: %w", templateName, err)
	}
	return Image{Tag: tag, ID: "sha256:" + a.config.sum, Size: out.size}, nil
}

// imageTag reads the name of an image. The repository is in the full form, with the registry in front.
func imageTag(text string) (tag, repository string, err error) {
	parsed, err := name.NewTag(text)
	if err != nil || len(text) > 255 || text == "" {
		return "", "", problem.New(problem.BadTemplate, "name it like clawjail/clawbot:latest", "%.80q cannot be the name of an image", text)
	}
	if !strings.Contains(text[strings.LastIndexByte(text, '/')+1:], ":") {
		text += ":" + parsed.TagStr()
	}
	registry := parsed.RegistryStr()
	if registry == name.DefaultRegistry {
		registry = "docker.io" // as engines write it
	}
	return text, registry + "/" + parsed.RepositoryStr() + ":" + parsed.TagStr(), nil
}

// blob is one part of an image.
type blob struct {
	sum  string // SHA-256, hexadecimal
	size int64
	data []byte // nil for the layer, which is not kept
}

func (b blob) path() string { return "blobs/sha256/" + b.sum }

func (b blob) descriptor(kind types.MediaType) v1.Descriptor {
	return v1.Descriptor{MediaType: kind, Size: b.size, Digest: v1.Hash{Algorithm: "sha256", Hex: b.sum}}
}

// measure is the blob that a writer makes.
func measure(write func(io.Writer) error) (blob, error) {
	c := &counter{w: io.Discard, hash: sha256.New()}
	err := write(c)
	return blob{sum: hex.EncodeToString(c.hash.Sum(nil)), size: c.size}, err
}

func encoded(v any) (blob, error) {
	data, err := json.Marshal(v)
	sum := sha256.Sum256(data)
	return blob{sum: hex.EncodeToString(sum[:]), size: int64(len(data)), data: data}, err
}

// imageArchive is an image that is ready to be written.
type imageArchive struct {
	config, manifest, layer blob
	index, docker           blob // index.json of OCI, and manifest.json of docker
	at                      time.Time
}

func describeImage(t Template, tag, repository string, layer blob) (imageArchive, error) {
	a := imageArchive{layer: layer, at: t.CreatedAt}
	settings := v1.Config{
		User: fmt.Sprintf("%d:%d", jailUser, jailUser), WorkingDir: "/state",
		Env:    []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/state"},
		Labels: map[string]string{labelTemplate: t.Name, "clawjail.digest": t.Digest},
	}
	for _, program := range []string{ProgramMain, ProgramSh} {
		if p, ok := t.Programs[program]; ok {
			settings.Cmd = append([]string{p.Path}, p.Args...)
			break
		}
	}
	var errs [4]error
	a.config, errs[0] = encoded(v1.ConfigFile{
		Architecture: t.Architecture, OS: "linux", Created: v1.Time{Time: t.CreatedAt}, Config: settings,
		RootFS:  v1.RootFS{Type: "layers", DiffIDs: []v1.Hash{{Algorithm: "sha256", Hex: layer.sum}}},
		History: []v1.History{{Created: v1.Time{Time: t.CreatedAt}, CreatedBy: "clawjail template image " + t.Name}},
	})
	a.manifest, errs[1] = encoded(v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Config: a.config.descriptor(types.OCIConfigJSON),
		Layers: []v1.Descriptor{layer.descriptor(types.OCIUncompressedLayer)},
	})
	described := a.manifest.descriptor(types.OCIManifestSchema1)
	described.Annotations = map[string]string{"io.containerd.image.name": repository, "org.opencontainers.image.ref.name": repository[strings.LastIndexByte(repository, ':')+1:]}
	a.index, errs[2] = encoded(v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: []v1.Descriptor{described}})
	a.docker, errs[3] = encoded(tarball.Manifest{{Config: a.config.path(), RepoTags: []string{tag}, Layers: []string{layer.path()}}})
	return a, errors.Join(errs[:]...)
}

// write writes the archive. The layer is written anew, and is an error when it is not what was measured.
func (a imageArchive) write(w io.Writer, layer func(io.Writer) error) error {
	out := tar.NewWriter(w)
	put := func(name string, size int64) error {
		return out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o644, ModTime: a.at.Truncate(time.Second), Format: tar.FormatPAX})
	}
	for _, part := range []struct {
		name string
		blob
	}{
		{"oci-layout", blob{data: []byte(`{"imageLayoutVersion":"1.0.0"}`)}}, {"index.json", a.index}, {"manifest.json", a.docker},
		{a.config.path(), a.config}, {a.manifest.path(), a.manifest},
	} {
		if err := put(part.name, int64(len(part.data))); err != nil {
			return err
		}
		if _, err := out.Write(part.data); err != nil {
			return err
		}
	}
	if err := put(a.layer.path(), a.layer.size); err != nil {
		return err
	}
	c := &counter{w: out, hash: sha256.New()}
	if err := layer(c); err != nil {
		return err
	}
	if sum := hex.EncodeToString(c.hash.Sum(nil)); sum != a.layer.sum {
		return errors.New("the template was changed while it was read")
	}
	return out.Close()
}

// writeLayer writes a tree as a layer. It is the same for the same tree: entries are in order, and times are whole seconds.
func writeLayer(ctx context.Context, rootfs string, entries []entry, shim string, w io.Writer) error {
	root, err := os.OpenRoot(rootfs)
	if err != nil {
		return err
	}
	defer root.Close()
	out := tar.NewWriter(w)
	linked := map[[2]uint64]string{}
	for i := range entries {
		e := &entries[i]
		if e.path == "." {
			continue
		}
		if i%256 == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := writeEntry(out, root, e, linked); err != nil {
			return fmt.Errorf("%s: %w", path.Join("/", e.path), err)
		}
	}
	if shim != "" {
		if err := writeShim(out, shim); err != nil {
			return fmt.Errorf("put clawjail-shim into the image: %w", err)
		}
	}
	return out.Close()
}

func writeShim(out *tar.Writer, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	header := &tar.Header{Typeflag: tar.TypeReg, Name: strings.TrimPrefix(jail.ShimPath, "/"), Mode: 0o755, Size: info.Size(), ModTime: time.Unix(0, 0).UTC(), Format: tar.FormatPAX}
	if err := out.WriteHeader(header); err != nil {
		return err
	}
	_, err = io.CopyN(out, f, info.Size())
	return err
}

func writeEntry(out *tar.Writer, root *os.Root, e *entry, linked map[[2]uint64]string) error {
	header := &tar.Header{
		Name: e.path, Mode: int64(e.mode), Uid: int(e.uid), Gid: int(e.gid), ModTime: time.Unix(e.stamp.mtime/int64(time.Second), 0).UTC(), Format: tar.FormatPAX,
	}
	switch e.kind {
	case 'd':
		header.Typeflag, header.Name = tar.TypeDir, e.path+"/"
		if e.path == "state" || e.path == "workspace" {
			// An engine gives a new volume the owner of the folder that it covers.
			header.Uid, header.Gid = jailUser, jailUser
		}
		return out.WriteHeader(header)
	case 'l':
		header.Typeflag, header.Linkname = tar.TypeSymlink, e.link
		return out.WriteHeader(header)
	case 'f':
	default:
		return errors.New("is neither a file, a folder nor a link")
	}
	header.Typeflag = tar.TypeReg
	if e.nlink > 1 {
		key := [2]uint64{e.dev, e.stamp.inode}
		if first, ok := linked[key]; ok {
			header.Typeflag, header.Linkname = tar.TypeLink, first
			return out.WriteHeader(header)
		}
		linked[key] = e.path
	}
	header.Size = e.size
	if err := out.WriteHeader(header); err != nil {
		return err
	}
	f, err := root.OpenFile(e.path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.CopyN(out, f, e.size)
	return err
}

// counter counts and hashes what is written.
type counter struct {
	w    io.Writer
	hash interface {
		io.Writer
		Sum(b []byte) []byte
	}
	size int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.size += int64(n)
	c.hash.Write(p[:n]) // a hash never fails, see its documentation
	return n, err
}
