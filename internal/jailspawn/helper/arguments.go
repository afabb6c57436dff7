package helper

import (
	"errors"

	"github.com/clawjail/clawjail/internal/jailspawn/command"
)

// Verbs of the helper. There are no others, and no flags.
const (
	VerbEnter = "enter" // enter NAME ID: run what is staged, in a jail that runs
	VerbRun   = "run"   // run NAME ID: run what is staged, in a jail that is made for it
	VerbEnd   = "end"   // end NAME or end ID: end the caller's own programs of that jail, or that one
)

// Request is what a caller may ask for. It has names only: no path, no program, no variable.
type Request struct{ Verb, Name, ID string }

var errUsage = errors.New("usage: clawjail-spawn enter NAME ID | run NAME ID | end NAME | end ID")

// ParseRequest reads the words behind the program's name.
func ParseRequest(words []string) (Request, error) {
	if len(words) < 2 || len(words) > 3 {
		return Request{}, errUsage
	}
	r := Request{Verb: words[0]}
	switch {
	case r.Verb == VerbEnd && len(words) == 2 && command.ValidID(words[1]):
		r.ID = words[1]
	case r.Verb == VerbEnd && len(words) == 2 && command.ValidShortName(words[1]):
		r.Name = words[1]
	case (r.Verb == VerbEnter || r.Verb == VerbRun) && len(words) == 3 && command.ValidShortName(words[1]) && command.ValidID(words[2]):
		r.Name, r.ID = words[1], words[2]
	default:
		return Request{}, errUsage
	}
	return r, nil
}
