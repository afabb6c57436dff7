package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/policy/hostport"
	"github.com/clawjail/clawjail/internal/problem"
)

// Variables that name another control plane than the configuration's.
const (
	urlVariable = "CLAWJAIL_URL"
	// keyVariable is for a key of any kind: an operator's, an agent's, the installation's. oldKeyVariable is another
	// name for it.
	keyVariable    = "CLAWJAIL_KEY"
	oldKeyVariable = "CLAWJAIL_ADMIN_KEY"
	// grantVariable is for the token of a grant.
	grantVariable = "CLAWJAIL_GRANT"
)

// controlConfig is the configuration as commands need it that ask a control plane.
func (p *program) controlConfig() (config.Config, error) { return p.excuse(p.config()) }

// excuse does without a configuration that is not for the caller to read, where the environment names both the control plane
// and a key: one with a password is for the control plane's user alone.
func (p *program) excuse(c config.Config, err error) (config.Config, error) {
	switch {
	case !errors.Is(err, fs.ErrPermission):
		return c, err
	case p.getenv(urlVariable) != "" && p.keyIsSet():
		return config.Here().DefaultFor(p.configFile()), nil
	}
	if told, ok := problem.As(err); ok {
		with := *told
		with.Hint = "set " + urlVariable + ", such as to http://127.0.0.1:18780, and " + keyVariable + " to a key of yours: then it is not needed; or run it with sudo"
		return c, &with
	}
	return c, err
}

// client makes the client of the control plane that the environment or the configuration names.
func (p *program) client() (*client.Client, error) {
	c, err := p.controlConfig()
	if err != nil {
		return nil, err
	}
	base, err := p.controlURL(c)
	if err != nil {
		return nil, err
	}
	key, err := p.key(c)
	if errors.Is(err, errNoKey) {
		return nil, p.withoutKey(base, c, err)
	}
	if err != nil {
		return nil, err
	}
	return p.clientOf(c, base, key), nil
}

// clientOf is a client of a control plane: this machine's own, unless the environment names one.
func (p *program) clientOf(c config.Config, base *url.URL, key string) *client.Client {
	if _, set := p.lookupEnv(urlVariable); set || !c.TLS.Set() {
		return client.New(base, key)
	}
	return client.NewOwn(base, key, c.TLS.Cert)
}

// errNoKey says that nobody gave a key, and that the admin's is not there or is not for the caller.
var errNoKey = errors.New("there is no key")

// keylessLimit bounds the question whether anybody answers.
const keylessLimit = time.Second

// withoutKey says what somebody without a key can do: that depends on whether clawjail runs, and where.
func (p *program) withoutKey(base *url.URL, c config.Config, cause error) error {
	ctx, cancel := context.WithTimeout(context.Background(), keylessLimit)
	defer cancel()
	asks := p.clientOf(c, base, "")
	defer asks.CloseIdle()
	elsewhere := p.getenv(urlVariable) != ""
	if health, err := asks.Health(ctx); err != nil || health.Status == "" {
		if elsewhere {
			return problem.New(problem.ControlPlaneUnreachable, "look at "+urlVariable+"; and set "+keyVariable+" to a key", "no control plane answers at %s", base.Host)
		}
		return problem.New(problem.ControlPlaneUnreachable, "start it: sudo clawjail up", "clawjail does not answer at %s", base.Host)
	}
	hint := "run it with sudo, as which the admin key is used; or set " + keyVariable + " to a key of yours, which an admin makes: sudo clawjail operator create NAME --role operator"
	switch {
	case elsewhere:
		hint = "set " + keyVariable + " to a key of yours, which an admin makes there: sudo clawjail operator create NAME --role operator; or to the content of its admin.key"
	case os.Geteuid() == 0 && errors.Is(cause, fs.ErrNotExist):
		hint = "its admin key is not in " + filepath.Dir(hostd.AdminKeyPath(c)) + ": name the configuration that it runs with in CLAWJAIL_CONFIG; or set " + keyVariable + " to a key"
	}
	return problem.New(problem.Unauthorized, hint, "clawjail runs at %s, and you have no key for it", base.Host)
}

// key is the one that the environment names, else the admin's, which is sent to no other control plane than its own. A variable that is
// set and empty is refused: it is mostly what is left of a file that could not be read, and with root's key the command of an agent
// would be an admin's.
func (p *program) key(c config.Config) (string, error) {
	for _, name := range []string{keyVariable, oldKeyVariable} {
		key, set := p.lookupEnv(name)
		if !set {
			continue
		}
		if key = strings.TrimSpace(key); key == "" {
			return "", problem.New(problem.BadUsage, "set it to a key, or `unset "+name+"` to use the admin key", "%s is set and empty", name)
		}
		if strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
			return "", problem.New(problem.BadUsage, "set it to one key, without spaces and line ends in it", "$%s has characters that no key has", name)
		}
		return key, nil
	}
	if !p.asksOwn(c) {
		return "", fmt.Errorf("%w: %s is not of this machine, and its admin key is not for others", errNoKey, urlVariable)
	}
	return readKey(hostd.AdminKeyPath(c))
}

// asksOwn reports whether the environment names no other control plane than the configuration's: one at a loopback address, at the one
// in listen, at public_url, or by a name of its own certificate.
func (p *program) asksOwn(c config.Config) bool {
	text, set := p.lookupEnv(urlVariable)
	if !set {
		return true
	}
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" {
		return false
	}
	if addr, err := netip.ParseAddr(u.Hostname()); hostport.IsLoopback(u.Hostname()) || err == nil && addr == c.Listen.Addr() {
		return true
	}
	if origin := config.PublicOrigin(text); origin != "" && origin == config.PublicOrigin(c.PublicURL) {
		return true
	}
	if !c.TLS.Set() {
		return false
	}
	own, err := tls.LoadX509KeyPair(c.TLS.Cert, c.TLS.Key)
	return err == nil && own.Leaf.VerifyHostname(u.Hostname()) == nil
}

// keyIsSet reports whether the environment names a key.
func (p *program) keyIsSet() bool {
	for _, name := range []string{keyVariable, oldKeyVariable} {
		if _, set := p.lookupEnv(name); set {
			return true
		}
	}
	return false
}

// controlURL is where the control plane answers. A variable that is set and empty is refused, as one of a key is: what was meant for
// another machine would be done here.
func (p *program) controlURL(c config.Config) (*url.URL, error) {
	text, set := p.lookupEnv(urlVariable)
	switch {
	case !set:
		return listening(c), nil
	case strings.TrimSpace(text) == "":
		return nil, problem.New(problem.BadUsage, "set it to something like http://127.0.0.1:18780, or `unset "+urlVariable+"` to use the configuration", "%s is set and empty", urlVariable)
	}
	hint := "set it to something like http://127.0.0.1:18780, or unset it"
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, problem.New(problem.BadURL, hint, "%s is not the address of a control plane", urlVariable)
	}
	if u.Scheme == "http" && !hostport.IsLoopback(u.Hostname()) {
		return nil, problem.New(problem.BadURL, "use https, or a tunnel to a loopback address",
			"%s is not encrypted and not on this machine: the key would cross the network in the clear", urlVariable)
	}
	return &url.URL{Scheme: u.Scheme, Host: u.Host, Path: strings.TrimRight(u.Path, "/"), RawPath: strings.TrimRight(u.RawPath, "/")}, nil
}

// listening is where the control plane of a configuration is reached from this machine.
func listening(c config.Config) *url.URL {
	scheme := "http"
	if c.TLS.Set() {
		scheme = "https"
	}
	listen := c.Listen
	if listen.Addr().IsUnspecified() {
		loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
		if listen.Addr().Is6() {
			loopback = netip.IPv6Loopback()
		}
		listen = netip.AddrPortFrom(loopback, listen.Port())
	}
	return &url.URL{Scheme: scheme, Host: listen.String()}
}

func readKey(path string) (string, error) {
	key, err := identity.ReadAdminKey(path)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%w: %w", errNoKey, err)
	}
	if err != nil {
		return "", err
	}
	return key.Reveal(), nil
}
