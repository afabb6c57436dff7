package jail

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/problem"
)

// ErrNotFound is returned when there is no jail of that name.
var ErrNotFound = errors.New("no such jail")

// Installation is the four-character mark of one clawjail on a host: [a-z0-9]{4}. Everything that an
// installation makes on the host carries it, and it touches nothing that does not.
type Installation string

// ParseInstallation accepts exactly four characters of [a-z0-9], the first a letter, so that an interface
// name that starts with it is never read as a number.
func ParseInstallation(s string) (Installation, error) {
	if len(s) != 4 || s[0] < 'a' || s[0] > 'z' {
		return "", problem.New(problem.BadName, "it is written to installation.json on the first start; do not edit it",
			"the installation id %q is not four characters of a-z and 0-9 that start with a letter", s)
	}
	for _, c := range []byte(s) {
		if !isLowerOrDigit(c) {
			return "", problem.New(problem.BadName, "it is written to installation.json on the first start; do not edit it",
				"the installation id %q is not four characters of a-z and 0-9 that start with a letter", s)
		}
	}
	return Installation(s), nil
}

// MaxNameLength is set by FreeBSD: "e0a_"+name must fit an interface name of 15 characters.
const MaxNameLength = 11

// maxNumber keeps every name within MaxNameLength.
const maxNumber = 99999

// Name is the name of a jail: one letter for its kind, the installation's id, five digits, for example
// "bk3x900042". It is alphanumeric because VNET jails allow nothing else.
type Name string

// NewName makes the name of jail number n of a kind.
func NewName(k Kind, id Installation, n int) (Name, error) {
	p, err := k.prefix()
	if err != nil {
		return "", err
	}
	if n < 0 || n > maxNumber {
		return "", fmt.Errorf("jail number %d is not between 0 and %d", n, maxNumber)
	}
	return Name(fmt.Sprintf("%c%s%05d", p, id, n)), nil
}

// ParseName accepts a name of this installation, and nothing else. Every name that comes from outside the
// process passes through here before it reaches a path, a command or an interface.
func ParseName(s string, id Installation) (Name, error) {
	bad := problem.New(problem.BadName, "names are listed by `clawjail session ls`",
		"%q is not the name of a jail of this installation", texts.Clip(s, 40))
	if len(s) != 10 || (s[0] != 'a' && s[0] != 'b' && s[0] != 'c') || s[1:5] != string(id) {
		return "", bad
	}
	for _, c := range []byte(s[5:]) {
		if c < '0' || c > '9' {
			return "", bad
		}
	}
	return Name(s), nil
}

// Kind is the kind that the name's first letter stands for.
func (n Name) Kind() Kind {
	if n != "" && n[0] == 'b' {
		return KindBrowser
	}
	return KindAgent
}

// InContainer says whether the name is that of an agent's container: those are an engine's, and not in the journal.
func (n Name) InContainer() bool { return n != "" && n[0] == 'c' }

// NewContainerName makes the name of an agent's container.
func NewContainerName(id Installation, n int) (Name, error) {
	if n < 0 || n > maxNumber {
		return "", fmt.Errorf("jail number %d is not between 0 and %d", n, maxNumber)
	}
	return Name(fmt.Sprintf("c%s%05d", id, n)), nil
}

// Number is the number at the end of the name.
func (n Name) Number() int {
	if len(n) < 6 {
		return 0
	}
	v, err := strconv.Atoi(string(n[5:]))
	if err != nil {
		return 0
	}
	return v
}

// Belongs reports whether the name is well formed and of this installation.
func (n Name) Belongs(id Installation) bool {
	_, err := ParseName(string(n), id)
	return err == nil
}

func (k Kind) prefix() (byte, error) {
	switch k {
	case KindBrowser:
		return 'b', nil
	case KindAgent:
		return 'a', nil
	}
	return 0, problem.New(problem.BadRequest, "the kinds are browser and agent", "%q is not a kind of jail", texts.Clip(string(k), 40))
}

func isLowerOrDigit(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' }
