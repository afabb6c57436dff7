package config

import (
	"net/netip"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/clawjail/clawjail/internal/policy/hostport"
	"github.com/clawjail/clawjail/internal/problem"
)

// HostBrowser is the browser of the host, which agents use beside the person's own.
type HostBrowser struct {
	// Enabled is off for no host browser at all.
	Enabled bool `yaml:"enabled"`
	// ControlURL is where it is controlled. On this machine its server is started there, and the DevTools endpoint is at
	// the next port. One of another machine is only connected to.
	ControlURL string `yaml:"control_url"`
	// Color is #RRGGBB: what the browser's window looks like.
	Color string `yaml:"color"`
	// Headless is whether the browser has no window.
	Headless Headless `yaml:"headless" enum:"auto,true,false"`
	// AttachOnly uses a browser where it runs, and never starts one.
	AttachOnly bool `yaml:"attach_only"`
	// Executable is the browser to use; empty is the first that is found.
	Executable string `yaml:"executable" zero:""`
	// Remote is where other machines control the browser. Without it they do not.
	Remote RemoteBrowser `yaml:",inline" zero:""`
}

// RemoteBrowser is a second listener of the host browser, for other machines. It has TLS and a token of its own.
type RemoteBrowser struct {
	// Listen is the address and port of the control server; the DevTools endpoint is at the next port.
	Listen netip.AddrPort `yaml:"listen"`
	TLS    TLS            `yaml:"tls"`
	// Token is the file with the token that other machines show.
	Token string `yaml:"token"`
}

// On says whether other machines can be served.
func (r RemoteBrowser) On() bool { return r.Listen.IsValid() }

// Devtools is where the DevTools endpoint listens.
func (r RemoteBrowser) Devtools() netip.AddrPort {
	return netip.AddrPortFrom(r.Listen.Addr(), r.Listen.Port()+1)
}

func (r RemoteBrowser) validate(v *validation) {
	switch at := r.Listen; {
	case !at.IsValid():
		if r.TLS != (TLS{}) || r.Token != "" {
			v.flaw("browser.listen", "write an address of this machine and a port, such as 192.0.2.7:18791", "is missing: browser.tls and browser.token are for it")
		}
		return
	case at.Addr().IsUnspecified() || at.Addr().IsLoopback() || at.Addr().IsMulticast() || at.Addr().Zone() != "" || at.Addr().Is4In6():
		v.flaw("browser.listen", "write the address of this machine that other machines reach, or leave the key out",
			"%s is not one address of this machine for other machines", at.Addr())
	case at.Port() == 0 || at.Port() >= 1<<16-1 || at.Port() == debuggingPort || at.Port()+1 == debuggingPort:
		v.flaw("browser.listen", "write another port, such as 18791", "cannot use the port %d and the next one", at.Port())
	}
	if !r.TLS.Set() {
		v.flaw("browser.tls", "set cert and key, or leave browser.listen out", "is missing: the token would cross the network in the clear")
	}
	if r.TLS.Set() {
		v.path("browser.tls.cert", r.TLS.Cert)
		v.path("browser.tls.key", r.TLS.Key)
	}
	if r.Token == "" {
		v.flaw("browser.token", "name a file for it, which `clawjail browser serve` makes, or leave browser.listen out",
			"is missing: other machines show a token of their own")
	} else {
		v.path("browser.token", r.Token)
	}
}

// Headless says whether a browser has no window.
type Headless string

// With auto, the browser has a window where there is a display.
const (
	HeadlessAuto Headless = "auto"
	HeadlessYes  Headless = "true"
	HeadlessNo   Headless = "false"
)

// debuggingPort is where people's own browsers are debugged. It is left to them.
const debuggingPort = 9222

func defaultHostBrowser() HostBrowser {
	return HostBrowser{Enabled: true, ControlURL: "http://127.0.0.1:18791", Color: "#FF4500", Headless: HeadlessAuto}
}

// Control is the address of the control server. It is nil when ControlURL is not valid.
func (b HostBrowser) Control() *url.URL {
	u, err := url.Parse(b.ControlURL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil ||
		strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
		return nil
	}
	return &url.URL{Scheme: u.Scheme, Host: u.Host}
}

// Local says where the servers listen, when ControlURL is an address of this machine's loopback: the control server,
// and the DevTools endpoint at the next port.
func (b HostBrowser) Local() (control, devtools netip.AddrPort, ok bool) {
	u := b.Control()
	if u == nil || u.Scheme != "http" {
		return control, devtools, false
	}
	host := u.Hostname()
	if strings.EqualFold(host, "localhost") {
		host = "127.0.0.1"
	}
	addr, err := netip.ParseAddr(host)
	if err != nil || !addr.IsLoopback() {
		return control, devtools, false
	}
	port := uint64(80)
	if text := u.Port(); text != "" {
		if port, err = strconv.ParseUint(text, 10, 16); err != nil {
			return control, devtools, false
		}
	}
	if port == 0 || port == 1<<16-1 {
		return control, devtools, false
	}
	return netip.AddrPortFrom(addr, uint16(port)), netip.AddrPortFrom(addr, uint16(port)+1), true
}

// RGB is Color as a number, 0xRRGGBB.
func (b HostBrowser) RGB() (uint32, bool) { return parseRGB(b.Color) }

// Validate reports everything that is wrong, with the code bad_config.
func (b HostBrowser) Validate() error {
	v := &validation{problem.ValidationError{Code: problem.BadConfig}}
	b.validate(v)
	return v.Err()
}

func (b HostBrowser) validate(v *validation) {
	u := b.Control()
	control, devtools, local := b.Local()
	switch {
	case u == nil:
		v.flaw("browser.control_url", "write something like http://127.0.0.1:18791", "is not the address of a server")
	case local && (control.Port() == debuggingPort || devtools.Port() == debuggingPort):
		v.flaw("browser.control_url", "leave the key out for http://127.0.0.1:18791",
			"takes the port %d, where people debug browsers of their own", debuggingPort)
	case !local && hostport.IsLoopback(u.Hostname()):
		v.flaw("browser.control_url", "write something like http://127.0.0.1:18791",
			"on this machine it is http, with a port from 1 to 65534")
	}
	if _, ok := b.RGB(); !ok {
		v.flaw("browser.color", "write something like #FF4500, in quotes", "%q is not a colour", b.Color)
	}
	b.Remote.validate(v)
	oneOf(v, "browser.headless", b.Headless, HeadlessAuto, HeadlessYes, HeadlessNo)
	if b.Executable != "" {
		if !filepath.IsAbs(b.Executable) {
			v.flaw("browser.executable", "name it by its absolute path", "%q is not an absolute path", b.Executable)
		} else {
			v.path("browser.executable", b.Executable)
		}
	}
}
