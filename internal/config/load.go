package config

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"

	"github.com/clawjail/clawjail/internal/config/yamldoc"
	"github.com/clawjail/clawjail/internal/problem"
)

// largest is far more than any configuration needs, and little enough to read at once.
const largest = 1 << 20

// Load reads and validates the configuration file at path; an empty path is [Default]. Every mistake in the file is
// in the error, a *problem.ValidationError with the code bad_config.
func Load(path string) (Config, error) { return Here().Load(path) }

// Load is [Load] for an environment.
func (e Environment) Load(path string) (Config, error) {
	if path == "" {
		c := e.Default()
		return c, c.Validate()
	}
	return e.parse(path)
}

// LoadTrusted is [Load] for a process with root's rights: it refuses a file that somebody else could have written,
// see [CheckOwnership]. The file that is checked is the one that is read, also when path is a symbolic link.
func (e Environment) LoadTrusted(path string) (Config, error) {
	if path == "" {
		return e.Load("")
	}
	real, err := filepath.Abs(path)
	if err == nil {
		real, err = filepath.EvalSymlinks(real)
	}
	if err != nil {
		return Config{}, cannotRead(path, err)
	}
	if err := CheckOwnership(real); err != nil {
		return Config{}, err
	}
	return e.parse(real)
}

// LoadTrusted is [Environment.LoadTrusted] for this process.
func LoadTrusted(path string) (Config, error) { return Here().LoadTrusted(path) }

func (e Environment) parse(path string) (Config, error) {
	data, everybody, err := read(path)
	if err != nil {
		return Config{}, err
	}
	c, err := e.Parse(path, data)
	if err != nil {
		return Config{}, err
	}
	return c, c.secretInTheOpen(path, everybody)
}

// read returns a file, and whether everybody on the machine can read it.
func read(path string) (data []byte, everybody bool, err error) {
	// A device or a pipe would make the daemon wait for ever, so it is not opened.
	info, err := os.Stat(path)
	if err != nil {
		return nil, false, cannotRead(path, err)
	}
	if !info.Mode().IsRegular() {
		return nil, false, problem.New(problem.BadConfig, "name a file", "the configuration %s is not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, false, cannotRead(path, err)
	}
	defer f.Close() // only read from: nothing is lost when closing goes wrong
	data, err = io.ReadAll(io.LimitReader(f, largest+1))
	if err != nil {
		return nil, false, cannotRead(path, err)
	}
	if len(data) > largest {
		return nil, false, problem.New(problem.BadConfig, "check that it is the right file", "the configuration %s is larger than %s", path, Bytes(largest))
	}
	return data, info.Mode().Perm()&0o004 != 0, nil
}

func cannotRead(path string, err error) error {
	hint := "check the path"
	switch {
	case errors.Is(err, fs.ErrNotExist):
		hint = "correct --config or " + Variable + ", or leave both out to use " + SystemFile
	case errors.Is(err, fs.ErrPermission):
		// The file may hold the database's password and is for one group only, so the hint does not say to open it to this user.
		who, _ := self()
		return problem.Wrap(err, problem.BadConfig, "run it with sudo, or name a file of your own with --config",
			"the user %s cannot read the configuration %s", who, path)
	}
	return problem.Wrap(err, problem.BadConfig, hint, "the configuration %s cannot be read", path)
}

// ForService gives the error of [Load] the hint for the control plane: its user has to read the file.
func ForService(path string, err error) error {
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	who, group := self()
	return problem.Wrap(err, problem.BadConfig, "sudo chgrp "+group+" "+path+" && sudo chmod 640 "+path+"; and let that group into the folders above it",
		"the control plane's user %s has to read its configuration", who)
}

// self is the user of this process and its group, by name where they have one.
func self() (name, group string) {
	name, group = strconv.Itoa(os.Geteuid()), strconv.Itoa(os.Getegid())
	if u, err := user.LookupId(name); err == nil {
		name = u.Username
	}
	if g, err := user.LookupGroupId(group); err == nil {
		group = g.Name
	}
	return name, group
}

// Parse reads a configuration from memory. Source is the path that it came from, and its name in messages.
func (e Environment) Parse(source string, data []byte) (Config, error) {
	c := base()
	doc := yamldoc.Read(source, data, c.decode)
	c.place(e, e.System(source, c.User))
	var many *problem.ValidationError
	if errors.As(c.Validate(), &many) {
		for _, flaw := range many.Flaws {
			doc.Report(flaw)
		}
	}
	if err := doc.Err(); err != nil {
		return Config{}, err
	}
	return c, nil
}
