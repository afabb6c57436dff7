package template

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/clawjail/clawjail/internal/problem"
)

// maxImageConfig is how large the configuration of an image may be that [Exported] reads, in bytes.
const maxImageConfig = 1 << 20

// Exported is the name of the template that Export has made a file of. The code is bad_template for a file that is none of these.
// Its content is looked at when it is built.
func Exported(ctx context.Context, file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", problem.Wrap(err, problem.BadTemplate, "write one on another machine: sudo clawjail template image browser --output browser.tar", "there is no file %s", file)
	}
	defer f.Close()
	found := errors.New("found")
	var name string
	stream, err := gunzip(f)
	if err == nil {
		err = eachEntry(ctx, stream, func(header *tar.Header, content io.Reader) error {
			if header.Size > maxImageConfig || !strings.HasPrefix(header.Name, "blobs/sha256/") {
				return nil
			}
			data, err := io.ReadAll(content)
			if err != nil {
				return err
			}
			var c v1.ConfigFile
			if json.Unmarshal(data, &c) == nil && c.Config.Labels[labelTemplate] != "" { // others are not the configuration
				name = c.Config.Labels[labelTemplate]
				return found
			}
			return nil
		})
	}
	switch {
	case errors.Is(err, found):
		return name, CheckName(name)
	case err != nil && ctx.Err() != nil:
		return "", fmt.Errorf("read %s: %w", file, err)
	}
	e := problem.New(problem.BadTemplate, "give it a name: clawjail template import "+file+" NAME", "%s was not made of a template, so it does not say which it is", file)
	e.Err = err
	return "", e
}
