//go:build linux

package agents

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/instance"
	"github.com/clawjail/clawjail/internal/jail/jailtest/inside"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/test/testkit"
)

const (
	jailedNode  = "/usr/bin/node"
	jailedTools = "/srv/mcp/node_modules/@modelcontextprotocol/"
)

// nodeTemplate fills a folder with a root file system in which MCP servers of npm run as they come: a shell and a few
// tools, a Node, and the packages with everything that they need.
func nodeTemplate(t *testing.T, root string, packages ...string) {
	t.Helper()
	dir, node := testkit.Clients(t)
	inside.Template(t, root)
	if err := os.Remove(filepath.Join(root, "bin/cp")); err != nil {
		t.Fatal(err)
	}
	for _, tool := range []string{"cp", "cat", "chmod", "rm"} {
		withLibraries(t, root, testenv.Tool(t, tool), "/bin/"+tool)
	}
	withLibraries(t, root, node, jailedNode)
	modules := filepath.Join(dir, "node_modules")
	to := filepath.Join(root, "srv/mcp/node_modules")
	copied := map[string]bool{}
	for _, name := range packages {
		copyPackage(t, modules, to, name, copied)
	}
	testkit.CopyFile(t, filepath.Join(dir, "conformance-server.mjs"), filepath.Join(root, "srv/mcp/conformance-server.mjs"))
}

// withLibraries copies a program and what it is linked to.
func withLibraries(t *testing.T, root, from, to string) {
	t.Helper()
	from, err := filepath.EvalSymlinks(from)
	if err != nil {
		t.Fatal(err)
	}
	place := func(from, to string) {
		at := filepath.Join(root, to)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		testkit.CopyFile(t, from, at)
	}
	place(from, to)
	out, err := exec.CommandContext(t.Context(), testenv.Tool(t, "ldd"), from).Output()
	if err != nil {
		t.Fatalf("ask what %s is linked to: %v", from, err)
	}
	for _, library := range regexp.MustCompile(`(/\S+) \(0x`).FindAllStringSubmatch(string(out), -1) {
		if _, err := os.Stat(filepath.Join(root, library[1])); err != nil {
			place(library[1], library[1])
		}
	}
}

// copyPackage copies a package and what it depends on, as Node finds it.
func copyPackage(t *testing.T, modules, to, name string, copied map[string]bool) {
	t.Helper()
	if copied[name] {
		return
	}
	copied[name] = true
	from := filepath.Join(modules, name)
	if err := os.MkdirAll(filepath.Dir(filepath.Join(to, name)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(to, name), os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	manifests := []string{filepath.Join(from, "package.json")}
	nested, err := filepath.Glob(filepath.Join(from, "node_modules", "*", "package.json"))
	if err != nil {
		t.Fatal(err)
	}
	scoped, err := filepath.Glob(filepath.Join(from, "node_modules", "@*", "*", "package.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, manifest := range slices.Concat(manifests, nested, scoped) {
		text, err := os.ReadFile(manifest)
		if err != nil {
			t.Fatal(err)
		}
		var p struct{ Dependencies map[string]string }
		if err := json.Unmarshal(text, &p); err != nil {
			t.Fatal(err)
		}
		for dependency := range p.Dependencies {
			if _, err := os.Stat(filepath.Join(modules, dependency)); err == nil {
				copyPackage(t, modules, to, dependency, copied)
			}
		}
	}
}

// toolBox is an instance with MCP servers of npm in jails.
type toolBox struct {
	*testkit.Installation
	*mcp.ClientSession
	key string
}

func newToolBox(t *testing.T) *toolBox {
	t.Helper()
	testenv.Root(t)
	testkit.Clients(t)
	server := func(name string, rest string) string {
		return fmt.Sprintf("  %s:\n    command: [%s, %s]\n    template: node\n    limits: {memory: 512MiB, cpu: 2, tasks: 64}\n", name, jailedNode, rest)
	}
	settings := testkit.NoPool + "mcp_servers:\n" +
		server("everything", jailedTools+"server-everything/dist/index.js, stdio") +
		server("files", jailedTools+"server-filesystem/dist/index.js, /state") +
		server("conformance", "/srv/mcp/conformance-server.mjs") +
		server("crashes", `-e, "process.stderr.write('no module\\n'); process.exit(7)"`) +
		server("secrets", `-e, "setTimeout(() => process.exit(9), 60000); process.stderr.write(JSON.stringify([process.env.A_FILE, require('fs').readFileSync(process.env.A_FILE, 'utf8'), (require('fs').statSync(process.env.A_FILE).mode & 0o777).toString(8), process.env.d, process.env.v, process.env.PATH])); process.exit(1)"`) +
		"    secrets: {A: {secret: one}, d: {secret: two, as: env}, v: {secret: two, as: env}, PATH: {secret: two, as: env}}\n"
	templates := testenv.Templates(t, cachedNode(t))
	b := testkit.PrepareWith(t, instance.Options{Settings: settings}, func(o *instance.Options, _ string) { o.Templates = templates })
	b.Up()
	k := &toolBox{Installation: b, key: b.Key()}
	transport := &http.Transport{}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	session, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(ctx, &mcp.StreamableClientTransport{
		Endpoint: k.url(), HTTPClient: &http.Client{Transport: testkit.Bearer{Transport: transport, Key: k.key}}, MaxRetries: -1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	k.ClientSession = session
	t.Cleanup(func() {
		_ = session.Close() // the server may have gone before it
		transport.CloseIdleConnections()
	})
	return k
}

func (k *toolBox) url() string { return "http://" + k.Config.Listen.String() + "/mcp" }

// use calls a tool, which may refuse.
func (k *toolBox) use(name string, arguments map[string]any) (string, *mcp.CallToolResult) {
	k.T.Helper()
	ctx, cancel := context.WithTimeout(k.T.Context(), time.Minute)
	defer cancel()
	out, err := k.CallTool(ctx, &mcp.CallToolParams{Name: name, Arguments: testkit.OrEmpty(arguments)})
	if err != nil {
		k.T.Fatalf("%s: %v", name, err)
	}
	var text strings.Builder
	for _, content := range out.Content {
		if c, ok := content.(*mcp.TextContent); ok {
			text.WriteString(c.Text)
		}
	}
	return text.String(), out
}

// Servers as they come from npm run in jails without a network, and their tools are found at /mcp.
func TestMCPServersOfOthersRunInJails(t *testing.T) {
	k := newToolBox(t)
	listed := func() []string {
		out, err := k.ListTools(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, tool := range out.Tools {
			names = append(names, tool.Name)
		}
		return names
	}
	t.Run("listed", func(t *testing.T) {
		testenv.Eventually(t, 20*time.Second, func() bool {
			names := listed()
			return slices.Contains(names, "everything__echo") && slices.Contains(names, "files__write_file")
		}, "their tools are not listed")
		if names := listed(); !slices.Contains(names, "browser_navigate") || slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, "crashes__") }) {
			t.Errorf("listed are %v", names)
		}
	})
	t.Run("everything", func(t *testing.T) {
		if text, _ := k.use("everything__echo", map[string]any{"message": "hello ünïcode"}); text != "Echo: hello ünïcode" {
			t.Errorf("echo: %q", text)
		}
		if text, _ := k.use("everything__get-sum", map[string]any{"a": 2, "b": 40}); !strings.Contains(text, "42") {
			t.Errorf("sum: %q", text)
		}
		_, out := k.use("everything__get-tiny-image", nil)
		if !slices.ContainsFunc(out.Content, func(c mcp.Content) bool { i, ok := c.(*mcp.ImageContent); return ok && len(i.Data) > 100 }) {
			t.Errorf("there is no picture in %v", out.Content)
		}
		_, out = k.use("everything__get-structured-content", map[string]any{"location": "New York"})
		if m, ok := out.StructuredContent.(map[string]any); !ok || m["temperature"] == nil {
			t.Errorf("structured: %v", out.StructuredContent)
		}
		if text, out := k.use("everything__echo", map[string]any{"message": 7}); !out.IsError {
			t.Errorf("wrong arguments: %q", text)
		}
		// Where it is, there is no environment of the host's.
		if text, _ := k.use("everything__get-env", nil); !strings.Contains(text, `"HOME": "/state"`) || strings.Contains(text, "GOPATH") || strings.Contains(text, "PROXY") {
			t.Errorf("its environment: %q", text)
		}
		// There is nothing that it could fetch from.
		if text, out := k.use("everything__gzip-file-as-resource", map[string]any{"name": "x", "data": "http://gateway:3000/v1/health", "outputType": "resource"}); !out.IsError {
			t.Errorf("fetching: %q", text)
		}
	})
	t.Run("resources and prompts", func(t *testing.T) {
		const dynamic = "mcp+everything+demo://resource/dynamic/text/"
		templates, err := k.ListResourceTemplates(t.Context(), nil)
		if err != nil || !slices.ContainsFunc(templates.ResourceTemplates, func(r *mcp.ResourceTemplate) bool { return r.URITemplate == dynamic+"{resourceId}" }) {
			t.Errorf("templates are %+v, %v", templates, err)
		}
		resources, err := k.ListResources(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		listed := slices.IndexFunc(resources.Resources, func(r *mcp.Resource) bool { return strings.HasPrefix(r.URI, "mcp+everything+demo://") })
		if listed < 0 {
			t.Fatalf("resources are %+v", resources.Resources)
		}
		for _, uri := range []string{dynamic + "7", resources.Resources[listed].URI} {
			out, err := k.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri})
			if err != nil || len(out.Contents) == 0 || out.Contents[0].URI != uri || out.Contents[0].Text == "" {
				t.Errorf("%s: %+v, %v", uri, out, err)
			}
		}
		if _, err := k.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "mcp+everything+demo://nothing"}); err == nil || !strings.Contains(err.Error(), "the MCP server everything refused") {
			t.Errorf("what is not there: %v", err)
		}
		// A resource that a tool links to can be read.
		_, linked := k.use("everything__get-resource-reference", map[string]any{"resourceType": "Text", "resourceId": 3})
		at := slices.IndexFunc(linked.Content, func(c mcp.Content) bool { _, ok := c.(*mcp.EmbeddedResource); return ok })
		if at < 0 || linked.Content[at].(*mcp.EmbeddedResource).Resource.URI != dynamic+"3" {
			t.Errorf("linked is %+v", linked.Content)
		}
		got, err := k.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: "everything__args-prompt", Arguments: map[string]string{"city": "Oslo"}})
		if err != nil || len(got.Messages) == 0 || !strings.Contains(got.Messages[0].Content.(*mcp.TextContent).Text, "Oslo") {
			t.Errorf("%+v, %v", got, err)
		}
		for value, ref := range map[string]mcp.CompleteReference{"En": {Type: "ref/prompt", Name: "everything__completable-prompt"}, "7": {Type: "ref/resource", URI: dynamic + "{resourceId}"}} {
			argument := mcp.CompleteParamsArgument{Name: "department", Value: value}
			if ref.URI != "" {
				argument.Name = "resourceId"
			}
			out, err := k.Complete(t.Context(), &mcp.CompleteParams{Ref: &ref, Argument: argument})
			if err != nil || len(out.Completion.Values) != 1 || !strings.HasPrefix(out.Completion.Values[0], value) {
				t.Errorf("%+v: %+v, %v", ref, out, err)
			}
		}
	})
	t.Run("filesystem", func(t *testing.T) {
		if text, out := k.use("files__write_file", map[string]any{"path": "/state/note.txt", "content": "from a jail"}); out.IsError {
			t.Fatalf("write: %q", text)
		}
		if text, _ := k.use("files__read_text_file", map[string]any{"path": "/state/note.txt"}); text != "from a jail" {
			t.Errorf("read: %q", text)
		}
		if text, out := k.use("files__read_text_file", map[string]any{"path": "/etc/hosts"}); !out.IsError {
			t.Errorf("elsewhere: %q", text)
		}
	})
	t.Run("tested", func(t *testing.T) {
		out, err := k.Run(t.Context(), "mcp-server", "test", "everything")
		if err != nil || !strings.Contains(out, "everything__echo") || !strings.Contains(out, "mcp+everything+demo://") || !strings.Contains(out, "everything__simple-prompt") || !strings.Contains(out, "initialize") {
			t.Errorf("%v\n%s", err, out)
		}
		t.Logf("%.400s", out)
		r, err := client.Call(t.Context(), k.API, op.TestMCPServer(), op.MCPServerTested{MCPServerNamed: op.MCPServerNamed{Name: "crashes"}})
		if err != nil || r.OK || r.Code != problem.JailFailed || !strings.Contains(r.Problem, "status 7") || !strings.Contains(r.Stderr, "no module") {
			t.Errorf("%+v, %v", r, err)
		}
	})
	t.Run("secrets", func(t *testing.T) {
		for name, value := range map[string]string{"one": "value-of-one\n\n", "two": "value-of-'two'\n"} {
			if out, err := k.run(value, "secret", "set", name); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		}
		r, err := client.Call(t.Context(), k.API, op.TestMCPServer(), op.MCPServerTested{MCPServerNamed: op.MCPServerNamed{Name: "secrets"}})
		if err != nil {
			t.Fatal(err)
		}
		var seen []string
		if err := json.Unmarshal([]byte(r.Stderr), &seen); err != nil || len(seen) != 6 || seen[0] != "/state/.secrets/A" || !strings.HasPrefix(seen[1], "value-of-one") ||
			seen[2] != "400" || !strings.HasPrefix(seen[3], "value-of-'two'") || seen[4] != seen[3] || seen[5] != seen[3] {
			t.Errorf("the server sees %q, %v", r.Stderr, err)
		}
		if strings.Contains(k.Log(), "value-of") {
			t.Error("a secret is in the log")
		}
	})
	t.Run("of an agent elsewhere", func(t *testing.T) {
		if out, err := k.Run(t.Context(), "agent", "create", "nobody", "--mcp", "everything", "--mcp", "nothing"); err == nil || !strings.Contains(err.Error(), `no MCP server "nothing"`) {
			t.Errorf("a server that there is not: %v\n%s", err, out)
		}
		key, err := k.Run(t.Context(), "agent", "create", "clerk", "--mcp", "everything")
		if err != nil {
			t.Fatal(err)
		}
		transport := &http.Transport{}
		defer transport.CloseIdleConnections()
		offers := func(server string) bool {
			t.Helper()
			session, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(), &mcp.StreamableClientTransport{
				Endpoint: k.url(), HTTPClient: &http.Client{Transport: testkit.Bearer{Transport: transport, Key: strings.TrimSpace(key)}}, MaxRetries: -1}, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer session.Close() // it is over
			out, err := session.ListTools(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			return slices.ContainsFunc(out.Tools, func(tool *mcp.Tool) bool { return strings.HasPrefix(tool.Name, server+"__") })
		}
		testenv.Eventually(t, 20*time.Second, func() bool { return offers("everything") }, "it is not offered its server")
		if offers("files") {
			t.Error("it is offered a server that it does not have")
		}
		if out, err := k.Run(t.Context(), "agent", "show", "clerk"); err != nil || !strings.Contains(out, "everything") {
			t.Errorf("%v\n%s", err, out)
		}
		if _, err := k.Run(t.Context(), "agent", "limits", "clerk", "--execute", "7"); err != nil || !offers("everything") {
			t.Errorf("another setting takes it away: %v", err)
		}
		if out, err := k.Run(t.Context(), "agent", "limits", "clerk", "--no-mcp"); err != nil || offers("everything") {
			t.Errorf("it is offered what was taken away: %v\n%s", err, out)
		}
	})
	t.Run("added", func(t *testing.T) {
		hears := k.listens()
		if out, err := k.Run(t.Context(), "mcp-server", "add", "more", "--template", "node", "--tool", "ech*", "--", jailedNode, jailedTools+"server-everything/dist/index.js", "stdio"); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if text, _ := k.use("more__echo", map[string]any{"message": "x"}); text != "Echo: x" {
			t.Errorf("%q", text)
		}
		hears("more__echo", true)
		if text, out := k.use("more__get-sum", map[string]any{"a": 1, "b": 1}); !out.IsError || !strings.Contains(text, problem.NotFound) {
			t.Errorf("a tool that is not offered: %q", text)
		}
		if out, err := k.Run(t.Context(), "mcp-server", "rm", "more"); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		hears("more__echo", false)
		if out, err := k.Run(t.Context(), "mcp-server", "rm", "files"); err == nil || !strings.Contains(err.Error(), "configuration file") {
			t.Errorf("one of the file was removed: %v %s", err, out)
		}
		all, err := client.Call(t.Context(), k.API, op.ListMCPServers(), op.OfTenant{})
		if err != nil || len(all.Servers) != 5 || slices.ContainsFunc(all.Servers, func(s op.MCPServer) bool { return s.Name == "more" }) {
			t.Errorf("there are %+v, %v", all, err)
		}
	})
}

// listens starts a stock client that lists its tools whenever it hears that they have changed. The answer waits until a tool is among
// them, or is not.
func (k *toolBox) listens() func(tool string, there bool) {
	k.T.Helper()
	dir, node := testkit.Clients(k.T)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(k.T.Context()), 5*time.Minute)
	cmd := exec.CommandContext(ctx, node, filepath.Join(dir, "mcp_listen.mjs"), k.url(), k.key)
	var problems bytes.Buffer
	cmd.Stderr, cmd.WaitDelay = &problems, 5*time.Second
	in, err := cmd.StdinPipe()
	if err != nil {
		k.T.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		k.T.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		k.T.Fatal(err)
	}
	lists := make(chan []string, 100)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(lists)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var names []string
			if json.Unmarshal(lines.Bytes(), &names) == nil {
				lists <- names
			}
		}
	}()
	k.T.Cleanup(func() {
		defer cancel()
		_ = in.Close() // it ends then
		<-done
		if err := cmd.Wait(); err != nil {
			k.T.Errorf("the client that listens: %v\n%s", err, problems.String())
		}
	})
	hears := func(tool string, there bool) {
		k.T.Helper()
		for late := time.After(time.Minute); ; {
			select {
			case names, more := <-lists:
				switch {
				case !more:
					k.T.Fatal("the client that listens has ended")
				case slices.Contains(names, tool) == there:
					return
				}
			case <-late:
				k.T.Fatalf("the client that listens does not hear of %s", tool)
			}
		}
	}
	hears("browser_navigate", true) // it has connected
	return hears
}

// run runs a command with something on its standard input.
func (k *toolBox) run(input string, args ...string) ([]byte, error) {
	cmd := k.Command(k.T.Context(), args...)
	cmd.Stdin = strings.NewReader(input)
	return cmd.CombinedOutput()
}

// The conformance suite of the protocol, against /mcp, with the tools that it wants in a jail behind it.
func TestMCPConformanceThroughAJail(t *testing.T) {
	k := newToolBox(t)
	dir, node := testkit.Clients(t)
	at, err := url.Parse("http://" + k.Config.Listen.String())
	if err != nil {
		t.Fatal(err)
	}
	// The suite sends no key, and knows tools, prompts and resources by their own names.
	uri := regexp.MustCompile(`("uri"\s*:\s*")(test://)`)
	own := regexp.MustCompile(`("name"\s*:\s*")(test_|json_schema_)`)
	front := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(at)
			r.Out.Host = r.In.Host
			r.Out.Header.Set("Authorization", "Bearer "+k.key)
			r.Out.Header.Del("Accept-Encoding")
			if r.In.Body != nil {
				body, err := io.ReadAll(io.LimitReader(r.In.Body, 1<<20))
				if err != nil {
					t.Error(err)
				}
				body = own.ReplaceAll(body, []byte("${1}conformance__$2"))
				body = uri.ReplaceAll(body, []byte("${1}mcp+conformance+$2"))
				r.Out.Body, r.Out.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
			}
		},
		ModifyResponse: func(r *http.Response) error {
			if r.Request.Method == http.MethodGet {
				return nil // a stream of events without names of tools, which does not end
			}
			body, err := io.ReadAll(r.Body)
			if err != nil {
				return err
			}
			body = bytes.ReplaceAll(body, []byte(`"conformance__`), []byte(`"`))
			body = bytes.ReplaceAll(body, []byte(`"mcp+conformance+`), []byte(`"`))
			r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
			r.Header.Set("Content-Length", strconv.Itoa(len(body)))
			return nil
		},
	})
	defer front.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, node, filepath.Join(dir, "node_modules/@modelcontextprotocol/conformance/dist/index.js"), "server", "--suite", "all",
		"--url", front.URL+"/mcp", "--expected-failures", filepath.Join(dir, "conformance.yml"))
	cmd.Dir, cmd.WaitDelay = t.TempDir(), 5*time.Second
	cmd.Env = append(os.Environ(), "HOME="+cmd.Dir, "NO_COLOR=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	for _, must := range []string{"tools-call-simple-text", "tools-call-image", "tools-call-with-progress", "json-schema-2020-12",
		"resources-read-binary", "resources-templates-read", "prompts-get-with-args", "prompts-get-embedded-resource", "completion-complete"} {
		if !bytes.Contains(out, []byte(must)) {
			t.Errorf("the suite did not try %s:\n%s", must, out)
		}
	}
}
