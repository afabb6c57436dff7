//go:build linux

package hosttest

import (
	"testing"

	"github.com/clawjail/clawjail/internal/jail/freebsd/transcript"
)

func TestTheWrittenTranscriptIsReplayed(t *testing.T) { Replay(t, "testdata/written.jsonl") }

func TestADifferenceFromATranscriptIsReported(t *testing.T) {
	e := transcript.Entry{Command: []string{"x"}, Status: 1, Stderr: "x: no such 5"}
	answer := func(status int, errs string) func() (string, int, string) {
		return func() (string, int, string) { return "", status, errs }
	}
	if d := compare(e, answer(1, "x: no such 17\n")); len(d) != 0 {
		t.Errorf("a number is a difference: %v", d)
	}
	if d := compare(e, answer(0, "x: gone")); len(d) != 2 {
		t.Errorf("two differences: %v", d)
	}
}
