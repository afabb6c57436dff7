package host

import (
	"context"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/problem"
)

// Status is how the host browser is doing, with the names of the control contract.
type Status struct {
	Enabled   bool   `json:"enabled"`
	Profile   string `json:"profile"`
	Driver    string `json:"driver"`
	Transport string `json:"transport"`
	// URL is the address of the control server.
	URL string `json:"url"`
	// ServerRunning says that the control server answered.
	ServerRunning bool   `json:"serverRunning"`
	Running       bool   `json:"running"`
	CDPReady      bool   `json:"cdpReady"`
	PageReady     bool   `json:"pageReady"`
	PID           int    `json:"pid,omitempty"`
	Version       string `json:"version,omitempty"`
	CDPPort       int    `json:"cdpPort"`
	CDPURL        string `json:"cdpUrl,omitempty"`
	Ports         Ports  `json:"ports"`
	// ChosenBrowser is the one that runs, DetectedBrowser the one that would be started.
	ChosenBrowser  string `json:"chosenBrowser,omitempty"`
	Detected       string `json:"detectedBrowser,omitempty"`
	DetectedPath   string `json:"detectedExecutablePath,omitempty"`
	DetectError    string `json:"detectError,omitempty"`
	ExecutablePath string `json:"executablePath,omitempty"`
	UserDataDir    string `json:"userDataDir"`
	Color          string `json:"color"`
	Headless       bool   `json:"headless"`
	HeadlessSource string `json:"headlessSource"`
	NoSandbox      bool   `json:"noSandbox"`
	AttachOnly     bool   `json:"attachOnly"`
	// Ended says how the last browser ended, unless it was stopped.
	Ended string `json:"ended,omitempty"`
}

// Ports are where the servers listen.
type Ports struct {
	Control int `json:"control"`
	CDP     int `json:"cdp"`
}

// Offline is the status without a server: what the settings and the machine say.
func Offline(settings config.HostBrowser, e config.Environment, dir string) Status {
	control, devtools, local := settings.Local()
	if !local { // what this machine has is nothing to it
		return Status{Enabled: settings.Enabled, Profile: ProfileName, Driver: "clawjail", Transport: "cdp", URL: settings.ControlURL, Color: settings.Color, AttachOnly: settings.AttachOnly}
	}
	s := Status{
		Enabled: settings.Enabled, Profile: ProfileName, Driver: "clawjail", Transport: "cdp", URL: settings.ControlURL,
		CDPPort: int(devtools.Port()), CDPURL: "http://" + devtools.String(), Ports: Ports{Control: int(control.Port()), CDP: int(devtools.Port())},
		ExecutablePath: settings.Executable, UserDataDir: profileDir(dir), Color: settings.Color, AttachOnly: settings.AttachOnly,
	}
	if program, err := finderOf(e).find(settings.Executable); err == nil {
		s.Detected, s.DetectedPath = program.Name, program.Path
	} else if p, ok := problem.As(err); ok {
		s.DetectError = p.Message
	}
	m, _ := decideMode(nil, settings.Headless, e) // that there is no display is told by a start
	s.Headless, s.HeadlessSource = m.headless, m.source
	return s
}

// Status says how the browser is doing. It starts nothing, asks the browser nothing, and does not block.
func (k *Keeper) Status() Status {
	s := Offline(k.settings, k.env, k.dir)
	s.ServerRunning = true
	k.mu.Lock()
	defer k.mu.Unlock()
	s.Ended = k.last
	if r := k.running; r != nil {
		s.Running, s.CDPReady, s.PageReady = true, true, true
		s.PID, s.Version, s.ChosenBrowser = r.process.pid(), r.browser.Version().Product, r.program.Name
		s.Headless, s.HeadlessSource = r.mode.headless, r.mode.source
	}
	return s
}

// Check is one thing that the doctor looked at.
type Check struct {
	ID      string `json:"id"`
	Label   string `json:"label"`
	Status  string `json:"status"` // pass, warn or fail
	Summary string `json:"summary"`
	FixHint string `json:"fixHint,omitempty"`
}

// Report is what the doctor found.
type Report struct {
	OK     bool    `json:"ok"`
	Checks []Check `json:"checks"`
}

// Results of a check.
const (
	Pass = "pass"
	Warn = "warn"
	Fail = "fail"
)

// Add adds a check.
func (r *Report) Add(id, label string, status, summary, hint string) {
	r.Checks = append(r.Checks, Check{ID: id, Label: label, Status: status, Summary: summary, FixHint: hint})
	r.OK = true
	for _, c := range r.Checks {
		r.OK = r.OK && c.Status != Fail
	}
}

// addError adds a check that passes when there is no error.
func (r *Report) addError(id, label string, err error, good string) {
	if err == nil {
		r.Add(id, label, Pass, good, "")
		return
	}
	summary, hint := err.Error(), ""
	if p, ok := problem.As(err); ok {
		summary, hint = p.Message, p.Hint
	}
	r.Add(id, label, Fail, summary, hint)
}

// Examine looks at the machine and the settings without a server: what would be wrong if one were started.
func Examine(settings config.HostBrowser, e config.Environment) Report {
	var r Report
	r.addError("user", "a user with a desktop", RefuseRoot(e), "you are not root")
	if settings.Enabled {
		r.Add("enabled", "switched on", Pass, "browser.enabled is true", "")
	} else {
		r.Add("enabled", "switched on", Fail, "Browser disabled in settings", "set browser.enabled to true in the configuration")
	}
	program, err := finderOf(e).find(settings.Executable)
	r.addError("executable", "a browser is installed", err, program.Name+", "+program.Path)
	m, err := decideMode(nil, settings.Headless, e)
	switch {
	case err != nil:
		r.addError("display", "a display", err, "")
	case m.source == byFallback:
		r.Add("display", "a display", Warn, "neither DISPLAY nor WAYLAND_DISPLAY is set: the browser starts without a window", "set browser.headless to true to say that this is meant")
	default:
		r.Add("display", "a display", Pass, map[bool]string{true: "none is needed", false: "there is one"}[m.headless], "")
	}
	return r
}

// Doctor is Examine for the server's own settings, with the browser that runs. Deep also asks it for a snapshot.
func (k *Keeper) Doctor(ctx context.Context, deep bool) Report {
	r := Examine(k.settings, k.env)
	run := k.current()
	if run == nil {
		summary := "browser not running"
		if last := k.Status().Ended; last != "" {
			summary += ": the last one ended by itself: " + last
		}
		r.Add("running", "the browser runs", Warn, summary, "start it: clawjail browser start")
		return r
	}
	r.Add("running", "the browser runs", Pass, run.browser.Version().Product, "")
	if deep {
		_, err := run.browser.Do(ctx, &browser.Snapshot{})
		r.addError("snapshot", "the current page can be read", err, "it can")
	}
	return r
}
