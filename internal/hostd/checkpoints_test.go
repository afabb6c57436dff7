package hostd

import (
	"bytes"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/audit/checkpoint"
	"github.com/clawjail/clawjail/internal/jail/jailtest"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

var _ audit.Checkpointer = Checkpoints{}

// noteKey signs notes for tests.
type noteKey struct{ *checkpoint.Key }

func newNoteKey(t *testing.T) noteKey {
	t.Helper()
	k, err := checkpoint.LoadKey(filepath.Join(t.TempDir(), "key"))
	if err != nil {
		t.Fatal(err)
	}
	return noteKey{k}
}

func (k noteKey) note(t *testing.T, seq int64) []byte {
	t.Helper()
	b, err := k.Note("n1", seq, [checkpoint.HashSize]byte{1}, time.Unix(seq, 0)).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// noted are the rows that the notes of a file speak of. A line that is none fails the test.
func noted(t *testing.T, path string) (seqs []int64) {
	t.Helper()
	for n, err := range checkpoint.ReadFile(path) {
		if err != nil {
			t.Fatal(err)
		}
		seqs = append(seqs, n.Seq)
	}
	return seqs
}

func newClock() *testenv.Clock { return testenv.NewClock(time.Unix(1_900_000_000, 0)) }

func TestNotesAreKeptOverARestart(t *testing.T) {
	host, socket, key := jailtest.NewHost(), newSocket(t), newNoteKey(t)
	for seq := range int64(3) {
		f := startServer(t, host, socket, nil)
		if err := NewClient(socket, nil).Checkpoints().Append(t.Context(), key.note(t, seq+1)); err != nil {
			t.Fatal(err)
		}
		if err := f.stop(); err != nil {
			t.Fatal(err)
		}
	}
	if got := noted(t, filepath.Join(filepath.Dir(socket), "checkpoints")); !slices.Equal(got, []int64{1, 2, 3}) {
		t.Errorf("the notes are %v", got)
	}
}

func TestWhatIsNotANoteIsNotKept(t *testing.T) {
	f := newFixture(t, nil)
	c := NewClient(f.socket, nil)
	good := newNoteKey(t).note(t, 1)
	for name, bad := range map[string][]byte{
		"nothing": nil, "text": []byte("hello"), "two lines": append(bytes.Clone(good), "\nhello"...), "its end": append(bytes.Clone(good), '\n'),
		"cut off": good[:len(good)-1], "too long": []byte(strings.Repeat("x", checkpoint.MaxNote+1)), "not UTF-8": append(bytes.Clone(good), 0xff),
	} {
		if err := c.AppendCheckpoint(t.Context(), bad); !hasCode(err, problem.BadRequest) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := c.AppendCheckpoint(t.Context(), good); err != nil {
		t.Fatal(err)
	}
	if got := noted(t, filepath.Join(filepath.Dir(f.socket), "checkpoints")); len(got) != 1 {
		t.Errorf("the notes are %v", got)
	}
}

func TestNotesThatComeTooFastAreRefused(t *testing.T) {
	at := newClock()
	f := newFixture(t, func(o *Options) { o.Now = at.Now })
	c, key := NewClient(f.socket, nil), newNoteKey(t)
	kept := int64(0)
	fill := func() int {
		for n := range 2 * noteBurst {
			err := c.AppendCheckpoint(t.Context(), key.note(t, kept+1))
			if hasCode(err, problem.RateLimited) {
				return n
			}
			if err != nil {
				t.Fatal(err)
			}
			kept++
		}
		return 2 * noteBurst
	}
	if n := fill(); n != noteBurst {
		t.Errorf("%d notes were kept at once, want %d", n, noteBurst)
	}
	at.Forward(time.Second)
	if n := fill(); n != notesPerSecond {
		t.Errorf("%d notes were kept a second later, want %d", n, notesPerSecond)
	}
	if got := noted(t, filepath.Join(filepath.Dir(f.socket), "checkpoints")); int64(len(got)) != kept {
		t.Errorf("%d notes were kept, and the file has %d", kept, len(got))
	}
	// Data that is no note takes nothing from the rate of notes.
	at.Forward(time.Second)
	for range noteBurst {
		if err := c.AppendCheckpoint(t.Context(), []byte("hello")); !hasCode(err, problem.BadRequest) {
			t.Fatal(err)
		}
	}
	if n := fill(); n != notesPerSecond {
		t.Errorf("%d notes were kept beside others that are none, want %d", n, notesPerSecond)
	}
}

func TestAHostDaemonNeedsItsFileOfCheckpoints(t *testing.T) {
	var o Options
	if err := o.defaults(); err == nil || !strings.Contains(err.Error(), "checkpoints") {
		t.Errorf("without a path: %v", err)
	}
	if _, err := openCheckpoints(t.TempDir(), time.Now, nil); err == nil || errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("a folder: %v", err)
	}
}
