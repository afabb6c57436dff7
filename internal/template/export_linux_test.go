package template

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/clawjail/clawjail/internal/jail/docker"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// exportable builds a small template with a link, a hard link and a program.
func exportable(t *testing.T) (*Store, Template) {
	t.Helper()
	testenv.Need(t, testenv.Root)
	source := t.TempDir()
	put(t, source, map[string]string{"bin/sh": "#!/bin/true\n", "etc/hostname": "x\n", "opt/data": strings.Repeat("x", 100_000), "opt/" + strings.Repeat("long", 40): "y"})
	must(t, os.Chmod(filepath.Join(source, "bin/sh"), 0o755), os.Symlink("/opt/data", filepath.Join(source, "opt/link")),
		os.Link(filepath.Join(source, "opt/data"), filepath.Join(source, "opt/same")), os.Chown(filepath.Join(source, "opt/data"), 7, 8))
	s := testStore(t)
	built, err := s.Build(context.Background(), BuildOptions{Name: "clawbot", From: "dir:" + source})
	if err != nil {
		t.Fatal(err)
	}
	return s, built
}

func TestATemplateBecomesAnImage(t *testing.T) {
	s, built := exportable(t)
	ctx := context.Background()
	var archive, again bytes.Buffer
	image, err := s.Export(ctx, "clawbot", ExportOptions{Tag: "clawjail/clawbot"}, &archive)
	if err != nil {
		t.Fatal(err)
	}
	if image.Tag != "clawjail/clawbot:latest" || image.Size != int64(archive.Len()) {
		t.Errorf("it is described as %+v", image)
	}
	if _, err := s.Export(ctx, "clawbot", ExportOptions{Tag: "clawjail/clawbot"}, &again); err != nil || !bytes.Equal(archive.Bytes(), again.Bytes()) {
		t.Errorf("the second is another one: %v", err)
	}

	// Somebody else's reader finds nothing wrong with it, and the parts that docker needs.
	tag, err := name.NewTag("clawjail/clawbot:latest")
	must(t, err)
	got, err := tarball.Image(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive.Bytes())), nil }, &tag)
	must(t, err)
	must(t, validate.Image(got))
	config, err := got.ConfigFile()
	must(t, err)
	if config.Config.User != "1000:1000" || config.Config.WorkingDir != "/state" || config.OS != "linux" || config.Architecture != built.Architecture {
		t.Errorf("it is configured as %+v", config)
	}
	if diff := cmp.Diff([]string{"/usr/local/bin/clawbot"}, config.Config.Cmd); diff != "" {
		t.Error(diff)
	}
	id, err := got.ConfigName()
	must(t, err)
	if id.String() != image.ID {
		t.Errorf("its id is %s, and was said to be %s", id, image.ID)
	}

	files := layerFiles(t, archive.Bytes())
	for path, want := range map[string]string{
		"bin/sh": "f 755 0 0 ", "opt/data": "f 644 7 8 ", "opt/same": "h 644 7 8 opt/data", "opt/link": "l 777 0 0 /opt/data",
		"state/": "d 755 1000 1000 ", "workspace/": "d 755 1000 1000 ", "run/hermit/": "d 755 0 0 ", "usr/local/bin/clawbot": "f 755 0 0 ",
	} {
		if files[path] != want {
			t.Errorf("%s is %q, want %q", path, files[path], want)
		}
	}
	if len(files) != built.Files-1 { // the tree itself has no entry
		t.Errorf("the layer has %d entries, the template %d", len(files), built.Files)
	}

	// One for pods has what they begin with besides.
	shim := filepath.Join(t.TempDir(), "program")
	must(t, os.WriteFile(shim, []byte("shim"), 0o600))
	again.Reset()
	_, err = s.Export(ctx, "clawbot", ExportOptions{Tag: "clawjail/clawbot", Shim: shim}, &again)
	must(t, err)
	if files := layerFiles(t, again.Bytes()); files["clawjail-shim"] != "f 755 0 0 " || len(files) != built.Files {
		t.Errorf("the layer has %d entries, and the shim is %q", len(files), files["clawjail-shim"])
	}

	// And it can be built into the same template.
	file := filepath.Join(t.TempDir(), "image.tar")
	must(t, os.WriteFile(file, archive.Bytes(), 0o600))
	if name, err := Exported(ctx, file); err != nil || name != "clawbot" {
		t.Errorf("it is of the template %q: %v", name, err)
	}
	other, err := s.Build(ctx, BuildOptions{Name: "copy", From: "oci-archive:" + file})
	if err != nil {
		t.Fatal(err)
	}
	if p := other.Programs[ProgramMain].Path; p != clawbotPath || other.Files != built.Files {
		t.Errorf("it became %+v", other)
	}

	// One without a program of its own, whose image starts the shell, has none afterwards.
	plain := t.TempDir()
	put(t, plain, map[string]string{"bin/sh": "#!/bin/true\n"})
	must(t, os.Chmod(filepath.Join(plain, "bin/sh"), 0o755))
	first, err := s.Build(ctx, BuildOptions{Name: "plain", From: "dir:" + plain})
	must(t, err)
	archive.Reset()
	_, err = s.Export(ctx, "plain", ExportOptions{Tag: "clawjail/plain"}, &archive)
	must(t, err, os.WriteFile(file, archive.Bytes(), 0o600))
	second, err := s.Build(ctx, BuildOptions{Name: "plain", From: "oci-archive:" + file, Replace: true})
	must(t, err)
	if diff := cmp.Diff(first.Programs, second.Programs); diff != "" || first.Digest != second.Digest {
		t.Errorf("%s became %s: %s", first.Digest, second.Digest, diff)
	}
}

// layerFiles are the entries of the only layer, in words.
func layerFiles(t *testing.T, archive []byte) map[string]string {
	t.Helper()
	parts := map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		if parts[header.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
	var manifest tarball.Manifest
	must(t, json.Unmarshal(parts["manifest.json"], &manifest))
	if !slices.Equal(manifest[0].RepoTags, []string{"clawjail/clawbot:latest"}) || !bytes.Contains(parts["index.json"], []byte(`"docker.io/clawjail/clawbot:latest"`)) {
		t.Errorf("it is called %v, %s", manifest[0].RepoTags, parts["index.json"])
	}
	out := map[string]string{}
	kinds := map[byte]string{tar.TypeReg: "f", tar.TypeDir: "d", tar.TypeSymlink: "l", tar.TypeLink: "h"}
	for r := tar.NewReader(bytes.NewReader(parts[manifest[0].Layers[0]])); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		must(t, err)
		out[header.Name] = fmt.Sprintf("%s %o %d %d %s", kinds[header.Typeflag], header.Mode, header.Uid, header.Gid, header.Linkname)
	}
}

func TestAChangedTemplateBecomesNoImage(t *testing.T) {
	s, built := exportable(t)
	must(t, os.WriteFile(filepath.Join(built.RootFS(), "opt/data"), []byte("changed"), 0o644))
	var out bytes.Buffer
	_, err := s.Export(context.Background(), "clawbot", ExportOptions{Tag: "tool"}, &out)
	wantCode(t, err, problem.TemplateChanged)
	if out.Len() > 0 {
		t.Errorf("%d bytes were written", out.Len())
	}
}

func TestATemplateThatChangesMeanwhileIsAnError(t *testing.T) {
	_, built := exportable(t)
	ctx := context.Background()
	entries, err := statTree(ctx, built.RootFS())
	must(t, err)
	layer, err := measure(func(w io.Writer) error { return writeLayer(ctx, built.RootFS(), entries, "", w) })
	must(t, err)
	a, err := describeImage(built, "tool:latest", "docker.io/library/tool:latest", layer)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(built.RootFS(), "opt/data"), []byte(strings.Repeat("y", 100_000)), 0o644))
	if err := a.write(io.Discard, func(w io.Writer) error { return writeLayer(ctx, built.RootFS(), entries, "", w) }); err == nil {
		t.Error("an image was written whose layer is not the one that it names")
	}
}

func TestImageTags(t *testing.T) {
	for text, want := range map[string][2]string{
		"clawjail/clawbot":               {"clawjail/clawbot:latest", "docker.io/clawjail/clawbot:latest"},
		"tool:1":                         {"tool:1", "docker.io/library/tool:1"},
		"registry.example.com:5000/tool": {"registry.example.com:5000/tool:latest", "registry.example.com:5000/tool:latest"},
	} {
		tag, repository, err := imageTag(text)
		if err != nil || tag != want[0] || repository != want[1] {
			t.Errorf("%s became %s, %s, %v", text, tag, repository, err)
		}
	}
	for _, text := range []string{"", "A b", "x@sha256:" + strings.Repeat("a", 64), "../x", strings.Repeat("x", 300)} {
		if _, _, err := imageTag(text); problem.CodeOf(err) != problem.BadTemplate {
			t.Errorf("%.40q: %v", text, err)
		}
	}
}

func TestAnEngineTakesTheImage(t *testing.T) {
	testenv.Need(t, testenv.Root)
	engine := testenv.StartDocker(t)
	defer func() {
		if err := engine.Stop(); err != nil {
			t.Error(err)
		}
	}()
	s, built := exportable(t)
	ctx := context.Background()
	read, write := io.Pipe()
	go func() {
		_, err := s.Export(ctx, "clawbot", ExportOptions{Tag: "clawjail/clawbot:test"}, write)
		_ = write.CloseWithError(err) // it never fails, see its documentation
	}()
	said, err := docker.LoadImage(ctx, engine.Socket, read)
	must(t, err, read.Close())
	if said != "Loaded image: clawjail/clawbot:test" {
		t.Errorf("it says %q", said)
	}
	var image struct {
		Os     string
		Config struct {
			User   string
			Cmd    []string
			Labels map[string]string
		}
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", engine.Socket)
	}}}
	answer, err := client.Get("http://docker/images/clawjail/clawbot:test/json")
	must(t, err)
	must(t, json.NewDecoder(answer.Body).Decode(&image), answer.Body.Close())
	if image.Os != "linux" || image.Config.User != "1000:1000" || !slices.Equal(image.Config.Cmd, []string{clawbotPath}) || image.Config.Labels["clawjail.digest"] != built.Digest {
		t.Errorf("the engine has %+v", image)
	}

	// A text that is no image is an error, although the engine begins to answer.
	if _, err := docker.LoadImage(ctx, engine.Socket, strings.NewReader("no image")); err == nil {
		t.Error("a text was taken for an image")
	}
	_, err = docker.LoadImage(ctx, filepath.Join(t.TempDir(), "none.sock"), strings.NewReader(""))
	wantCode(t, err, problem.RuntimeMissing)
}
