// Package agentenv makes what tools in an agent's jail are given, so that they work there unmodified: variables of the
// environment, and a few files that those point to.
//
// A jail has one way out, the gateway. Tools that know about proxies find it in the usual variables, Node by what its
// version understands, git by rewritten addresses, and clients of models and services by their own base URLs. None of
// it is a control: a tool that ignores it reaches nothing, because there is no other way. None of it is secret: keys
// are put in by the gateway, and where a tool insists on one it gets [KeyPlaceholder].
package agentenv

import (
	"maps"
	"net"
	"net/url"
	"slices"
	"strings"

	"github.com/clawjail/clawjail/internal/egress"
)

// Options describe the agent that the environment is for.
type Options struct {
	// Gateway is the URL of the gateway as the agent sees it: http, a host and a port. Required; see [GatewayURL].
	Gateway string
	// AgentName is required.
	AgentName string
	// Home is the folder that is the agent's own; there may be none.
	Home string
	// Dir is the folder where the files will be, as the agent sees it. Required; see [Dir].
	Dir string
	// CABundle is a file with all certificates that are trusted, the public ones included; there may be none. Most
	// tools use it instead of the system's.
	CABundle string
	// Services and Providers are those that the agent may use, one of each name; see [Select].
	Services  []egress.Service
	Providers []egress.Provider
	// Token is for an agent in no jail, whom the gateway cannot know by its address: it is the key of every client, and
	// so in the environment, as keys of servers are. Gateway is then the API. Such an agent has the Internet without the
	// gateway, and gets no proxies. An agent in a jail has none.
	Token string
}

// Payload is what is given.
type Payload struct {
	Env   Env    `json:"env"`
	Files []File `json:"files"`
}

// For makes the payload. An error says everything that is wrong with the options.
func For(o Options) (Payload, error) {
	if err := o.Validate(); err != nil {
		return Payload{}, err
	}
	gateway, _ := gatewayURL(o.Gateway) // Validate has seen it
	env := Env{EnvGateway: gateway.String(), EnvName: o.AgentName}
	if o.Home != "" {
		env[EnvHome] = o.Home
	}
	var files []File
	key := o.Token
	if key == "" {
		key = KeyPlaceholder
		maps.Copy(env, proxies(gateway))
		var node Env
		node, files = forNode(o.Dir)
		maps.Copy(env, node)
	}
	maps.Copy(env, forGit(gateway, o.Token, o.Services))
	maps.Copy(env, trust(o.CABundle))
	for name, value := range clients(gateway, key, o.Services, o.Providers) {
		env[name] = value.text
	}
	return Payload{Env: env, Files: files}, nil
}

// proxies are the variables that tools look for. ALL_PROXY is not among them: those that speak HTTP know the others,
// and nothing else passes the gateway.
func proxies(gateway *url.URL) Env {
	proxy := gateway.String()
	direct := strings.Join(directHosts(gateway), ",")
	return Env{
		// curl knows http_proxy in lower case only; Python prefers lower case, others look at upper case alone.
		"HTTP_PROXY": proxy, "http_proxy": proxy,
		"HTTPS_PROXY": proxy, "https_proxy": proxy,
		"NO_PROXY": direct, "no_proxy": direct,
	}
}

// directHosts are what tools reach without the proxy: the gateway by all its names, and the jail itself.
func directHosts(gateway *url.URL) []string {
	hosts := []string{gateway.Hostname(), GatewayName, OlderGatewayName, "localhost", "127.0.0.1", "::1"}
	others := slices.Compact(slices.Sorted(slices.Values(hosts[1:])))
	return append(hosts[:1:1], slices.DeleteFunc(others, func(h string) bool { return h == hosts[0] })...)
}

// trust points tools to a bundle of certificates: OpenSSL and Go, curl, Python's requests, git, Node.
func trust(bundle string) Env {
	env := Env{}
	if bundle == "" {
		return env
	}
	for _, name := range trustNames() {
		env[name] = bundle
	}
	return env
}

func trustNames() []string {
	return []string{"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "GIT_SSL_CAINFO", "NODE_EXTRA_CA_CERTS"}
}

// value is the text of a variable, and the part that sets it.
type value struct{ text, from string }

// clients are the variables of clients of models and services. Validate has made sure that each is set once.
func clients(gateway *url.URL, key string, services []egress.Service, providers []egress.Provider) map[string]value {
	out := map[string]value{}
	for _, p := range providers {
		for name, text := range modelEnv(gateway, key, p.Wire) {
			out[name] = value{text, "the " + string(p.Wire) + " providers"}
		}
	}
	for _, s := range services {
		for name, text := range s.Env {
			out[name] = value{expand(text, gateway, s.Name), "the service " + s.Name}
		}
	}
	return out
}

// modelEnv are the variables of a wire's own clients.
func modelEnv(gateway *url.URL, key string, wire egress.Wire) Env {
	base := gateway.String()
	switch wire {
	case egress.WireOpenAI:
		return Env{"OPENAI_BASE_URL": base + "/v1", "OPENAI_API_KEY": key}
	case egress.WireAnthropic:
		return Env{"ANTHROPIC_BASE_URL": base, "ANTHROPIC_API_KEY": key}
	case egress.WireOllama:
		return Env{"OLLAMA_HOST": base}
	}
	return nil
}

// expand fills in where a service is.
func expand(text string, gateway *url.URL, service string) string {
	return strings.ReplaceAll(text, "{url}", serviceURL(gateway, service))
}

// serviceURL is the route of a service, without a slash at its end.
func serviceURL(gateway *url.URL, service string) string { return gateway.String() + "/svc/" + service }

// gatewayURL reads the URL of a gateway. The port is always in it: curl takes a proxy without one to be at 1080.
func gatewayURL(text string) (*url.URL, bool) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.ForceQuery ||
		u.Fragment != "" || strings.Trim(u.Path, "/") != "" || !plain(text) || len(text) > maxText {
		return nil, false
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return &url.URL{Scheme: u.Scheme, Host: net.JoinHostPort(strings.ToLower(u.Hostname()), port)}, true
}
