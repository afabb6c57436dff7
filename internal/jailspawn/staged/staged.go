// Package staged is what a program is started by in a jail: a folder of a name that cannot be guessed, with two files that are
// read by the shell of the jail, and with what is noted of them.
//
// Environment and working directory travel in them because arguments can be read by others, and because neither jexec(8) nor
// what gives the right to run it lets an environment through. Code that looks at them works by descriptor (package safepath).
package staged

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/safepath"
)

// Names in the folder.
const (
	Launch  = "launch.sh"
	Env     = "env.sh"
	Wrapper = "wrapper" // the id of the process that waits for the program
	Status  = "status"  // how the program of an ephemeral jail ended, written by it
)

// maxScript bounds a file that is looked at.
const maxScript = 4 << 20

// Check refuses what was not staged by that user alone: somebody else's, or what others could write.
func Check(dir *safepath.Folder, uid int) error {
	o, err := dir.Owned()
	if err != nil {
		return err
	}
	if o.UID != uid || o.Mode&0o077 != 0 {
		return fmt.Errorf("the staged folder is of user %d with mode %04o: only user %d may stage there", o.UID, o.Mode, uid)
	}
	for _, name := range []string{Launch, Env} {
		_, o, err := dir.Read(name, maxScript)
		if err != nil {
			return err
		}
		if o.UID != uid || o.Mode&0o077 != 0 || o.Links != 1 {
			return fmt.Errorf("%s is of user %d with mode %04o and %d names: it was not staged by user %d alone", name, o.UID, o.Mode, o.Links, uid)
		}
	}
	return nil
}

// StatusOf reads how the program of an ephemeral jail ended. It is the program's own word: there is none when it was killed.
func StatusOf(dir *safepath.Folder) (status int, there bool, err error) {
	text, _, err := dir.Read(Status, 8)
	if errors.Is(err, os.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	status, err = strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || status < 0 || status > 255 {
		return 0, false, nil
	}
	return status, true, nil
}

// Remove removes what was staged. The jail's programs may have changed it: no link is followed, and what they put there
// themselves is left to them.
func Remove(stage *safepath.Folder, id string) error {
	dir, err := stage.Folder(id)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case errors.Is(err, safepath.ErrPlanted):
		return stage.Remove(id)
	case err != nil:
		return err
	}
	var errs []error
	for _, name := range []string{Env, Launch, Status, Wrapper} { // the note last: without it, it is not known whose folder it is
		if err := dir.Remove(name); err != nil && !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
			errs = append(errs, err)
		}
	}
	errs = append(errs, dir.Close())
	if err := stage.RemoveFolder(id); err != nil && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
