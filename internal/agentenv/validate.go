package agentenv

import (
	"fmt"
	"maps"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	maxServices = 1000 // of services, and of providers
	maxEnv      = 64   // of one service
	maxText     = 4096 // bytes of a value or a path
)

// Validate reports everything that is wrong with the options at once.
func (o Options) Validate() error {
	var wrong []string
	add := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }

	gateway, ok := gatewayURL(o.Gateway)
	if !ok {
		add("the gateway's URL %.200q is not like %s", o.Gateway, GatewayURL)
		gateway = &url.URL{Scheme: "http", Host: "gateway:3000"} // so that the rest can be looked at
	}
	if ok && gateway.Scheme != "http" && o.Token == "" {
		add("the gateway of a jail speaks http")
	}
	if o.AgentName == "" || len(o.AgentName) > 200 || !printable(o.AgentName) {
		add("%.200q is not the name of an agent", o.AgentName)
	}
	if o.Home != "" && !absolute(o.Home) {
		add("the home %.200q is not an absolute path", o.Home)
	}
	if !absolute(o.Dir) || strings.Trim(o.Dir, dirCharacters) != "" {
		// It becomes part of NODE_OPTIONS, which is split at spaces.
		add("the folder %.200q is not an absolute path of letters, digits, dots, dashes and underscores", o.Dir)
	}
	if o.CABundle != "" && !absolute(o.CABundle) {
		add("the bundle of certificates %.200q is not an absolute path", o.CABundle)
	}
	if o.Token != "" && (!strings.HasPrefix(o.Token, tokenPrefix) || strings.Trim(o.Token, tokenCharacters) != "") {
		add("the token is none of an agent's") // the error does not say what it is instead
	}
	if len(o.Services) > maxServices || len(o.Providers) > maxServices {
		add("%d services and %d providers are too many: at most %d of each", len(o.Services), len(o.Providers), maxServices)
	} else {
		wrong = append(wrong, serviceProblems(gateway, o.Services)...)
		wrong = append(wrong, conflicts(gateway, o.Services, o.Providers)...)
	}
	if len(wrong) == 0 {
		return nil
	}
	return problem.New(problem.BadRequest, "change what is named, or remove the service that has it", "the agent's environment cannot be made: %s",
		strings.Join(wrong, "; "))
}

const dirCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._/-"

// tokenPrefix is how tokens of agents begin, and tokenCharacters what they are made of.
const (
	tokenPrefix     = identity.PrefixAgent
	tokenCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"
)

func serviceProblems(gateway *url.URL, services []egress.Service) []string {
	var wrong []string
	add := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	names, prefixes := map[string]bool{}, map[string]string{}
	for _, s := range services {
		if !serviceName(s.Name) {
			add("%.100q is not the name of a service", s.Name)
			continue
		}
		if names[s.Name] {
			add("the service %s is there twice", s.Name)
		}
		names[s.Name] = true
		if s.Git != "" {
			switch other, taken := prefixes[s.Git]; {
			case !gitPrefix(s.Git):
				add("git of the service %s is %.200q, not the beginning of an address such as https://github.com/", s.Name, s.Git)
			case taken:
				add("the services %s and %s both have git %s", other, s.Name, s.Git)
			default:
				prefixes[s.Git] = s.Name
			}
		}
		if len(s.Env) > maxEnv {
			add("the service %s has %d variables: at most %d", s.Name, len(s.Env), maxEnv)
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(s.Env)) {
			switch text := expand(s.Env[name], gateway, s.Name); {
			case !envName(name):
				add("the service %s has a variable %.100q, which is no name", s.Name, name)
			case reserved(name):
				add("the service %s sets %s, which is not for services to set", s.Name, name)
			case len(text) > maxText || !printable(text):
				add("the value of %s of the service %s is too long, or not printable", name, s.Name)
			}
		}
	}
	return wrong
}

// conflicts are the variables that two set to different values.
func conflicts(gateway *url.URL, services []egress.Service, providers []egress.Provider) []string {
	var wrong []string
	all := clients(gateway, KeyPlaceholder, nil, providers)
	for _, s := range services {
		one := clients(gateway, KeyPlaceholder, []egress.Service{s}, nil)
		for _, name := range slices.Sorted(maps.Keys(one)) {
			if before, taken := all[name]; taken && before.text != one[name].text {
				wrong = append(wrong, fmt.Sprintf("%s and %s set %.100q to different values", before.from, one[name].from, name))
				continue
			}
			all[name] = one[name]
		}
	}
	return wrong
}

// reserved says whether a variable decides over more than one tool: what is made here, and what makes programs run
// something else. The shells that evaluate the script, and what is run in them next, are such programs.
func reserved(name string) bool {
	upper := strings.ToUpper(name)
	for _, prefix := range []string{
		"GIT_", "NODE_", "LD_", "DYLD_", "BASH", "AGENT_", "CLAWJAIL_", "PYTHON", "PERL5", "RUBY", "LUA_", "SSH_", "SUDO_", "XDG_", "OPENSSL_", "LESS", "HIST",
	} {
		if strings.HasPrefix(upper, prefix) {
			return true
		}
	}
	return strings.HasSuffix(upper, "_PROXY") || strings.HasSuffix(upper, "_OPTIONS") || strings.HasSuffix(upper, "PAGER") || slices.Contains(trustNames(), upper) || slices.Contains([]string{
		EnvGateway, "PATH", "HOME", "USER", "SHELL", "ENV", "IFS", "TMPDIR", "PWD", "OLDPWD", "PROMPT_COMMAND", "PS0", "PS1", "PS2", "PS3", "PS4", "SHELLOPTS", "CDPATH", "FIGNORE", "ZDOTDIR", "FPATH",
		"EDITOR", "VISUAL", "BROWSER", "CURL_HOME", "WGETRC", "GCONV_PATH", "MAVEN_OPTS",
	}, upper)
}

func envName(name string) bool {
	return len(name) <= 128 && regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`).MatchString(name)
}

func serviceName(name string) bool {
	return regexp.MustCompile(`^[a-z0-9._-]{1,64}$`).MatchString(name) && strings.Trim(name, ".") != ""
}

// gitPrefix says whether a text is the beginning of repositories' URLs. It ends with a slash, so that it is not also that
// of another host.
func gitPrefix(text string) bool {
	u, err := url.Parse(text)
	return err == nil && len(text) <= maxText && plain(text) && (u.Scheme == "https" || u.Scheme == "http") && u.Hostname() != "" &&
		u.User == nil && u.RawQuery == "" && !u.ForceQuery && u.Fragment == "" && u.RawPath == "" &&
		(u.Path == "/" || path.Clean(u.Path)+"/" == u.Path)
}

// absolute says whether a text is a clean absolute path.
func absolute(text string) bool {
	return path.IsAbs(text) && path.Clean(text) == text && len(text) <= maxText && printable(text)
}

// printable says whether a text has no control characters, which a variable could smuggle into a terminal or a header.
func printable(text string) bool {
	return strings.IndexFunc(text, func(r rune) bool { return r < ' ' || r >= 0x7f && r < 0xa0 || r == '\ufffd' }) < 0
}

// plain says whether a text is of visible ASCII alone.
func plain(text string) bool {
	return strings.IndexFunc(text, func(r rune) bool { return r <= ' ' || r >= 0x7f }) < 0
}
