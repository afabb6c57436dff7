package template

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
	"golang.org/x/sys/unix"
)

// item is an entry of a layer.
type item struct {
	name string
	kind byte
	mode int64
	link string
	text string
	uid  int
}

func tarOf(t testing.TB, items []item) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, i := range items {
		header := &tar.Header{
			Name: i.name, Typeflag: i.kind, Mode: i.mode, Linkname: i.link, Size: int64(len(i.text)), Uid: i.uid, Gid: i.uid,
			ModTime: time.Unix(1e9, 0), Format: tar.FormatPAX,
		}
		if i.kind == 0 {
			header.Typeflag = tar.TypeReg
		}
		if i.mode == 0 {
			header.Mode = 0o644
		}
		if i.kind == tar.TypeChar {
			header.Devmajor, header.Devminor = 1, 3
		}
		must(t, w.WriteHeader(header))
		_, err := io.WriteString(w, i.text)
		must(t, err)
	}
	must(t, w.Close())
	return b.Bytes()
}

func layerOf(t testing.TB, items []item) v1.Layer {
	t.Helper()
	data := tarOf(t, items)
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil })
	must(t, err)
	return layer
}

func imageOf(t testing.TB, layers ...[]item) v1.Image {
	t.Helper()
	image := empty.Image
	for _, items := range layers {
		var err error
		image, err = mutate.AppendLayers(image, layerOf(t, items))
		must(t, err)
	}
	config, err := image.ConfigFile()
	must(t, err)
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	config.Config.Entrypoint, config.Config.Cmd, config.Config.Env = []string{"tool"}, []string{"--serve"}, []string{"PATH=/opt/bin:/bin"}
	image, err = mutate.ConfigFile(image, config)
	must(t, err)
	return image
}

func dirItem(name string) item { return item{name: name, kind: tar.TypeDir, mode: 0o755} }

// sampleLayers has everything that layers are made of.
func sampleLayers() [][]item {
	return [][]item{
		{
			dirItem("./"), dirItem("./etc/"), {name: "./etc/passwd", text: "root:x:0:0::/root:/bin/sh\n"}, dirItem("./opt"), dirItem("./opt/bin"),
			{name: "opt/bin/tool", text: "#!/bin/sh\n", mode: 0o6755, uid: 7}, {name: "opt/bin/same", kind: tar.TypeLink, link: "./opt/bin/tool"},
			dirItem("gone"), {name: "gone/file", text: "x"}, {name: "gone.txt", text: "x"},
			dirItem("opaque"), {name: "opaque/lower", text: "x"}, dirItem("opaque/both"), {name: "opaque/both/lower", text: "x"},
			dirItem("usr"), dirItem("usr/lib"), {name: "lib", kind: tar.TypeSymlink, link: "usr/lib"},
			{name: "abs", kind: tar.TypeSymlink, link: "/etc"}, {name: "tofile", kind: tar.TypeSymlink, link: "etc/passwd"},
			{name: "dev/null", kind: tar.TypeChar, mode: 0o666}, {name: "fifo", kind: tar.TypeFifo},
			dirItem("wasdir"), {name: "wasdir/x", text: "x"}, {name: "wasfile", text: "x"},
			{name: "kept", text: "first"},
		},
		{
			{name: ".wh.gone"}, {name: ".wh.gone.txt"}, {name: ".wh.never"},
			{name: "opaque/both/upper", text: "x"}, {name: "opaque/.wh..wh..opq"}, {name: "opaque/upper", text: "x"},
			{name: "lib/through", text: "x"}, {name: "tofile", text: "a file of its own"},
			{name: "wasdir", text: "now a file"}, dirItem("wasfile"), {name: "wasfile/inside", text: "x"},
			{name: ".wh..wh.plnk"}, {name: "new", text: "x"}, {name: ".wh.new"},
			{name: "setgid", kind: tar.TypeDir, mode: 0o2755}, {name: "abs", kind: tar.TypeSymlink, link: "/etc/passwd"},
		},
	}
}

// wantSample holds a tree to what sampleLayers make.
func wantSample(t *testing.T, rootfs string) {
	t.Helper()
	got := map[string]string{}
	for _, name := range []string{
		"gone", "gone.txt", "new", "opaque/lower", "opaque/both/lower", "opaque/both/upper", "opaque/upper", "usr/lib/through", "wasdir",
		"wasfile/inside", "fifo", "tofile", "kept", "opt/bin/tool", "opt/bin/same", ".wh.gone", "opaque/.wh..wh..opq",
	} {
		data, err := os.ReadFile(filepath.Join(rootfs, name))
		switch {
		case os.IsNotExist(err):
			got[name] = "-"
		case err != nil:
			got[name] = err.Error()
		default:
			got[name] = string(data)
		}
	}
	want := map[string]string{
		"gone": "-", "gone.txt": "-", "new": "x", "opaque/lower": "-", "opaque/both/lower": "-", "opaque/both/upper": "x", "opaque/upper": "x",
		"usr/lib/through": "x", "wasdir": "now a file", "wasfile/inside": "x", "fifo": "-", "tofile": "a file of its own", "kept": "first",
		"opt/bin/tool": "#!/bin/sh\n", "opt/bin/same": "#!/bin/sh\n", ".wh.gone": "-", "opaque/.wh..wh..opq": "-",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if target, err := os.Readlink(filepath.Join(rootfs, "abs")); target != "/etc/passwd" {
		t.Errorf("an absolute link was changed: %q, %v", target, err)
	}
	e, err := statEntry(unix.AT_FDCWD, filepath.Join(rootfs, "opt/bin/tool"), "tool")
	must(t, err)
	if e.mode != 0o755 || e.uid != 7 || e.nlink != 2 || e.stamp.mtime != 1e18 {
		t.Errorf("a file has lost or kept too much: %+v", e)
	}
}

// registry starts a registry on loopback, and returns its address.
func registry(t *testing.T) string {
	t.Helper()
	program := testenv.Tool(t, "docker-registry")
	address := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	config := filepath.Join(t.TempDir(), "config.yml")
	must(t, os.WriteFile(config, []byte(fmt.Sprintf(
		"version: 0.1\nlog:\n  level: error\n  accesslog:\n    disabled: true\nstorage:\n  filesystem:\n    rootdirectory: %s\nhttp:\n  addr: %s\n", t.TempDir(), address)), 0o600))
	cmd := exec.Command(program, "serve", config)
	cmd.Env = []string{"OTEL_TRACES_EXPORTER=none", "PATH=" + toolPath}
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	testenv.Eventually(t, 15*time.Second, func() bool {
		connection, err := net.Dial("tcp", address)
		if err == nil {
			_ = connection.Close()
		}
		return err == nil
	}, "the registry does not listen on %s", address)
	return address
}

func TestImageOfARegistryBecomesATemplate(t *testing.T) {
	testenv.Need(t, testenv.Root)
	address := registry(t)
	image := imageOf(t, sampleLayers()...)
	reference, err := name.ParseReference(address + "/sample/image:v1")
	must(t, err)
	client := remote.DefaultTransport.(*http.Transport).Clone()
	defer client.CloseIdleConnections()
	must(t, remote.Write(reference, image, remote.WithTransport(client)))
	digest, err := image.Digest()
	must(t, err)

	s := testStore(t)
	ctx := context.Background()
	var fetched Progress
	for _, text := range []string{reference.Name(), address + "/sample/image@" + digest.String()} {
		built, err := s.Build(ctx, BuildOptions{Name: "mine", From: "oci:" + text, Replace: true, Progress: func(p Progress) {
			if p.Stage == StageFetch {
				fetched = p
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(built.Source, "oci:"+address+"/sample/image") || !strings.HasSuffix(built.Source, "@"+digest.String()) {
			t.Errorf("the source is %s", built.Source)
		}
		if diff := cmp.Diff(map[string]Program{ProgramMain: {Path: "/opt/bin/tool", Args: []string{"--serve"}}}, built.Programs); diff != "" {
			t.Error(diff)
		}
		if fetched.Total == 0 || fetched.Done == 0 || fetched.Unit != "bytes" {
			t.Errorf("the progress is %+v", fetched)
		}
		wantSample(t, built.RootFS())
		wantFinished(t, built.RootFS())
		if _, err := s.Verify(ctx, "mine", VerifyOptions{}); err != nil {
			t.Error(err)
		}
	}
	_, err = s.Build(ctx, BuildOptions{Name: "other", From: "oci:" + address + "/sample/none:v1"})
	wantCode(t, err, problem.BadTemplate)
	_, err = s.Build(ctx, BuildOptions{Name: "other", From: "oci:127.0.0.1:1/sample/none:v1"})
	wantCode(t, err, problem.TemplateBuildFailed)
	if diff := cmp.Diff([]string{storeLockName, "mine"}, names(t, s.dir)); diff != "" {
		t.Error(diff)
	}
}

// archives saves an image in both formats, plain and compressed.
func archives(t *testing.T, image v1.Image) map[string]string {
	t.Helper()
	dir := t.TempDir()
	tag, err := name.NewTag("sample/image:v1")
	must(t, err)
	saved := filepath.Join(dir, "saved.tar")
	must(t, tarball.WriteToFile(saved, tag, image))
	index := mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: imageOf(t, []item{{name: "wrong", text: "x"}}), Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "s390x"}}},
		mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: runtime.GOARCH}}},
	)
	files := filepath.Join(dir, "layout")
	_, err = layout.Write(files, mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: index}))
	must(t, err)
	packed := filepath.Join(dir, "layout.tar")
	must(t, os.WriteFile(packed, tarFolder(t, files), 0o600))
	out := map[string]string{"saved": saved, "layout": packed}
	for kind, file := range map[string]string{"saved.gz": saved, "layout.gz": packed} {
		data, err := os.ReadFile(file)
		must(t, err)
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, err = z.Write(data)
		must(t, err, z.Close(), os.WriteFile(file+".gz", b.Bytes(), 0o600))
		out[kind] = file + ".gz"
	}
	return out
}

func tarFolder(t *testing.T, dir string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	must(t, w.AddFS(os.DirFS(dir)), w.Close())
	return b.Bytes()
}

func TestArchiveBecomesATemplate(t *testing.T) {
	testenv.Need(t, testenv.Root)
	s := testStore(t)
	ctx := context.Background()
	for kind, file := range archives(t, imageOf(t, sampleLayers()...)) {
		t.Run(kind, func(t *testing.T) {
			built, err := s.Build(ctx, BuildOptions{Name: "mine", From: "oci-archive:" + file, Replace: true})
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(built.Source, "oci-archive:"+file+" sha256:") {
				t.Errorf("the source is %s", built.Source)
			}
			wantSample(t, built.RootFS())
		})
	}
}

func TestBadArchivesAreRefusedAndNothingStays(t *testing.T) {
	testenv.Need(t, testenv.Root)
	s := testStore(t)
	dir := t.TempDir()
	image := imageOf(t, []item{{name: "etc/marker", text: "the content of the layer"}})
	wrongArch, err := image.ConfigFile()
	must(t, err)
	wrongArch = wrongArch.DeepCopy()
	wrongArch.Architecture = "s390x"
	foreign, err := mutate.ConfigFile(image, wrongArch)
	must(t, err)
	good := archives(t, image)
	damaged := filepath.Join(dir, "damaged.tar")
	data, err := os.ReadFile(good["layout"])
	must(t, err)
	// The architecture stands in the image's configuration, which is a blob named by its checksum.
	changed := bytes.Replace(data, []byte(`"os":"linux"`), []byte(`"os":"lynux"`), 1)
	if bytes.Equal(changed, data) {
		t.Fatal("nothing was damaged")
	}
	must(t, os.WriteFile(damaged, changed, 0o600))
	// The checksum of the unpacked layer stands in the image's configuration, which docker save does not name by its own.
	data, err = os.ReadFile(good["saved"])
	must(t, err)
	config, err := image.ConfigFile()
	must(t, err)
	lying := filepath.Join(dir, "lying.tar")
	changed = bytes.ReplaceAll(data, []byte(config.RootFS.DiffIDs[0].Hex), bytes.Repeat([]byte("0"), 64))
	if bytes.Equal(changed, data) {
		t.Fatal("no checksum was changed")
	}
	must(t, os.WriteFile(lying, changed, 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "empty.tar"), nil, 0o600), os.WriteFile(filepath.Join(dir, "text"), bytes.Repeat([]byte("no image "), 200), 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "plain.tar"), tarOf(t, []item{{name: "etc/passwd", text: "x"}}), 0o600))

	for what, file := range map[string]string{
		"another processor": archives(t, foreign)["saved"], "a wrong checksum of a layer": lying,
		"a damaged blob": damaged, "an empty file": filepath.Join(dir, "empty.tar"), "text": filepath.Join(dir, "text"),
		"a tar of something else": filepath.Join(dir, "plain.tar"), "no file": filepath.Join(dir, "none"), "a folder": dir,
	} {
		_, err := s.Build(context.Background(), BuildOptions{Name: "mine", From: "oci-archive:" + file})
		if problem.CodeOf(err) != problem.BadTemplate {
			t.Errorf("%s: %v", what, err)
		}
		if diff := cmp.Diff([]string{storeLockName}, names(t, s.dir)); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
	}
}

// TestLayersCannotLeaveTheTree has one attempt to write, read or remove outside of the tree in each image.
func TestLayersCannotLeaveTheTree(t *testing.T) {
	testenv.Need(t, testenv.Root)
	outside := t.TempDir()
	victim := filepath.Join(outside, "victim")
	up := strings.Repeat("../", 30)
	for what, items := range map[string][]item{
		"dots in a name":                 {{name: "../escaped", text: "x"}},
		"dots inside a name":             {{name: "a/../../escaped", text: "x"}},
		"through an absolute link":       {{name: "l", kind: tar.TypeSymlink, link: outside}, {name: "l/escaped", text: "x"}},
		"through a relative link":        {{name: "l", kind: tar.TypeSymlink, link: up + outside[1:]}, {name: "l/escaped", text: "x"}},
		"through a link to a link":       {{name: "a", kind: tar.TypeSymlink, link: outside}, {name: "b", kind: tar.TypeSymlink, link: "a"}, {name: "b/escaped", text: "x"}},
		"a folder through a link":        {{name: "l", kind: tar.TypeSymlink, link: outside}, dirItem("l/escaped")},
		"a hard link to dots":            {{name: "h", kind: tar.TypeLink, link: up + victim[1:]}},
		"a hard link through a link":     {{name: "l", kind: tar.TypeSymlink, link: outside}, {name: "h", kind: tar.TypeLink, link: "l/victim"}},
		"a hard link to nothing":         {{name: "h", kind: tar.TypeLink, link: "none"}},
		"a hard link to a folder":        {dirItem("d"), {name: "h", kind: tar.TypeLink, link: "d"}},
		"a whiteout through a link":      {{name: "l", kind: tar.TypeSymlink, link: outside}, {name: "l/.wh.victim"}},
		"an opaque mark through a link":  {{name: "l", kind: tar.TypeSymlink, link: outside}, {name: "l/.wh..wh..opq"}},
		"a whiteout of the folder above": {dirItem("d"), {name: "d/.wh..."}},
		"a whiteout of the folder":       {dirItem("d"), {name: "d/.wh.."}},
		"a whiteout of nothing":          {dirItem("d"), {name: "d/.wh."}},
		"an unknown kind":                {{name: "x", kind: 'Z'}},
	} {
		t.Run(what, func(t *testing.T) {
			put(t, outside, map[string]string{"victim": "untouched"})
			rootfs := filepath.Join(t.TempDir(), "rootfs")
			put(t, rootfs, map[string]string{"mark": "x"})
			root, err := os.OpenRoot(rootfs)
			must(t, err)
			defer root.Close()
			err = newExtractor(root).layer(context.Background(), bytes.NewReader(tarOf(t, items)))
			// An opaque mark on what is no folder of the tree has nothing to remove, and is no error.
			if what != "an opaque mark through a link" {
				wantCode(t, err, problem.BadTemplate)
			}
			if diff := cmp.Diff([]string{"victim"}, names(t, outside)); diff != "" {
				t.Error(diff)
			}
			if data, err := os.ReadFile(victim); string(data) != "untouched" {
				t.Errorf("%q, %v", data, err)
			}
			if _, err := os.Stat(filepath.Join(rootfs, "mark")); err != nil {
				t.Error(err)
			}
			if _, err := os.Lstat(filepath.Join(filepath.Dir(rootfs), "escaped")); err == nil {
				t.Error("a file was written beside the tree")
			}
		})
	}
}

// TestLayersBringNoPrivileges looks at what unpacking leaves, before a build removes privileges once more.
func TestLayersBringNoPrivileges(t *testing.T) {
	testenv.Need(t, testenv.Root)
	rootfs := t.TempDir()
	root, err := os.OpenRoot(rootfs)
	must(t, err)
	defer root.Close()
	for _, items := range sampleLayers() {
		must(t, newExtractor(root).layer(context.Background(), bytes.NewReader(tarOf(t, items))))
	}
	for name, want := range map[string]os.FileMode{"opt/bin/tool": 0o755, "setgid": 0o755 | os.ModeDir} {
		if info, err := os.Lstat(filepath.Join(rootfs, name)); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
	for _, name := range []string{"dev/null", "fifo"} {
		if _, err := os.Lstat(filepath.Join(rootfs, name)); !os.IsNotExist(err) {
			t.Errorf("%s is there: %v", name, err)
		}
	}
}

func TestPlainHTTPIsForThisMachineOnly(t *testing.T) {
	reached := false
	client := &registryTransport{base: roundTrip(func(*http.Request) (*http.Response, error) {
		reached = true
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
	})}
	for url, want := range map[string]bool{
		"http://127.0.0.1:5000/v2/": true, "http://localhost:5000/v2/": true, "http://[::1]:5000/v2/": true, "https://registry.example/v2/": true,
		"http://registry.example/v2/": false, "http://10.0.0.1/v2/": false, "http://192.168.1.2:5000/v2/": false, "http://localhost.example/v2/": false,
	} {
		reached = false
		request, err := http.NewRequest(http.MethodGet, url, nil)
		must(t, err)
		response, err := client.RoundTrip(request)
		if err == nil {
			must(t, response.Body.Close())
		}
		if (err == nil) != want || reached != want {
			t.Errorf("%s: reached %v, %v", url, reached, err)
		}
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
