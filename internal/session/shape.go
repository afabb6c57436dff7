package session

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// jailOptions is what a caller decides about the jail itself. Everything else that shapes it is the same for all sessions of
// one process.
type jailOptions struct {
	tenant   string // of whose share the jail takes
	template string
	build    config.Browser
	limits   jail.Limits
}

// jailSpec is what jailOptions become. Two jails of one key cannot be told apart.
type jailSpec struct {
	shape jailOptions
	spec  jail.Spec
	key   string
}

// templateAge is how long a template is believed to be as it was.
const templateAge = 2 * time.Second

// jailSpecOf works out the jail of options.
func (svc *Service) jailSpecOf(ctx context.Context, sh jailOptions) (jailSpec, error) {
	t, err := svc.templates.get(ctx, sh.template)
	if err != nil {
		return jailSpec{}, err
	}
	program := t.Programs[string(sh.build)]
	if program == "" {
		return jailSpec{}, problem.New(problem.BadTemplate, "take another browser or template; `clawjail template ls` shows what is in them",
			"template %s has no browser %s", sh.template, sh.build)
	}
	files, err := svc.trust.files(ctx, sh.template, t.Digest)
	if err != nil {
		return jailSpec{}, err
	}
	home := jail.KindBrowser.Home()
	launch := browser.Options{Build: browser.Build(sh.build), Binary: program, Proxy: svc.Proxy, ProfileDir: home + "/profile",
		Home: home, TempDir: "/tmp", NoSandbox: svc.Unsandboxed}
	argv, err := browser.Command(launch)
	if err != nil {
		return jailSpec{}, fmt.Errorf("describe the browser: %w", err)
	}
	environment, err := browser.Environment(launch)
	if err != nil {
		return jailSpec{}, fmt.Errorf("describe the browser: %w", err)
	}
	env := make(map[string]string, len(environment))
	for _, pair := range environment {
		name, value, _ := strings.Cut(pair, "=")
		env[name] = value
	}
	for _, path := range launch.Build.Occupied() {
		// The list belongs to those who share it.
		files = append(slices.Clip(files), jail.File{Path: "profile/" + path})
	}
	spec := jail.Spec{
		Kind:      jail.KindBrowser,
		Lifetime:  jail.LifetimeOwner,
		Template:  sh.template,
		For:       sh.tenant,
		Program:   jail.Program{Argv: argv, Env: env, Wire: jail.WirePipe34},
		Limits:    sh.limits,
		HomeFiles: files,
	}
	// The whole spec, so that a new field of it is part of the key by itself. JSON of Go writes maps in order.
	text, err := json.Marshal(struct {
		Spec   jail.Spec
		CAs    string
		Digest string
	}{spec, svc.ExtraCA.digest, t.Digest})
	if err != nil {
		return jailSpec{}, fmt.Errorf("describe the jail: %w", err)
	}
	sum := sha256.Sum256(text)
	return jailSpec{shape: sh, spec: spec, key: hex.EncodeToString(sum[:])}, nil
}

// templates remembers for a moment what is known of templates.
type templates struct {
	source Templates
	now    func() time.Time

	mu   sync.Mutex
	seen map[string]seenTemplate
}

type seenTemplate struct {
	template Template
	at       time.Time
}

func (t *templates) get(ctx context.Context, name string) (Template, error) {
	t.mu.Lock()
	last, ok := t.seen[name]
	t.mu.Unlock()
	if ok && t.now().Sub(last.at) < templateAge {
		return last.template, nil
	}
	found, err := t.source.Template(ctx, name)
	if err != nil {
		return Template{}, fmt.Errorf("look at template %s: %w", name, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	// Only templates that are there are remembered, so callers cannot fill this.
	t.seen[name] = seenTemplate{found, t.now()}
	return found, nil
}
