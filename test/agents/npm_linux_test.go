//go:build linux

package agents

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/clawjail/clawjail/internal/instance"
	"github.com/clawjail/clawjail/internal/jail/jailtest/inside"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/test/testkit"
)

// packages are a registry of npm, by name and version.
type packages struct {
	*httptest.Server
	about map[string]map[string]map[string]any
	files map[string][]byte // tarballs, by their path
}

func newPackages(t *testing.T) *packages {
	t.Helper()
	p := &packages{about: map[string]map[string]map[string]any{}, files: map[string][]byte{}}
	p.Server = httptest.NewServer(http.HandlerFunc(p.serve))
	t.Cleanup(p.Close)
	return p
}

func (p *packages) serve(w http.ResponseWriter, r *http.Request) {
	name, _ := url.PathUnescape(strings.TrimPrefix(r.URL.EscapedPath(), "/")) // what is none is not found
	if file, ok := p.files[name]; ok {
		_, _ = w.Write(file) // npm says what did not arrive
		return
	}
	versions, ok := p.about[name]
	if !ok {
		http.Error(w, `{"error":"not_found"}`, http.StatusNotFound)
		return
	}
	latest := ""
	for version := range versions {
		latest = max(latest, version)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"name": name, "dist-tags": map[string]string{"latest": latest}, "versions": versions})
}

// add publishes a version of a package.
func (p *packages) add(t *testing.T, name, version string, about map[string]any, files map[string][]byte) {
	t.Helper()
	if about == nil {
		about = map[string]any{}
	}
	about["name"], about["version"] = name, version
	text, err := json.Marshal(about)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	zip, err := gzip.NewWriterLevel(&out, gzip.NoCompression)
	if err != nil {
		t.Fatal(err)
	}
	all := tar.NewWriter(zip)
	put := func(name string, text []byte) {
		if err := all.WriteHeader(&tar.Header{Name: "package/" + name, Mode: 0o755, Size: int64(len(text)), Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := all.Write(text); err != nil {
			t.Fatal(err)
		}
	}
	put("package.json", text)
	for name, text := range files {
		put(name, text)
	}
	for _, end := range []func() error{all.Close, zip.Close} {
		if err := end(); err != nil {
			t.Fatal(err)
		}
	}
	sum := sha512.Sum512(out.Bytes())
	file := name + "/-/" + path.Base(name) + "-" + version + ".tgz"
	p.files[file] = out.Bytes()
	about["dist"] = map[string]string{"tarball": p.URL + "/" + file, "integrity": "sha512-" + base64.StdEncoding.EncodeToString(sum[:])}
	if p.about[name] == nil {
		p.about[name] = map[string]map[string]any{}
	}
	p.about[name][version] = about
}

// A server whose only tool says with what it runs, and what the script of a package that it needs has found out.
const npmServer = `#!/usr/bin/env node
if (process.argv.includes('--fail')) { console.error('there is no flag --fail'); process.exit(3) }
const ran = () => { try { return require('fs').readFileSync(__dirname + '/../../dep/ran', 'utf8') } catch { return 'no script' } }
require('readline').createInterface({ input: process.stdin }).on('line', line => {
  const { id, method, params } = JSON.parse(line)
  if (id === undefined) return
  const result = method === 'initialize' ? { protocolVersion: params.protocolVersion, capabilities: { tools: {} }, serverInfo: { name: 'good', version: '1.2.0' } }
    : method === 'tools/list' ? { tools: [{ name: 'about', description: process.version + ', ' + ran(), inputSchema: { type: 'object' } }] } : {}
  console.log(JSON.stringify({ jsonrpc: '2.0', id, result }))
})
`

// npmInTree stands in for npm in the new tree: it runs the scripts.
const npmInTree = `const fs = require('fs'), at = process.argv[process.argv.indexOf('--prefix') + 1] + '/node_modules/'
for (const name of fs.readdirSync(at)) {
  let about
  try { about = JSON.parse(fs.readFileSync(at + name + '/package.json')) } catch { continue }
  if (about.scripts?.postinstall) require('child_process').execSync(about.scripts.postinstall, { cwd: at + name })
}
`

func newRegistry(t *testing.T) *packages {
	t.Helper()
	_, node := testkit.Clients(t)
	program, err := os.ReadFile(node)
	if err != nil {
		t.Fatal(err)
	}
	p := newPackages(t)
	arch := map[string]string{"amd64": "x64", "arm64": "arm64"}[runtime.GOARCH]
	p.add(t, "node-linux-"+arch, "18.20.0", nil, map[string][]byte{"bin/node": []byte("#!/bin/sh\nexit 1\n")})
	p.add(t, "node-linux-"+arch, "24.9.0", nil, map[string][]byte{"bin/node": program})
	p.add(t, "node-linux-"+arch, "98.0.0", nil, map[string][]byte{"bin/node": []byte("#!/bin/sh\necho a library is missing >&2\nexit 127\n")})
	p.add(t, "npm", "10.9.0", nil, map[string][]byte{"bin/npm-cli.js": []byte(npmInTree)})
	script := `node -e "require('fs').writeFileSync('ran', 'as ' + process.getuid() + ' with ' + Object.keys(require('os').networkInterfaces()).length + ' networks')"`
	p.add(t, "dep", "1.0.0", map[string]any{"scripts": map[string]string{"postinstall": script}, "hasInstallScript": true}, nil)
	for _, version := range []string{"1.0.0", "1.2.0", "2.0.0"} {
		p.add(t, "@scope/good", version, map[string]any{"bin": map[string]string{"good": "./server.js"}, "engines": map[string]string{"node": ">=18"},
			"dependencies": map[string]string{"dep": "^1.0.0"}}, map[string][]byte{"server.js": []byte(npmServer)})
	}
	p.add(t, "library", "1.0.0", nil, nil)
	p.add(t, "two", "1.0.0", map[string]any{"bin": map[string]string{"first": "a.js", "second": "b.js"}}, map[string][]byte{"a.js": nil, "b.js": nil})
	return p
}

func TestAPackageOfNpmIsAnMCPServer(t *testing.T) {
	testenv.Long(t)
	testenv.Root(t)
	registry := newRegistry(t)
	k := testkit.PrepareWith(t, instance.Options{Settings: testkit.NoPool + "mcp_servers: {fixed: {command: [/bin/true]}}\n"}, func(o *instance.Options, dir string) {
		o.Templates = filepath.Join(dir, "templates")
	})
	t.Setenv("npm_config_registry", registry.URL)
	_, node := testkit.Clients(t)
	root := filepath.Join(t.TempDir(), "root")
	inside.Template(t, root)
	withLibraries(t, root, node, jailedNode)
	if err := os.Remove(filepath.Join(root, jailedNode)); err != nil {
		t.Fatal(err)
	}
	if out, err := k.Run(t.Context(), "template", "build", "clawbot", "--from", "dir:"+root); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	k.Up()
	refused := func(code, said string, args ...string) {
		t.Helper()
		out, err := k.Run(t.Context(), append([]string{"mcp-server", "add"}, args...)...)
		if code != problem.BadUsage { // the lines of usage have none
			code = "[" + code + "]"
		} else {
			code = ""
		}
		if err == nil || !strings.Contains(err.Error(), code) || !strings.Contains(err.Error(), said) || !strings.Contains(err.Error(), "hint: ") && !strings.Contains(err.Error(), "(write ") {
			t.Errorf("%q: %v\n%s", args, err, out)
		}
	}
	refused(problem.NotFound, "npm knows no package nothing", "a", "--npm", "nothing")
	refused(problem.NotFound, "1.2.0, 2.0.0", "a", "--npm", "@scope/good@9.9.9")
	refused(problem.BadTemplate, "has no program", "a", "--npm", "library")
	refused(problem.BadTemplate, "--bin: first, second", "a", "--npm", "two")
	refused(problem.BadTemplate, "want to run scripts when they are installed: dep", "a", "--npm", "@scope/good@^1.0.0")
	refused(problem.BadUsage, "--npm makes a template", "a", "--npm", "two", "--template", "clawbot")
	refused(problem.BadRequest, "is not a host", "a", "--npm", "two", "--bin", "first", "--network", "gateway", "--allow", "no host")
	refused(problem.Conflict, "configuration file", "fixed", "--npm", "two", "--bin", "first") // when it was built
	left := func() string {
		t.Helper()
		all, err := filepath.Glob(filepath.Join(k.Config.TemplatesDir, "[a-z]*"))
		hidden, hiddenErr := filepath.Glob(filepath.Join(k.Config.TemplatesDir, ".[bo]*"))
		if err != nil || hiddenErr != nil {
			t.Fatal(err, hiddenErr)
		}
		return fmt.Sprint(len(all), hidden)
	}
	if got := left(); got != "1 []" {
		t.Errorf("what was refused has left %s", got)
	}
	if list, err := k.Run(t.Context(), "mcp-server", "ls"); err != nil || strings.Contains(list, "npm") {
		t.Errorf("%v\n%s", err, list)
	}

	scripts := []string{"--npm", "@scope/good@^1.0.0", "--install-scripts", "run"}
	for _, args := range [][]string{append([]string{"good"}, scripts...), append(append([]string{"broken"}, scripts...), "--", "--fail")} {
		if out, err := k.Run(t.Context(), append([]string{"mcp-server", "add"}, args...)...); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	if got := left(); got != "2 []" {
		t.Errorf("two servers of one package have %s templates", got)
	}
	out, err := k.Run(t.Context(), "mcp-server", "test", "good")
	if err != nil || !strings.Contains(out, "good 1.2.0") || !strings.Contains(out, "v24.9.0, as 1000 with 0 networks") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := k.Run(t.Context(), "mcp-server", "test", "broken"); err == nil || !strings.Contains(out, "there is no flag --fail") || !strings.Contains(err.Error(), problem.JailFailed) {
		t.Errorf("%v\n%s", err, out)
	}
	out, err = k.Run(t.Context(), "mcp-server", "ls")
	if err != nil || !strings.Contains(out, "ended: status 3") {
		t.Errorf("%v\n%s", err, out)
	}
	nothingOfTheRegistry(t, k.Config.TemplatesDir, registry.Listener.Addr().String())
}

// nothingOfTheRegistry looks through what was installed: who owns it, and what it tells of where it is from.
func nothingOfTheRegistry(t *testing.T, templates, address string) {
	t.Helper()
	seen := 0
	for _, pattern := range []string{"*/rootfs/srv/npm", "*/template.json"} {
		found, err := filepath.Glob(filepath.Join(templates, pattern))
		if err != nil || len(found) == 0 {
			t.Fatalf("%v: there is no %s", err, pattern)
		}
		for _, top := range found {
			err := filepath.WalkDir(top, func(name string, entry fs.DirEntry, err error) error {
				if err != nil {
					return err
				}
				info, err := entry.Info()
				if err != nil {
					return err
				}
				if uid := info.Sys().(*syscall.Stat_t).Uid; uid != 0 {
					t.Errorf("%s is of user %d", name, uid)
				}
				if !entry.Type().IsRegular() {
					return nil
				}
				seen++
				text, err := os.ReadFile(name)
				if bytes.Contains(text, []byte(address)) {
					t.Errorf("%s names the registry", name)
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	if seen < 4 {
		t.Errorf("only %d files were looked at", seen)
	}
}
