package health

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/config"
)

// The units of systemd, the host daemon's first.
const (
	HostUnit    = "clawjail-hostd.service"
	ControlUnit = "clawjail.service"
)

// Unit is one service of the machine's service manager.
type Unit struct {
	Name    string `json:"name"`
	State   string `json:"state" doc:"active, inactive, failed, failing (it does not start, and systemd tries it again), masked, not installed, or another ActiveState of systemd"`
	Enabled bool   `json:"enabled" doc:"whether it starts with the machine"`
}

// LocalOptions say what is looked at without a control plane.
type LocalOptions struct {
	Config config.Config
	// Because is why a control plane that runs was not asked: the caller has no key. Nil: it did not answer.
	Because error
	Host    Host
	Version string
	// ControlURL is where the control plane should have answered.
	ControlURL string
	// Systemd is the folder that is there when systemd runs: /run/systemd/system.
	Systemd string
	// Command runs a program of the host and returns what it printed.
	Command func(ctx context.Context, name string, args ...string) (string, error)
	Now     func() time.Time
}

// Local is what can be said of an installation whose control plane does not answer, or not to the caller: which half runs,
// what the service manager says, and which templates are on disk. It asks with the caller's rights, and takes no longer than
// its context.
func Local(ctx context.Context, o LocalOptions) Status {
	out := Status{Version: o.Version, API: o.ControlURL}
	out.Units = Units(ctx, o.Systemd, o.Command)
	m, err := NewWatch(o.Host, o.Config.DataDir, o.Now, nil).Look(ctx)
	if err != nil {
		m = Machine{} // time was up; the rest is worth telling
	}
	if !m.Reachable {
		m.Templates = templatesOnDisk(o.Config.TemplatesDir)
	}
	out.Machine = &m
	attention := []Attention{{Code: ControlPlaneDown, Level: Failed, Sentence: "The control plane does not answer at " + o.ControlURL + ".", Hint: "Start it, or see what it said last.",
		Command: startCommand(out.Units, ControlUnit)}}
	if o.Because != nil {
		out.ControlPlane = true
		attention[0] = Attention{Code: NoKey, Level: Notice, Sentence: "The control plane runs, and you have no key for it.",
			Hint: "Set CLAWJAIL_KEY to one of yours, or run it as root.", Command: "sudo clawjail status"}
	}
	for _, u := range out.Units {
		attention = append(attention, u.attention()...)
	}
	switch _, err := os.Stat(filepath.Join(o.Config.RunDir, "hostd.sock")); {
	case m.Reachable:
		attention = append(attention, m.attention(o.Version, o.Now())...)
	case errors.Is(err, fs.ErrNotExist):
		attention = append(attention, Attention{Code: HostDaemonDown, Level: Failed, Sentence: "The host daemon does not run: there is no socket in " + o.Config.RunDir + ".",
			Hint: "Start it. Agents run on meanwhile, and none that ends is started again.", Command: startCommand(out.Units, HostUnit)})
	case out.ControlPlane:
		// It answers root and the control plane's user only, and the latter would say if it did not answer.
	default:
		attention = append(attention, Attention{Code: HostDaemonDown, Level: Failed, Sentence: "The host daemon does not answer you.",
			Hint: "Only root and the control plane's user may ask it.", Command: "sudo clawjail status"})
	}
	out.Attention = listed(attention)
	out.Level = worst(out.Attention)
	return out
}

// attention is what is wrong with a service, if anything is.
func (u Unit) attention() []Attention {
	journal := "sudo journalctl -u " + u.Name + " -n 30"
	stopped := func(how, hint, command string) []Attention {
		return []Attention{{Code: UnitStopped, Level: Failed, Sentence: "The service " + u.Name + " " + how, Hint: hint, Command: command}}
	}
	switch {
	case u.State == "failed":
		return stopped("has failed.", "See what it said last.", journal)
	case u.State == Masked:
		return stopped("is masked: systemd does not start it.", "Unmask it, and start it.", unmask(u.Name))
	case u.State == Failing:
		return stopped("does not start; systemd tries it again and again.", "See what it says.", journal)
	case u.State != "active" && u.State != notInstalled && u.Enabled:
		return stopped("is "+u.State+".", "Start it.", "sudo systemctl start "+u.Name)
	}
	return nil
}

const notInstalled = "not installed"

// Masked is the state of a unit that an administrator has forbidden systemd to start.
const Masked = "masked"

// Failing is the state of a unit whose starts fail, and that systemd starts again and again.
const Failing = "failing"

func unmask(name string) string {
	return "sudo systemctl unmask " + name + " && sudo systemctl start " + name
}

// startCommand starts a unit that is installed, or the whole by hand.
func startCommand(units []Unit, name string) string {
	for _, u := range units {
		if u.Name == name && u.State == Masked {
			return unmask(name)
		}
		if u.Name == name && u.State != notInstalled {
			return "sudo systemctl start " + name
		}
	}
	return "sudo clawjail up"
}

// Units asks systemd about both services. There are none where systemd does not run.
func Units(ctx context.Context, systemd string, command func(ctx context.Context, name string, args ...string) (string, error)) []Unit {
	if info, err := os.Stat(systemd); err != nil || !info.IsDir() {
		return nil
	}
	var out []Unit
	for _, name := range []string{HostUnit, ControlUnit} {
		text, err := command(ctx, "systemctl", "show", name, "--property=LoadState,ActiveState,SubState,UnitFileState")
		if err != nil {
			return nil // of neither anything is said
		}
		said := map[string]string{}
		for line := range strings.Lines(text) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			said[key] = value
		}
		u := Unit{Name: name, State: said["ActiveState"], Enabled: said["UnitFileState"] == "enabled"}
		switch said["LoadState"] {
		case "loaded":
			if said["SubState"] == "auto-restart" {
				u.State = Failing
			}
		case Masked:
			u.State = Masked // if it runs, it was started before, and does not come back
		default:
			u.State = notInstalled
		}
		out = append(out, u)
	}
	return out
}

// templatesOnDisk are the folders of templates, which nobody has looked into.
func templatesOnDisk(dir string) (out []Template) {
	found, err := filepath.Glob(filepath.Join(dir, "*", "template.json"))
	if err != nil {
		return nil
	}
	for _, f := range found {
		t := Template{Name: filepath.Base(filepath.Dir(f))}
		if info, err := os.Stat(f); err == nil {
			t.BuiltAt = info.ModTime()
		}
		out = append(out, t)
	}
	return out
}
