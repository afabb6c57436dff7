package doctor

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/hostcmd"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/inventory"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/docker"
	"github.com/clawjail/clawjail/internal/jail/kubernetes"
)

// Facts are details of a result, for programs.
type Facts map[string]any

// Host is everything that the checks look at and try. Tests take parts of it away.
//
// The fields of Trials may be nil: then this system has no such thing to try.
type Host struct {
	// System is the operating system, a GOOS.
	System string
	// Now is the clock. Default time.Now.
	Now func() time.Time
	// Run runs the commands of a FreeBSD host.
	Run hostcmd.Runner
	// Root is the folder that proc, sys, etc and usr are looked for in.
	Root string
	// UID is the effective user of this process.
	UID int
	// Command runs a program of the host and returns what it printed.
	Command func(ctx context.Context, name string, args ...string) (string, error)
	// Space is how much is free where a path is, or would be.
	Space func(path string) (Space, error)
	// Ownership refuses a file that others than root can write or replace.
	Ownership func(path string) error
	// AddedRoots are the folders that root has let agents have, beside those of the configuration, and CheckRoot says why one
	// of them is not used.
	AddedRoots func(config.Config) ([]hostd.AddedRoot, error)
	CheckRoot  func(config.Config, hostd.AddedRoot) error
	// Daemon asks the host daemon what it is.
	Daemon func(context.Context) (hostd.Info, error)
	// Health asks the control plane whether it answers.
	Health func(context.Context) error
	// Resources lists what an installation has on the host.
	Resources func(context.Context, inventory.Scope) ([]inventory.HostResource, error)

	Trials
}

// Space is the room on one file system.
type Space struct {
	At       string // the nearest folder that exists
	Free     uint64 // bytes that a user without privileges may still write
	Type     string // of the file system, empty when it is not known
	ReadOnly bool
}

// Trials are what is tried. Each undoes what it did; Undo undoes what they share.
type Trials struct {
	// Storage clones a template and looks that the template stays as it was.
	Storage func(context.Context) (Facts, error)
	// State makes a volume for what an agent keeps, and looks that it is bounded.
	State func(context.Context) (Facts, error)
	// Engine asks the container engine of the configuration what it is.
	Engine func(context.Context) (docker.Engine, error)
	// Limits has programs run into the limits of a cgroup.
	Limits func(context.Context) (Facts, error)
	// Runtime finds an OCI runtime that runs a container here, and returns its path.
	Runtime func(context.Context) (string, error)
	// Subnet returns the configured network, or the one that would be taken; an error when it is in use.
	Subnet func(ctx context.Context, installation jail.Installation, configured netip.Prefix) (netip.Prefix, error)
	// Port listens where the gateway would.
	Port func(context.Context) error
	// Network makes a bridge and a slot on it.
	Network func(context.Context) (Facts, error)
	// Element adds an address to a firewall table and takes it out again, and looks that everything else is refused.
	Element func(context.Context) (Facts, error)
	// Reach reports whether a connection from inside a slot arrives at the gateway's address.
	Reach func(context.Context) (bool, error)
	// Filters lists the chains of other firewalls that see what jails send to the gateway.
	Filters func(context.Context) ([]Filter, error)
	// Renderer starts a browser in a jail and looks at its renderer.
	Renderer func(context.Context) (Facts, error)
	// UserNamespace makes one as a user, with what a browser's sandbox makes with it.
	UserNamespace func(ctx context.Context, uid uint32) error
	// Cluster asks the API server of the configuration who it is, Missing what it has not of which jails are made, and Lacking which
	// rights the service account has not.
	Cluster func(context.Context) (kubernetes.Server, error)
	Missing func(context.Context) ([]string, error)
	Lacking func(context.Context) ([]kubernetes.Right, error)
	// Pod starts a browser in a pod.
	Pod func(context.Context) (Facts, error)
	// Map maps the owner of a folder's files to another user, as for agents. Nil where that is not done.
	Map func(folder string) error
	// Undo removes what is left of all of it.
	Undo func(context.Context) error
}

// complete fills in what is the same on every system.
func (h Host) complete() Host {
	if h.Now == nil {
		h.Now = time.Now
	}
	if h.Undo == nil {
		h.Undo = func(context.Context) error { return nil }
	}
	return h
}

// ThisHost is the host that this process runs on.
func ThisHost(o Options) Host {
	daemon := hostd.NewClient(hostd.SocketPath(o.Config), o.Log)
	return Host{
		System: runtime.GOOS, Root: "/", UID: os.Geteuid(),
		Command:    command,
		Space:      space,
		Ownership:  ownership,
		AddedRoots: hostd.AddedRoots,
		CheckRoot:  func(c config.Config, r hostd.AddedRoot) error { return r.Check(c) },
		Daemon:     daemon.Info,
		Health:     func(ctx context.Context) error { return answers(ctx, o.ControlURL) },
		Resources:  inventory.Take,
		Trials:     trials(o),
	}
}

// command runs a program with the folders of administrators' programs in its PATH, and nothing of the caller's
// environment: its answer is parsed, so it must not be translated.
func command(ctx context.Context, name string, args ...string) (string, error) {
	const path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	file := name
	if !filepath.IsAbs(name) {
		file = ""
		for dir := range strings.SplitSeq(path, ":") {
			if found, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
				file = found
				break
			}
		}
		if file == "" {
			return "", fmt.Errorf("%s: %w", name, exec.ErrNotFound)
		}
	}
	cmd := exec.CommandContext(ctx, file, args...)
	cmd.Env = []string{"PATH=" + path, "LC_ALL=C"}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		if line, _, _ := strings.Cut(strings.TrimSpace(errs.String()), "\n"); line != "" {
			err = fmt.Errorf("%w: %s", err, line)
		}
		return out.String(), fmt.Errorf("run %s: %w", name, err)
	}
	return out.String(), nil
}

// ownership looks at the file itself, also when path is a link to it.
func ownership(path string) error {
	real, err := filepath.Abs(path)
	if err == nil {
		real, err = filepath.EvalSymlinks(real)
	}
	if err != nil {
		return fmt.Errorf("find %s: %w", path, err)
	}
	return config.CheckOwnership(real)
}

// answers asks without a key. The certificate is not verified, because nothing secret is sent and the answer is not
// believed: a certificate is seldom made for the address that the host itself uses.
func answers(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/v1/health", nil)
	if err != nil {
		return err
	}
	transport := &http.Transport{Proxy: nil, DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	client := http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	if err := resp.Body.Close(); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("it answers with status %d", resp.StatusCode)
	}
	return nil
}

// read returns a file of the host.
func (e *exam) read(path string) (string, error) {
	data, err := os.ReadFile(filepath.Join(e.Root, path))
	return string(data), err
}

// setting returns a file of the host without its line end, or nothing when there is no such file.
func (e *exam) setting(path string) string {
	text, err := e.read(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(text)
}

// exists reports whether the host has a file.
func (e *exam) exists(path string) bool {
	_, err := os.Stat(filepath.Join(e.Root, path))
	return err == nil
}

// existing is the nearest folder at or above a path that is there.
func existing(path string) string {
	for path != "/" && path != "." {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			return path
		}
		path = filepath.Dir(path)
	}
	return path
}
