package jailspawn

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jailspawn/command"
	"github.com/clawjail/clawjail/internal/jailspawn/staged"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/safepath"
)

// maxStaged is how many leftovers are looked at in one go.
const maxStaged = 4096

// stage is what a program is started by, in its jail.
type stage struct {
	folder *safepath.Folder // that has a folder for each program
	id     string
	at     string // the program's folder, as the jail sees it
}

// launch is the command line that runs it, inside the jail.
func (s *stage) launch() []string { return []string{command.Shell, path.Join(s.at, staged.Launch)} }

// Close removes what was staged.
func (s *stage) Close() error { return errors.Join(staged.Remove(s.folder, s.id), s.folder.Close()) }

// newStage stages a program beneath a root. dir is where, or empty for the usual place.
func (s *Spawner) newStage(ctx context.Context, rootPath, user, dir string, ephemeral bool, prog jail.Program) (*stage, error) {
	root, err := safepath.Open(rootPath)
	if err != nil {
		return nil, reach(err)
	}
	defer func() { _ = root.Close() }() // opened for reading
	who, err := accountIn(root, user)
	if err != nil {
		return nil, err
	}
	own := -1
	switch {
	case s.o.UID == 0:
		own = who.uid
	case s.o.UID != who.uid:
		return nil, problem.New(problem.Forbidden, "give the jail's user your number: pw usermod "+user+" -u "+strconv.Itoa(s.o.UID)+" inside the jail; or run it as root",
			"staged files would belong to you, user %d, and the jail's user %s, %d, could not read them", s.o.UID, user, who.uid)
	}
	if dir == "" {
		dir = path.Join(who.home, ".cache/clawjail/stage")
	}
	if !command.ValidPath(dir) {
		return nil, problem.New(problem.BadConfig, "give an absolute path as the jail sees it", "%s cannot be %q", StageVariable, texts.Clip(dir, 60))
	}
	folder, err := root.Ensure(dir, 0o700, own)
	if err != nil {
		return nil, reach(err)
	}
	out := &stage{folder: folder, id: newID()}
	out.at = path.Join(dir, out.id)
	s.removeStale(ctx, folder, rootPath, user)
	if err := out.write(prog, who.home, own, ephemeral); err != nil {
		return nil, errors.Join(reach(err), out.Close())
	}
	return out, nil
}

func (s *stage) write(prog jail.Program, home string, own int, ephemeral bool) (err error) {
	if err := s.folder.Make(s.id, 0o700, own); err != nil {
		return err
	}
	dir, err := s.folder.Folder(s.id)
	if err != nil {
		return err
	}
	launch := prog.ExecScript(s.at, home)
	if ephemeral {
		launch = reporting(launch, s.at)
	}
	return errors.Join(
		dir.Create(staged.Wrapper, []byte(strconv.Itoa(os.Getpid())+"\n"), 0o600, -1),
		dir.Create(staged.Env, prog.EnvScript(), 0o600, own),
		dir.Create(staged.Launch, launch, 0o600, own),
		dir.Close())
}

// reporting makes a script say how the program ended, and end well: jail(8) would make one status of all that are not zero,
// and complain on the program's stderr. The path of a stage has nothing in it that a shell reads.
func reporting(script []byte, at string) []byte {
	file := path.Join(at, staged.Status)
	return []byte("(\n" + string(script) + ")\nprintf '%s\\n' \"$?\" >" + file + ".new && mv " + file + ".new " + file + "\nexit 0\n")
}

// newID is 128 random bits: no name that could be waited for.
func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return hex.EncodeToString(b[:])
}

// removeStale removes what was staged by those who are gone: they were killed, so they did not do it themselves. A jail that was made
// for it and runs on is ended.
func (s *Spawner) removeStale(ctx context.Context, folder *safepath.Folder, rootPath, user string) {
	names, err := folder.Names(maxStaged)
	for _, id := range names {
		if !command.ValidID(id) || !stale(folder, id) {
			continue
		}
		if s.o.Mode != ModeHelper { // the helper sees its caller go, and ends the jail itself
			e := command.Ephemeral{Name: command.EphemeralName(id), Path: rootPath, User: user}
			look := command.Look(e.Name)
			if _, lookErr := s.o.Commands.Run(ctx, look[0], look[1:]...); lookErr == nil {
				err = errors.Join(err, s.privileged(ctx, command.Remove(e.Name)), s.privileged(ctx, e.Unmount()))
			}
		}
		err = errors.Join(err, staged.Remove(folder, id))
	}
	if err != nil {
		s.o.Log.Warn("remove what was staged by somebody who is gone", "error", err)
	}
}

// stale says whether who staged something is gone.
func stale(folder *safepath.Folder, id string) bool {
	dir, err := folder.Folder(id)
	if err != nil {
		return false
	}
	defer func() { _ = dir.Close() }() // opened for reading
	text, _, err := dir.Read(staged.Wrapper, 32)
	if errors.Is(err, fs.ErrNotExist) {
		return false // it is being made, or the jail's programs took the note away: then it is theirs to remove
	}
	pid, err2 := strconv.Atoi(strings.TrimSpace(string(text)))
	return err == nil && err2 == nil && pid > 1 && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
}
