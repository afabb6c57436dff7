//go:build linux

package hosttest

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"
)

//go:embed scenarios/*.json
var scenarios embed.FS

// Scenario is a way in which a host misbehaves, or is not set up: a file of the folder scenarios.
type Scenario struct {
	Name        string   `json:"name"`
	Description string   `json:"description"`
	Source      []string `json:"source"` // where this was seen, or which source makes it possible
	// Faults change what commands do, the first that fits each time.
	Faults []Fault `json:"faults,omitempty"`
	// Host changes the host itself.
	Host Settings `json:"host,omitzero"`
}

// Fault changes what a command does.
type Fault struct {
	// Command is the name of a command and words that must be among its arguments: "zfs destroy", "jail -c".
	Command string `json:"command"`
	// Match must be part of one of its arguments, when it is there.
	Match string `json:"match,omitempty"`
	// After lets this many calls pass first.
	After int `json:"after,omitempty"`
	// Times and For end the fault: after that many calls, that long after the first. Neither: it stays.
	Times int    `json:"times,omitempty"`
	For   string `json:"for,omitempty"`
	// Effect is what happens: "none" by default; "done" when the command does its work and then ends as said here; or
	// "stop:STAGE" for jail -c, which fails after the stage mounted, created or vnet, and undoes what a real one undoes.
	Effect string `json:"effect,omitempty"`
	Delay  string `json:"delay,omitempty"` // before anything happens; other commands do not wait for it
	Status int    `json:"status"`
	Stdout string `json:"stdout,omitempty"`
	// Stderr may say {last}, the last argument, and {mountpoint}, where the dataset of that name is mounted.
	Stderr string `json:"stderr,omitempty"`
}

// Settings change the host. A setting that is not given stays.
type Settings struct {
	// Dying is how long a removed jail stays: a duration, or "msl" for twice the net.inet.tcp.msl of its network.
	Dying   string            `json:"dying,omitempty"`
	Sysctls map[string]string `json:"sysctls,omitempty"` // an empty value removes it
	Klds    []string          `json:"klds,omitempty"`
	Unload  []string          `json:"unload,omitempty"`
	NoRules bool              `json:"no_rules,omitempty"` // pf knows no anchor
	NoPF    bool              `json:"no_pf,omitempty"`
	// Undeclare are tables that exist and that no rule names.
	Undeclare []string `json:"undeclare,omitempty"`
	Drop      []string `json:"drop,omitempty"`     // tables that do not exist
	Rulesets  []string `json:"rulesets,omitempty"` // devfs
	// Free is how many bytes the pool has free.
	Free int64 `json:"free,omitempty"`
}

// fault is a Fault that was loaded.
type fault struct {
	Fault
	Seen  int
	First time.Time
}

// Scenarios are the names of the scenarios that there are.
func Scenarios() ([]string, error) {
	files, err := scenarios.ReadDir("scenarios")
	if err != nil {
		return nil, err
	}
	var out []string
	for _, f := range files {
		out = append(out, strings.TrimSuffix(f.Name(), ".json"))
	}
	return out, nil
}

// LoadScenario reads one of them.
func LoadScenario(name string) (Scenario, error) {
	text, err := scenarios.ReadFile(path.Join("scenarios", name+".json"))
	if err != nil {
		return Scenario{}, fmt.Errorf("there is no scenario %q", name)
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	var s Scenario
	if err := dec.Decode(&s); err != nil {
		return Scenario{}, fmt.Errorf("scenario %s: %w", name, err)
	}
	return s, s.valid(name)
}

func (s Scenario) valid(name string) error {
	if s.Name != name || s.Description == "" || len(s.Source) == 0 {
		return fmt.Errorf("scenario %s: it needs its own name, a description and a source", name)
	}
	for _, f := range s.Faults {
		if err := f.valid(); err != nil {
			return fmt.Errorf("scenario %s: %w", name, err)
		}
	}
	return nil
}

func (f Fault) valid() error {
	if _, known := names()[strings.Fields(f.Command + " ")[0]]; !known {
		return fmt.Errorf("%q is no command", f.Command)
	}
	for _, d := range []string{f.For, f.Delay} {
		if _, err := duration(d); err != nil {
			return err
		}
	}
	switch f.Effect {
	case "", "none", "done", "stop:mounted", "stop:created", "stop:vnet":
		return nil
	}
	return fmt.Errorf("%q is no effect", f.Effect)
}

func duration(text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	return time.ParseDuration(text)
}

// suffer does what a command does unless a fault says otherwise.
func (c *command) suffer(perform func() (int, error)) (int, error) {
	f := c.fault()
	if f == nil {
		return perform()
	}
	if wait, err := duration(f.Delay); err != nil {
		return broken, err
	} else if wait > 0 {
		if err := c.pause(wait); err != nil {
			return broken, err
		}
	}
	switch f.Effect {
	case "done":
		if _, err := perform(); err != nil {
			return broken, err
		}
		c.out.Reset()
		c.errs.Reset()
	case "stop:mounted", "stop:created", "stop:vnet":
		return c.jailUntil(strings.TrimPrefix(f.Effect, "stop:"), f.Fault)
	}
	c.out.WriteString(c.words(f.Stdout))
	c.errs.WriteString(c.words(f.Stderr))
	return f.Status, nil
}

// fault is the one that fits this command, and has neither ended nor still to begin.
func (c *command) fault() *fault {
	for _, f := range c.Faults {
		words := strings.Fields(f.Command)
		fits := words[0] == c.name && (f.Match == "" || slices.ContainsFunc(c.args, func(a string) bool { return strings.Contains(a, f.Match) }))
		for _, w := range words[1:] {
			fits = fits && slices.Contains(c.args, w)
		}
		if !fits {
			continue
		}
		f.Seen++
		if f.Seen <= f.After || f.Times > 0 && f.Seen > f.After+f.Times {
			continue
		}
		if f.First.IsZero() {
			f.First = time.Now()
		}
		if limit, err := duration(f.For); err != nil || limit > 0 && time.Since(f.First) > limit {
			continue
		}
		return f
	}
	return nil
}

// words fills in what a message names.
func (c *command) words(text string) string {
	end, point := "", ""
	if len(c.args) > 0 {
		end = c.args[len(c.args)-1]
	}
	if d := c.dataset(end); d != nil {
		point = d.Mounted
	}
	return strings.NewReplacer("{last}", end, "{mountpoint}", point).Replace(text)
}

// pause gives the lock back for a while.
func (c *command) pause(wait time.Duration) error {
	dir := c.Dir
	if err := c.save(); err != nil {
		return err
	}
	if err := c.lock.Close(); err != nil {
		return err
	}
	time.Sleep(wait) // the command is slow
	var err error
	c.state, c.lock, err = open(dir)
	return err
}

// set changes the host as a scenario says.
func (s *state) set(o Settings) {
	if o.Dying != "" {
		s.Dying = o.Dying
	}
	for k, v := range o.Sysctls {
		if v == "" {
			delete(s.Sysctls, k)
		} else {
			s.Sysctls[k] = v
		}
	}
	s.Klds = append(s.Klds, o.Klds...)
	for _, k := range o.Unload {
		s.Klds = without(s.Klds, k)
	}
	if o.NoRules {
		s.Anchors = map[string]*anchor{}
	}
	s.PF = s.PF && !o.NoPF
	for _, a := range s.Anchors {
		for _, name := range o.Undeclare {
			if a.Tables[name] != nil {
				a.Tables[name].Declared = false
			}
		}
		for _, name := range o.Drop {
			delete(a.Tables, name)
		}
	}
	if o.Rulesets != nil {
		s.Rulesets = o.Rulesets
	}
	if o.Free > 0 {
		s.Allocated = poolSize - s.used() - o.Free
	}
}
