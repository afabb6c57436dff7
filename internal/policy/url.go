package policy

import (
	"errors"
	"fmt"
	"strings"

	"github.com/clawjail/clawjail/internal/policy/hostport"
)

// maxURL bounds the text that ParseURL looks at: the longest host in Unicode, and the longest path.
const maxURL = 8192

// ParseURL reads what a rule or a tool is about, as people write it, and returns a rule with Scheme, Host, Ports and Path;
// the rest is the caller's to fill in.
//
//	https://api.github.com/repos/**   that scheme, its port, those paths
//	http://host.example:8080/x        that port
//	https://*.example.com             every name below, all paths
//	example.com                       ports 80 and 443, every scheme, all paths
//	example.com:8443/x                that port; 8000-8080 and * are ports too
//
// wss counts as https, as everywhere here. A URL without a path and one with the path "/" are the same URL (RFC 3986
// §6.2.3), and both mean all paths. User names, queries, fragments and regular expressions are refused, and so is what
// can be read in two ways; see [ParsePath] and package hostport.
func ParseURL(text string) (Rule, error) {
	r, err := parseURL(text)
	if err != nil {
		return Rule{}, fmt.Errorf("URL pattern %q: %w", clip(text), err)
	}
	return r, nil
}

func parseURL(text string) (Rule, error) {
	if text == "" {
		return Rule{}, errors.New("it is empty")
	}
	if len(text) > maxURL {
		return Rule{}, fmt.Errorf("it is longer than %d bytes", maxURL)
	}
	r := Rule{Ports: Ports(80, 443)}
	left := text
	if name, after, found := strings.Cut(text, "://"); found {
		scheme, err := parseScheme(name)
		if err != nil {
			return Rule{}, err
		}
		// The scheme is one that has a port.
		port, _ := hostport.DefaultPort(string(scheme))
		r.Scheme, r.Ports, left = scheme, Ports(port), after
	}
	authority := left
	if at := strings.IndexAny(left, "/?#"); at >= 0 {
		var path string
		authority, path = left[:at], left[at:]
		switch {
		case path[0] == '?' || strings.Contains(path, "?"):
			return Rule{}, errors.New("it has a query; rules do not look at queries")
		case path[0] == '#' || strings.Contains(path, "#"):
			return Rule{}, errors.New("it has a fragment; rules do not look at fragments")
		case path != "/":
			var err error
			if r.Path, err = parsePath(path, false); err != nil {
				return Rule{}, err
			}
		}
	}
	if strings.Contains(authority, "@") {
		return Rule{}, hostport.ErrUserinfo
	}
	host := authority
	if at := strings.LastIndexByte(authority, ':'); at > strings.LastIndexByte(authority, ']') {
		pr, err := ParsePortRange(authority[at+1:])
		if err != nil {
			return Rule{}, err
		}
		host, r.Ports = authority[:at], []PortRange{pr}
	}
	var err error
	r.Host, err = ParsePattern(host)
	return r, err
}

func parseScheme(name string) (Scheme, error) {
	switch scheme := Scheme(strings.ToLower(name)); scheme {
	case HTTP, HTTPS, WS:
		return scheme, nil
	case "wss":
		return HTTPS, nil
	default:
		return "", fmt.Errorf("scheme %q: want http, https or ws", clip(name))
	}
}

// Target is what the rule is about, in the form that [ParseURL] reads.
func (r Rule) Target() string {
	scheme := ""
	if r.Scheme != "" {
		scheme = string(r.Scheme) + "://"
	}
	ports := make([]string, len(r.Ports))
	for n, p := range r.Ports {
		ports[n] = p.String()
	}
	port := ":" + strings.Join(ports, ",")
	if usual := map[Scheme]string{HTTP: ":80", WS: ":80", HTTPS: ":443", "": ":80,443"}; usual[r.Scheme] == port {
		port = ""
	}
	return scheme + r.Host.String() + port + r.Path.String()
}
