package weblogin

import (
	"fmt"
	"net/url"

	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/policy/hostport"
)

// OriginOf is the origin of an address, as browsers write it. An address that is not of http or https, or belongs to no
// registrable domain, has none here: no account can be of it.
func OriginOf(address string) (string, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil {
		return "", fmt.Errorf("%s is not an origin such as https://example.com", cookies.Printable(address))
	}
	host, err := hostport.ParseHost(u.Hostname())
	if err == nil {
		_, err = cookies.RegistrableDomain(u.Hostname())
	}
	if err != nil {
		return "", fmt.Errorf("%s is below no registrable domain", cookies.Printable(address))
	}
	out, port := u.Scheme+"://"+host.Name(), u.Port()
	if port != "" && !(u.Scheme == "https" && port == "443") && !(u.Scheme == "http" && port == "80") {
		out += ":" + port
	}
	return out, nil
}

// DomainOf is the registrable domain of an origin that is written as browsers write it.
func DomainOf(origin string) (string, error) {
	if canonical, err := OriginOf(origin); err != nil {
		return "", err
	} else if canonical != origin {
		return "", fmt.Errorf("%s is not written as browsers write it: %s", cookies.Printable(origin), cookies.Printable(canonical))
	}
	u, err := url.Parse(origin)
	if err != nil {
		return "", fmt.Errorf("%s is not an origin", cookies.Printable(origin))
	}
	return cookies.RegistrableDomain(u.Hostname())
}
