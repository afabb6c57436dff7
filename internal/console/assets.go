package console

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"html/template"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strconv"
	"strings"
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
	kind         string
	plain, small []byte // small is gzip
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
		var small bytes.Buffer
		zip, _ := gzip.NewWriterLevel(&small, gzip.BestCompression) // the level is one
		if _, err := zip.Write(text); err != nil {
			return nil, err
		}
		if err := zip.Close(); err != nil {
			return nil, err
		}
		kind := mime.TypeByExtension(path.Ext(name))
		switch path.Ext(name) {
		case ".js":
			kind = "text/javascript; charset=utf-8"
		case ".css":
			kind = "text/css; charset=utf-8"
		case ".svg":
			kind = "image/svg+xml"
		}
		a.files[version+"/"+name] = asset{kind: kind, plain: text, small: small.Bytes()}
		a.paths[name] = Prefix + "/static/" + version + "/" + name
	}
	return a, nil
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
		body = f.small
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body) // the browser that asked has gone otherwise
}

// parse reads the templates: each page with the layout and the parts that all share.
func (c *Console) parse() (map[string]*template.Template, error) {
	shared, err := template.New("").Funcs(c.words()).ParseFS(pageFiles, "pages/shared/*.html")
	if err != nil {
		return nil, fmt.Errorf("read the shared templates: %w", err)
	}
	names, err := fs.Glob(pageFiles, "pages/*.html")
	if err != nil {
		return nil, err
	}
	out := make(map[string]*template.Template, len(names))
	for _, name := range names {
		t, err := shared.Clone()
		if err != nil {
			return nil, err
		}
		if t, err = t.ParseFS(pageFiles, name); err != nil {
			return nil, fmt.Errorf("read template %s: %w", name, err)
		}
		out[strings.TrimSuffix(path.Base(name), ".html")] = t
	}
	return out, nil
}
