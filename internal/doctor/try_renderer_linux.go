package doctor

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/kubernetes"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/template"
)

// tryRenderer starts a browser in a jail, the way that sessions do, and looks at its processes from outside.
func (t *trial) tryRenderer(ctx context.Context) (Facts, error) {
	// Before anything else: opening the storage would make the folder of the templates.
	found, err := t.template(ctx)
	if err != nil {
		return nil, err
	}
	spec, err := t.browserSpec(found)
	if err != nil {
		return nil, err
	}
	facts, err := t.watchBrowser(ctx, spec)
	if lacks := found.Lacks(); err == nil && len(lacks) > 0 {
		facts["lacks"] = strings.Join(lacks, ", ")
	}
	return facts, err
}

// lastWords is how long the end of what a browser prints is waited for.
const lastWords = 2 * time.Second

// watchBrowser starts a browser, waits until it answers, and looks at its renderer.
func (t *trial) watchBrowser(ctx context.Context, spec jail.Spec) (Facts, error) {
	life, err := t.openLifecycle(ctx)
	if err != nil {
		return nil, err
	}
	defer life.Close()
	return t.openBrowser(ctx, life, spec, func(name jail.Name, facts Facts) error { return watchRenderer(ctx, life.Parts.Runtime, name, facts) })
}

// openBrowser starts a browser in a jail, and looks at it once it answers.
func (t *trial) openBrowser(ctx context.Context, makes jail.Driver, spec jail.Spec, look func(jail.Name, Facts) error) (_ Facts, err error) {
	began := time.Now()
	j, err := makes.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	read := make(chan struct{})
	var words atomic.Value // its last line
	words.Store("")
	go func() {
		defer close(read) // with the jail
		for lines := bufio.NewScanner(j.Stdio.Err); lines.Scan(); {
			words.Store(cmp.Or(strings.TrimSpace(lines.Text()), words.Load().(string)))
		}
		_, _ = io.Copy(io.Discard, j.Stdio.Err) // a line that is too long must not stop the browser
	}()
	defer func() {
		err = errors.Join(err, makes.Destroy(context.WithoutCancel(ctx), j.Name))
		j.Stdio.Close()
		<-read
	}()
	conn, err := cdp.New(j.Stdio.Out, j.Stdio.In, cdp.Options{})
	if err != nil {
		return nil, err
	}
	defer func() {
		if closeErr := conn.Close(); !errors.Is(closeErr, os.ErrClosed) {
			err = errors.Join(err, closeErr)
		}
	}()
	b, err := browser.Open(ctx, conn)
	if err != nil {
		// Its pipe may end before its last words have come. One that goes on says no more.
		select {
		case <-read:
		case <-time.After(t.pace.Longer(lastWords)):
		}
		reason := words.Load().(string)
		return Facts{"stderr": reason}, problem.Wrap(err, problem.JailFailed, sandboxHint(reason), "the browser did not answer")
	}
	facts := Facts{"product": b.Version().Product, "answered_ms": time.Since(began).Milliseconds()}
	if _, err := b.Page(ctx); err != nil {
		return facts, err
	}
	return facts, look(j.Name, facts)
}

// sandboxHint reads what Chromium says when it cannot have its sandbox.
func sandboxHint(words string) string {
	if strings.Contains(words, "sandbox") {
		return "its sandbox could not be made; see the check user_namespaces"
	}
	return "clawjail template verify browser"
}

func (t *trial) template(ctx context.Context) (template.Template, error) {
	store, err := template.New(template.Config{Dir: t.c.TemplatesDir, Clock: time.Now})
	if err != nil {
		return template.Template{}, err
	}
	return store.Get(ctx, browserTemplate)
}

// openLifecycle puts the five parts together.
func (t *trial) openLifecycle(ctx context.Context) (*jail.Lifecycle, error) {
	storage, errStorage := t.browsers.get()
	limiter, errLimiter := t.limiter.get()
	runtime, errRuntime := t.runtime.get()
	network, errNetwork := t.network.get()
	firewall, errFirewall := t.firewall.get()
	pool, errPool := t.pool.get()
	if err := errors.Join(errStorage, errLimiter, errRuntime, errNetwork, errFirewall, errPool); err != nil {
		return nil, err
	}
	return t.lifecycle(ctx, pool, jail.Parts{Storage: storage, Network: network, Firewall: firewall, Runtime: runtime, Limiter: limiter, Means: runtime.Means()})
}

// lifecycle has a journal that dies with this process: what is left then is found by the trial's id.
func (t *trial) lifecycle(ctx context.Context, pool *jail.Pool, parts jail.Parts) (*jail.Lifecycle, error) {
	return jail.NewLifecycle(ctx, jail.Options{Installation: t.id, Pool: pool, Journal: kubernetes.Unwritten{}, Log: t.log, Parts: parts})
}

// browserSpec is a session's with the configured limits.
func (t *trial) browserSpec(found template.Template) (jail.Spec, error) {
	pool, err := t.pool.get()
	if err != nil {
		return jail.Spec{}, err
	}
	return t.specAt(found, pool.Gateway())
}

// specAt is that with a gateway.
func (t *trial) specAt(found template.Template, gateway netip.Addr) (jail.Spec, error) {
	build, program := browser.Shell, found.Programs[template.ProgramShell].Path
	if program == "" {
		build, program = browser.Full, found.Programs[template.ProgramFull].Path
	}
	if program == "" {
		return jail.Spec{}, problem.New(problem.BadTemplate, "sudo clawjail template build --replace "+browserTemplate,
			"there is no Chromium in the template %s", found.Name)
	}
	home := jail.KindBrowser.Home()
	o := browser.Options{
		Build: build, Binary: program, Home: home, ProfileDir: home + "/profile", TempDir: "/tmp",
		Proxy: "http://" + net.JoinHostPort(gateway.String(), strconv.Itoa(int(t.c.Gateway.Port))),
	}
	argv, errArgv := browser.Command(o)
	pairs, errPairs := browser.Environment(o)
	if err := errors.Join(errArgv, errPairs); err != nil {
		return jail.Spec{}, fmt.Errorf("describe the browser: %w", err)
	}
	env := map[string]string{}
	for _, pair := range pairs {
		name, value, _ := strings.Cut(pair, "=")
		env[name] = value
	}
	l := t.c.Limits
	return jail.Spec{
		Kind: jail.KindBrowser, Lifetime: jail.LifetimeOwner, Template: found.Name,
		Program: jail.Program{Argv: argv, Env: env, Wire: jail.WirePipe34},
		Limits: jail.Limits{Memory: int64(l.Memory), MilliCPU: int(l.CPU * 1000), Tasks: l.Tasks, Disk: int64(l.Tmp),
			SharedMemory: int64(l.SHM), Files: l.Files, WallClock: 2 * t.pace.Longer(BrowserBound)},
	}, nil
}

// seen is one process of a jail as the host sees it.
type seen struct {
	user    string // which user namespace
	seccomp string // 2 is a filter
	filters int    // how many
}

// watchRenderer looks for a renderer with a user namespace and a filter of its own: the jail's filter is on every
// process in it and would prove nothing.
func watchRenderer(ctx context.Context, runtime jail.Runtime, name jail.Name, facts Facts) error {
	var problems error
	for {
		main, renderer, err := browserProcesses(ctx, runtime, name)
		if err != nil {
			return err
		}
		switch {
		case main == nil || renderer == nil:
			problems = errors.New("it has no renderer")
		case renderer.seccomp != "2" || renderer.filters <= main.filters:
			problems = fmt.Errorf("its renderer has no seccomp filter of its own (%d, the browser has %d)", renderer.filters, main.filters)
		case renderer.user == main.user:
			problems = errors.New("its renderer has no user namespace of its own")
		default:
			facts["renderer_filters"], facts["browser_filters"] = renderer.filters, main.filters
			return nil
		}
		select {
		case <-ctx.Done():
			return problem.Wrap(ctx.Err(), problem.JailUnconfined, "see the checks user_namespaces and seccomp", "the browser works, but %v", problems)
		case <-time.After(10 * time.Millisecond): // a renderer gets its sandbox some milliseconds after its start
		}
	}
}

// browserProcesses finds the browser's main process and its first renderer among the jail's processes.
func browserProcesses(ctx context.Context, runtime jail.Runtime, name jail.Name) (main, renderer *seen, err error) {
	resources, err := runtime.List(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, trace := range resources {
		if trace.Kind != jail.ResourceProcess || trace.Name != name {
			continue
		}
		dir := filepath.Join("/proc", trace.ID)
		line, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil {
			continue // it has ended
		}
		text := strings.ReplaceAll(string(line), "\x00", " ") // Chromium's children have it in one piece
		switch {
		case strings.Contains(text, "--type=renderer"):
			if renderer == nil {
				renderer = look(dir)
			}
		case !strings.Contains(text, "--type=") && strings.Contains(text, "--remote-debugging-pipe"):
			main = look(dir)
		}
	}
	return main, renderer, nil
}

// look is nil for a process that has ended.
func look(dir string) *seen {
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return nil
	}
	user, err := os.Readlink(filepath.Join(dir, "ns", "user"))
	if err != nil {
		return nil
	}
	filters, err := strconv.Atoi(field(string(status), "Seccomp_filters:"))
	if err != nil {
		return nil
	}
	return &seen{user: user, seccomp: field(string(status), "Seccomp:"), filters: filters}
}
