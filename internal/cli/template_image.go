package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/jail/docker"
	"github.com/clawjail/clawjail/internal/jailspawn/helper"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/template"
)

func newTemplateImage(p *program) *cobra.Command {
	var tag, output string
	var shim, asJSON bool
	cmd := &cobra.Command{
		Use:   "image [NAME]",
		Short: "Make an image of a template, for agents in containers",
		Long: "Makes an image of a template (default clawbot) and gives it to the Docker engine of the configuration, or writes it to a file that " +
			"`docker load` and `podman load` read. The image runs as 1000:1000 and starts the template's own program. With --shim it is for pods of " +
			"Kubernetes.",
		Example: "  sudo clawjail template image clawbot\n  sudo clawjail template image clawbot --output clawbot.tar\n" +
			"  sudo clawjail template image browser --shim --tag registry.example.com/clawjail/browser:1 --output browser.tar",
		Args: arguments(0, 1),

		ValidArgsFunction: p.completeTemplates,
		RunE: func(cmd *cobra.Command, args []string) error {
			name := "clawbot"
			if len(args) == 1 {
				name = args[0]
			}
			if err := template.CheckName(name); err != nil {
				return err // before root is asked for
			}
			store, c, err := p.templates(cmd)
			if err != nil {
				return err
			}
			if tag == "" {
				if tag = c.Docker.Image; name != "clawbot" {
					tag = "clawjail/" + name + ":latest"
				}
			}
			o := template.ExportOptions{Tag: tag}
			if shim {
				if o.Shim, err = installedShim(); err != nil {
					return err
				}
			}
			export := func(ctx context.Context, w io.Writer) (template.Image, error) { return store.Export(ctx, name, o, w) }
			var image template.Image
			where := output
			if output == "" {
				where = "the engine at " + c.Docker.Socket
				image, err = loadImage(cmd.Context(), c.Docker.Socket, export)
			} else {
				image, err = writeImage(cmd.Context(), output, export)
			}
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), image)
			}
			return said(cmd, "%s is in %s: %s, %s", image.Tag, where, size(image.Size), image.ID)
		},
	}
	f := cmd.Flags()
	f.StringVar(&tag, "tag", "", "`name` of the image (default: docker.image of the configuration, or clawjail/NAME:latest)")
	f.StringVarP(&output, "output", "o", "", "write it to a `file` instead")
	f.BoolVar(&shim, "shim", false, "put clawjail-shim into it, the first process of pods")
	f.BoolVar(&asJSON, "json", false, "print what is known of the image")
	return cmd
}

// installedShim is the program clawjail-shim of this installation: beside this one, or where packages put it.
func installedShim() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find clawjail-shim: %w", err)
	}
	for _, path := range []string{filepath.Join(filepath.Dir(self), "clawjail-shim"), filepath.Join(filepath.Dir(helper.Beside(self)), "clawjail-shim")} {
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, nil
		}
	}
	return "", problem.New(problem.ToolMissing, "install it beside clawjail: make install, or a package, does", "there is no clawjail-shim beside %s", self)
}

type exporter func(context.Context, io.Writer) (template.Image, error)

// loadImage gives an image to an engine while it is made.
func loadImage(ctx context.Context, socket string, export exporter) (template.Image, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	read, write := io.Pipe()
	var image template.Image
	made := make(chan error, 1)
	go func() {
		var err error
		image, err = export(ctx, write)
		_ = write.CloseWithError(err) // it never fails, see its documentation
		made <- err
	}()
	_, err := docker.LoadImage(ctx, socket, read)
	_ = read.Close() // an engine that has enough ends the export; it never fails
	exportErr := <-made
	switch {
	case exportErr != nil && !errors.Is(exportErr, io.ErrClosedPipe):
		return template.Image{}, exportErr // what the engine says follows from it
	case err != nil:
		return template.Image{}, err
	}
	return image, exportErr
}

// writeImage writes an image to a new file. Nothing of it stays when that fails.
func writeImage(ctx context.Context, file string, export exporter) (template.Image, error) {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return template.Image{}, problem.New(problem.Conflict, "remove it, or name another", "there is a file %s already", file)
	}
	if err != nil {
		return template.Image{}, fmt.Errorf("write the image: %w", err)
	}
	image, err := export(ctx, f)
	if err := errors.Join(err, f.Close()); err != nil {
		return template.Image{}, errors.Join(err, os.Remove(file))
	}
	return image, nil
}
