//go:build vm

package vm

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/clawjail/clawjail/internal/testenv"
)

// bringsUpAFile syncs a file with the three modes of workspaces, with the configuration that the package has installed.
func bringsUpAFile(m *machine) { bringsUp(m, "") }

// bringsUp syncs that file from the folder in which it lies, and looks into each agent. flags are of the command.
func bringsUp(m *machine, flags string) {
	text, err := os.ReadFile(filepath.Join(testenv.Repository(m.t), "internal/clawbots/testdata/origin.yml"))
	if err != nil {
		m.t.Fatal(err)
	}
	m.put("/srv/bots/clawbots.yml", string(text), 0o644)
	if r := m.try("cd /srv/bots && clawjail agent sync --yes " + flags); r.Status == 0 || !strings.Contains(string(r.Stderr), "--allow-folders") {
		m.t.Errorf("nobody has said yes to the folders, and sync ends with %d: %s", r.Status, r.Stderr)
	}
	m.sh("cd /srv/bots && clawjail agent sync --allow-folders " + flags)
	in := func(agent, script string) string {
		m.t.Helper()
		return m.eventually(commandLimit, "clawjail agent exec "+agent+" -- /bin/sh -euc '"+script+"'")
	}
	for _, name := range []string{"dev-bot", "archive-bot", "researcher-bot", "writer-bot", "reviewer-bot"} {
		in(name, `test -s /run/hermit/token && test "$AGENT_NAME" = `+name+` && test -n "$SHELL_URL" && test "$(id -u)" = 1000 && : >/state/file`)
		m.eventually(commandLimit, `clawjail agent logs `+name+` | grep -F '"gateway":"200"'`)
	}
	in("dev-bot", `test "$AGENT_HOME" = /state && ! grep -q " /workspace " /proc/mounts`)
	m.sh("echo old >/srv/bots/workspaces/archive/note")
	if got := in("archive-bot", `test "$AGENT_HOME" = /workspace && cat /workspace/note`); got != "old" {
		m.t.Errorf("the dedicated folder has %q", got)
	}
	in("researcher-bot", `test "$AGENT_HOME" = /workspace/researcher-bot && echo found >/workspace/researcher-bot/notes`)
	for _, reader := range []string{"writer-bot", "reviewer-bot"} {
		if got := in(reader, "cat /workspace/researcher-bot/notes"); got != "found" {
			m.t.Errorf("%s reads %q", reader, got)
		}
	}
	for agent, path := range map[string]string{"archive-bot": "/workspace/x", "reviewer-bot": "/workspace/reviewer-bot/x"} {
		if r := m.try("clawjail agent exec " + agent + " -- /bin/sh -c ': >" + path + "'"); r.Status == 0 {
			m.t.Errorf("%s writes to a workspace that is ro", agent)
		}
	}
	if got := m.sh("cd /srv/bots && clawjail agent sync --json " + flags); strings.Contains(got, `"verb":"create"`) || strings.Contains(got, `"verb": "create"`) {
		m.t.Errorf("a second sync makes something: %s", got)
	}
	if flags == "" {
		in("dev-bot", "! grep -q docker /proc/self/attr/current")
	} else {
		in("dev-bot", "grep -x \"docker-default (enforce)\" /proc/self/attr/current")
	}
	m.sh("clawjail agent remove --yes dev-bot archive-bot researcher-bot writer-bot reviewer-bot && rm -r /srv/bots")
}
