package config

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/clawjail/clawjail/internal/problem"
)

const (
	// maxLogins, maxLoginURLs and maxLoginText bound what every page of a session with accounts is compared with.
	maxLogins    = 200
	maxLoginURLs = 20
	maxLoginText = 500
)

// validateIdentity checks the settings about accounts and nodes. It does not check the URL of the database, which connecting
// does.
func (c Config) validateIdentity(v *validation) {
	if c.Node != "" && !wordOf(c.Node, 40, "-") {
		v.flaw("node", "write 1 to 40 of a-z, 0-9 and -", "%q is not the name of a node", c.Node)
	}
	if c.Vault.KeyFile != "" {
		v.path("vault.key_file", c.Vault.KeyFile)
	}
	if c.Grants.TTL > c.Grants.MaxTTL {
		v.flaw("grants.ttl", "lower ttl, or raise max_ttl", "%s is longer than max_ttl, %s", c.Grants.TTL, c.Grants.MaxTTL)
	}
	if len(c.Logins) > maxLogins {
		v.flaw("logins", "", "has more than %d entries", maxLogins)
	}
	seen := map[string]bool{}
	for i, l := range c.Logins {
		field := fmt.Sprintf("logins[%d]", i)
		l.validate(v, field)
		if seen[l.Domain] {
			v.flaw(field+".domain", "put everything about a domain into one entry", "%s has an entry already", l.Domain)
		}
		seen[l.Domain] = true
	}
}

func (l Login) validate(v *validation, field string) {
	if !hostName(l.Domain) || !strings.Contains(l.Domain, ".") {
		v.flaw(field+".domain", "write a domain in lower case, such as example.com", "%q is not a domain", l.Domain)
	}
	if l.ProbeURL == "" && len(l.URLs) == 0 && l.Selector == "" {
		v.flaw(field, "set urls or selector, and probe_url to have it looked at when a session begins", "says nothing about the domain")
	}
	if l.ProbeURL != "" && len(l.URLs) == 0 && l.Selector == "" {
		v.flaw(field+".probe_url", "set urls or selector", "says nothing without urls or selector: they tell a page that asks to log in from others")
	}
	if u, err := url.Parse(l.ProbeURL); l.ProbeURL != "" && (err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil) {
		v.flaw(field+".probe_url", "write one such as https://example.com/account", "is not the address of a page")
	}
	if len(l.URLs) > maxLoginURLs {
		v.flaw(field+".urls", "use * for any text", "has more than %d patterns", maxLoginURLs)
	}
	for n, pattern := range l.URLs {
		// Without the host, every site's page of that path would seem to be this one's.
		scheme, rest, found := strings.Cut(pattern, "://")
		host, _, _ := strings.Cut(rest, "/")
		if !found || scheme != "https" && scheme != "http" || host == "" || host == "*" || len(pattern) > maxLoginText {
			v.flaw(fmt.Sprintf("%s.urls[%d]", field, n), "write one such as https://example.com/login*", "is not the pattern of an address")
		}
	}
	if len(l.Selector) > maxLoginText {
		v.flaw(field+".selector", "", "has more than %d bytes", maxLoginText)
	}
}

// ValidName accepts what can be the name of a tenant, an operator or an agent: [a-z0-9-]{1,40}.
func ValidName(s string) bool {
	return s != "" && len(s) <= 40 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

// secretInTheOpen refuses a file that holds a password and that everybody on the machine can read.
func (c Config) secretInTheOpen(path string, everybody bool) error {
	if !everybody || !c.Database.HasPassword() {
		return nil
	}
	return problem.New(problem.BadConfig, fmt.Sprintf("chgrp %s %s; chmod 640 %s", c.User, path, path),
		"database: has a password, and everybody on this machine can read %s", path)
}
