package config

import (
	"io/fs"
	"os"
	"os/user"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/clawjail/clawjail/internal/problem"
)

// The control plane is another user than whoever has written its configuration.
func TestAConfigurationThatMayNotBeReadNamesTheUser(t *testing.T) {
	me := strconv.Itoa(os.Geteuid())
	if u, err := user.LookupId(me); err == nil {
		me = u.Username
	}
	path := "/etc/clawjail/clawjail.yml"
	err := cannotRead(path, &fs.PathError{Op: "open", Path: path, Err: syscall.EACCES})
	p, ok := problem.As(err)
	if !ok || p.Code != problem.BadConfig || !strings.Contains(p.Message, "the user "+me+" cannot read the configuration "+path) || !strings.Contains(p.Hint, "--config") || strings.Contains(p.Hint, "chgrp") {
		t.Errorf("%v, %q", err, p.Hint)
	}
	// Whoever asks must not be given the file, and with it the database's password: it has one group, the control plane's.
	if strings.Contains(p.Hint, "chgrp") || strings.Contains(p.Hint, "chmod") {
		t.Errorf("everybody is told: %q", p.Hint)
	}
	if p, _ := problem.As(ForService(path, err)); !strings.Contains(p.Hint, "sudo chgrp ") || !strings.Contains(p.Hint, "sudo chmod 640 "+path) {
		t.Errorf("the control plane is told %q", p.Hint)
	}
	p, _ = problem.As(cannotRead(path, &fs.PathError{Op: "open", Path: path, Err: syscall.ENOENT}))
	if problem.CodeOf(ForService(path, p)) != problem.BadConfig || ForService(path, p) != error(p) {
		t.Errorf("one that is not there, to the control plane: %v", ForService(path, p))
	}
	if strings.Contains(p.Message, "the user ") || !strings.Contains(p.Hint, "--config") {
		t.Errorf("one that is not there: %q, %q", p.Message, p.Hint)
	}
}
