//go:build linux

package docs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/instance"
	"github.com/clawjail/clawjail/internal/manual"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/test/testkit"
)

// pageLimit bounds the commands of one page, and followLimit a command that goes on until it is interrupted.
const (
	pageLimit   = 2 * time.Minute
	followLimit = "2"
)

// follower is a pattern of the shell for arguments of clawjail that make it go on until it is interrupted.
const follower = `*' agent logs'*' -f '*|*' agent logs'*' --follow '*|*' audit tail'*' -f '*|*' audit tail'*' --follow '*|*' access watch '*`

// guideRunner is somebody who does what the documentation says, page by page, on a machine where clawjail runs.
type guideRunner struct {
	*testkit.Installation
	dir  string // of the folders of the pages
	site string // the address of their site
}

func newGuideRunner(t *testing.T) *guideRunner {
	t.Helper()
	testenv.Time(t)
	testenv.Root(t)
	for _, tool := range []string{"bash", "jq", "curl", "timeout", "git"} {
		testenv.Tool(t, tool)
	}
	templates := filepath.Dir(testenv.Template(t))
	testenv.TemplateNamed(t, "clawbot")
	dir, err := os.MkdirTemp("/var/lib/clawjail", "test-docs-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { testkit.RemoveTrees(t, dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	site, settings := manualSite(t, dir)
	settings = testkit.NoPool + "workspace_roots: [" + dir + "]\n" + settings
	b := testkit.PrepareWith(t, instance.Options{Settings: settings}, func(o *instance.Options, _ string) { o.Templates = templates })
	b.Up()
	return &guideRunner{b, dir, site}
}

// folder makes the folder that the commands of a page run in. It looks like a checkout in which `make build` was run.
func (f *guideRunner) folder(page manual.Page) string {
	t := f.T
	t.Helper()
	dir, err := os.MkdirTemp(f.dir, strings.NewReplacer("/", "-", ".", "-").Replace(page.Path)+"-")
	if err != nil {
		t.Fatal(err)
	}
	top := testenv.Repository(t)
	errs := []error{os.Chmod(dir, 0o755)}
	for _, d := range []string{"bin", "home", "tools"} {
		errs = append(errs, os.MkdirAll(filepath.Join(dir, d), 0o755))
	}
	for _, d := range []string{"examples", "packaging"} {
		errs = append(errs, os.CopyFS(filepath.Join(dir, d), os.DirFS(filepath.Join(top, d))))
	}
	for name, text := range map[string]string{
		"tools/sudo": "#!/bin/sh\nexec env \"$@\"\n", // env, since variables may stand before the command
		// A refusal of a server is a failure, which curl alone does not say.
		"tools/curl":     "#!/bin/sh\nexec '" + testenv.Tool(t, "curl") + "' --fail-with-body \"$@\"\n",
		"tools/clawjail": f.wrapper(), "bin/clawjail": f.wrapper(),
	} {
		errs = append(errs, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755))
	}
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return dir
}

// wrapper is clawjail, and interrupts what would follow for ever.
func (f *guideRunner) wrapper() string {
	return fmt.Sprintf(`#!/bin/sh
case " $* " in
%s)
	status=0
	timeout -k 5 %s '%s' "$@" || status=$?
	[ $status = 124 ] || exit $status
	;;
*) exec '%[3]s' "$@" ;;
esac
`, follower, followLimit, f.Binary)
}

// here puts this machine's places in the place of those that pages name.
func (f *guideRunner) here(dir string, a assumed) *strings.Replacer {
	listen := f.Config.Listen.String()
	pairs := []string{"127.0.0.1:18780", listen, "localhost:18780", listen, "/var/lib/clawjail/", f.Config.DataDir + "/"}
	for _, folder := range a.folders {
		pairs = append(pairs, folder, filepath.Join(dir, folder))
	}
	return strings.NewReplacer(pairs...)
}

// program is a page as a program of bash, line by line, so that bash names the lines of the page: what is no command is an
// empty line. Before a block it runs what the page takes for granted there, and writes down that the block was reached.
func program(page manual.Page, a assumed, here *strings.Replacer) (text string, ran, left []manual.Block, err error) {
	blocks, err := page.Blocks()
	if err != nil {
		return "", nil, nil, err
	}
	lines := make([]string, strings.Count(page.Text, "\n")+1)
	done := map[string]bool{}
	for _, b := range blocks {
		if b.Language != "sh" {
			continue
		}
		if b.Reason != "" {
			left = append(left, b)
			continue
		}
		ran = append(ran, b)
		fence := fmt.Sprintf(`echo %d >>"$READER/reached"`, b.Line)
		for _, section := range []string{"", b.Section} {
			if a.before[section] != "" && !done[section] {
				done[section] = true
				fence += "; eval " + quoted(here.Replace(a.before[section]))
			}
		}
		lines[b.Line-1] = strings.ReplaceAll(fence, "\n", `'$'\n''`)
		for i, line := range strings.Split(strings.TrimSuffix(b.Text, "\n"), "\n") {
			lines[b.Line+i] = here.Replace(line)
		}
	}
	return strings.Join(lines, "\n") + "\n", ran, left, nil
}

// quoted is one word of a shell.
func quoted(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// outcome is what became of a page's commands.
type outcome struct {
	ran, left []manual.Block
	output    []byte
	failed    string // why, and where; empty when everything went well
}

// page runs the commands of a page, in one shell.
func (f *guideRunner) page(page manual.Page, a assumed) (o outcome) {
	t := f.T
	t.Helper()
	dir := f.folder(page)
	for _, folder := range a.folders {
		if err := os.MkdirAll(filepath.Join(dir, folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if a.client != "" {
		clients, node := testkit.Clients(t)
		text := "#!/bin/sh\nexec '" + node + "' '" + filepath.Join(clients, "mcp_account.mjs") + "' \"$@\"\n"
		if err := os.WriteFile(filepath.Join(dir, "tools", a.client), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	text, ran, left, err := program(page, a, f.here(dir, a))
	if err != nil {
		t.Fatal(err)
	}
	o.ran, o.left = ran, left
	if len(ran) == 0 {
		return o
	}
	tools := filepath.Join(dir, "tools")
	file := filepath.Join(tools, "page")
	testkit.WriteFile(t, file, text)
	output, err := os.Create(filepath.Join(tools, "output"))
	if err != nil {
		t.Fatal(err)
	}
	defer output.Close() // what is written to it is read below
	cmd := exec.Command(testenv.Tool(t, "bash"), "-euo", "pipefail", file)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, output, output
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// The proxy of the shell is nobody: what does not go to clawjail goes nowhere.
	cmd.Env = []string{"PATH=" + tools + ":" + os.Getenv("PATH"), "HOME=" + filepath.Join(dir, "home"), "READER=" + tools, "CLAWJAIL_CONFIG=" + f.ConfigFile,
		"SITE=" + f.site, "LANG=C.UTF-8", "http_proxy=http://127.0.0.1:1", "https_proxy=http://127.0.0.1:1", "no_proxy=127.0.0.1,localhost"}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// Everything that the page has started ends with it, also what it left in the background.
	end := func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // there may be nothing left to end
	limit := time.AfterFunc(pageLimit, end)
	err = cmd.Wait()
	if !limit.Stop() {
		err = fmt.Errorf("took more than %v: %w", pageLimit, err)
	}
	end()
	o.output, _ = os.ReadFile(output.Name())                   // what went wrong is said below
	reached, _ := os.ReadFile(filepath.Join(tools, "reached")) // none: no block was
	last := ran[0]
	if steps := strings.Fields(string(reached)); len(steps) > 0 {
		for _, b := range ran {
			if fmt.Sprint(b.Line) == steps[len(steps)-1] {
				last = b
			}
		}
	}
	if err == nil && last != ran[len(ran)-1] {
		err = errors.New("the page ends before its last block")
	}
	if err != nil {
		said := bytes.ReplaceAll(o.output, []byte(file), []byte(page.Path))
		o.failed = fmt.Sprintf("%s: %v\n--- the block\n%s--- everything that the page printed\n%s", last.Where(), err, last.Text, said[max(0, len(said)-6000):])
	}
	return o
}

// sweep takes away what a page has left, so that the next one finds the machine as its readers do.
func (f *guideRunner) sweep() {
	t, c := f.T, f.API
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var errs []error
	note := func(err error) { errs = append(errs, err) }
	const tenant = "default"
	sessions, err := c.List(ctx, false)
	note(err)
	for _, s := range sessions {
		note(c.Close(ctx, s.ID, true))
	}
	servers, err := client.Call(ctx, c, op.ListMCPServers(), op.OfTenant{Tenant: tenant})
	note(err)
	for _, s := range servers.Servers {
		note(client.Do(ctx, c, op.RemoveMCPServer(), op.MCPServerNamed{Name: s.Name}))
	}
	services, err := client.Call(ctx, c, op.ListServices(), op.OfTenant{Tenant: tenant})
	note(err)
	for _, s := range services.Services {
		note(client.Do(ctx, c, op.RemoveService(), op.ServiceNamed{ID: s.ID}))
	}
	providers, err := client.Call(ctx, c, op.ListProviders(), op.OfTenant{Tenant: tenant})
	note(err)
	for _, p := range providers.Providers {
		note(client.Do(ctx, c, op.RemoveProvider(), op.ProviderNamed{ID: p.ID}))
	}
	rules, err := client.Call(ctx, c, op.ListRules(), op.OfTenant{Tenant: tenant})
	note(err)
	for _, r := range rules.Rules {
		note(client.Do(ctx, c, op.RemoveRule(), op.RuleNamed{ID: r.ID}))
	}
	secrets, err := client.Call(ctx, c, op.ListSecrets(), op.SecretsListed{OfTenant: op.OfTenant{Tenant: tenant}})
	note(err)
	for _, s := range secrets.Secrets {
		if s.Agent == "" {
			note(client.Do(ctx, c, op.RemoveSecret(), op.SecretNamed{Service: s.Service, InTenant: op.InTenant{Tenant: s.Tenant}}))
		}
	}
	list, err := client.Call(ctx, c, op.ListAgents(), op.OfTenant{Tenant: tenant})
	note(err)
	for _, a := range list.Agents { // with what is their own
		note(client.Do(ctx, c, op.RemoveAgent(), op.AgentRemoved{OneAgent: op.OneAgent{Name: a.Name, InTenant: op.InTenant{Tenant: tenant}}, KeepWorkspace: true}))
	}
	cookies, err := client.Call(ctx, c, op.ListCookies(), op.OfTenant{Tenant: tenant})
	note(err)
	for _, s := range cookies.Sets {
		note(client.Do(ctx, c, op.RemoveCookies(), op.AccountNamed{Domain: s.Domain, InTenant: op.InTenant{Tenant: tenant}}))
	}
	grants, err := client.Call(ctx, c, op.ListGrants(), op.GrantsListed{OfTenant: op.OfTenant{Tenant: tenant}})
	note(err)
	for _, g := range grants.Grants {
		_, err := client.Call(ctx, c, op.RevokeGrant(), op.GrantNamed{ID: g.ID, Tenant: tenant})
		note(err)
	}
	operators, err := client.Call(ctx, c, op.ListOperators(), op.OfTenant{})
	note(err)
	for _, o := range operators.Operators {
		if o.RevokedAt.IsZero() {
			note(client.Do(ctx, c, op.RevokeOperator(), op.OperatorNamed{ID: o.ID}))
		}
	}
	settings, err := c.Settings(ctx, op.Whose{Tenant: tenant})
	note(err)
	if settings.Set.Version > 0 {
		_, err := c.PutSettings(ctx, op.Whose{Tenant: tenant}, op.SettingsRequest{Version: settings.Set.Version})
		note(err)
	}
	if err := errors.Join(errs...); err != nil {
		t.Errorf("sweep: %v", err)
	}
}

func TestEveryCommandOfTheDocumentationRuns(t *testing.T) {
	pages, err := manual.Pages(testenv.Repository(t))
	if err != nil {
		t.Fatal(err)
	}
	f := newGuideRunner(t)
	ran, left, scripts, visited := 0, map[string]int{}, 0, 0
	for _, page := range pages {
		t.Run(page.Path, func(t *testing.T) {
			of := &guideRunner{&testkit.Installation{Instance: f.Instance, T: t, API: f.API, Idle: f.Idle}, f.dir, f.site}
			defer of.sweep()
			began := time.Now()
			visited++
			o := of.page(page, assumes[page.Path])
			if o.failed != "" {
				t.Errorf("%s\n--- log of the instance\n%.3000s", o.failed, lastOf(f.Log(), 3000))
			}
			scripts += of.scripts(page)
			ran += len(o.ran)
			for _, b := range o.left {
				left[b.Reason]++
			}
			t.Logf("%d blocks in %v", len(o.ran), time.Since(began).Round(time.Millisecond))
		})
	}
	for path, has := range assumes {
		n := slices.IndexFunc(pages, func(p manual.Page) bool { return p.Path == path })
		if n < 0 {
			t.Errorf("there is no page %s", path)
			continue
		}
		blocks, err := pages[n].Blocks()
		if err != nil {
			t.Error(err)
		}
		for section := range has.before {
			if section != "" && !slices.ContainsFunc(blocks, func(b manual.Block) bool { return b.Section == section }) {
				t.Errorf("%s has no block in a section %q", path, section)
			}
		}
	}
	t.Logf("%d blocks of commands and %d scripts were run; left, by their reasons: %v", ran, scripts, left)
	if ran < 20 && visited == len(pages) {
		t.Errorf("%d blocks were run", ran)
	}
}

func lastOf(text string, n int) string { return text[max(0, len(text)-n):] }

// scripts runs the scripts of a page that drive a browser, each in a session of its own. One that does not say what it
// imports is given what it uses.
func (f *guideRunner) scripts(page manual.Page) (ran int) {
	t := f.T
	t.Helper()
	blocks, err := page.Blocks()
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range blocks {
		if b.Language != "js" || b.Reason != "" {
			continue
		}
		dir, node := testkit.Clients(t)
		s, err := f.API.Open(t.Context(), session.OpenRequest{})
		if err != nil {
			t.Fatal(err)
		}
		token, err := f.API.SessionToken(t.Context(), s.ID, api.TokenRequest{Scope: "cdp"})
		if err != nil {
			t.Fatal(err)
		}
		text := b.Text
		if !strings.Contains(text, "import ") {
			text = "import { chromium } from 'playwright-core'\n" + text + "\nawait browser.close()\n"
		}
		folder := t.TempDir()
		if err := os.Symlink(filepath.Join(dir, "node_modules"), filepath.Join(folder, "node_modules")); err != nil {
			t.Fatal(err)
		}
		testkit.WriteFile(t, filepath.Join(folder, "script.mjs"), text)
		ctx, cancel := context.WithTimeout(t.Context(), pageLimit)
		cmd := exec.CommandContext(ctx, node, "script.mjs", token.CDPURL)
		cmd.Dir, cmd.WaitDelay = folder, 5*time.Second
		cmd.Env = append(os.Environ(), "HOME="+folder, "CDP="+token.CDPURL, "CDP_URL="+token.CDPURL, "WS_URL="+token.WSURL)
		out, err := cmd.CombinedOutput()
		cancel()
		if err != nil {
			t.Errorf("%s: %v\n%.4000s", b.Where(), err, out)
		}
		ran++
	}
	return ran
}

// TestACommandOfTheDocumentationThatIsWrongIsFound plants what pages could have wrong.
func TestACommandOfTheDocumentationThatIsWrongIsFound(t *testing.T) {
	f := newGuideRunner(t)
	page := func(commands string) manual.Page {
		return manual.Page{Path: "docs/planted.md", Text: "# What is planted?\n\n```sh\nx=kept\n```\n\ntext\n\n   ```sh\n   " + commands + "\n   ```\n\n```sh machine\nfalse\n```\n"}
	}
	if o := f.page(page(`[ "$x $given" = "kept and given" ]; sudo A=b bin/clawjail session ls; clawjail whoami | grep -q admin; curl -sS http://127.0.0.1:18780/openapi.json >/dev/null; clawjail audit tail -f | cat`),
		assumed{before: map[string]string{"": "given='and given'\ntrue"}}); o.failed != "" || len(o.ran) != 2 || len(o.left) != 1 {
		t.Fatalf("what is right: %d blocks, %d left, %s", len(o.ran), len(o.left), o.failed)
	}
	for name, commands := range map[string]string{
		"a command that fails":           "false",
		"a flag that is not there":       "clawjail session ls --colour",
		"a command that is not there":    "sudo bin/clawjail sesion ls",
		"a failure before a pipe":        "clawjail session show s_no | cat",
		"a variable that nobody has set": `echo "$unknown"`,
		"what follows and fails":         "clawjail agent logs -f nobody",
		"a refusal of the API":           "curl -sS http://127.0.0.1:18780/v1/sessions",
		"the Internet":                   "curl -sS http://example.com/",
		"an end before the end":          "exit 0\n   ```\n   ```sh\n   true",
		"quotation that does not end":    "echo 'x",
	} {
		o := f.page(page(commands), assumed{})
		if !strings.HasPrefix(o.failed, "docs/planted.md:9: ") || !strings.Contains(o.failed, "--- the block\n") {
			t.Errorf("%s: it says %q", name, o.failed)
		}
	}
	f.sweep()
}
