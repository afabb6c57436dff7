package agents

import (
	"bytes"
	"errors"
	"time"

	"github.com/go-json-experiment/json"
	jsonv1 "github.com/go-json-experiment/json/v1"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	maxRevision = 100
	maxToken    = 4096
)

// Validate reports everything that is wrong with a declaration at once.
func Validate(kept jail.Kept) error {
	errs := []error{kept.Spec.Validate()}
	bad := func(hint, format string, a ...any) {
		errs = append(errs, problem.New(problem.BadRequest, hint, format, a...))
	}
	if kept.Spec.Lifetime != jail.LifetimeKeep {
		bad("", "a jail that is kept has the lifetime %s", jail.LifetimeKeep)
	}
	if kept.Spec.Agent == nil {
		bad("name the agent", "a jail that is kept must be an agent's")
	}
	switch kept.Restart {
	case jail.RestartAlways, jail.RestartOnFailure, jail.RestartNever:
	default:
		bad("the policies are always, on-failure and never", "%.20q is not a restart policy", string(kept.Restart))
	}
	if len(kept.Revision) > maxRevision || !printable(kept.Revision) {
		bad("", "a revision has at most %d characters of ASCII", maxRevision)
	}
	return errors.Join(errs...)
}

func validToken(token string) error {
	if token == "" || len(token) > maxToken || !printable(token) {
		return problem.New(problem.BadRequest, "", "a token has 1 to %d characters of ASCII, without spaces", maxToken)
	}
	return nil
}

func printable(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// startsAgain says whether a program that has ended so is started again. One whose time was up is not, unless its time was
// the longest that there is, which is how no limit is written.
func startsAgain(r jail.Restart, x jail.Exit, l jail.Limits) bool {
	if x.Cause == jail.CauseWallClock && l.WallClock < jail.MaxWallClock {
		return false
	}
	switch r {
	case jail.RestartAlways:
		return true
	case jail.RestartOnFailure:
		return x.Code != 0 || x.Signal != "" || x.Cause != jail.CauseExited
	}
	return false
}

// pauseAfter is how long to wait before the next start, after the pause before and a run that took so long.
func (o *Options) pauseAfter(before, ran time.Duration) time.Duration {
	if before <= 0 || ran >= o.Steady {
		return o.FirstPause
	}
	return min(2*before, o.LongestPause)
}

// sameSpec says whether two specs make the same jail. Specs that cannot be compared are not the same.
func sameSpec(a, b jail.Spec) bool {
	x, err := canonical(a)
	y, err2 := canonical(b)
	return err == nil && err2 == nil && bytes.Equal(x, y)
}

func canonical(s jail.Spec) ([]byte, error) {
	return json.Marshal(s, json.Deterministic(true), jsonv1.FormatDurationAsNano(true))
}

// clone makes a copy that shares nothing with what the caller has.
func clone(kept jail.Kept) (out jail.Kept, err error) {
	data, err := json.Marshal(kept, options())
	if err == nil {
		err = json.Unmarshal(data, &out, options())
	}
	if err != nil {
		return out, problem.Wrap(err, problem.BadRequest, "use text that is UTF-8", "the declaration cannot be encoded")
	}
	return out, nil
}
