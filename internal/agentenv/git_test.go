package agentenv

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/testenv"
)

// git runs git with only what the payload, and perhaps the user's own configuration, give it.
func git(t *testing.T, home string, env Env, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), testenv.Tool(t, "git"), args...)
	cmd.Dir = t.TempDir()
	cmd.Env = append(env.List(), "PATH="+os.Getenv("PATH"), "HOME="+home, "GIT_CONFIG_NOSYSTEM=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "error: " + err.Error()
	}
	return strings.TrimSpace(string(out))
}

func TestGitAsksTheGatewayForWhateverSpelling(t *testing.T) {
	o := plainOptions()
	o.Services = []egress.Service{github(), {Name: "forge", Git: "https://git.example:8443/acme/"}}
	env := made(t, o).Env
	for url, want := range map[string]string{
		"https://github.com/a/b.git":            "http://gateway:3000/svc/github/a/b.git",
		"git@github.com:a/b.git":                "http://gateway:3000/svc/github/a/b.git",
		"ssh://git@github.com/a/b.git":          "http://gateway:3000/svc/github/a/b.git",
		"https://github.com.evil.example/a/b":   "https://github.com.evil.example/a/b",
		"https://git.example:8443/acme/b.git":   "http://gateway:3000/svc/forge/b.git",
		"https://git.example:8443/acmeful/b":    "https://git.example:8443/acmeful/b",
		"git@git.example:acme/b":                "git@git.example:acme/b",
		"http://github.com/a/b":                 "http://github.com/a/b",
		"http://gateway:3000/svc/github/a/b":    "http://gateway:3000/svc/github/a/b",
		"https://github.com/../../v1/sessions":  "http://gateway:3000/svc/github/../../v1/sessions", // the gateway's to refuse
		"https://somebody@github.com/a/b":       "https://somebody@github.com/a/b",
		"https://git.example:8443/acme/x/y.git": "http://gateway:3000/svc/forge/x/y.git",
	} {
		if got := git(t, t.TempDir(), env, "ls-remote", "--get-url", url); got != want {
			t.Errorf("%s becomes %s, want %s", url, got, want)
		}
	}
	if got := git(t, t.TempDir(), Env{}, "ls-remote", "--get-url", "https://github.com/a/b.git"); got != "https://github.com/a/b.git" {
		t.Errorf("without the environment git asks %s", got)
	}
}

func TestTheUsersOwnGitConfigurationStays(t *testing.T) {
	home := t.TempDir()
	if err := os.WriteFile(filepath.Join(home, ".gitconfig"), []byte("[user]\n\tname = Ada\n[http]\n\tproxy = http://elsewhere.example:1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := plainOptions()
	o.Services = []egress.Service{github()}
	env := made(t, o).Env
	if got := git(t, home, env, "config", "user.name"); got != "Ada" {
		t.Errorf("the user's name is %q", got)
	}
	// The user's proxy is not asked for the gateway itself.
	if got := git(t, home, env, "config", "--get-urlmatch", "http.proxy", "http://gateway:3000/svc/github/a/b"); got != "" {
		t.Errorf("the proxy for the gateway is %q", got)
	}
	if got := git(t, home, env, "config", "--get-urlmatch", "http.proxy", "https://elsewhere.example/"); got != "http://elsewhere.example:1" {
		t.Errorf("the proxy for others is %q", got)
	}
}
