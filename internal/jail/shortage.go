package jail

import (
	"errors"
	"syscall"

	"github.com/clawjail/clawjail/internal/problem"
)

// Shortage turns "no space left" and "too many open files" into the problems that every face knows. Other errors pass, those that are
// problems already among them: the code that made those knew more.
func Shortage(err error) error {
	var known *problem.Error
	switch {
	case errors.As(err, &known):
		return err
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return problem.Wrap(err, problem.DiskFull, "free some space below the run and data directories, then try again", "the host's disk is full")
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return problem.Wrap(err, problem.PoolExhausted, "close sessions, or raise the limit of open files of the host daemon (LimitNOFILE of systemd)", "the host daemon can have no more files open")
	}
	return err
}
