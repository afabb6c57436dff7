package recording

import (
	"bufio"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"html/template"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"
)

//go:embed page.html
var pageText string

// WritePage writes a recording as one HTML page that needs nothing but itself. The page is written as it is read, a
// picture at a time.
func (s *Shelf) WritePage(w io.Writer, m Meta) error {
	page, err := template.New("page").Funcs(template.FuncMap{
		"clock": func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") },
	}).Parse(pageText)
	if err != nil {
		return fmt.Errorf("the page of recordings: %w", err)
	}
	path := m.Tenant + "/" + m.Session
	if !tenantName.MatchString(m.Tenant) || !sessionName.MatchString(m.Session) {
		return fmt.Errorf("write the recording of session %q: not a valid name", m.Session)
	}
	// A transient tape has pictures of steps that it does not write down any more.
	var late []Picture
	s.mu.Lock()
	tape := s.open[m.Session]
	s.mu.Unlock()
	if tape != nil && m.Kind == Transient {
		late = slices.DeleteFunc(tape.Pictures(), func(p Picture) bool { return p.Number <= transientSteps })
	}
	out := bufio.NewWriterSize(w, 64<<10)
	err = s.in(func(root *os.Root) error {
		if err := page.ExecuteTemplate(out, "head", m); err != nil {
			return err
		}
		if err := readSteps(root, path, func(step Step) error { return writeStep(page, out, root, path, step) }); err != nil {
			return err
		}
		for _, p := range late {
			step := Step{Number: p.Number, At: p.At, Tool: "a picture", Done: &Outcome{OK: true, Format: p.Format}}
			if err := writeStep(page, out, root, path, step); err != nil {
				return err
			}
		}
		return page.ExecuteTemplate(out, "foot", m)
	})
	if err := errors.Join(err, out.Flush()); err != nil {
		return fmt.Errorf("write the recording of session %s: %w", m.Session, err)
	}
	return nil
}

func writeStep(page *template.Template, out *bufio.Writer, root *os.Root, path string, s Step) error {
	if err := page.ExecuteTemplate(out, "step", s); err != nil {
		return err
	}
	if s.Done != nil && (s.Done.Format == "png" || s.Done.Format == "jpeg") {
		f, err := root.Open(fmt.Sprintf("%s/%d.%s", path, s.Number, s.Done.Format))
		if err == nil {
			fmt.Fprintf(out, `<img alt="what the page showed" src="data:image/%s;base64,`, s.Done.Format) // kept by the writer
			encoder := base64.NewEncoder(base64.StdEncoding, out)
			_, err = io.Copy(encoder, f)
			err = errors.Join(err, encoder.Close(), f.Close())
			fmt.Fprint(out, `">`)
		} else if errors.Is(err, fs.ErrNotExist) {
			fmt.Fprint(out, `<p class="none">The picture is not kept any more.</p>`)
			err = nil
		}
		if err != nil {
			return err
		}
	}
	return page.ExecuteTemplate(out, "end", s)
}
