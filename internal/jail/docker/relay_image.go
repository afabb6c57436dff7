//go:build linux

package docker

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
	"runtime"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/client"
)

// relayProgram is the one file of the relay's image.
const relayProgram = "/clawjail"

// relayImage is the name of the relay's image, which is loaded when the engine does not have it: a program, and nothing else.
func (d *Driver) relayImage(ctx context.Context) (name string, err error) {
	f, err := os.Open(d.o.Relay.Binary)
	if err != nil {
		return "", err
	}
	defer f.Close() // only read from
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	layer := sha256.New()
	if err := writeRelayLayer(layer, f, info.Size()); err != nil {
		return "", fmt.Errorf("read the program of the relay: %w", err)
	}
	sum := hex.EncodeToString(layer.Sum(nil))
	name = relayImage + ":" + sum[:12]
	if _, err := d.engine.ImageInspect(ctx, name); err == nil || !cerrdefs.IsNotFound(err) {
		return name, err
	}
	read, write := io.Pipe()
	done := make(chan error, 1)
	go func() { // ends when the engine has read everything, or the pipe is closed
		err := writeRelayImage(write, f, info.Size(), name, sum)
		write.CloseWithError(err)
		done <- err
	}()
	answer, err := d.engine.ImageLoad(ctx, read, client.ImageLoadWithQuiet(true))
	if err == nil {
		_, err = readAnswer(answer)
		err = errors.Join(err, answer.Close())
	}
	_ = read.Close() // ends the writer, if it has not ended
	return name, errors.Join(err, ignoreClosed(<-done))
}

func ignoreClosed(err error) error {
	if errors.Is(err, io.ErrClosedPipe) { // the engine did not read to the end; what it said tells whether that is an error
		return nil
	}
	return err
}

// writeRelayLayer writes the file system of the image. It is the same for the same program.
func writeRelayLayer(w io.Writer, f io.ReaderAt, size int64) error {
	t := tar.NewWriter(w)
	if err := t.WriteHeader(&tar.Header{Name: relayProgram[1:], Typeflag: tar.TypeReg, Mode: 0o555, Size: size, Format: tar.FormatPAX}); err != nil {
		return err
	}
	if _, err := io.Copy(t, io.NewSectionReader(f, 0, size)); err != nil {
		return err
	}
	return t.Close()
}

// writeRelayImage writes what `docker load` reads.
func writeRelayImage(w io.Writer, f io.ReaderAt, size int64, name, sum string) error {
	settings, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux", "config": map[string]any{"Entrypoint": []string{relayProgram, "relay"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + sum}},
	})
	if err != nil {
		return err
	}
	manifest, err := json.Marshal([]map[string]any{{"Config": "config.json", "RepoTags": []string{name}, "Layers": []string{"layer.tar"}}})
	if err != nil {
		return err
	}
	var length counted
	if err := writeRelayLayer(&length, f, size); err != nil {
		return err
	}
	t := tar.NewWriter(w)
	for name, data := range map[string][]byte{"config.json": settings, "manifest.json": manifest} {
		if err := t.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o444, Size: int64(len(data))}); err != nil {
			return err
		}
		if _, err := t.Write(data); err != nil {
			return err
		}
	}
	if err := t.WriteHeader(&tar.Header{Name: "layer.tar", Typeflag: tar.TypeReg, Mode: 0o444, Size: int64(length)}); err != nil {
		return err
	}
	if err := writeRelayLayer(t, f, size); err != nil {
		return err
	}
	return t.Close()
}

// counted counts what is written to it.
type counted int64

func (c *counted) Write(p []byte) (int, error) {
	*c += counted(len(p))
	return len(p), nil
}
