package console

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	// maxUpload bounds one file that is sent to a browser, and maxUploadForm the form around it.
	maxUpload     = 32 << 20
	maxUploadForm = maxUpload + 1<<20
	// shutIn is the policy of what comes from a jail: it runs nothing, and reaches nothing.
	shutIn = "default-src 'none'; sandbox"
)

// look reads the browser's folder. It is use of the session, and on record as that: it is done when somebody asks for it.
func (c *Console) look(q *request, page *sessionPage) error {
	out, err := c.Sessions.Drive(q.ctx(), q.by, page.ID, browser.Files{})
	if err != nil {
		return err
	}
	files, ok := out.(browser.FilesResult)
	if !ok {
		return fmt.Errorf("list the files of a browser: it answered with %T", out)
	}
	page.Files, page.Looked = files.Files, true
	return nil
}

// sessionFiles is the part of the page with the browser's folder.
func (c *Console) sessionFiles(q *request) error {
	id := q.value("id")
	if !q.fragment() {
		return q.goTo(sessionPath(id) + "?files=yes")
	}
	s, err := c.Sessions.Get(q.ctx(), q.by, id)
	if err != nil {
		return err
	}
	page := &sessionPage{sessionRow: rowOf(s, nil)}
	if err := c.look(q, page); err != nil {
		return err
	}
	return q.part("session", "files", page)
}

// getSessionFile saves a file of a browser. A page in the jail has made it: it is never shown here.
func (c *Console) getSessionFile(q *request) error {
	out, err := c.Sessions.Drive(q.ctx(), q.by, q.value("id"), browser.GetFile{Name: q.value("name")})
	if err != nil {
		return err
	}
	file, ok := out.(browser.FileContent)
	if !ok {
		return fmt.Errorf("read a file of a browser: it answered with %T", out)
	}
	q.foreign("application/octet-stream", file.Name)
	q.w.Header().Set("Content-Length", strconv.Itoa(len(file.Data)))
	_, _ = q.w.Write(file.Data) // an error says that the browser has gone
	return nil
}

// foreign begins an answer whose body comes from a jail; with a name, it is saved.
func (q *request) foreign(kind, name string) {
	q.started = true
	h := q.w.Header()
	h.Set("Content-Type", kind)
	h.Set("Content-Security-Policy", shutIn)
	if name != "" {
		h.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": name}))
		if h.Get("Content-Disposition") == "" { // a name that no header can have
			h.Set("Content-Disposition", "attachment")
		}
	}
}

// putSessionFile puts a file into the browser's folder, for a file chooser of a page. It answers with the name that it has there.
func (c *Console) putSessionFile(q *request) error {
	q.r.Body = http.MaxBytesReader(q.w, q.r.Body, maxUploadForm)
	parts, err := q.r.MultipartReader()
	if err != nil {
		return problem.Wrap(err, problem.BadRequest, "choose a file", "no file was sent")
	}
	var file *browser.PutFile
	for { // to the end: a client that still sends hears no answer
		part, err := parts.NextPart()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return problem.Wrap(err, problem.BadRequest, "send it again, or a smaller one", "the file did not arrive")
		}
		if part.FormName() != "file" || file != nil {
			continue
		}
		data, err := io.ReadAll(io.LimitReader(part, maxUpload+1))
		switch {
		case err != nil:
			return problem.Wrap(err, problem.BadRequest, "send it again, or a smaller one", "the file did not arrive")
		case len(data) > maxUpload:
			return problem.New(problem.BadRequest, "choose a smaller one", "the file has more than %d MiB", maxUpload>>20)
		}
		file = &browser.PutFile{Name: plainName(part.FileName()), Data: data}
	}
	if file == nil {
		return problem.New(problem.BadRequest, "choose a file", "no file was sent")
	}
	return c.put(q, *file)
}

func (c *Console) put(q *request, file browser.PutFile) error {
	out, err := c.Sessions.Drive(q.ctx(), q.by, q.value("id"), file)
	if err != nil {
		return err
	}
	kept, ok := out.(browser.File)
	if !ok {
		return fmt.Errorf("put a file into a browser's folder: it answered with %T", out)
	}
	if !q.fragment() {
		return q.done(sessionPath(q.value("id"))+"?files=yes", "The file is in the browser's folder.")
	}
	text, err := json.Marshal(struct {
		Name string `json:"name"`
	}{kept.Name})
	if err != nil {
		return err
	}
	q.started = true
	q.w.Header().Set("Content-Type", "application/json")
	_, _ = q.w.Write(text) // an error says that the browser has gone
	return nil
}

// plainName is the last part of a file's path, as the person's own system has it.
func plainName(name string) string {
	name = path.Base(strings.ReplaceAll(name, `\`, "/"))
	if name == "." || name == "/" || !utf8.ValidString(name) {
		return "file"
	}
	return name
}

// sessionRecording saves what was recorded as a page.
func (c *Console) sessionRecording(q *request) error {
	id := q.value("id")
	out := &held{q: q, begin: func() { q.foreign("text/html; charset=utf-8", "recording-"+id+".html") }}
	if err := c.Sessions.WriteRecording(q.ctx(), q.by, id, out); err != nil {
		if q.started {
			c.Log.Warn("write a recording", "session", id, "error", err)
			panic(http.ErrAbortHandler) // so that nobody takes a part for the whole
		}
		return err
	}
	return nil
}

// removeRecording removes what was recorded of a session that has ended.
func (c *Console) removeRecording(q *request) error {
	id := q.value("id")
	if err := c.Sessions.RemoveRecording(q.ctx(), q.by, id); err != nil {
		return q.failed(sessionPath(id), err)
	}
	return q.done(sessionPath(id), "The recording of this session is removed.")
}

// held begins an answer with its first byte, so that an error before it is answered as every error is.
type held struct {
	q     *request
	begin func()
}

func (h *held) Write(text []byte) (int, error) {
	if !h.q.started {
		h.begin()
	}
	return h.q.w.Write(text)
}

// sessionShot is a screenshot that is kept.
func (c *Console) sessionShot(q *request) error {
	number, err := strconv.Atoi(q.value("number"))
	if err != nil {
		return problem.New(problem.NotFound, "choose one of the session's page", "there is no such screenshot")
	}
	data, format, err := c.Sessions.Recorded(q.ctx(), q.by, q.value("id"), number)
	if err != nil {
		return err
	}
	q.foreign("image/"+format, "")
	http.ServeContent(q.w, q.r, "", time.Time{}, bytes.NewReader(data))
	return nil
}
