package jailspawn

import (
	"errors"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/safepath"
)

// maxPasswd bounds the list of users of a jail.
const maxPasswd = 1 << 20

// account is a user of a jail.
type account struct {
	uid  int
	home string
}

// accountIn looks a user up in the jail's own list (passwd(5)), which is the jail's word, and only used for what is done in
// the jail: where its home is, and whose its files are there.
func accountIn(root *safepath.Folder, user string) (account, error) {
	none := problem.New(problem.BadRequest, "name another with --user; those that there are: /etc/passwd of the jail", "the jail has no user %s", user)
	etc, err := root.Folder("etc")
	if errors.Is(err, fs.ErrNotExist) {
		return account{}, none
	}
	if err != nil {
		return account{}, reach(err)
	}
	text, _, err := etc.Read("passwd", maxPasswd)
	if err := errors.Join(err, etc.Close()); errors.Is(err, fs.ErrNotExist) {
		return account{}, none
	} else if err != nil {
		return account{}, reach(err)
	}
	for line := range strings.Lines(string(text)) {
		words := strings.Split(strings.TrimRight(line, "\n"), ":")
		if len(words) != 7 || words[0] != user {
			continue
		}
		uid, err := strconv.ParseUint(words[2], 10, 31)
		home := words[5]
		if err != nil || uid == 0 || !path.IsAbs(home) || path.Clean(home) != home || home == "/" {
			return account{}, problem.New(problem.Forbidden, "name another with --user", "the user %s of the jail is root, or has no home of its own", user)
		}
		return account{uid: int(uid), home: home}, nil
	}
	return account{}, none
}

// reach says that something beneath a jail's root is not reached, or is not what it should be.
func reach(err error) error {
	if errors.Is(err, safepath.ErrPlanted) {
		return problem.Wrap(err, problem.JailFailed, "look at what lies there: only plain folders may", "something in the jail is in the way of what is staged")
	}
	if errors.Is(err, fs.ErrPermission) {
		return problem.Wrap(err, problem.Forbidden, "let your user into the folders above it, or use the control plane", "you may not stage programs beneath the root of the jail")
	}
	return problem.Wrap(err, problem.JailFailed, "look at the root of the jail, and at --root-path", "what is staged cannot be put beneath the root of the jail")
}
