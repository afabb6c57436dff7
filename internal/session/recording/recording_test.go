package recording

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/problem"
)

const day = 24 * time.Hour

// clock is a time that tests move.
type clock struct{ at time.Time }

func (c *clock) now() time.Time { return c.at }

func options(dir string, c *clock) Options {
	return Options{Dir: dir, Keep: 7 * day, Now: c.now, Quotas: config.Default().Quotas}
}

func newShelf(t *testing.T) (*Shelf, *clock, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "recordings")
	c := &clock{time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)}
	s, err := Open(options(dir, c))
	if err != nil {
		t.Fatal(err)
	}
	return s, c, dir
}

func meta(session string, kind Kind, at time.Time) Meta {
	return Meta{Session: session, Tenant: "acme", OpenedBy: "admin", Mode: "clean", Browser: "shell", Kind: kind, Created: at}
}

func start(t *testing.T, s *Shelf, m Meta) *Tape {
	t.Helper()
	tape, err := s.Start(m)
	if err != nil {
		t.Fatal(err)
	}
	return tape
}

func step(t *testing.T, tape *Tape, c *clock, tool string, o Outcome) int {
	t.Helper()
	n, err := tape.Begin(Step{At: c.at, Actor: "admin", Tool: tool, Target: "https://example.com/"})
	if err != nil {
		t.Fatal(err)
	}
	if err := tape.End(n, c.at, o); err != nil {
		t.Fatal(err)
	}
	return n
}

func page(t *testing.T, s *Shelf, session string) string {
	t.Helper()
	m, err := s.Find(session)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := s.WritePage(&out, m); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

const one, two = "s_aaaaaaaaaaaaaaaa", "s_bbbbbbbbbbbbbbbb"

func TestATransientRecordingGoesWithItsSessionAndAnAuditOneStays(t *testing.T) {
	s, c, dir := newShelf(t)
	transient, audit := start(t, s, meta(one, Transient, c.at)), start(t, s, meta(two, Audit, c.at))
	for _, tape := range []*Tape{transient, audit} {
		step(t, tape, c, "screenshot", Outcome{OK: true, Format: "png", Picture: []byte("picture")})
	}
	if !strings.Contains(page(t, s, one), "data:image/png;base64,cGljdHVyZQ==") {
		t.Error("the page of a session that runs has no picture")
	}
	for _, tape := range []*Tape{transient, audit} {
		if err := tape.Close(c.at, "closed"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Find(one); problem.CodeOf(err) != problem.NotFound {
		t.Errorf("the transient one: %v", err)
	}
	if text := page(t, s, two); !strings.Contains(text, "closed") || !strings.Contains(text, "data:image/png") {
		t.Error("the page of the audit one is not complete")
	}
	// A week later it goes, also while nothing is restarted.
	c.at = c.at.Add(7*day - time.Minute)
	if err := s.Tidy(); err != nil {
		t.Fatal(err)
	}
	page(t, s, two)
	c.at = c.at.Add(2 * time.Hour)
	if err := s.Tidy(); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("there is still %v", left)
	}
}

// A machine may start with a clock that is years off, until NTP has set it.
func TestAClockThatIsOffForAWhileTakesNoRecording(t *testing.T) {
	s, c, dir := newShelf(t)
	right := c.at
	for session, began := range map[string]time.Time{one: right.AddDate(-3, 0, 0), two: right} {
		c.at = began
		tape := start(t, s, meta(session, Audit, c.at))
		step(t, tape, c, "navigate", Outcome{OK: true})
		c.at = right
		if err := tape.Close(c.at, "closed"); err != nil {
			t.Fatal(err)
		}
	}
	for _, off := range []time.Duration{0, 400 * day, -400 * day} {
		c.at = right.Add(off)
		var err error
		if s, err = Open(options(dir, c)); err != nil {
			t.Fatal(err)
		}
	}
	listed := func(want int) {
		t.Helper()
		if err := s.Tidy(); err != nil {
			t.Fatal(err)
		}
		if list, err := s.List("acme"); err != nil || len(list) != want {
			t.Errorf("there are %+v, %v", list, err)
		}
	}
	c.at = right.Add(7*day - time.Minute)
	listed(2)
	c.at = right.Add(7 * day)
	listed(0)
}

// A session may end while the recordings are looked through, and its folder and its tenant's go with it.
func TestRecordingsThatGoMeanwhileAreNoError(t *testing.T) {
	s, c, dir := newShelf(t)
	for tenant, session := range map[string]string{"acme": one, "other": two, "third": "s_cccccccccccccccc"} {
		m := meta(session, Audit, c.at)
		m.Tenant = tenant
		if err := start(t, s, m).Close(c.at, "closed"); err != nil {
			t.Fatal(err)
		}
	}
	list, err := s.list(func(m Meta) bool {
		if m.Tenant != "acme" {
			return true
		}
		return os.RemoveAll(filepath.Join(dir, "other")) == nil // the folders are known by now
	})
	if err != nil || len(list) != 2 || list[1].Tenant == "other" || list[0].Tenant == "other" {
		t.Errorf("listed are %+v, %v", list, err)
	}
	// In a sweep, one goes after the list of its tenant's was read, or after it was asked for its age.
	again := filepath.Join(dir, "acme", two)
	if err := os.Mkdir(again, 0o700); err != nil {
		t.Fatal(err)
	}
	looked := 0
	err = s.sweep(func(root *os.Root, path string, m Meta, live bool) (bool, error) {
		looked++
		if err := os.RemoveAll(again); err != nil {
			t.Error(err)
		}
		return s.expired(root, path, m, live)
	})
	if err != nil || looked != 3 {
		t.Errorf("%d were looked at: %v", looked, err)
	}
	if err := errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := s.Tidy(); err == nil {
		t.Error("a shelf that is no folder was tidied")
	}
}

func TestANewProcessKeepsAuditRecordingsAndTouchesNothingElse(t *testing.T) {
	s, c, dir := newShelf(t)
	step(t, start(t, s, meta(one, Transient, c.at)), c, "navigate", Outcome{OK: true})
	step(t, start(t, s, meta(two, Audit, c.at)), c, "navigate", Outcome{OK: true})
	foreign := []string{filepath.Join(dir, "notes.txt"), filepath.Join(dir, "acme", "mine"), filepath.Join(dir, "Other", "s_cccccccccccccccc")}
	if err := os.WriteFile(foreign[0], nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, f := range foreign[1:] {
		if err := os.MkdirAll(f, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	again, err := Open(options(dir, c))
	if err != nil {
		t.Fatal(err)
	}
	if list, err := again.List("acme"); err != nil || len(list) != 1 || list[0].Session != two {
		t.Errorf("there are %+v, %v", list, err)
	}
	for _, f := range foreign {
		if _, err := os.Stat(f); err != nil {
			t.Error(err)
		}
	}
}

func TestATransientRecordingKeepsTheLastPicturesWithinItsBounds(t *testing.T) {
	s, c, dir := newShelf(t)
	tape := start(t, s, meta(one, Transient, c.at))
	for range PicturesMost + 3 {
		step(t, tape, c, "screenshot", Outcome{OK: true, Format: "jpeg", Picture: []byte("x")})
	}
	if got := tape.Pictures(); len(got) != PicturesMost || got[0].Number != 4 {
		t.Errorf("%d are kept, from %d", len(got), got[0].Number)
	}
	files, _ := filepath.Glob(filepath.Join(dir, "acme", one, "*.jpeg"))
	if len(files) != PicturesMost {
		t.Errorf("%d are on the disk", len(files))
	}
	big := make([]byte, transientBytes-10)
	n := step(t, tape, c, "screenshot", Outcome{OK: true, Format: "jpeg", Picture: big})
	if got := tape.Pictures(); len(got) > 11 || got[len(got)-1].Number != n {
		t.Errorf("beside a large one %d are kept", len(got))
	}
	if text := page(t, s, one); !strings.Contains(text, "The picture is not kept any more.") {
		t.Error("the page does not say that pictures went")
	}
	if _, _, err := tape.Picture(1); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the first one: %v", err)
	}
	tape.steps = transientSteps // of which no more are written down
	n = step(t, tape, c, "screenshot", Outcome{OK: true, Format: "jpeg", Picture: []byte("late")})
	if text := page(t, s, one); !strings.Contains(text, fmt.Sprintf("%d · a picture", n)) || !strings.Contains(text, base64.StdEncoding.EncodeToString([]byte("late"))) {
		t.Error("the page lacks the picture of a step that is not written down")
	}
}

func TestWhatAnAuditRecordingCannotKeepIsNotBegun(t *testing.T) {
	s, c, dir := newShelf(t)
	tape := start(t, s, meta(one, Audit, c.at))
	if err := os.RemoveAll(filepath.Join(dir, "acme", one)); err != nil {
		t.Fatal(err)
	}
	if _, err := tape.Begin(Step{Tool: "act"}); problem.CodeOf(err) != problem.DiskFull {
		t.Errorf("without its folder: %v", err)
	}
	full := start(t, s, meta(two, Audit, c.at))
	full.steps = auditSteps
	if _, err := full.Begin(Step{Tool: "act"}); problem.CodeOf(err) != problem.DiskFull {
		t.Errorf("when it is full: %v", err)
	}
	if _, err := s.Start(Meta{Session: "../../etc", Tenant: "acme", Kind: Audit}); err == nil {
		t.Error("a name led out of the folder")
	}
}

func TestThePageIsDataAndNeedsNothingElse(t *testing.T) {
	s, c, _ := newShelf(t)
	m := meta(one, Audit, c.at)
	m.Label = `<script>alert(1)</script>`
	tape := start(t, s, m)
	n, err := tape.Begin(Step{At: c.at, Tool: "act", Target: `"><img src=x onerror=alert(1)>`})
	if err != nil {
		t.Fatal(err)
	}
	err = tape.End(n, c.at, Outcome{Code: "act_operation_failed", Error: "</script><script>alert(2)</script>", URL: "javascript:alert(3)", Title: "<b>bold</b>"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tape.Begin(Step{At: c.at, Tool: "navigate"}); err != nil {
		t.Fatal(err)
	}
	text := page(t, s, one)
	for _, raw := range []string{"<script>alert", "<img src=x", "<b>bold", "http-equiv=refresh", "http://", "https://", "src=\"//"} {
		if strings.Contains(text, raw) {
			t.Errorf("the page has %q", raw)
		}
	}
	for _, want := range []string{"&lt;script&gt;alert(1)", "class=\"failed\"", "How it ended is not known.", "default-src 'none'"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
}
