package cookies

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/net/publicsuffix"

	"github.com/clawjail/clawjail/internal/policy/hostport"
)

// Reasons for which a host has no registrable domain. Test with errors.Is.
var (
	ErrHost         = errors.New("not a valid host name")
	ErrAddress      = errors.New("an IP address has no registrable domain")
	ErrPublicSuffix = errors.New("a public suffix is not a registrable domain")
)

// RegistrableDomain is the part of a host that somebody can register: the public suffix and one label more, in lower
// case and in ASCII (https://publicsuffix.org, the list's private part included, as browsers use it for cookies). One
// trailing dot is left out. IP addresses and bare suffixes have none.
func RegistrableDomain(host string) (string, error) {
	parsed, err := hostport.ParseHost(host)
	switch {
	case strings.Contains(host, ":") || errors.Is(err, hostport.ErrOddAddress) || err == nil && parsed.IsAddr():
		return "", fmt.Errorf("%s: %w", Printable(host), ErrAddress)
	case err != nil:
		return "", fmt.Errorf("%s: %w", Printable(host), ErrHost)
	}
	domain, err := publicsuffix.EffectiveTLDPlusOne(parsed.Name())
	if err != nil {
		return "", fmt.Errorf("%s: %w", Printable(host), ErrPublicSuffix)
	}
	return domain, nil
}

// domainOf is the registrable domain of a cookie. A form that browsers never write is refused: upper case, Unicode, a
// trailing dot, two dots in front.
func domainOf(c Cookie) (string, error) {
	host := c.Host()
	domain, err := RegistrableDomain(host)
	if err != nil {
		return "", err
	}
	if parsed, err := hostport.ParseHost(host); err != nil || parsed.Name() != host {
		return "", fmt.Errorf("%s: %w", Printable(c.Domain), ErrHost)
	}
	return domain, nil
}

// Matches says whether the cookie belongs to one of the registrable domains. A host that merely ends in the same
// letters does not.
func Matches(c Cookie, domains []string) bool {
	domain, err := domainOf(c)
	return err == nil && slices.Contains(domains, domain)
}

// Within says whether a host is a domain, or below it.
func Within(host, domain string) bool {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	return host == domain || strings.HasSuffix(host, "."+domain)
}

// Select returns the cookies of the registrable domains, and how many others there were.
func Select(list []Cookie, domains []string) (chosen []Cookie, others int) {
	for _, c := range list {
		if Matches(c, domains) {
			chosen = append(chosen, c)
		} else {
			others++
		}
	}
	return chosen, others
}
