package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/cdp/guard"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/problem"
)

// Sources of the decision whether the browser has a window.
const (
	byRequest  = "request"
	byConfig   = "config"
	byDefault  = "default"
	byFallback = "linux-display-fallback"
)

// mode is whether the browser has a window, and the source of that decision.
type mode struct {
	headless bool
	source   string
}

// display says whether windows can be shown. On macOS a logged-in user always has a display.
func display(e config.Environment) bool {
	return e.GOOS == "darwin" || e.Getenv("DISPLAY") != "" || e.Getenv("WAYLAND_DISPLAY") != ""
}

// decideMode decides about the window: the request says, else the settings, else whether there is a display. A window
// that was asked for and cannot be shown is an error.
func decideMode(request *bool, setting config.Headless, e config.Environment) (mode, error) {
	m := mode{source: byDefault}
	switch {
	case request != nil:
		m = mode{*request, byRequest}
	case setting != config.HeadlessAuto:
		m = mode{setting == config.HeadlessYes, byConfig}
	case !display(e):
		return mode{true, byFallback}, nil
	}
	if !m.headless && !display(e) {
		return m, problem.New(problem.NoDisplay, "start it without a window: clawjail browser start --headless=true",
			"a window was asked for, and there is no display: neither DISPLAY nor WAYLAND_DISPLAY is set").
			With("profile", ProfileName).With("requestedHeadless", false).With("headlessSource", m.source).With("displayPresent", false)
	}
	return m, nil
}

// flags are the browser's arguments. There is no debugging port, and the browser's own sandbox stays on.
func flags(goos, profile string, headless bool) []string {
	out := []string{
		"--remote-debugging-pipe",
		"--user-data-dir=" + profile,
		"--no-first-run",
		"--no-default-browser-check",
		"--disable-sync",
		"--disable-background-networking",
		"--disable-component-update",
		"--disable-features=Translate,MediaRouter",
		"--disable-session-crashed-bubble",
		"--hide-crash-restore-bubble",
	}
	// No person is there to unlock a keyring, and the profile is the user's alone.
	if goos == "darwin" {
		out = append(out, "--use-mock-keychain")
	} else {
		out = append(out, "--password-store=basic")
	}
	if headless {
		out = append(out, "--headless=new", "--disable-gpu", "--window-size=1280,800") // what sessions have; the default is narrow
	}
	return append(out, "about:blank")
}

// variables are what the browser gets of our environment: what a desktop program needs. Keys and tokens that are in it
// stay here.
func variables(environ []string) []string {
	exact := map[string]bool{
		"HOME": true, "USER": true, "LOGNAME": true, "SHELL": true, "PATH": true, "LANG": true, "LANGUAGE": true, "TZ": true,
		"TMPDIR": true, "DISPLAY": true, "WAYLAND_DISPLAY": true, "XAUTHORITY": true, "DBUS_SESSION_BUS_ADDRESS": true,
		"DESKTOP_SESSION": true, "GDK_BACKEND": true, "GTK_THEME": true, "PULSE_SERVER": true,
		"http_proxy": true, "https_proxy": true, "no_proxy": true, "all_proxy": true,
		"HTTP_PROXY": true, "HTTPS_PROXY": true, "NO_PROXY": true, "ALL_PROXY": true, "__CF_USER_TEXT_ENCODING": true,
	}
	var out []string
	for _, pair := range environ {
		name, _, _ := strings.Cut(pair, "=")
		if exact[name] || strings.HasPrefix(name, "LC_") || strings.HasPrefix(name, "XDG_") {
			out = append(out, pair)
		}
	}
	// Absent, these make Chromium complain in its window.
	return append(out, "GOOGLE_API_KEY=no", "GOOGLE_DEFAULT_CLIENT_ID=no", "GOOGLE_DEFAULT_CLIENT_SECRET=no")
}

func finderOf(e config.Environment) finder {
	return finder{goos: e.GOOS, home: e.Home, path: searchPath(e.Getenv("PATH"))}
}

// launch starts a browser and waits until it answers.
func (k *Keeper) launch(ctx context.Context, headless *bool) (*running, error) {
	m, err := decideMode(headless, k.settings.Headless, k.env)
	if err != nil {
		return nil, err
	}
	program, err := finderOf(k.env).find(k.settings.Executable)
	if err != nil {
		return nil, err
	}
	for _, dir := range []string{k.dir, k.Profile(), k.Files()} {
		if err := private(dir); err != nil {
			return nil, err
		}
	}
	if _, err := k.clearLock(); err != nil {
		return nil, err
	}
	// A browser that looks like any other still works, so this does not stop it.
	if err := k.paint(); err != nil {
		k.log.Warn("the browser may not look as it should", "error", err)
	}
	r, err := k.connect(ctx, program, m)
	if err == nil {
		return r, nil
	}
	// The lock may have been made between the look at it and the start, by a browser that is gone now.
	removed, lockErr := k.clearLock()
	if lockErr != nil {
		return nil, errors.Join(err, lockErr)
	}
	if !removed {
		return nil, err
	}
	return k.connect(ctx, program, m)
}

func (k *Keeper) connect(ctx context.Context, program Program, m mode) (*running, error) {
	line := append([]string{program.Path}, flags(k.env.GOOS, k.Profile(), m.headless)...)
	p, err := startProcess(line, variables(os.Environ()), k.dir)
	if err != nil {
		return nil, problem.Wrap(err, problem.BrowserFailed, "see: clawjail browser doctor", "%s cannot be started", program.Path)
	}
	conn, err := cdp.New(p.replies, p.commands, cdp.Options{})
	if err != nil {
		_ = errors.Join(p.replies.Close(), p.commands.Close()) // the browser goes with them
		p.end()
		return nil, fmt.Errorf("connect to the browser: %w", err)
	}
	opened, err := browser.Open(ctx, conn)
	if err != nil {
		late := errors.Is(err, context.DeadlineExceeded)
		_ = conn.Close() // the browser goes with it
		p.end()
		return nil, failure(err, program, p, late)
	}
	opened.UseFolder(k.Files())
	if err := k.keepOwner(); err != nil {
		k.log.Warn("whose the profile is was not written down", "error", err)
	}
	return &running{
		process: p, browser: opened, mux: cdp.NewMux(conn), contexts: guard.NewRegistry(), program: program, mode: m,
		gone: make(chan struct{}),
	}, nil
}

// failure says why a browser did not start, in its own words: what it wrote last and how it ended.
func failure(err error, program Program, p *process, late bool) error {
	words := p.words.Lines(shownLines, shownColumns)
	text := strings.Join(words, "\n")
	hint := "see: clawjail browser doctor"
	switch {
	case strings.Contains(text, "No usable sandbox"):
		hint = "let it make user namespaces (AppArmor may forbid that), or use the browser of the distribution: browser.executable"
	case strings.Contains(text, "Missing X server") || strings.Contains(text, "cannot open display"):
		hint = "start it without a window: clawjail browser start --headless=true"
	}
	how := "ended at once (" + p.cmd.ProcessState.String() + ")"
	if late {
		how = "did not answer within " + launchLimit.String()
	}
	message := fmt.Sprintf("%s %s", filepath.Base(program.Path), how)
	if text != "" {
		message += "; it wrote last:\n" + text
	}
	return problem.Wrap(err, problem.BrowserFailed, hint, "%s", message).
		With("executable", program.Path).With("exitCode", p.cmd.ProcessState.ExitCode()).With("stderr", words)
}
