package jail

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/clawjail/clawjail/internal/problem"
)

func TestWhatTheHostLacksIsNamedOnceAndNothingElseIs(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT} {
		err := fmt.Errorf("clone: %w", Shortage(fmt.Errorf("write: %w", errno)))
		if problem.CodeOf(err) != problem.DiskFull || Shortage(err) != err {
			t.Errorf("%v is %s", err, problem.CodeOf(err))
		}
	}
	for _, errno := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE} {
		if err := Shortage(fmt.Errorf("pipe: %w", errno)); problem.CodeOf(err) != problem.PoolExhausted {
			t.Errorf("%v is %s", err, problem.CodeOf(err))
		}
	}
	own := problem.Wrap(syscall.ENOSPC, problem.LimitDisk, "remove something", "the home directory is full")
	if got := Shortage(own); problem.CodeOf(got) != problem.LimitDisk {
		t.Errorf("the jail's own disk became %v", got)
	}
	if got := Shortage(syscall.EIO); got != error(syscall.EIO) {
		t.Errorf("another error became %v", got)
	}
	if Shortage(nil) != nil {
		t.Error("no error became one")
	}
}
