// Package supportbundle puts what helps to find a fault into one file that can be given to somebody else.
//
// It promises:
//
//   - No secret is in it. Values that are kept encrypted are never asked for; of logs only lines in the daemons' own form are taken,
//     and of these only what is known to be no content; and every byte goes through a [Mask] last, which takes keys of this machine,
//     everything that looks like a key, and the paths and queries of URLs of others.
//   - Names that people chose, and names of hosts, are replaced: the same name by the same word everywhere in one bundle. They stay
//     when that is asked for.
//   - A part that cannot be had is told of in its place, and spoils nothing else: a bundle can be made while nothing runs.
//   - Nothing on the machine is changed.
package supportbundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
)

const (
	// sourceLimit bounds what is taken from one source, in bytes.
	sourceLimit = 4 << 20
	// SourceTime bounds how long one source may take.
	SourceTime = 60 * time.Second
)

// Source is one file of a bundle.
type Source struct {
	// File is its name in the bundle, and About says what is in it.
	File, About string
	// Read has the content as it is on the machine: it is masked afterwards. It may return both a part and an error.
	Read func(ctx context.Context) ([]byte, error)
}

// JSON is a source of a value.
func JSON(file, about string, read func(ctx context.Context) (any, error)) Source {
	return Source{file, about, func(ctx context.Context) ([]byte, error) {
		v, err := read(ctx)
		if err != nil {
			return nil, err
		}
		return encode(v)
	}}
}

func encode(v any) ([]byte, error) {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false) // an address is to be recognised as one
	e.SetIndent("", "  ")
	err := e.Encode(v)
	return out.Bytes(), err
}

// File is what a manifest says of a file.
type File struct {
	Name  string `json:"name"`
	About string `json:"about"`
	Bytes int    `json:"bytes"`
	// Missing says why it is not there, or not whole.
	Missing string `json:"missing,omitempty"`
}

// Manifest says what is in a bundle. It is in it, as manifest.json.
type Manifest struct {
	Format  int       `json:"format"`
	Version string    `json:"version"`
	Made    time.Time `json:"made"`
	// PlainNames says that names were kept.
	PlainNames bool   `json:"plain_names"`
	Files      []File `json:"files"`
	// LeftOut is never in a bundle.
	LeftOut []string `json:"left_out"`
}

// leftOut is what is never in a bundle.
func leftOut() []string {
	return []string{
		"keys, tokens, grants, passwords, cookies and secrets", "what was recorded of sessions, and what agents printed", "the database, and rows of the audit log (only how many there are of each kind)",
		"the configuration file itself, with its comments", "lines of logs that are not in the daemons' own form, and texts of others in those that are", "paths and queries of URLs of other hosts",
	}
}

// Options say what a bundle is made of.
type Options struct {
	Version string
	Sources []Source
	Mask    *Mask
	Now     func() time.Time
}

// Write makes a bundle: a tar in gzip. Its error is one of writing, or that the context has ended.
func Write(ctx context.Context, to io.Writer, o Options) (Manifest, error) {
	if o.Mask == nil || o.Now == nil {
		return Manifest{}, errors.New("a bundle needs a mask and a clock")
	}
	m := Manifest{Format: 1, Version: o.Version, Made: o.Now().UTC(), PlainNames: o.Mask.plain, LeftOut: leftOut()}
	z := gzip.NewWriter(to)
	t := tar.NewWriter(z)
	add := func(name string, data []byte) error {
		header := &tar.Header{Name: "clawjail-support/" + name, Mode: 0o600, Size: int64(len(data)), ModTime: m.Made, Format: tar.FormatPAX}
		if err := t.WriteHeader(header); err != nil {
			return fmt.Errorf("write the bundle: %w", err)
		}
		if _, err := t.Write(data); err != nil {
			return fmt.Errorf("write the bundle: %w", err)
		}
		return nil
	}
	for _, s := range o.Sources {
		f := File{Name: s.File, About: s.About}
		data, err := read(ctx, s)
		if ctx.Err() != nil {
			return m, ctx.Err()
		}
		if err != nil {
			f.Missing = o.Mask.Text(sentence(err))
		}
		if len(data) > sourceLimit {
			data, f.Missing = data[len(data)-sourceLimit:], fmt.Sprintf("only its last %d bytes are here", sourceLimit)
		}
		if data = []byte(o.Mask.Text(string(data))); len(data) > 0 {
			if err := add(f.Name, data); err != nil {
				return m, err
			}
		}
		f.Bytes = len(data)
		m.Files = append(m.Files, f)
	}
	text, err := encode(m)
	if err == nil {
		err = add("manifest.json", text)
	}
	if err != nil {
		return m, err
	}
	if err := errors.Join(t.Close(), z.Close()); err != nil {
		return m, fmt.Errorf("write the bundle: %w", err)
	}
	return m, nil
}

func read(ctx context.Context, s Source) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, SourceTime)
	defer cancel()
	return s.Read(ctx)
}

// sentence is an error for the manifest.
func sentence(err error) string {
	if p, ok := problem.As(err); ok {
		return p.Message
	}
	return err.Error()
}
