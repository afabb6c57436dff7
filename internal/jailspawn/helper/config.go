package helper

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/clawjail/clawjail/internal/jailspawn/command"
)

const (
	// maxConfig and maxLine bound the configuration.
	maxConfig = 64 << 10
	maxLine   = 4096
	// defaultRuns is how many programs of one caller may run at the same time, unless the configuration says.
	defaultRuns = 8
	maxRuns     = 1024
	defaultDir  = "/var/run/clawjail-spawn"
)

// Config is what root lets users do.
type Config struct {
	// Jails are those that run, by their names; Roots the folders that jails are made of.
	Jails, Roots map[string]Place
	// Runs is how many programs of one caller may run at the same time.
	Runs int
	// Commands is the folder of the host's commands; empty for the system's own folders.
	Commands string
	// RunDir is root's folder for what runs.
	RunDir string
}

// Place is one jail, or one folder that jails are made of.
type Place struct {
	// Users are the uids that may run programs there.
	Users []int
	// As is the user that they run as there: one of the jail.
	As string
	// Root is the root of the jail, as the host sees it.
	Root string
	// Stage is the folder that programs are staged in, as the jail sees it.
	Stage string
	// HostNetwork is for a jail that is made: the network of the host instead of none.
	HostNetwork bool
}

// ParseConfig reads the configuration. It is words on lines; # begins a comment.
//
//	runs 8
//	jail mcp0    users 1001,1002 as clawdie root /usr/local/bastille/jails/mcp0/root
//	root scratch users 1001 as clawdie path /srv/jails/scratch stage /var/tmp/stage network inherit
//
// Everything that is unknown, missing or there twice is an error: what root allows is what root wrote.
func ParseConfig(data []byte) (Config, error) {
	c := Config{Jails: map[string]Place{}, Roots: map[string]Place{}}
	if len(data) > maxConfig {
		return c, fmt.Errorf("it is larger than %d bytes", maxConfig)
	}
	number := 0
	for line := range bytes.Lines(data) {
		number++
		line = bytes.TrimSuffix(line, []byte("\n"))
		if err := c.read(line); err != nil {
			return Config{}, fmt.Errorf("line %d: %w", number, err)
		}
	}
	if c.Runs == 0 {
		c.Runs = defaultRuns
	}
	if c.RunDir == "" {
		c.RunDir = defaultDir
	}
	return c, nil
}

func (c *Config) read(line []byte) error {
	if len(line) > maxLine {
		return errors.New("it is too long")
	}
	if bytes.ContainsFunc(line, func(r rune) bool { return r != '\t' && (r < ' ' || r > '~') }) {
		return errors.New("it has characters that are not printable ASCII")
	}
	text, _, _ := strings.Cut(string(line), "#")
	words := strings.Fields(text)
	if len(words) == 0 {
		return nil
	}
	if len(words) < 2 {
		return fmt.Errorf("%q needs a value", words[0])
	}
	switch key, value := words[0], words[1]; key {
	case "jail":
		return place(c.Jails, value, "root", words[2:])
	case "root":
		return place(c.Roots, value, "path", words[2:])
	case "runs":
		n, err := strconv.Atoi(value)
		if len(words) > 2 || c.Runs != 0 || err != nil || n < 1 || n > maxRuns || strconv.Itoa(n) != value {
			return fmt.Errorf("runs is one number between 1 and %d, once", maxRuns)
		}
		c.Runs = n
		return nil
	case "commands":
		return folder(&c.Commands, key, words)
	case "run_dir":
		return folder(&c.RunDir, key, words)
	default:
		return fmt.Errorf("%q is not known", key)
	}
}

func folder(into *string, key string, words []string) error {
	if len(words) > 2 || *into != "" || !command.ValidPath(words[1]) {
		return fmt.Errorf("%s is one absolute path, once", key)
	}
	*into = words[1]
	return nil
}

// place reads the words behind a name: pairs of a key and a value.
func place(into map[string]Place, name, rootKey string, words []string) error {
	if !command.ValidShortName(name) {
		return fmt.Errorf("%q is no name: a-z and 0-9, a letter among them", name)
	}
	if _, twice := into[name]; twice {
		return fmt.Errorf("%s is there twice", name)
	}
	if len(words)%2 != 0 {
		return fmt.Errorf("%s: a key has no value", name)
	}
	var p Place
	seen := map[string]bool{}
	for pair := range slices.Chunk(words, 2) {
		key, value := pair[0], pair[1]
		if seen[key] {
			return fmt.Errorf("%s: %s is there twice", name, key)
		}
		seen[key] = true
		if err := p.set(key, value, rootKey); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	for _, key := range []string{"users", "as", rootKey} {
		if !seen[key] {
			return fmt.Errorf("%s: it has no %s", name, key)
		}
	}
	if p.Stage == "" {
		p.Stage = "/home/" + p.As + "/.cache/clawjail/stage"
	}
	into[name] = p
	return nil
}

func (p *Place) set(key, value, rootKey string) (err error) {
	ok := true
	switch key {
	case "users":
		p.Users, ok = uids(value)
	case "as":
		p.As, ok = value, command.ValidUser(value)
	case rootKey:
		p.Root, ok = value, command.ValidPath(value)
	case "stage":
		p.Stage, ok = value, command.ValidPath(value)
	case "network":
		p.HostNetwork, ok = true, value == "inherit" && rootKey == "path"
	default:
		return fmt.Errorf("%q is not known", key)
	}
	if !ok {
		return fmt.Errorf("%s cannot be %q", key, value)
	}
	return nil
}

// uids reads numbers with commas between them. Root needs no helper.
func uids(text string) (out []int, ok bool) {
	for word := range strings.SplitSeq(text, ",") {
		n, err := strconv.ParseUint(word, 10, 31)
		if err != nil || n == 0 || strconv.FormatUint(n, 10) != word || slices.Contains(out, int(n)) {
			return nil, false
		}
		out = append(out, int(n))
	}
	return out, true
}
