package supportbundle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/health"
	"github.com/clawjail/clawjail/internal/inventory"
	"github.com/clawjail/clawjail/internal/jail"
)

// fileLimit bounds a file of which only the end counts, and secretLimit one with a key.
const fileLimit, secretLimit = 8 << 20, 64 << 10

// Machine says where things are on this machine.
type Machine struct {
	Config config.Config
	// ConfigErr says why the configuration could not be read; Config has the defaults then.
	ConfigErr error
	Version   string
	// Lines is how many lines of each log are taken.
	Lines int
	// Logs are files with logs of the daemons, beside the journal of systemd.
	Logs []string
	// Secrets are files with keys, which are known and taken out wherever they turn up.
	Secrets []string
	// Units are folders with units of systemd, and Systemd the one that is there when it runs.
	Units   []string
	Systemd string
	// Command runs a program of the host, and returns what it printed.
	Command func(ctx context.Context, name string, args ...string) (string, error)
}

// Sources are files about this machine, which need nothing that runs.
func (m Machine) Sources() []Source {
	out := []Source{
		JSON("versions.json", "versions of clawjail, of the system and of its kernel", m.versions),
		JSON("configuration.json", "the configuration as it is in force, with defaults and without secrets", m.configuration),
		{"templates.json", "the manifests of the templates", m.templates},
		JSON("things.json", "what this installation has on the machine: processes, groups, tables, mounts", m.things),
		{"firewall.txt", "the firewall tables of this installation", m.firewall},
		{"units.txt", "the units of systemd, without environments", m.units},
		{"services.txt", "what systemd says of the services", m.services},
		{"log-control.txt", "the last lines of the control plane's journal", m.journal(health.ControlUnit)},
		{"log-hostd.txt", "the last lines of the host daemon's journal", m.journal(health.HostUnit)},
	}
	for n, file := range m.Logs {
		out = append(out, Source{fmt.Sprintf("log-file-%d.txt", n+1), "the last lines of a log file", func(context.Context) ([]byte, error) {
			text, err := tail(file, fileLimit)
			return []byte(keepLog(lastLines(text, m.Lines))), err
		}})
	}
	return out
}

// Known are the values of secrets that this machine has in files and in its configuration. A file that cannot be read adds none.
func (m Machine) Known() (out [][]byte) {
	for _, file := range m.Secrets {
		if text, err := tail(file, secretLimit); err == nil {
			out = append(out, []byte(text), []byte(strings.TrimSpace(text)))
		}
	}
	if at := m.Config.Database.Reveal(); at != "" {
		out = append(out, []byte(at))
		if u, err := url.Parse(at); err == nil {
			password, _ := u.User.Password()
			out = append(out, []byte(password), []byte(u.Query().Get("password")))
		}
	}
	for _, s := range m.Config.MCPServers {
		for _, v := range s.Env {
			out = append(out, []byte(v))
		}
	}
	return slices.DeleteFunc(out, func(v []byte) bool { return len(v) == 0 })
}

// Names are those in the configuration.
func (m Machine) Names() Names {
	out := Names{"host": {}, "tool-server": {}, "person": {}}
	if host, err := os.Hostname(); err == nil {
		out["host"] = append(out["host"], host)
	}
	out["host"] = append(out["host"], m.Config.Node)
	for _, l := range m.Config.Logins {
		out["host"] = append(out["host"], l.Domain)
	}
	for _, d := range m.Config.Gateway.PrivateDestinations {
		out["host"] = append(out["host"], d.Host)
	}
	for _, s := range m.Config.MCPServers {
		out["tool-server"] = append(out["tool-server"], s.Name)
	}
	return out
}

func (m Machine) versions(context.Context) (any, error) {
	out := map[string]any{"clawjail": m.Version, "go": runtime.Version(), "system": runtime.GOOS, "architecture": runtime.GOARCH, "cores": runtime.NumCPU()}
	var u unix.Utsname
	if err := unix.Uname(&u); err == nil {
		out["kernel"] = unix.ByteSliceToString(u.Release[:])
	}
	if text, err := tail("/etc/os-release", secretLimit); err == nil {
		for line := range strings.Lines(text) {
			if name, value, _ := strings.Cut(strings.TrimSpace(line), "="); name == "PRETTY_NAME" {
				out["distribution"] = strings.Trim(value, `"`)
			}
		}
	}
	return out, nil
}

// configuration leaves out what programs are given: arguments and environments are where people put keys.
func (m Machine) configuration(context.Context) (any, error) {
	if m.ConfigErr != nil {
		return nil, m.ConfigErr
	}
	c := m.Config
	c.MCPServers = slices.Clone(c.MCPServers)
	for n, s := range c.MCPServers {
		if len(s.Command) > 1 {
			s.Command = []string{s.Command[0], hidden}
		}
		s.Env = maps.Clone(s.Env)
		for name := range s.Env {
			s.Env[name] = hidden
		}
		c.MCPServers[n] = s
	}
	return c, nil
}

func (m Machine) templates(context.Context) ([]byte, error) {
	found, err := filepath.Glob(filepath.Join(m.Config.TemplatesDir, "*", "template.json"))
	if err != nil {
		return nil, err
	}
	all := map[string]json.RawMessage{}
	var errs []error
	for _, f := range found {
		text, err := tail(f, secretLimit)
		if err == nil && !json.Valid([]byte(text)) {
			err = fmt.Errorf("%s is no JSON", f)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		all[filepath.Base(filepath.Dir(f))] = json.RawMessage(text)
	}
	out, err := encode(all)
	return out, errors.Join(append(errs, err)...)
}

// scope is what of the machine belongs to this installation.
func (m Machine) scope() (inventory.Scope, error) {
	var made struct {
		ID     jail.Installation `json:"id"`
		Subnet netip.Prefix      `json:"subnet"`
	}
	text, err := os.ReadFile(filepath.Join(m.Config.DataDir, "installation.json"))
	if err != nil {
		return inventory.Scope{}, fmt.Errorf("find out which installation it is: %w", err)
	}
	if err := json.Unmarshal(text, &made); err != nil {
		return inventory.Scope{}, fmt.Errorf("read installation.json: %w", err)
	}
	pool, err := jail.NewPool(made.Subnet, m.Config.UIDBase)
	if err != nil {
		return inventory.Scope{}, err
	}
	return inventory.Scope{Installation: made.ID, Data: m.Config.DataDir, Run: m.Config.RunDir, Subnet: made.Subnet, UIDBase: m.Config.UIDBase, UIDs: uint32(pool.Size())}, nil
}

func (m Machine) things(ctx context.Context) (any, error) {
	s, err := m.scope()
	if err != nil {
		return nil, err
	}
	return inventory.Take(ctx, s)
}

func (m Machine) firewall(ctx context.Context) ([]byte, error) {
	s, err := m.scope()
	if err != nil {
		return nil, err
	}
	things, err := inventory.Take(ctx, s)
	var out strings.Builder
	for _, t := range things {
		number, name, _ := strings.Cut(t.ID, " ")
		if t.Kind != "nft_table" {
			continue
		}
		text, listErr := m.Command(ctx, "nft", "list", "table", families()[number], name)
		out.WriteString(text)
		err = errors.Join(err, listErr)
	}
	return []byte(out.String()), err
}

// families are the numbers of nftables' families (linux/netfilter.h, NFPROTO_*), as nft(8) calls them.
func families() map[string]string {
	return map[string]string{"1": "inet", "2": "ip", "3": "arp", "5": "netdev", "7": "bridge", "10": "ip6"}
}

func (m Machine) units(context.Context) ([]byte, error) {
	var out strings.Builder
	for _, dir := range m.Units {
		for _, name := range []string{health.HostUnit, health.ControlUnit} {
			drops, err := filepath.Glob(filepath.Join(dir, name+".d", "*.conf"))
			if err != nil {
				return nil, err
			}
			for _, file := range append([]string{filepath.Join(dir, name)}, drops...) {
				text, err := tail(file, secretLimit)
				if errors.Is(err, fs.ErrNotExist) {
					continue
				}
				if err != nil {
					return []byte(out.String()), err
				}
				fmt.Fprintf(&out, "# %s\n%s\n", file, keepUnit(text))
			}
		}
	}
	if out.Len() == 0 {
		return nil, errors.New("there are no units on this machine")
	}
	return []byte(out.String()), nil
}

func (m Machine) running() error {
	if info, err := os.Stat(m.Systemd); err != nil || !info.IsDir() {
		return errors.New("systemd does not run here")
	}
	return nil
}

func (m Machine) services(ctx context.Context) ([]byte, error) {
	if err := m.running(); err != nil {
		return nil, err
	}
	out, err := m.Command(ctx, "systemctl", "show", health.HostUnit, health.ControlUnit,
		"--property=Id,LoadState,ActiveState,SubState,UnitFileState,FragmentPath,NRestarts,Result,ExecMainStatus,ActiveEnterTimestamp")
	return []byte(out), err
}

func (m Machine) journal(unit string) func(ctx context.Context) ([]byte, error) {
	return func(ctx context.Context) ([]byte, error) {
		if err := m.running(); err != nil {
			return nil, err
		}
		text, err := m.Command(ctx, "journalctl", "--unit", unit, "--lines", strconv.Itoa(m.Lines), "--output", "cat", "--no-pager")
		return []byte(keepLog(text)), err
	}
}

// tail is the end of a regular file.
func tail(path string, limit int64) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a FIFO must not keep it
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // it was only read
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is no file", path)
	}
	text, err := io.ReadAll(io.NewSectionReader(f, max(0, info.Size()-limit), limit))
	return string(text), err
}
