package config

import (
	"os"
	"os/user"
	"path/filepath"
	"runtime"
)

// SystemFile is the configuration of the installation on this machine.
const SystemFile = "/etc/clawjail/clawjail.yml"

// Variable is the environment variable that names the configuration file.
const Variable = "CLAWJAIL_CONFIG"

// Environment is what the defaults and the search for the file depend on. Tests make their own.
type Environment struct {
	GOOS string
	Root bool
	// User is the name of the user that the process runs as, or empty when it has none.
	User string
	// Home is the user's home directory, or empty.
	Home string
	// Getenv is os.Getenv.
	Getenv func(string) string
}

// Here is the environment of this process.
func Here() Environment {
	e := Environment{GOOS: runtime.GOOS, Root: os.Geteuid() == 0, Getenv: os.Getenv}
	if u, err := user.Current(); err == nil { // a container may run with a uid that has no name: that is no error
		e.User = u.Username
	}
	if home, err := os.UserHomeDir(); err == nil {
		e.Home = home
	}
	return e
}

// System says whether the paths are those of the machine's installation and not those of one user: for root, for the
// user that the control plane runs as, and for any user of the machine's own file.
func (e Environment) System(file, serviceUser string) bool {
	return e.Root || e.User == serviceUser || file == SystemFile
}

// Find is the configuration file to use: the --config flag, else CLAWJAIL_CONFIG, else for a user who is not root the
// own file if there is one, else SystemFile if there is one. Empty means that there is none and the defaults hold.
func (e Environment) Find(flag string) string {
	if flag != "" {
		return flag
	}
	if path := e.Getenv(Variable); path != "" {
		return path
	}
	candidates := []string{SystemFile}
	if dir := e.base("XDG_CONFIG_HOME", ".config"); dir != "" && !e.System("", base().User) {
		candidates = []string{filepath.Join(dir, "clawjail", "clawjail.yml"), SystemFile}
	}
	for _, path := range candidates {
		// A file that is there and cannot be looked at is used: reading it says why. Silently taking the defaults
		// instead would be the worse surprise.
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			return path
		}
	}
	return ""
}

// Find is [Environment.Find] for this process.
func Find(flag string) string { return Here().Find(flag) }

// place fills in the paths that are still empty.
func (c *Config) place(e Environment, system bool) {
	data, run := e.userDirs()
	if system {
		data, run = systemDirs(e.GOOS)
	}
	if c.DataDir == "" {
		c.DataDir = data
	}
	if c.RunDir == "" {
		c.RunDir = run
	}
	if c.TemplatesDir == "" && c.DataDir != "" {
		c.TemplatesDir = filepath.Join(c.DataDir, "templates")
	}
	if c.Agents.WorkspaceRoots == nil && c.DataDir != "" {
		c.Agents.WorkspaceRoots = []string{c.Workspaces()}
	}
}

func systemDirs(goos string) (data, run string) {
	if goos == "linux" {
		return "/var/lib/clawjail", "/run/clawjail"
	}
	return "/var/db/clawjail", "/var/run/clawjail"
}

// userDirs are empty when the user has no home.
func (e Environment) userDirs() (data, run string) {
	if dir := e.base("XDG_DATA_HOME", ".local/share"); dir != "" {
		data = filepath.Join(dir, "clawjail")
		run = filepath.Join(data, "run")
	}
	if dir := e.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		run = filepath.Join(dir, "clawjail")
	}
	return data, run
}

// base is a base directory of the XDG specification, which says that a relative one is ignored.
func (e Environment) base(variable, below string) string {
	if dir := e.Getenv(variable); filepath.IsAbs(dir) {
		return dir
	}
	if !filepath.IsAbs(e.Home) {
		return ""
	}
	return filepath.Join(e.Home, below)
}
