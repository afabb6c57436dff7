package agentenv

import (
	"testing"

	"github.com/clawjail/clawjail/internal/egress"
)

// The script of `agent env` is for eval, also in the shell of an operator. A service may not set a variable there whose value the
// shell or the next command runs.
func TestServicesSetNothingThatRuns(t *testing.T) {
	env := func(name string) error {
		return Options{Gateway: GatewayURL, Dir: Dir, AgentName: "writer",
			Services: []egress.Service{{Name: "one", Env: map[string]string{name: "{url}"}}}}.Validate()
	}
	for _, name := range []string{
		"PROMPT_COMMAND", "PS0", "PS1", "PS2", "PS4", "PAGER", "MANPAGER", "EDITOR", "VISUAL", "BROWSER", "LESSOPEN", "LESSCLOSE", "SSH_ASKPASS",
		"SUDO_ASKPASS", "SHELLOPTS", "BASHOPTS", "BASH_ENV", "ENV", "ZDOTDIR", "FPATH", "CDPATH", "FIGNORE", "OPENSSL_CONF", "OPENSSL_ENGINES", "CURL_HOME", "WGETRC",
		"XDG_CONFIG_HOME", "PYTHONBREAKPOINT", "PYTHONINSPECT", "PYTHONWARNINGS", "PERL5DB", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS", "MAVEN_OPTS", "GCONV_PATH", "LUA_INIT",
		"HISTFILE", "OLDPWD", "PWD",
	} {
		if env(name) == nil {
			t.Errorf("a service sets %s", name)
		}
	}
	for _, name := range []string{"GITHUB_API_URL", "GH_HOST", "NPM_CONFIG_REGISTRY", "PIP_INDEX_URL", "GOPROXY_URL", "S3_ENDPOINT", "PSQL_URL", "SENTRY_URL"} {
		if err := env(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
