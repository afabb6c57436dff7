package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"

	"github.com/clawjail/clawjail/internal/problem"
)

// adminPath is where the programs are that make users.
const adminPath = "/usr/sbin:/usr/bin:/sbin:/bin"

// accountComment is in the entry of every user that clawjail makes, and of the one of packaging/systemd/clawjail.sysusers.
const accountComment = "clawjail control plane"

// EnsureAccount makes a system user without a login, with a group of its own, unless there is one. It says whether
// it did. The home folder is written down and not made.
func EnsureAccount(ctx context.Context, name, home string) (made bool, err error) {
	if _, err := user.Lookup(name); err == nil {
		return false, nil
	} else if unknown := user.UnknownUserError(""); !errors.As(err, &unknown) {
		return false, fmt.Errorf("look up user %s: %w", name, err)
	}
	commands := accountCommands(name, home, nologin(fileExists), func(program string) bool { return findProgram(program) != "" })
	if commands == nil {
		return false, problem.New(problem.ToolMissing, "make the system user "+name+" by hand, without a login, then try again",
			"no program was found that makes users: useradd, adduser or pw")
	}
	for _, c := range commands {
		cmd := exec.CommandContext(ctx, findProgram(c[0]), c[1:]...)
		cmd.Env = []string{"PATH=" + adminPath, "LC_ALL=C"}
		cmd.Dir = "/"
		if out, err := cmd.CombinedOutput(); err != nil {
			return false, fmt.Errorf("make user %s: %s: %w: %s", name, strings.Join(c, " "), err, strings.TrimSpace(string(out)))
		}
	}
	if _, err := user.Lookup(name); err != nil {
		return false, fmt.Errorf("make user %s: it is not there afterwards: %w", name, err)
	}
	return true, nil
}

// accountCommands are what makes a system user with the programs that are there: shadow's useradd, FreeBSD's pw, or
// busybox. It is nil when there are none.
func accountCommands(name, home, shell string, has func(program string) bool) [][]string {
	switch {
	case has("useradd"):
		return [][]string{{"useradd", "--system", "--user-group", "--no-create-home", "--home-dir", home,
			"--shell", shell, "--comment", accountComment, name}}
	case has("pw"):
		return [][]string{{"pw", "useradd", "-n", name, "-d", home, "-s", shell, "-c", accountComment, "-w", "no"}}
	case has("adduser") && has("addgroup"):
		return [][]string{
			{"addgroup", "-S", name},
			{"adduser", "-S", "-D", "-H", "-h", home, "-s", shell, "-g", accountComment, "-G", name, name},
		}
	}
	return nil
}

// nologin is the shell of users who cannot log in.
func nologin(exists func(string) bool) string {
	for _, path := range []string{"/usr/sbin/nologin", "/sbin/nologin"} {
		if exists(path) {
			return path
		}
	}
	return "/bin/false"
}

func fileExists(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// findProgram looks only where the system's own programs are, whatever PATH says.
func findProgram(name string) string {
	for _, dir := range filepath.SplitList(adminPath) {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
			return path
		}
	}
	return ""
}
