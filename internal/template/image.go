package template

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/clawjail/clawjail/internal/policy/hostport"
	"github.com/clawjail/clawjail/internal/problem"
)

// parseReference reads the reference of an image.
func parseReference(text string) (name.Reference, error) { return name.ParseReference(text) }

// platform is what images must be made for.
func (b *build) platform() v1.Platform { return v1.Platform{OS: "linux", Architecture: b.store.arch} }

// buildImage makes the tree from an image of a registry. Logins come from the usual place of the user who builds
// (~/.docker/config.json).
func (b *build) buildImage(ctx context.Context) error {
	reference, err := parseReference(b.source.value)
	if err != nil {
		return err
	}
	base, ok := remote.DefaultTransport.(*http.Transport)
	if !ok {
		return errors.New("the default HTTP transport is of an unknown kind")
	}
	own := base.Clone()
	defer own.CloseIdleConnections()
	client := &registryTransport{base: own, advance: b.out.advance}
	descriptor, err := remote.Get(reference, remote.WithContext(ctx), remote.WithTransport(client), remote.WithPlatform(b.platform()),
		remote.WithAuthFromKeychain(authn.DefaultKeychain))
	if err != nil {
		return explainRegistry(reference, err)
	}
	image, err := descriptor.Image()
	if err != nil {
		return explainRegistry(reference, err)
	}
	if err := b.unpackImage(ctx, image, client); err != nil {
		return err
	}
	b.template.Source = fmt.Sprintf("oci:%s@%s", reference.Context().Name(), descriptor.Digest)
	if tag, ok := reference.(name.Tag); ok {
		b.template.Source = fmt.Sprintf("oci:%s@%s", tag.Name(), descriptor.Digest)
	}
	return nil
}

// explainRegistry tells an image that is not there from a registry that did not work.
func explainRegistry(reference name.Reference, err error) error {
	var refused *transport.Error
	if errors.As(err, &refused) {
		switch refused.StatusCode {
		case http.StatusNotFound:
			return problem.Wrap(err, problem.BadTemplate, "look at the name and the tag", "the registry has no image %s", reference.Name())
		case http.StatusUnauthorized, http.StatusForbidden:
			return problem.Wrap(err, problem.BadTemplate, "log in as the user who builds: docker login "+reference.Context().RegistryStr(),
				"the registry refuses access to the image %s", reference.Name())
		}
	}
	return fmt.Errorf("fetch the image %s: %w", reference.Name(), err)
}

// registryTransport counts downloaded bytes, and refuses plain HTTP to other machines: an attacker on the network could put
// anything into the template.
type registryTransport struct {
	base    http.RoundTripper
	advance func(done int64)
	counted atomic.Int64
	on      atomic.Bool
}

// RoundTrip implements http.RoundTripper.
func (t *registryTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.URL.Scheme != "https" && !hostport.IsLoopback(request.URL.Hostname()) {
		if request.Body != nil {
			_ = request.Body.Close() // a RoundTripper has to, and the request goes nowhere
		}
		return nil, problem.New(problem.BadTemplate, "use a registry with TLS", "the registry %s speaks plain HTTP, and is not on this machine", request.URL.Host)
	}
	response, err := t.base.RoundTrip(request)
	if err == nil && t.on.Load() {
		response.Body = &countedBody{ReadCloser: response.Body, transport: t}
	}
	return response, err
}

type countedBody struct {
	io.ReadCloser
	transport *registryTransport
}

func (c *countedBody) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.transport.advance(c.transport.counted.Add(int64(n)))
	return n, err
}

// unpackImage flattens an image into the tree. counter, when not nil, counts the download; else whole layers are
// counted.
func (b *build) unpackImage(ctx context.Context, image v1.Image, counter *registryTransport) error {
	config, err := image.ConfigFile()
	if err != nil {
		return fmt.Errorf("read the configuration of the image: %w", err)
	}
	if want := b.platform(); config.OS != want.OS || config.Architecture != want.Architecture {
		return problem.New(problem.BadTemplate, "use an image for linux/"+b.store.arch,
			"the image is for %s/%s", config.OS, config.Architecture)
	}
	layers, err := image.Layers()
	if err != nil {
		return fmt.Errorf("read the layers of the image: %w", err)
	}
	if len(layers) != len(config.RootFS.DiffIDs) {
		return problem.New(problem.BadTemplate, "build the image again", "the image has %d layers and checksums for %d", len(layers), len(config.RootFS.DiffIDs))
	}
	var total int64
	for _, layer := range layers {
		size, err := layer.Size()
		if err != nil {
			return fmt.Errorf("read the layers of the image: %w", err)
		}
		total += size
	}
	b.out.stage(StageFetch, "bytes", total, nil)
	if counter != nil {
		counter.on.Store(true)
	}
	root, err := os.OpenRoot(b.rootfs)
	if err != nil {
		return fmt.Errorf("open the new tree: %w", err)
	}
	defer root.Close()
	var done int64
	for i, layer := range layers {
		if err := unpackLayer(ctx, root, layer, config.RootFS.DiffIDs[i]); err != nil {
			return fmt.Errorf("unpack layer %d of %d: %w", i+1, len(layers), err)
		}
		size, err := layer.Size()
		if err != nil {
			return fmt.Errorf("read the layers of the image: %w", err)
		}
		if done += size; counter == nil {
			b.out.advance(done)
		}
	}
	// An image of a template without a program of its own starts the shell, see Export. The template of it has none either.
	if c := config.Config; c.Labels[labelTemplate] == "" || len(c.Cmd) != 1 || !slices.Contains(shells(), c.Cmd[0]) {
		b.template.Programs = entrypoint(root, c)
	}
	return nil
}

// unpackLayer unpacks one layer over what is there, and fails unless all of it has the checksum that the image's
// configuration names.
func unpackLayer(ctx context.Context, root *os.Root, layer v1.Layer, want v1.Hash) error {
	if want.Algorithm != "sha256" {
		return problem.New(problem.BadTemplate, "build the image again", "a layer's checksum is of the kind %q", want.Algorithm)
	}
	stream, err := layer.Uncompressed()
	if err != nil {
		return err
	}
	hash := sha256.New()
	reader := io.TeeReader(stream, hash)
	err = newExtractor(root).layer(ctx, reader)
	if err == nil {
		// Readers of tar stop at its end mark. The rest belongs to the checksum.
		_, err = io.Copy(io.Discard, reader)
	}
	if err := errors.Join(err, stream.Close()); err != nil {
		return err
	}
	if got := hex.EncodeToString(hash.Sum(nil)); got != want.Hex {
		return problem.New(problem.BadTemplate, "fetch or save the image again", "a layer has the checksum %s instead of %s", got, want.Hex)
	}
	return nil
}

// entrypoint is what the image starts, as the program main, when it is there.
func entrypoint(root *os.Root, config v1.Config) map[string]Program {
	argv := append(append([]string(nil), config.Entrypoint...), config.Cmd...)
	if len(argv) == 0 {
		return nil
	}
	var candidates []string
	switch {
	case path.IsAbs(argv[0]):
		candidates = []string{argv[0]}
	case strings.Contains(argv[0], "/"):
		candidates = []string{path.Join("/", config.WorkingDir, argv[0])}
	default:
		search := "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
		for _, variable := range config.Env {
			if value, ok := strings.CutPrefix(variable, "PATH="); ok {
				search = value
			}
		}
		for _, dir := range filepath.SplitList(search) {
			candidates = append(candidates, path.Join("/", dir, argv[0]))
		}
	}
	for _, candidate := range candidates {
		if isProgram(root, candidate) {
			return map[string]Program{ProgramMain: {Path: candidate, Args: argv[1:]}}
		}
	}
	return nil
}
