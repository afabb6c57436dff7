// Package manual reads the project's own documentation: its pages, and the blocks of code that are in them. Tests try what is shown
// to readers, and this is how they find it. Only tests import this package.
//
// A block of sh is run by TestEveryCommandOfTheDocumentationRuns: the blocks of a page in their order, in one bash with
// -euo pipefail, in a folder that looks like a checkout after `make build`, while clawjail runs with the templates browser
// and clawbot. sudo does nothing there, https://example.com is a site of the test, and the rest of the Internet is not
// there. A block that cannot be run there says why after the language, in one of the words of [Reasons]: ```sh desktop.
package manual

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Page is one file of the documentation.
type Page struct {
	Path string // from the top of the repository, with slashes
	Text string
}

// Block is a fence of a page with what is in it.
type Block struct {
	Page string // its path
	// Line is that of the opening fence, from 1: the first line of Text is the next one.
	Line int
	// Language is the first word after the fence, and Reason all the rest: why a block of commands is not run.
	Language, Reason string
	// Section is the heading above it, without its marks. It is empty before the first.
	Section string
	// Text has no indentation of the fence's.
	Text string
}

// Where says where a block is, as compilers do.
func (b Block) Where() string { return fmt.Sprintf("%s:%d", b.Page, b.Line) }

// Pages reads every page below the top of a repository: those in docs, the READMEs of the top and of examples, and the
// other pages of the top that tell readers what to do. They are sorted by their paths.
func Pages(top string) ([]Page, error) {
	var names []string
	for _, pattern := range []string{"docs/*.md", "README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "SECURITY.md", "examples/*/README.md"} {
		found, err := filepath.Glob(filepath.Join(top, filepath.FromSlash(pattern)))
		if err != nil {
			return nil, err
		}
		names = append(names, found...)
	}
	slices.Sort(names)
	out := make([]Page, 0, len(names))
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		path, err := filepath.Rel(top, name)
		if err != nil {
			return nil, err
		}
		out = append(out, Page{filepath.ToSlash(path), string(text)})
	}
	return out, nil
}

// Blocks are the blocks of a page, in their order. A fence that does not end is an error: a reader's program would show all
// that follows as code.
func (p Page) Blocks() ([]Block, error) {
	var out []Block
	var open *Block
	indent, mark, section, number := "", "", "", 0
	for line := range strings.Lines(p.Text) {
		number++
		line = strings.TrimRight(line, "\r\n")
		text := strings.TrimLeft(line, " ")
		if open != nil {
			if rest := strings.TrimLeft(text, mark[:1]); len(text)-len(rest) >= len(mark) && strings.TrimSpace(rest) == "" {
				out, open = append(out, *open), nil
				continue
			}
			open.Text += strings.TrimPrefix(line, indent) + "\n"
			continue
		}
		if heading, found := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); found && strings.HasPrefix(line, "#") {
			section = strings.TrimSpace(heading)
		}
		if !strings.HasPrefix(text, "```") && !strings.HasPrefix(text, "~~~") {
			continue
		}
		rest := strings.TrimLeft(text, text[:1])
		indent, mark = line[:len(line)-len(text)], text[:len(text)-len(rest)]
		language, reason, _ := strings.Cut(strings.TrimSpace(rest), " ")
		open = &Block{Page: p.Path, Line: number, Language: language, Reason: strings.TrimSpace(reason), Section: section}
	}
	if open != nil {
		return nil, fmt.Errorf("%s: the block does not end", open.Where())
	}
	return out, nil
}

// Reasons are the words that say why the commands of a block are not run by the test that runs all others.
func Reasons() []string {
	return []string{
		"freebsd", "macos", // it is another system's
		"desktop",   // it needs a screen
		"internet",  // it needs what is not on this machine
		"machine",   // it changes the machine itself
		"elsewhere", // another test runs it
		"person",    // it needs somebody who signs in
	}
}

// Elsewhere names the test that runs the blocks of a section whose reason is "elsewhere". The keys are a page, # and the
// heading.
func Elsewhere() map[string]string {
	gitHub, pi, compose := "TestGiveAnAgentGitHubWithoutGivingItTheToken", "TestThePiExampleDoesWhatItsREADMESays", "TestTheFileForDockerComposeIsConfinedInTheSameWay"
	return map[string]string{
		"docs/github.md#How do I give an agent GitHub without giving it my token?": gitHub,
		"docs/docker.md#How do agents run in containers?":                          "TestTheExampleSyncsTwiceAsContainers",
		"docs/docker.md#With docker-compose":                                       compose,
		"docs/mcp-servers.md#How do agents get the tools of other MCP servers?":    "TestMCPServersOfOthersRunInJails",
		"docs/proxy.md#With a proxy on the same machine":                           "TestExampleProxiesCarryEverything",
		"docs/proxy.md#Without a proxy":                                            "TestOwnCertificate",
		"examples/pi/README.md#Before":                                             pi,
		"examples/pi/README.md#A model":                                            pi,
		"examples/pi/README.md#The agent":                                          pi,
		"examples/pi/README.md#The end":                                            pi,
	}
}
