//go:build linux

package docker

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/internal/testenv/property"
)

func TestWhatAKeptContainerPrintsIsReadOnceAlsoByTheNextProcess(t *testing.T) {
	h := newHost(t)
	const lines = 3000
	j, err := h.Create(t.Context(), shell(jail.LifetimeKeep, fmt.Sprintf(
		`n=0; while [ $n -lt %d ]; do echo "line $n"; n=$((n+1)); done; echo done >&2; read -r x; echo "read $x"; while :; do /bin/probe sleep; done`, lines)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { h.destroy(t, j.Name) }()
	out, errs := h.logOf("bot", jail.Stdout), h.logOf("bot", jail.Stderr)
	for range 3 { // the process that follows is replaced in the middle
		was := out.End()
		testenv.Eventually(t, 10*time.Second, func() bool { return out.End() > was || errs.End() > 0 }, "nothing is read")
		if err := h.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		h.open(t)
	}
	testenv.Eventually(t, 20*time.Second, func() bool { return errs.text() == "done\n" }, "stderr is %q", errs.text())
	var want strings.Builder
	for n := range lines {
		fmt.Fprintf(&want, "line %d\n", n)
	}
	testenv.Eventually(t, 20*time.Second, func() bool { return out.End() >= int64(want.Len()) }, "not everything was read")
	if out.text() != want.String() {
		t.Errorf("%d bytes were read, want %d: lines are lost or there twice", out.End(), want.Len())
	}
	if n, err := h.Type(t.Context(), j.Name, []byte("hello\n")); err != nil || n != 6 {
		t.Errorf("type: %d, %v", n, err)
	}
	testenv.Eventually(t, 10*time.Second, func() bool { return strings.HasSuffix(out.text(), "read hello\n") }, "what was typed did not arrive")
}

func TestTheLastWordsOfAContainerAreRead(t *testing.T) {
	h := newHost(t)
	j, err := h.Create(t.Context(), shell(jail.LifetimeKeep, `n=0; while [ $n -lt 500 ]; do echo "line $n"; n=$((n+1)); done; printf 'no newline'`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Wait(t.Context(), j.Name); err != nil {
		t.Fatal(err)
	}
	h.destroy(t, j.Name)
	if text := h.logOf("bot", jail.Stdout).text(); !strings.HasSuffix(text, "line 499\nno newline") {
		t.Errorf("the log ends with %q", text[max(0, len(text)-40):])
	}
}

// frames is what the engine sends.
func frames(pieces []enginePiece) []byte {
	var b bytes.Buffer
	for _, p := range pieces {
		text := p.at.UTC().Format(timeFormat) + " " + p.text
		var header [8]byte
		header[0] = byte(p.stream + 1)
		binary.BigEndian.PutUint32(header[4:], uint32(len(text)))
		b.Write(header[:])
		b.WriteString(text)
	}
	return b.Bytes()
}

type enginePiece struct {
	at     time.Time
	stream int
	text   string
}

// However often the reader ends in the middle, whether its mark was written or is an old one, and in whatever order the
// engine has written what it had stamped for two streams, the logs get every byte once and in order.
func TestAFollowerReadsEveryByteOnce(t *testing.T) {
	property.Check(t, func(t *rapid.T) {
		var all []enginePiece
		at := time.Unix(1_700_000_000, 0)
		var want [2]string
		var stamped [2]time.Time
		for range rapid.IntRange(1, 30).Draw(t, "pieces") {
			at = at.Add(time.Duration(rapid.IntRange(0, 2).Draw(t, "later")) * 3 * time.Second) // some have the same time
			p := enginePiece{at, rapid.IntRange(0, 1).Draw(t, "stream"), rapid.StringMatching(`[a-z ]{0,6}\n?`).Draw(t, "text")}
			// It waited for its turn, but never behind a later one of its own stream.
			p.at = at.Add(-time.Duration(rapid.IntRange(0, 3).Draw(t, "waited")) * 3 * time.Second)
			if p.at.Before(stamped[p.stream]) {
				p.at = stamped[p.stream]
			}
			stamped[p.stream] = p.at
			all = append(all, p)
			want[p.stream] += p.text
		}
		logs := [2]*memoryLog{{}, {}}
		_, _ = logs[0].Write([]byte("older")) // of a container before
		saved := mark{{End: 5}, {}}
		for round := 0; ; round++ {
			var since []enginePiece
			for _, p := range all {
				if !p.at.Before(saved.since()) {
					since = append(since, p)
				}
			}
			stream := frames(since)
			last := round == 6
			if !last {
				stream = stream[:rapid.IntRange(0, len(stream)).Draw(t, "cut")]
			}
			f := newFollower([2]Output{logs[0], logs[1]}, saved, func(mark) error { return nil })
			if err := f.copy(bytes.NewReader(stream)); err != nil {
				t.Fatal(err)
			}
			if rapid.Bool().Draw(t, "mark is written") {
				saved = f.mark
			}
			if last {
				break
			}
		}
		if logs[0].text() != "older"+want[0] || logs[1].text() != want[1] {
			t.Fatalf("the logs have %q and %q, want %q and %q", logs[0].text(), logs[1].text(), "older"+want[0], want[1])
		}
	})
}

func FuzzFollower(f *testing.F) {
	at := time.Unix(1_700_000_000, 5)
	f.Add(frames([]enginePiece{{at, 0, "hello\n"}, {at, 1, "oops"}}))
	f.Add([]byte{1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff})
	f.Add([]byte{9, 0, 0, 0, 0, 0, 0, 1, 'x'})
	f.Fuzz(func(t *testing.T, data []byte) {
		logs := [2]*memoryLog{{}, {}}
		x := newFollower([2]Output{logs[0], logs[1]}, mark{}, func(mark) error { return nil })
		_ = x.copy(bytes.NewReader(data)) // what is not understood is an error, and nothing else happens
		if logs[0].End()+logs[1].End() > int64(len(data)) {
			t.Error("more came out than went in")
		}
	})
}
