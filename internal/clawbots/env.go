package clawbots

import (
	"slices"
	"strings"

	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/config/yamldoc"
	"github.com/clawjail/clawjail/internal/problem"
)

// env reads the variables of an agent, and those that are taken away.
func (f *file) env(m *yamldoc.Map) (out map[string]string, without []string) {
	out = map[string]string{}
	m.Nulls(func(name string) error {
		without = append(without, name)
		return checkWithout(name)
	})
	slices.Sort(without)
	m.Rest(maxEnv, func(name string, v yamldoc.Value) error {
		if err := checkVariable(name, v.Text); err != nil {
			return err
		}
		out[name] = v.Text
		return nil
	})
	if len(out) == 0 {
		out = nil
	}
	return out, without
}

func checkWithout(name string) error {
	if !validEnvName(name) {
		return badName
	}
	upper := strings.ToUpper(name)
	if upper == "HOME" || strings.HasPrefix(upper, "AGENT_") || strings.HasPrefix(upper, "CLAWJAIL_") {
		return problem.New(problem.BadRequest, "leave it out", "says where the agent and its gateway are, and is always set")
	}
	return nil
}

var badName = problem.New(problem.BadName, "use letters, digits and underscores, not starting with a digit", "cannot be the name of a variable")

func checkVariable(name, value string) error {
	switch {
	case !validEnvName(name):
		return badName
	case contractual(name):
		return problem.New(problem.BadRequest, "leave it out", "is set by clawjail, and what it holds is what the agent's way out depends on")
	case strings.ContainsRune(value, 0):
		return problem.New(problem.BadRequest, "remove it", "has a NUL byte")
	case len(value) > maxEnvValue:
		return problem.New(problem.BadRequest, "put it into a file of the workspace", "has %d bytes, more than %d", len(value), maxEnvValue)
	case secret.Within(value), secretlyNamed(name) && unguessable(value):
		return secretProblem("the value")
	}
	return nil
}

// secretProblem says what to do with a secret, and nothing of it.
func secretProblem(what string) error {
	return problem.New(problem.BadSecret, "keep it with `clawjail secret set NAME`, and let a service use it (services: [NAME]): the agent never holds it. "+
		"A program that has to hold it reads it from a file: clawjail agent exec NAME -- /bin/sh -c 'umask 077; cat > /state/token' < token.txt",
		"%s looks like a secret, and everything in the jail can read it there", what)
}

func validEnvName(s string) bool {
	if s == "" || len(s) > 128 || s[0] >= '0' && s[0] <= '9' {
		return false
	}
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_' {
			return false
		}
	}
	return true
}

// contractual says whether a variable is one of the wire contract, or leads programs to the gateway. Tools read the names of
// proxies in both cases.
func contractual(name string) bool {
	upper := strings.ToUpper(name)
	for _, prefix := range []string{"AGENT_", "CLAWJAIL_", "GIT_CONFIG", "LD_"} {
		if strings.HasPrefix(upper, prefix) {
			return true
		}
	}
	return strings.HasSuffix(upper, "_PROXY") || slices.Contains([]string{
		"SHELL_URL", "SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "GIT_SSL_CAINFO", "NODE_EXTRA_CA_CERTS",
		"NODE_OPTIONS", "NODE_USE_ENV_PROXY", "GIT_TERMINAL_PROMPT",
	}, upper)
}
