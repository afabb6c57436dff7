package archtest

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/cli"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/manual"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// documents are the texts of the pages of the documentation, READMEs among them, by their path from the top.
func documents(t *testing.T) map[string]string {
	t.Helper()
	pages, err := manual.Pages(testenv.Repository(t))
	if err != nil || len(pages) < 10 {
		t.Fatalf("found %d pages, %v", len(pages), err)
	}
	out := map[string]string{}
	for _, page := range pages {
		out[page.Path] = page.Text
	}
	return out
}

// gatewayCodes are those that package gateway has and the table of codes does not.
func gatewayCodes() []problem.Info {
	return []problem.Info{
		{Code: "scheme_denied", Status: http.StatusForbidden, Means: "the policy does not let the jail speak that scheme there, or the gateway was asked to open TLS itself",
			Do: "have the program open TLS itself, through a tunnel"},
		{Code: "host_mismatch", Status: http.StatusForbidden, Means: "a request in a tunnel is for another host than the tunnel",
			Do: "open a tunnel for every host"},
		{Code: "protocol_denied", Status: http.StatusForbidden, Means: "a tunnel carries neither TLS nor HTTP",
			Do: "use TLS or HTTP: other protocols do not leave a jail"},
	}
}

func allCodes() []problem.Info { return append(problem.Codes(), gatewayCodes()...) }

func knownCode(code string) bool {
	return slices.ContainsFunc(allCodes(), func(i problem.Info) bool { return i.Code == code })
}

// pageOfCodes is docs/codes.md.
func pageOfCodes() string {
	var out bytes.Buffer
	out.WriteString(`# What does an error code mean?

Every error has a code, one sentence, and a hint that says what to do. The code is stable: it is in the member ` + "`code`" + ` of answers of the
API (RFC 9457), in the header ` + "`Clawjail-Refusal`" + ` of refusals of the [gateway](gateway.md#refusals), in the audit log, and at the labels of
[metrics](metrics.md).

This page is written from the table in [internal/problem/codes.go](../internal/problem/codes.go) (` + "`go test ./internal/archtest -run Codes -update`" + `).

| code | status | what it means | what to do |
|---|---|---|---|
`)
	for _, i := range allCodes() {
		fmt.Fprintf(&out, "| `%s` | %d | %s | %s |\n", i.Code, i.Status, i.Means, i.Do)
	}
	return out.String()
}

func TestPageOfCodesIsTheTable(t *testing.T) {
	name := filepath.Join(testenv.Repository(t), "docs", "codes.md")
	testenv.Golden(t, name, pageOfCodes())
	for _, code := range gateway.OwnCodes() {
		if !knownCode(code) {
			t.Errorf("the gateway's code %s is in no table", code)
		}
	}
	for _, i := range allCodes() {
		if i.Do == "" || i.Do[len(i.Do)-1] == '.' {
			t.Errorf("%s: what to do about it is %q", i.Code, i.Do)
		}
	}
	for _, i := range gatewayCodes() {
		if !slices.Contains(gateway.OwnCodes(), i.Code) {
			t.Errorf("the gateway has no code %s", i.Code)
		}
	}
}

var quoted = regexp.MustCompile("`([^`]+)`")

// codesIn are the codes in the first column of tables of codes: those whose first heading is "code" or "refusal".
func codesIn(page string) (out []string) {
	inside := false
	for line := range strings.Lines(page) {
		cells := strings.Split(line, "|")
		switch {
		case len(cells) < 3:
			inside = false
		case strings.TrimSpace(cells[1]) == "code" || strings.TrimSpace(cells[1]) == "refusal":
			inside = true
		case inside:
			for _, match := range quoted.FindAllStringSubmatch(cells[1], -1) {
				out = append(out, match[1])
			}
		}
	}
	return out
}

func TestCodesThatDocumentsNameExist(t *testing.T) {
	found := 0
	for name, page := range documents(t) {
		for _, code := range codesIn(page) {
			found++
			if !knownCode(code) {
				t.Errorf("%s: there is no code %s", name, code)
			}
		}
	}
	planted := codesIn("x\n| code | |\n|---|---|\n| `no_such`, `not_found` | x |\n\n| other | |\n| `no` | |\n")
	if found < 100 || !slices.Equal(planted, []string{"no_such", "not_found"}) || knownCode("no_such") {
		t.Errorf("%d were found, and the look finds %q in a page", found, planted)
	}
}

var aTest = regexp.MustCompile(`\b(Test[A-Z][A-Za-z0-9_]*)`)

// testsThereAre are the names of all tests of the repository.
func testsThereAre(t *testing.T) map[string]bool {
	t.Helper()
	top := testenv.Repository(t)
	there := map[string]bool{}
	for _, f := range sourceFiles(t) {
		if !f.test() {
			continue
		}
		text, err := os.ReadFile(filepath.Join(top, f.path))
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9_]+)\(`).FindAllSubmatch(text, -1) {
			there[string(match[1])] = true
		}
	}
	return there
}

func TestTestsThatDocumentsNameExist(t *testing.T) {
	there := testsThereAre(t)
	found := 0
	for name, page := range documents(t) {
		for _, match := range quoted.FindAllStringSubmatch(strings.ReplaceAll(page, "```", ""), -1) {
			if test := aTest.FindString(match[1]); test != "" && strings.HasPrefix(match[1], test) {
				found++
				if !there[test] {
					t.Errorf("%s: there is no %s", name, test)
				}
			}
		}
	}
	if found < 100 || there["TestThatNobodyWrote"] || !there["TestTestsThatDocumentsNameExist"] {
		t.Errorf("%d were found in the documents, of %d", found, len(there))
	}
}

var aMetric = regexp.MustCompile(`clawjail_[a-z_]*[a-z]`)

func TestPageOfMetricsNamesThemAll(t *testing.T) {
	page := documents(t)["docs/metrics.md"]
	files, err := filepath.Glob(filepath.Join(testenv.Repository(t), "internal", "metrics", "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var there []string
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		for _, match := range regexp.MustCompile(`"(clawjail_[a-z_]*[a-z])"`).FindAllSubmatch(text, -1) {
			there = append(there, string(match[1]))
			if !strings.Contains(page, "`"+string(match[1])+"`") {
				t.Errorf("docs/metrics.md does not have %s", match[1])
			}
		}
	}
	for _, name := range aMetric.FindAllString(page, -1) {
		if !slices.Contains(there, name) {
			t.Errorf("docs/metrics.md has %s, which there is not", name)
		}
	}
	if len(there) < 10 {
		t.Errorf("found %d metrics", len(there))
	}
}

// ofOthers are the words of commands of Kubernetes, up to the one that they run.
var ofOthers = regexp.MustCompile(`\b(?:kubectl|helm) (?:.*? -- |.*)`)

// aCommand is a command line of clawjail: up to a pipe, a redirection, a comment, a quotation or the end of the line.
var aCommand = regexp.MustCompile(`(?:^|[\s(])(?:bin/)?clawjail( [a-z][a-z-]*(?: (?:[^\s|<>;#()"'` + "`" + `…]+|'[^']*'|"[^"]*"))*)`)

// commandProblem says what is wrong with the words of a command.
func commandProblem(root *cobra.Command, line string) string {
	words := regexp.MustCompile(`'[^']*'|"[^"]*"|\S+`).FindAllString(line, -1)
	end := slices.IndexFunc(words, func(w string) bool { return strings.HasPrefix(w, "-") })
	if end < 0 {
		end = len(words)
	}
	cmd, rest, err := root.Find(words[:end])
	if err != nil || cmd.HasSubCommands() && len(rest) > 0 {
		return "there is no command clawjail " + strings.Join(words[:end], " ")
	}
	for _, w := range words[end:] {
		flag, isLong := strings.CutPrefix(w, "--")
		flag, _, _ = strings.Cut(flag, "=")
		if !isLong || flag == "" || flag == "help" || flag == "version" {
			continue
		}
		if cmd.Flags().Lookup(flag) == nil && cmd.InheritedFlags().Lookup(flag) == nil {
			return fmt.Sprintf("clawjail %s has no flag --%s", strings.Join(words[:end], " "), flag)
		}
	}
	return ""
}

func TestCommandsThatDocumentsShowExist(t *testing.T) {
	root := cli.New("v1.2.3")
	found := 0
	for name, page := range documents(t) {
		page = strings.ReplaceAll(page, "\\\n", " ") // lines that go on
		code := false
		for line := range strings.Lines(page) {
			if strings.HasPrefix(strings.TrimLeft(line, " "), "```") {
				code = !code
				continue
			}
			texts := []string{line}
			if !code {
				texts = nil
				for _, match := range quoted.FindAllStringSubmatch(line, -1) {
					texts = append(texts, match[1])
				}
			}
			for _, text := range texts {
				for _, match := range aCommand.FindAllStringSubmatch(ofOthers.ReplaceAllString(text, ""), -1) {
					found++
					if wrong := commandProblem(root, match[1]); wrong != "" {
						t.Errorf("%s: %s", name, wrong)
					}
				}
			}
		}
	}
	if found < 50 || commandProblem(root, " sesion ls") == "" || commandProblem(root, " session ls --tenannt x") == "" || commandProblem(root, " session close x --wait") != "" {
		t.Errorf("%d were found, and the look does not know a command from none: %q", found, commandProblem(root, " session close x --wait"))
	}
}

// Each page says the same to a person who decides whether a session with accounts has access cdp.
func TestOneSentenceSaysWhatCDPReads(t *testing.T) {
	pages := documents(t)
	for _, name := range []string{"README.md", "docs/cdp.md", "docs/sessions.md", "docs/limits.md", "docs/cli.md"} {
		page, there := pages[name]
		if plain := strings.Join(strings.Fields(strings.ReplaceAll(page, "`", "")), " "); !there || !strings.Contains(plain, grant.CDPReads) {
			t.Errorf("%s does not say: %s", name, grant.CDPReads)
		}
	}
}

var aLink = regexp.MustCompile(`\]\(([^)\s]+)\)`)

// noAnchor is what links to a heading leave out of it.
var noAnchor = regexp.MustCompile(`[^\p{L}\p{N} _-]`)

// anchors are what links to headings of a page say.
func anchors(page string) (out []string) {
	for line := range strings.Lines(page) {
		text, found := strings.CutPrefix(strings.TrimLeft(line, "#"), " ")
		if !found || !strings.HasPrefix(line, "#") {
			continue
		}
		text = strings.ToLower(strings.TrimSpace(text))
		text = noAnchor.ReplaceAllString(text, "")
		out = append(out, strings.ReplaceAll(text, " ", "-"))
	}
	return out
}

func TestLinksOfDocumentsLeadSomewhere(t *testing.T) {
	top, pages := testenv.Repository(t), documents(t)
	broken := func(from, link string) bool {
		if strings.Contains(link, "://") {
			return false
		}
		file, anchor, _ := strings.Cut(link, "#")
		to := from
		if file != "" {
			to = path.Join(path.Dir(from), file)
		}
		if _, err := os.Stat(filepath.Join(top, filepath.FromSlash(to))); err != nil {
			return true
		}
		return anchor != "" && !slices.Contains(anchors(pages[to]), anchor)
	}
	found := 0
	for name, page := range pages {
		for _, match := range aLink.FindAllStringSubmatch(page, -1) {
			found++
			if broken(name, match[1]) {
				t.Errorf("%s: the link %s leads nowhere", name, match[1])
			}
		}
	}
	if found < 50 || !broken("README.md", "docs/nothing.md") || !broken("README.md", "docs/gateway.md#nothing") || broken("README.md", "docs/gateway.md#refusals") {
		t.Errorf("%d links were found, and the look does not know a broken one", found)
	}
}
