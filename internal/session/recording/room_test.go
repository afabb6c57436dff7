package recording

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/quota"
)

// small is a shelf with room for so much.
func small(t *testing.T, whole config.Bytes, tenants int) (*Shelf, *clock, Options) {
	t.Helper()
	_, c, dir := newShelf(t)
	o := options(dir, c)
	o.Tenants = func() int { return tenants }
	o.Quotas.Recordings = whole
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return s, c, o
}

func ofAgent(session, tenant, agent string, c *clock) Meta {
	m := meta(session, Audit, c.at)
	m.Tenant, m.Agent = tenant, agent
	return m
}

// fill records pictures of a MiB until there is no room, and says how many were kept.
func fill(t *testing.T, tape *Tape, c *clock) (n int, err error) {
	t.Helper()
	for ; n < 100; n++ {
		number, err := tape.Begin(Step{At: c.at, Actor: "agent", Tool: "screenshot"})
		if err != nil {
			return n, err
		}
		if err := tape.End(number, c.at, Outcome{OK: true, Format: "png", Picture: bytes.Repeat([]byte("x"), 1<<20)}); err != nil {
			return n, err
		}
	}
	return n, nil
}

func wantFull(t *testing.T, err error, whose string) {
	t.Helper()
	if p, _ := problem.As(err); p == nil || p.Code != problem.DiskFull || !strings.Contains(p.Message, whose) {
		t.Errorf("the error is %v, want %s and %q", err, problem.DiskFull, whose)
	}
}

func TestRecordingsOfOneAgentAndOneTenantLeaveRoomForOthers(t *testing.T) {
	s, c, o := small(t, 20*config.MiB, 2)
	begin := func(session, tenant, agent string) *Tape {
		tape, err := s.Start(ofAgent(session, tenant, agent, c))
		if err != nil {
			t.Fatal(err)
		}
		return tape
	}
	bot := begin("s_aaaaaaaaaaaaaaaa", "a", "bot")
	n, err := fill(t, bot, c)
	wantFull(t, err, "this agent has")
	if n != 12 { // 12.8 MiB are 80 % of 80 %
		t.Errorf("the agent recorded %d pictures", n)
	}
	if _, err := s.Start(ofAgent("s_bbbbbbbbbbbbbbbb", "a", "bot", c)); err == nil {
		t.Error("the agent begins one more recording")
	} else {
		wantFull(t, err, "this agent has")
	}
	if _, err := bot.Begin(Step{At: c.at}); err == nil {
		t.Error("a step is begun for which there is no room")
	}
	if _, err := bot.BeginAlways(Step{At: c.at, Tool: "take_over"}); err != nil {
		t.Errorf("a person cannot take over what has no room: %v", err)
	}
	people := begin("s_cccccccccccccccc", "a", "")
	n, err = fill(t, people, c)
	wantFull(t, err, "tenant a has")
	if n == 0 {
		t.Error("people of the tenant record nothing")
	}
	other := begin("s_dddddddddddddddd", "b", "")
	n, err = fill(t, other, c)
	wantFull(t, err, "this installation has")
	if n == 0 {
		t.Error("the other tenant records nothing")
	}
	if got := takes(t, o.Dir); got > 20<<20 {
		t.Errorf("the recordings take %d bytes", got)
	}

	// The bytes that a process has counted are found by the next one.
	for _, tape := range []*Tape{bot, people, other} {
		if err := tape.Close(c.at, "closed"); err != nil {
			t.Fatal(err)
		}
	}
	before := heldIn(s, quota.Holder{Tenant: "a", Agent: "bot"})
	again, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	after := heldIn(again, quota.Holder{Tenant: "a", Agent: "bot"})
	for _, pair := range [][2]int64{{before.All, after.All}, {before.Tenant, after.Tenant}, {before.Agent, after.Agent}} {
		if d := pair[1] - pair[0]; d < -3*fileCost || d > 3*fileCost {
			t.Errorf("counted %+v, and found %+v", before, after)
		}
	}
	if _, err := again.Start(ofAgent("s_bbbbbbbbbbbbbbbb", "a", "bot", c)); err == nil {
		t.Error("after a restart the agent has room again")
	}
	// An operator who removes a recording makes room, and so does time.
	c.at = c.at.Add(lookAgain)
	if err := os.RemoveAll(filepath.Join(o.Dir, "a", "s_aaaaaaaaaaaaaaaa")); err != nil {
		t.Fatal(err)
	}
	if _, err := again.Start(ofAgent("s_bbbbbbbbbbbbbbbb", "a", "bot", c)); err != nil {
		t.Errorf("somebody has made room: %v", err)
	}
	c.at = c.at.Add(8 * day)
	if err := again.Tidy(); err != nil {
		t.Fatal(err)
	}
	if h := heldIn(again, quota.Holder{}); h.All > newCost {
		t.Errorf("old recordings count %d bytes", h.All)
	}
}

// A transient recording is a convenience: without room it keeps less, and nothing fails.
func TestATransientRecordingWithoutRoomKeepsLess(t *testing.T) {
	s, c, o := small(t, 4*config.MiB, 1)
	tape := start(t, s, meta(one, Transient, c.at))
	for range 10 {
		step(t, tape, c, "screenshot", Outcome{OK: true, Format: "png", Picture: bytes.Repeat([]byte("x"), 1<<20)})
	}
	if n := len(tape.Pictures()); n == 0 || n > 3 {
		t.Errorf("%d pictures are kept", n)
	}
	if last := tape.Pictures(); last[len(last)-1].Number != 10 {
		t.Errorf("the last picture is not among them: %+v", last)
	}
	if got := takes(t, o.Dir); got > 4<<20 {
		t.Errorf("the recordings take %d bytes", got)
	}
	page(t, s, one)
	late := start(t, s, meta(two, Transient, c.at))
	s.room.gate.Add(quota.Holder{Tenant: "rival"}, 4<<20) // nothing is left
	step(t, late, c, "screenshot", Outcome{OK: true, Format: "png", Picture: []byte("x")})
	s.room.gate.Give(quota.Holder{Tenant: "rival"}, 4<<20)
	for _, tape := range []*Tape{tape, late} {
		if err := tape.Close(c.at, "closed"); err != nil {
			t.Fatal(err)
		}
	}
	if h := heldIn(s, quota.Holder{}); h.All != 0 {
		t.Errorf("%d bytes are counted of recordings that are gone", h.All)
	}
}

// The last part of a disk is left to the audit log and the database.
func TestRecordingsLeaveTheLastOfTheDisk(t *testing.T) {
	s, c, _ := small(t, config.TiB, 1)
	tape := start(t, s, meta(one, Audit, c.at))
	step(t, tape, c, "screenshot", Outcome{OK: true})
	s.room.last = 1 << 62
	_, err := tape.Begin(Step{At: c.at})
	wantFull(t, err, "free on the disk")
	_, err = s.Start(meta(two, Audit, c.at))
	wantFull(t, err, "free on the disk")
	if _, err := s.Find(two); problem.CodeOf(err) != problem.NotFound {
		t.Errorf("something is left of a recording that there was no room for: %v", err)
	}
}

// A step that cannot be written because somebody has removed the folder is not done either.
func TestAnAuditRecordingWithoutItsFolderTakesNoStep(t *testing.T) {
	s, c, dir := newShelf(t)
	tape := start(t, s, meta(one, Audit, c.at))
	step(t, tape, c, "screenshot", Outcome{OK: true})
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := tape.Begin(Step{At: c.at}); problem.CodeOf(err) != problem.DiskFull {
		t.Errorf("a step is begun that nothing keeps: %v", err)
	}
}

func TestManySmallPicturesCountWhatTheyTake(t *testing.T) {
	s, c, _ := small(t, config.MiB+newCost+20*fileCost, 1)
	tape := start(t, s, meta(one, Audit, c.at))
	for n := range 100 {
		number, err := tape.Begin(Step{At: c.at})
		if err != nil {
			if n < 15 || n > 20 {
				t.Errorf("there was room for %d pictures of a byte", n)
			}
			return
		}
		if err := tape.End(number, c.at, Outcome{OK: true, Format: "png", Picture: []byte("x")}); err != nil {
			t.Fatal(err)
		}
	}
	t.Error("pictures of a byte take no room")
}

// takes is the sum of all files below a folder.
func takes(t *testing.T, dir string) (n int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		n += info.Size()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func heldIn(s *Shelf, asks quota.Holder) quota.Held { return s.Held(asks)[0].Held }

// A recording that began while there was one tenant leaves room when there is another.
func TestARecordingLeavesRoomForATenantThatComesLater(t *testing.T) {
	_, c, dir := newShelf(t)
	tenants := 1
	o := options(dir, c)
	o.Quotas.Recordings, o.Tenants = 10*config.MiB, func() int { return tenants }
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	people := start(t, s, ofAgent(one, "a", "", c))
	tenants = 2
	_, err = fill(t, people, c)
	wantFull(t, err, "tenant a has")
	if n, err := fill(t, start(t, s, ofAgent(two, "b", "", c)), c); n == 0 {
		t.Errorf("the later tenant records nothing: %v", err)
	}
}
