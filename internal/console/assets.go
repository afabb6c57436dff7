package console

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"html/template"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
)

//go:embed pages
var pageFiles embed.FS

//go:embed static
var staticFiles embed.FS

// assets are the files that pages refer to. The address of each has its content in it, so that browsers keep it for good.
type assets struct {
	files map[string]asset  // by the rest of the address: HASH/name
	paths map[string]string // by name
}

type asset struct {
	kind  string
	plain []byte
	small func() []byte // gzip
}

// newAssets takes the embedded files, and the colours as theme.css.
func newAssets(theme []byte) (*assets, error) {
	all := map[string][]byte{"theme.css": theme}
	err := fs.WalkDir(staticFiles, "static", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := staticFiles.ReadFile(name)
		all[strings.TrimPrefix(name, "static/")] = text
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the console's files: %w", err)
	}
	// One address for all of them: modules name each other by their names alone.
	sum := sha256.New()
	for _, name := range sorted(all) {
		fmt.Fprintf(sum, "%s %d\n", name, len(all[name]))
		sum.Write(all[name])
	}
	version := hex.EncodeToString(sum.Sum(nil))[:12]
	a := &assets{files: map[string]asset{}, paths: map[string]string{}}
	for name, text := range all {
		kind := mime.TypeByExtension(path.Ext(name))
		switch path.Ext(name) {
		case ".js":
			kind = "text/javascript; charset=utf-8"
		case ".css":
			kind = "text/css; charset=utf-8"
		case ".svg":
			kind = "image/svg+xml"
		}
		a.files[version+"/"+name] = asset{kind: kind, plain: text, small: sync.OnceValue(func() []byte { return zipped(text) })}
		a.paths[name] = Prefix + "/static/" + version + "/" + name
	}
	return a, nil
}

// zipped is a text as gzip.
func zipped(text []byte) []byte {
	var out bytes.Buffer
	zip, _ := gzip.NewWriterLevel(&out, gzip.BestCompression) // the level is one
	_, _ = zip.Write(text)                                    // a buffer takes everything
	_ = zip.Close()
	return out.Bytes()
}

// path is the address of a file.
func (a *assets) path(name string) (string, error) {
	p, ok := a.paths[name]
	if !ok {
		return "", fmt.Errorf("there is no file %s", name)
	}
	return p, nil
}

// ServeHTTP serves the files. They are the same for everybody.
func (a *assets) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f, ok := a.files[strings.TrimPrefix(r.URL.Path, Prefix+"/static/")]
	if !ok {
		http.NotFound(w, r)
		return
	}
	h := w.Header()
	h.Set("Content-Type", f.kind)
	h.Set("Cache-Control", "public, max-age=31536000, immutable")
	h.Set("Vary", "Accept-Encoding")
	body := f.plain
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		h.Set("Content-Encoding", "gzip")
		body = f.small()
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body) // the browser that asked has gone otherwise
}

// pages are the templates by name, each with the layout and the parts that all share. One is read when it is first shown.
type pages map[string]func() (*template.Template, error)

// pageTemplates finds the templates.
func (c *Console) pageTemplates() (pages, error) {
	names, err := fs.Glob(pageFiles, "pages/*.html")
	if err != nil {
		return nil, err
	}
	shared := sync.OnceValues(func() (*template.Template, error) {
		return template.New("").Funcs(c.words()).ParseFS(pageFiles, "pages/shared/*.html")
	})
	out := make(pages, len(names))
	for _, name := range names {
		out[strings.TrimSuffix(path.Base(name), ".html")] = sync.OnceValues(func() (*template.Template, error) {
			t, err := shared()
			if err != nil {
				return nil, err
			}
			if t, err = t.Clone(); err != nil {
				return nil, err
			}
			return t.ParseFS(pageFiles, name)
		})
	}
	return out, nil
}

// write writes one template of a page.
func (p pages) write(w io.Writer, page, name string, f frame) error {
	read := p[page]
	if read == nil {
		return fmt.Errorf("there is no page %s", page)
	}
	t, err := read()
	if err == nil {
		err = t.ExecuteTemplate(w, name, f)
	}
	if err != nil {
		return fmt.Errorf("make page %s: %w", page, err)
	}
	return nil
}
