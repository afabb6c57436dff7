package browser

import (
	"context"
	"crypto/rand"
	"path"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/clawjail/clawjail/internal/problem"
)

const (
	// maxPut bounds a file that is put into the folder, and maxPutName its name, both in bytes.
	maxPut     = 32 << 20
	maxPutName = 200
	// fileTimeout bounds the reading and the writing of a file: 256 MB take a few seconds.
	fileTimeout = time.Minute
	// waitDownloadTimeout is how long WaitDownload waits unless it is told, and maxWaitDownload the most.
	waitDownloadTimeout = 120 * time.Second
	maxWaitDownload     = 10 * time.Minute
	// justEnded is how long a download that has ended can still be the answer of WaitDownload: a client that clicks and then
	// waits would miss a small one otherwise.
	justEnded = 10 * time.Second
)

// FilePath is the path of a file that the browser sees, by its name in the folder, by the GUID of its download, or by
// any path that ends with one of them, such as a client's. Only what is complete has one.
func (b *Browser) FilePath(name string) (string, bool) {
	f := &b.folder
	f.mu.Lock()
	defer f.mu.Unlock()
	file := f.find(name)
	if cut := strings.LastIndexAny(name, `/\`); file == nil && cut >= 0 {
		file = f.find(name[cut+1:])
	}
	if file == nil || file.State != complete {
		return "", false
	}
	return file.path, true
}

// rightBelow says whether a path is right below a folder.
func rightBelow(name, folder string) bool {
	return path.Clean(name) == name && path.Dir(name) == folder
}

// wait waits until a condition holds. It is asked with f.mu held, after every change.
func (f *folder) wait(ctx context.Context, holds func() bool) error {
	for {
		f.mu.Lock()
		if holds() {
			f.mu.Unlock()
			return nil
		}
		if f.changed == nil {
			f.changed = make(chan struct{})
		}
		changed := f.changed
		f.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// complete is a copy of a file that can be read.
func (f *folder) complete(name string) (stored, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	file := f.find(name)
	if file == nil {
		return stored{}, noFile(name)
	}
	switch file.State {
	case complete:
		return *file, nil
	case canceled:
		return stored{}, problem.New(problem.Conflict, "download it again", "the download of %q was canceled", bounded(name, 200))
	}
	return stored{}, problem.New(problem.Conflict, "wait until it has ended", "%q is being downloaded", bounded(name, 200))
}

func noFile(name string) error {
	return problem.New(problem.NotFound, "list the files", "there is no file %q", bounded(name, 200))
}

func checkFileName(name string) error {
	if name == "" || len(name) > maxText {
		return problem.New(problem.BadRequest, "use a name of the list of files", "name is required")
	}
	return nil
}

// Tool implements Operation.
func (Files) Tool() string { return "files" }

// Target implements Operation.
func (Files) Target() string { return "" }

// Effect implements Operation.
func (Files) Effect() Effect { return Looks }

// Validate implements Operation.
func (Files) Validate() error { return nil }

// Limit implements Operation.
func (Files) Limit() time.Duration { return 10 * time.Second }

// Result implements Operation.
func (Files) Result() any { return new(FilesResult) }

// Run implements Operation.
func (Files) Run(_ context.Context, b *Browser) (any, error) {
	f := &b.folder
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.path == "" {
		return nil, noFolder()
	}
	out := FilesResult{Files: make([]File, len(f.files))}
	for n, file := range f.files {
		out.Files[n] = file.File
	}
	return out, nil
}

// Tool implements Operation.
func (GetFile) Tool() string { return "get_file" }

// Target implements Operation.
func (o GetFile) Target() string { return bounded(o.Name, 200) }

// Effect implements Operation.
func (GetFile) Effect() Effect { return Looks }

// Validate implements Operation.
func (o GetFile) Validate() error { return checkFileName(o.Name) }

// Limit implements Operation.
func (GetFile) Limit() time.Duration { return fileTimeout }

// Result implements Operation.
func (GetFile) Result() any { return new(FileContent) }

// Run implements Operation.
func (o GetFile) Run(ctx context.Context, b *Browser) (any, error) {
	file, err := b.folder.complete(o.Name)
	if err != nil {
		return nil, err
	}
	out := FileContent{Name: file.Name, ContentType: contentType(file.Name)}
	err = b.withHidden(ctx, func(ctx context.Context, h *hiddenPage) error {
		out.Data, err = h.read(ctx, file.path)
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// contentType is what a file says it is, where that is harmless: a browser that shows it runs nothing of it.
func contentType(name string) string {
	switch strings.ToLower(path.Ext(name)) {
	case ".png":
		return "image/png"
	case ".jpg", ".jpeg":
		return "image/jpeg"
	case ".gif":
		return "image/gif"
	case ".webp":
		return "image/webp"
	case ".pdf":
		return "application/pdf"
	case ".txt", ".log", ".md":
		return "text/plain; charset=utf-8"
	case ".csv":
		return "text/csv; charset=utf-8"
	case ".json":
		return "application/json"
	case ".zip":
		return "application/zip"
	}
	return "application/octet-stream"
}

// Tool implements Operation.
func (PutFile) Tool() string { return "put_file" }

// Target implements Operation.
func (o PutFile) Target() string { return bounded(o.Name, maxPutName) }

// Effect implements Operation.
func (PutFile) Effect() Effect { return Steers }

// Validate implements Operation.
func (o PutFile) Validate() error {
	flaws := problem.ValidationError{Code: problem.BadRequest}
	switch {
	case o.Name == "":
		flaws.Add("name", "it is required")
	case len(o.Name) > maxPutName:
		flaws.Add("name", "it has %d bytes, and %d are allowed", len(o.Name), maxPutName)
	case !utf8.ValidString(o.Name) || safeCharacters(o.Name) != o.Name || strings.ContainsAny(o.Name, `/\`):
		flaws.Add("name", "%q has a character that a name may not have; it is a name, not a path", bounded(o.Name, 200))
	case strings.Trim(o.Name, ". ") != o.Name:
		flaws.Add("name", "%q begins or ends with a dot or a space", o.Name)
	}
	if len(o.Data) > maxPut {
		flaws.Add("data", "%d bytes, and %d are allowed", len(o.Data), maxPut)
	}
	return flaws.Err()
}

// Limit implements Operation.
func (PutFile) Limit() time.Duration { return fileTimeout }

// Result implements Operation.
func (PutFile) Result() any { return new(File) }

// Run implements Operation. A file that was put under the name before is forgotten; a download of the name stays, and
// the new file gets another name.
func (o PutFile) Run(ctx context.Context, b *Browser) (any, error) {
	f := &b.folder
	var name string
	err := func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.path == "" {
			return noFolder()
		}
		f.makeRoom()
		if len(f.files) >= maxFiles || f.weight()+int64(len(o.Data)) > maxFolderBytes {
			return problem.New(problem.DiskFull, "delete files", "the folder has %d files with %d bytes", len(f.files), f.weight())
		}
		name = o.Name
		if old := f.find(name); old == nil || old.Kind != upload {
			name = f.unused(name)
		}
		return nil
	}()
	if err != nil {
		return nil, err
	}
	var made stored
	err = b.withHidden(ctx, func(ctx context.Context, h *hiddenPage) error {
		made.path, err = h.write(ctx, f.place(), name, o.Data)
		return err
	})
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	name = path.Base(made.path)
	if old := f.find(name); old != nil && old.Kind == upload {
		f.forget(old)
	}
	made.File = File{Name: f.unused(name), Kind: upload, State: complete, Bytes: int64(len(o.Data)), At: f.now()}
	f.add(&made)
	return made.File, nil
}

// place is a new folder for one upload: a file that is written there keeps its name, and a page cannot guess the path.
func (f *folder) place() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.path + "/uploads/" + rand.Text()
}

// Tool implements Operation.
func (DeleteFile) Tool() string { return "delete_file" }

// Target implements Operation.
func (o DeleteFile) Target() string { return bounded(o.Name, 200) }

// Effect implements Operation.
func (DeleteFile) Effect() Effect { return Steers }

// Validate implements Operation.
func (o DeleteFile) Validate() error { return checkFileName(o.Name) }

// Limit implements Operation.
func (DeleteFile) Limit() time.Duration { return 10 * time.Second }

// Result implements Operation.
func (DeleteFile) Result() any { return new(Done) }

// Run implements Operation. No operation finds the file afterwards; its bytes are removed with the folder.
func (o DeleteFile) Run(_ context.Context, b *Browser) (any, error) {
	f := &b.folder
	f.mu.Lock()
	file := f.find(o.Name)
	if file != nil {
		f.forget(file)
	}
	f.mu.Unlock()
	if file == nil {
		return nil, noFile(o.Name)
	}
	if file.State == inProgress {
		b.cancelDownload(file.GUID)
	}
	return Done{OK: true}, nil
}

// Tool implements Operation.
func (WaitDownload) Tool() string { return "wait_download" }

// Target implements Operation.
func (WaitDownload) Target() string { return "" }

// Effect implements Operation.
func (WaitDownload) Effect() Effect { return Looks }

// Validate implements Operation.
func (o WaitDownload) Validate() error {
	flaws := problem.ValidationError{Code: problem.BadRequest}
	timeoutWithin(&flaws, o.TimeoutMS, minTimeout, int(maxWaitDownload.Milliseconds()))
	return flaws.Err()
}

// Limit implements Operation.
func (o WaitDownload) Limit() time.Duration { return limit(o.TimeoutMS, waitDownloadTimeout) }

// Result implements Operation.
func (WaitDownload) Result() any { return new(File) }

// Run implements Operation. The answer is the first download that has ended in the last ten seconds and was no answer
// yet, or that ends from now on. It may have been canceled: see its state.
func (WaitDownload) Run(ctx context.Context, b *Browser) (any, error) {
	f := &b.folder
	if b.DownloadsPath() == "" {
		return nil, noFolder()
	}
	began := f.now()
	var out File
	err := f.wait(ctx, func() bool {
		var first *stored
		for _, file := range f.files {
			if file.Kind != download || file.told || file.State == inProgress || file.ended.Before(began.Add(-justEnded)) {
				continue
			}
			if first == nil || file.ended.Before(first.ended) {
				first = file
			}
		}
		if first == nil {
			return false
		}
		first.told = true
		out = first.File
		return true
	})
	if err != nil {
		return nil, problem.Wrap(err, problem.CodeOf(err), "list the files: it may have ended earlier; a folder that is full takes no more",
			"no download ended")
	}
	return out, nil
}
