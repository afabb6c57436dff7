package agentenv

import (
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/clawjail/clawjail/internal/egress"
)

// forGit leads git from the addresses of repositories to the routes of services. The settings are in the environment
// (git 2.31 or newer), because a file named there would hide the user's own; they come after those of every file.
func forGit(gateway *url.URL, token string, services []egress.Service) Env {
	base := gateway.String() + "/"
	type setting struct{ key, value string }
	var settings []setting
	for _, s := range slices.SortedFunc(slices.Values(services), func(a, b egress.Service) int { return strings.Compare(a.Name, b.Name) }) {
		if s.Git == "" {
			continue
		}
		for _, prefix := range gitPrefixes(s.Git) {
			settings = append(settings, setting{"url." + serviceURL(gateway, s.Name) + "/.insteadOf", prefix})
		}
	}
	if len(settings) > 0 {
		// A proxy that the user's own configuration has would be asked for the gateway itself.
		settings = append(settings, setting{"http." + base + ".proxy", ""})
		if token != "" {
			settings = append(settings, setting{"http." + base + ".extraHeader", "Authorization: Bearer " + token})
		}
	}
	env := Env{
		// No person is there to type a password: git ends with an error instead of waiting.
		"GIT_TERMINAL_PROMPT": "0",
	}
	if len(settings) == 0 {
		return env
	}
	env["GIT_CONFIG_COUNT"] = strconv.Itoa(len(settings))
	for n, s := range settings {
		env["GIT_CONFIG_KEY_"+strconv.Itoa(n)] = s.key
		env["GIT_CONFIG_VALUE_"+strconv.Itoa(n)] = s.value
	}
	return env
}

// gitPrefixes are the spellings of a prefix: the URL itself, and the two of SSH, which submodules often have and which
// a jail has no way for. A server at a port of its own has its SSH somewhere else.
func gitPrefixes(prefix string) []string {
	out := []string{prefix}
	u, err := url.Parse(prefix)
	if err != nil || u.Port() != "" || strings.Contains(u.Host, "[") {
		return out
	}
	path := strings.TrimPrefix(u.Path, "/")
	return append(out, "ssh://git@"+u.Host+"/"+path, "git@"+u.Host+":"+path)
}
