//go:build unix

package browser

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	devtools "github.com/chromedp/cdproto/browser"

	"github.com/clawjail/clawjail/internal/cdp/cdptest"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// fileSite offers downloads and takes uploads.
type fileSite struct {
	big  []byte // what /big sends
	hold chan struct{}
	got  chan uploaded
}

type uploaded struct {
	name string
	data []byte
}

func newFileSite(t testing.TB) (*fileSite, http.Handler) {
	s := &fileSite{big: make([]byte, 2*chunkBytes+17), hold: make(chan struct{}), got: make(chan uploaded, 10)}
	source := rand.NewChaCha8([32]byte{1})
	source.Read(s.big)
	mux := http.NewServeMux()
	page := func(path, html string) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			io.WriteString(w, html)
		})
	}
	page("/page", `<a id="big" href="/big">big</a> <a id="slow" href="/slow">slow</a> <a id="evil" href="/evil">evil</a>
		<a id="vast" href="/vast">vast</a> <a id="small" href="data:text/plain,small" download="small.txt">small</a>
		<form id="f" method="post" action="/upload" enctype="multipart/form-data"><input id="one" type="file" name="file">
		<input id="many" type="file" name="file" multiple><button>Send</button></form>
		<button id="opens" onclick="document.getElementById('one').click()">Choose a file</button>
		<button>Idle</button>`)
	send := func(path, disposition string, body func(w http.ResponseWriter, r *http.Request)) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Disposition", disposition)
			w.Header().Set("Content-Type", "application/octet-stream")
			body(w, r)
		})
	}
	send("/big", `attachment; filename="big data.bin"`, func(w http.ResponseWriter, _ *http.Request) { w.Write(s.big) })
	send("/evil", `attachment; filename="../../../escaped.txt"`, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "evil") })
	send("/vast", `attachment; filename="vast.bin"`, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(MaxFile+1))
		w.Write(make([]byte, 1<<16))
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	send("/slow", `attachment; filename="slow.txt"`, func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, strings.Repeat("begun ", 1000))
		w.(http.Flusher).Flush()
		select {
		case <-s.hold:
		case <-r.Context().Done():
		}
		io.WriteString(w, "done")
	})
	mux.HandleFunc("POST /upload", func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseMultipartForm(100 << 20); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		for _, header := range r.MultipartForm.File["file"] {
			file, err := header.Open()
			if err != nil {
				continue
			}
			data, _ := io.ReadAll(file)
			file.Close()
			if header.Filename != "" {
				s.got <- uploaded{header.Filename, data}
			}
		}
		io.WriteString(w, "<title>Thanks</title>")
	})
	return s, mux
}

// openFolder opens a browser with a folder, on the page with the links.
func openFolder(t *testing.T, build Build) (*Browser, *fileSite, string) {
	t.Helper()
	s, handler := newFileSite(t)
	b := open(t, build, newGateway(t, handler).URL)
	dir := useFolder(t, b)
	goTo(t, b, "/page")
	return b, s, dir
}

func useFolder(t *testing.T, b *Browser) (dir string) {
	t.Helper()
	dir = cdptest.Dir(t)
	b.UseFolder(dir + "/files")
	if err := b.ReapplyDownloads(within(t, 10*time.Second)); err != nil {
		t.Fatal(err)
	}
	return dir
}

func follow(t *testing.T, b *Browser, id string) {
	t.Helper()
	must[EvalResult](t, b, Eval{JS: "document.getElementById('" + id + "').click()"})
}

// received is the next file that the site was sent.
func (s *fileSite) received(t *testing.T, b *Browser) uploaded {
	t.Helper()
	must[EvalResult](t, b, Eval{JS: "setTimeout(() => document.getElementById('f').submit())"})
	select {
	case file := <-s.got:
		return file
	case <-time.After(20 * time.Second):
		t.Fatal("nothing was uploaded")
	}
	return uploaded{}
}

func TestDownloadComesBackIdentical(t *testing.T) {
	eachBuild(t, func(t *testing.T, build Build) {
		b, s, dir := openFolder(t, build)
		follow(t, b, "big")
		file := must[File](t, b, WaitDownload{})
		if file.Name != "big data.bin" || file.Kind != "download" || file.State != "complete" || file.Bytes != int64(len(s.big)) ||
			file.URL != site+"/big" || file.GUID == "" {
			t.Errorf("%+v", file)
		}
		for _, name := range []string{file.Name, file.GUID} {
			if got := must[FileContent](t, b, GetFile{Name: name}); !bytes.Equal(got.Data, s.big) || got.Name != file.Name {
				t.Errorf("%s: %d bytes of %d", name, len(got.Data), len(s.big))
			}
		}
		if path, ok := b.FilePath("/home/me/" + file.Name); !ok || path != dir+"/files/downloads/"+file.GUID {
			t.Errorf("its path is %q", path)
		}
		// The same again has another name; a page that is sent it sees that.
		follow(t, b, "big")
		again := must[File](t, b, WaitDownload{})
		if again.Name != "big data (2).bin" {
			t.Errorf("the second is %q", again.Name)
		}
		must[Done](t, b, ChooseFiles{Paths: []string{again.GUID}, Element: "#one"})
		if got := s.received(t, b); got.name != "big data (2).bin" || !bytes.Equal(got.data, s.big) {
			t.Errorf("the page sent %q with %d bytes", got.name, len(got.data))
		}
		if got := must[FileContent](t, b, GetFile{Name: again.Name}); !bytes.Equal(got.Data, s.big) {
			t.Error("the second is another after it was sent")
		}
		if files := must[FilesResult](t, b, Files{}); len(files.Files) != 2 {
			t.Errorf("%+v", files)
		}
	})
}

func TestPutFileIsUploaded(t *testing.T) {
	eachBuild(t, func(t *testing.T, build Build) {
		b, s, dir := openFolder(t, build)
		file := must[File](t, b, PutFile{Name: "données 1.bin", Data: s.big})
		if file.Name != "données 1.bin" || file.Kind != "upload" || file.State != "complete" || file.Bytes != int64(len(s.big)) {
			t.Errorf("%+v", file)
		}
		if got := must[FileContent](t, b, GetFile{Name: file.Name}); !bytes.Equal(got.Data, s.big) {
			t.Errorf("%d bytes come back", len(got.Data))
		}
		must[File](t, b, PutFile{Name: "empty.txt"})
		if got := must[FileContent](t, b, GetFile{Name: "empty.txt"}); len(got.Data) != 0 {
			t.Errorf("an empty file has %d bytes", len(got.Data))
		}
		must[File](t, b, PutFile{Name: "empty.txt", Data: []byte("new")}) // a second one takes the place of the first
		files := must[FilesResult](t, b, Files{})
		if len(files.Files) != 2 {
			t.Errorf("%+v", files)
		}
		// By a selector, by a ref, by the ref of what opens a chooser, and by a chooser that is open.
		must[Done](t, b, ChooseFiles{Paths: []string{file.Name}, Element: "#one"})
		if got := s.received(t, b); got.name != file.Name || !bytes.Equal(got.data, s.big) {
			t.Errorf("the page sent %q with %d bytes", got.name, len(got.data))
		}
		goTo(t, b, "/page")
		must[Done](t, b, ChooseFiles{Paths: []string{"empty.txt", file.Name}, Element: "#many"})
		if got := s.received(t, b); got.name != "empty.txt" || string(got.data) != "new" {
			t.Errorf("the page sent %q with %q", got.name, got.data)
		}
		if got := <-s.got; got.name != file.Name {
			t.Errorf("the second is %q", got.name)
		}
		goTo(t, b, "/page")
		ref := refOf(t, must[SnapshotResult](t, b, Snapshot{}).Snapshot, "Choose a file")
		must[Done](t, b, ChooseFiles{Paths: []string{"empty.txt"}, Ref: ref})
		if got := s.received(t, b); got.name != "empty.txt" {
			t.Errorf("by the button the page sent %q", got.name)
		}
		goTo(t, b, "/page")
		if out := must[ActResult](t, b, Act{Kind: "click", Selector: "#opens"}); !out.FileChooser {
			t.Errorf("the click says %+v", out)
		}
		must[Done](t, b, ChooseFiles{Paths: []string{"empty.txt"}})
		if got := s.received(t, b); got.name != "empty.txt" {
			t.Errorf("by the chooser the page sent %q", got.name)
		}
		goTo(t, b, "/page")
		// By one that opens after the call: the last call counts.
		must[Done](t, b, ChooseFiles{Paths: []string{file.Name}})
		must[Done](t, b, ChooseFiles{Paths: []string{"empty.txt"}})
		must[ActResult](t, b, Act{Kind: "click", Selector: "#opens"})
		chosen := Eval{JS: "document.getElementById('one').files.length"}
		testenv.Eventually(t, 10*time.Second, func() bool { return must[EvalResult](t, b, chosen).Value == 1.0 }, "the files are given")
		if got := s.received(t, b); got.name != "empty.txt" {
			t.Errorf("by the next chooser the page sent %q", got.name)
		}
		goTo(t, b, "/page")
		// Files that wait for a chooser are not sent by one that opens for later ones.
		must[Done](t, b, ChooseFiles{Paths: []string{file.Name}})
		must[Done](t, b, ChooseFiles{Paths: []string{"empty.txt"}, Ref: refOf(t, must[SnapshotResult](t, b, Snapshot{}).Snapshot, "Choose a file")})
		if got := s.received(t, b); got.name != "empty.txt" {
			t.Errorf("by the button, with others armed, the page sent %q", got.name)
		}
		for _, path := range regularFiles(t, dir) {
			if !strings.HasPrefix(path, dir+"/files/uploads/") {
				t.Errorf("%s is not among the uploads", path)
			}
		}
	})
}

// Of calls at the same moment, which have all looked for earlier ones, one has its files armed.
func TestFilesOfOneCallAreArmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &Page{b: &Browser{}, gone: make(chan struct{})}
		p.armChooser(time.Minute, []string{"first"})
		first := p.b.folder.armed[p]
		p.armChooser(time.Minute, []string{"second"})
		synctest.Wait()
		select {
		case <-first.over:
		default:
			t.Error("the files of the first are armed still")
		}
		if p.b.folder.armed[p] == nil || p.b.folder.armed[p] == first {
			t.Error("those of the second are not")
		}
		p.disarmChooser()
		p.b.folder.task.Wait()
	})
}

func regularFiles(t *testing.T, dir string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			found = append(found, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// Whatever a site calls it, a download is inside the folder, and its name is no path.
func TestDownloadDoesNotLeaveTheFolder(t *testing.T) {
	eachBuild(t, func(t *testing.T, build Build) {
		b, _, dir := openFolder(t, build)
		follow(t, b, "evil")
		file := must[File](t, b, WaitDownload{})
		if strings.ContainsAny(file.Name, `/\`) || strings.HasPrefix(file.Name, ".") {
			t.Errorf("it is called %q", file.Name)
		}
		must[Done](t, b, ChooseFiles{Paths: []string{file.Name}, Element: "#one"}) // copied under its name
		for _, path := range regularFiles(t, dir) {
			if !strings.HasPrefix(path, dir+"/files/downloads/") && !strings.HasPrefix(path, dir+"/files/uploads/") {
				t.Errorf("%s is outside", path)
			}
		}
		if got := must[FileContent](t, b, GetFile{Name: file.Name}); string(got.Data) != "evil" {
			t.Errorf("it has %q", got.Data)
		}
		// No name leads out either, and what is not in the list is not there.
		secret := filepath.Join(dir, "secret")
		if err := os.WriteFile(secret, []byte("secret"), 0o644); err != nil {
			t.Fatal(err)
		}
		cdptest.Give(t, dir)
		for _, name := range []string{secret, "../secret", "../../secret", "/etc/passwd", "secret"} {
			if path, ok := b.FilePath(name); ok {
				t.Errorf("%s is %s", name, path)
			}
			for _, op := range []Operation{GetFile{Name: name}, ChooseFiles{Paths: []string{name}, Element: "#one"}, DeleteFile{Name: name}} {
				if _, err := b.Do(within(t, 20*time.Second), op); problem.CodeOf(err) != problem.NotFound {
					t.Errorf("%+v: %v", op, err)
				}
			}
		}
	})
}

func TestDownloadThatIsTooLargeIsCanceled(t *testing.T) {
	b, _, dir := openFolder(t, Shell)
	follow(t, b, "vast")
	file := must[File](t, b, WaitDownload{})
	if file.State != "canceled" || file.Name != "vast.bin" {
		t.Errorf("%+v", file)
	}
	testenv.Eventually(t, 10*time.Second, func() bool { return len(regularFiles(t, dir)) == 0 }, "the rest of it is gone")
	if _, err := b.Do(within(t, 10*time.Second), GetFile{Name: file.Name}); problem.CodeOf(err) != problem.Conflict {
		t.Errorf("it can be fetched: %v", err)
	}
	if _, ok := b.FilePath(file.Name); ok {
		t.Error("it has a path")
	}
}

func TestDownloadUnderWayIsWaitedForAndCanBeForgotten(t *testing.T) {
	b, s, _ := openFolder(t, Shell)
	follow(t, b, "slow")
	listed := func() []File { return must[FilesResult](t, b, Files{}).Files }
	testenv.Eventually(t, 10*time.Second, func() bool { return len(listed()) == 1 }, "it begins")
	if f := listed()[0]; f.State != "in_progress" || f.Name != "slow.txt" {
		t.Errorf("%+v", f)
	}
	for _, op := range []Operation{GetFile{Name: "slow.txt"}, ChooseFiles{Paths: []string{"slow.txt"}, Element: "#one"}} {
		if _, err := b.Do(within(t, 10*time.Second), op); problem.CodeOf(err) != problem.Conflict {
			t.Errorf("%+v: %v", op, err)
		}
	}
	if _, err := b.Do(within(t, 20*time.Second), WaitDownload{TimeoutMS: 500}); problem.CodeOf(err) != problem.Timeout {
		t.Errorf("it does not end, and is said to: %v", err)
	}
	close(s.hold)
	if f := must[File](t, b, WaitDownload{}); f.State != "complete" || f.Bytes != 6004 {
		t.Errorf("%+v", f)
	}
	// It is told once.
	if _, err := b.Do(within(t, 20*time.Second), WaitDownload{TimeoutMS: 500}); problem.CodeOf(err) != problem.Timeout {
		t.Errorf("it is told twice: %v", err)
	}
	must[Done](t, b, DeleteFile{Name: "slow.txt"})
	if left := listed(); len(left) != 0 {
		t.Errorf("%+v", left)
	}
	if _, err := b.Do(within(t, 10*time.Second), GetFile{Name: "slow.txt"}); problem.CodeOf(err) != problem.NotFound {
		t.Errorf("it is still there: %v", err)
	}
	// A small one that ended before anybody asked is what was meant.
	follow(t, b, "small")
	testenv.Eventually(t, 10*time.Second, func() bool { l := listed(); return len(l) == 1 && l[0].State == "complete" }, "it ends")
	if f := must[File](t, b, WaitDownload{}); f.Name != "small.txt" {
		t.Errorf("%+v", f)
	}
}

// Another client's leaving takes what it said about downloads with it: it is said again.
func TestDownloadsAreReapplied(t *testing.T) {
	eachBuild(t, func(t *testing.T, build Build) {
		b, _, dir := openFolder(t, build)
		var attached struct {
			SessionID string `json:"sessionId"`
		}
		if err := b.conn.Call(within(t, 10*time.Second), "", "Target.attachToBrowserTarget", nil, &attached); err != nil {
			t.Fatal(err)
		}
		err := b.conn.Call(within(t, 10*time.Second), attached.SessionID, "Browser.setDownloadBehavior",
			map[string]any{"behavior": "allow", "downloadPath": dir + "/elsewhere"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.conn.Call(within(t, 10*time.Second), "", "Target.detachFromTarget", attached, nil); err != nil {
			t.Fatal(err)
		}
		if err := b.ReapplyDownloads(within(t, 10*time.Second)); err != nil {
			t.Fatal(err)
		}
		follow(t, b, "evil")
		if f := must[File](t, b, WaitDownload{}); f.State != "complete" {
			t.Errorf("%+v", f)
		}
		if found := regularFiles(t, dir); len(found) != 1 || !strings.HasPrefix(found[0], dir+"/files/downloads/") {
			t.Errorf("%q", found)
		}
	})
}

// The pages that read and write files are in no list, and nothing of them stays.
func TestHiddenPagesAreNotSeen(t *testing.T) {
	eachBuild(t, func(t *testing.T, build Build) {
		b, _, _ := openFolder(t, build)
		before := must[TabsResult](t, b, Tabs{})
		err := b.withHidden(within(t, 20*time.Second), func(ctx context.Context, h *hiddenPage) error {
			if !b.hiddenContext(h.context) || !b.HiddenContext(h.context) || b.hiddenContext("") || b.hiddenContext("other") {
				t.Error("its context is not known for what it is")
			}
			if during := must[TabsResult](t, b, Tabs{}); len(during.Tabs) != len(before.Tabs) {
				t.Errorf("%+v", during)
			}
			if s := must[StatusResult](t, b, Status{}); s.Tabs != len(before.Tabs) {
				t.Errorf("%+v", s)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if left, err := b.Contexts(within(t, 10*time.Second)); err != nil || len(left) != 0 {
			t.Errorf("left: %q, %v", left, err)
		}
	})
}

func TestBrowserWithoutAFolderHasNoFiles(t *testing.T) {
	b := open(t, Shell, deadAddress(t))
	for _, op := range []Operation{Files{}, PutFile{Name: "a"}, WaitDownload{}} {
		if _, err := b.Do(within(t, 10*time.Second), op); problem.CodeOf(err) != problem.Unsupported {
			t.Errorf("%+v: %v", op, err)
		}
	}
	if b.DownloadsPath() != "" || b.ReapplyDownloads(within(t, time.Second)) != nil {
		t.Error("it has downloads")
	}
}

func TestBadChooseFiles(t *testing.T) {
	b, _, _ := openFolder(t, Shell)
	must[File](t, b, PutFile{Name: "a", Data: []byte("a")})
	must[File](t, b, PutFile{Name: "b", Data: []byte("b")})
	for _, test := range []struct {
		op   ChooseFiles
		code string
	}{
		{ChooseFiles{}, problem.BadRequest},
		{ChooseFiles{Paths: []string{""}}, problem.BadRequest},
		{ChooseFiles{Paths: make([]string, maxChosen+1)}, problem.BadRequest},
		{ChooseFiles{Paths: []string{"a"}, Ref: "e1", Element: "p"}, problem.BadRequest},
		{ChooseFiles{Paths: []string{"a"}, TimeoutMS: 1}, problem.BadRequest},
		{ChooseFiles{Paths: []string{"a", "b"}, Element: "#one"}, problem.BadRequest},
		{ChooseFiles{Paths: []string{"a"}, Element: "#f"}, problem.ActOperationFailed},
		{ChooseFiles{Paths: []string{"a"}, Element: "#none"}, problem.ActOperationFailed},
		{ChooseFiles{Paths: []string{"a"}, InputRef: "e99999"}, problem.StaleRef},
		{ChooseFiles{Paths: []string{"a"}, Ref: refOf(t, must[SnapshotResult](t, b, Snapshot{}).Snapshot, "Idle"), TimeoutMS: 1500}, problem.Timeout},
	} {
		if _, err := b.Do(within(t, 20*time.Second), test.op); problem.CodeOf(err) != test.code {
			t.Errorf("%+v: %v", test.op, err)
		}
	}
}

func TestBadNamesOfFiles(t *testing.T) {
	for _, name := range []string{
		"", ".", "..", "a/b", `a\b`, "/a", "a\x00b", "a\nb", "a\x7f", ".hidden", " a", "a ", "a.", "a\u202etxt.exe", "a:b", "\xff",
		strings.Repeat("a", maxPutName+1),
	} {
		if err := (PutFile{Name: name}).Validate(); problem.CodeOf(err) != problem.BadRequest {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{"a", "a.b", "a b (2).tar.gz", "données", strings.Repeat("a", maxPutName)} {
		if err := (PutFile{Name: name}).Validate(); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	if err := (PutFile{Name: "a", Data: make([]byte, maxPut+1)}).Validate(); problem.CodeOf(err) != problem.BadRequest {
		t.Errorf("too large: %v", err)
	}
	for _, op := range []Operation{GetFile{}, DeleteFile{}, WaitDownload{TimeoutMS: 499}, WaitDownload{TimeoutMS: 600001}} {
		if err := op.Validate(); problem.CodeOf(err) != problem.BadRequest {
			t.Errorf("%+v: %v", op, err)
		}
	}
}

func TestSafeName(t *testing.T) {
	for suggested, want := range map[string]string{
		"report.pdf": "report.pdf", "../../x": "x", `..\..\x.exe`: "x.exe", "/": "download", "": "download", "...": "download",
		".bashrc": "bashrc", "a\x00b\nc": "a_b_c", "gpj.\u202eexe.txt": "gpj._exe.txt", "con:a|b": "con_a_b", " x . ": "x",
		strings.Repeat("é", 500) + ".pdf":             strings.Repeat("é", (maxFileName-4)/2) + ".pdf",
		strings.Repeat("x", 500):                      strings.Repeat("x", maxFileName),
		"x." + strings.Repeat("y", 500):               "x." + strings.Repeat("y", maxFileName-2),
		"\xff\xfe.txt":                                "\ufffd.txt",
		"a/" + strings.Repeat("b", maxText) + "/.txt": strings.Repeat("b", maxFileName),
	} {
		if got := safeName(suggested); got != want {
			t.Errorf("%.40q is %q, want %q", suggested, got, want)
		}
	}
}

// A file that is neither of the network nor of a page does not become one of the session.
func TestDownloadsAreOfTheWeb(t *testing.T) {
	for address, goes := range map[string]bool{
		"https://example.com/x": true, "HTTP://example.com/x": true, "data:text/plain,x": true, "blob:https://example.com/1": true,
		"blob:null/1": true, "file:///home/browser/profile/Default/Cookies": false, "FILE:///etc/passwd": false, " file:///x": false,
		"filesystem:https://example.com/x": false, "blob:file:///1": false, "blob:chrome-extension://x/1": false,
		"chrome://version/": false, "chrome-extension://x/y": false, "view-source:https://example.com/": false, "": false,
	} {
		f := &folder{path: "/f"}
		if f.begin(devtools.EventDownloadWillBegin{URL: address, GUID: "a"}) != goes || len(f.files) == 1 != goes {
			t.Errorf("%q: goes on: %v", address, !goes)
		}
	}
}

// The list, one download and all of them are bounded, whatever the browser reports.
func TestFolderIsBounded(t *testing.T) {
	f := &folder{path: "/f"}
	begin := func(n int) bool {
		return f.begin(devtools.EventDownloadWillBegin{URL: "https://example.com/x", GUID: fmt.Sprintf("a-%d", n), SuggestedFilename: "x.txt"})
	}
	progress := func(n int, received, total float64, state devtools.DownloadProgressState) bool {
		return f.progress(devtools.EventDownloadProgress{GUID: fmt.Sprintf("a-%d", n), ReceivedBytes: received, TotalBytes: total, State: state})
	}
	for _, guid := range []string{"", "../x", "a/b", strings.Repeat("a", 65)} {
		if f.begin(devtools.EventDownloadWillBegin{URL: "https://example.com/x", GUID: guid}) {
			t.Errorf("%q went on", guid)
		}
	}
	names := make(map[string]bool)
	for n := range maxFiles {
		if !begin(n) {
			t.Fatalf("%d did not begin", n)
		}
		names[strings.ToLower(f.files[n].Name)] = true
	}
	if len(names) != maxFiles {
		t.Errorf("%d names for %d files", len(names), maxFiles)
	}
	if begin(maxFiles) {
		t.Error("one too many began")
	}
	progress(7, 5, 5, "canceled") // makes room for one
	if !begin(maxFiles) || begin(maxFiles+1) {
		t.Error("one that came to nothing does not make room, or makes it twice")
	}
	if !progress(1, 10, MaxFile, "inProgress") || progress(1, 10, MaxFile+1, "inProgress") || progress(2, MaxFile+1, 0, "inProgress") {
		t.Error("a file is not bounded by what it says or by what came")
	}
	for n := 10; n < 14; n++ {
		progress(n, MaxFile, MaxFile, "completed")
	}
	if progress(20, 1<<20, 1<<20, "inProgress") {
		t.Error("all files together are not bounded")
	}
}

// A copy of the list is not blind to what ended long ago.
func TestOldDownloadIsNotTheNextOne(t *testing.T) {
	now := time.Unix(1000, 0)
	b := &Browser{}
	b.folder = folder{path: "/f", clock: func() time.Time { return now }}
	end := func(guid string) {
		b.folder.begin(devtools.EventDownloadWillBegin{URL: "https://example.com/x", GUID: guid, SuggestedFilename: guid})
		b.folder.progress(devtools.EventDownloadProgress{GUID: guid, State: "completed"})
	}
	end("a")
	now = now.Add(justEnded + time.Second)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if out, err := (WaitDownload{}).Run(ended, b); err == nil {
		t.Errorf("got %+v", out)
	}
	end("b")
	if out, err := (WaitDownload{}).Run(ended, b); err != nil || out.(File).Name != "b" {
		t.Errorf("got %+v, %v", out, err)
	}
}

// A client that stops every new page does not stop ours.
func TestHiddenPageDoesNotWaitForAnotherClient(t *testing.T) {
	eachBuild(t, func(t *testing.T, build Build) {
		b, _, _ := openFolder(t, build)
		var attached struct {
			SessionID string `json:"sessionId"`
		}
		if err := b.conn.Call(within(t, 10*time.Second), "", "Target.attachToBrowserTarget", nil, &attached); err != nil {
			t.Fatal(err)
		}
		err := b.conn.Call(within(t, 10*time.Second), attached.SessionID, "Target.setAutoAttach",
			map[string]any{"autoAttach": true, "waitForDebuggerOnStart": true, "flatten": true}, nil)
		if err != nil {
			t.Fatal(err)
		}
		must[File](t, b, PutFile{Name: "a.txt", Data: []byte("a")})
		if got := must[FileContent](t, b, GetFile{Name: "a.txt"}); string(got.Data) != "a" {
			t.Errorf("it has %q", got.Data)
		}
	})
}
