package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"os/user"
	"slices"
	"strings"

	"github.com/clawjail/clawjail/internal/problem"
)

// madeAccount says whether a user is there and was made for the installation: it has the comment that clawjail gives, and one of
// the installation's folders is its home. A user of another installation, or one that the operator has made, is neither.
func madeAccount(name string, homes ...string) (bool, error) {
	u, err := user.Lookup(name)
	if unknown := user.UnknownUserError(""); errors.As(err, &unknown) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look up user %s: %w", name, err)
	}
	return u.Name == accountComment && u.Uid != "0" && slices.Contains(homes, u.HomeDir), nil
}

// removeAccount removes a user and its group. While a process runs as it, that is a conflict.
func removeAccount(ctx context.Context, name string) error {
	var command []string
	switch {
	case findProgram("userdel") != "":
		command = []string{"userdel", name}
	case findProgram("pw") != "":
		command = []string{"pw", "userdel", "-n", name}
	case findProgram("deluser") != "":
		command = []string{"deluser", name}
	default:
		return problem.New(problem.Conflict, "", "no program was found that removes users: userdel, pw or deluser")
	}
	cmd := exec.CommandContext(ctx, findProgram(command[0]), command[1:]...)
	cmd.Env = []string{"PATH=" + adminPath, "LC_ALL=C"}
	cmd.Dir = "/"
	out, err := cmd.CombinedOutput()
	if status := new(exec.ExitError); errors.As(err, &status) && status.ExitCode() == userdelBusy {
		return problem.New(problem.Conflict, "", "a process runs as it")
	}
	if err != nil {
		return fmt.Errorf("remove user %s: %w: %s", name, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// userdelBusy is how userdel(8) ends when a process of the user runs.
const userdelBusy = 8
