package config

import (
	"net/netip"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/clawjail/clawjail/internal/problem"
)

// HostBrowser is the browser of the host, which agents use beside the person's own.
type HostBrowser struct {
	// Enabled is off for no host browser at all.
	Enabled bool
	// ControlURL is where it is controlled. On this machine its server is started there, and the DevTools endpoint is at
	// the next port. One of another machine is only connected to.
	ControlURL string
	// Color is #RRGGBB: what the browser's window looks like.
	Color string
	// Headless is whether the browser has no window.
	Headless Headless
	// AttachOnly uses a browser where it runs, and never starts one.
	AttachOnly bool
	// Executable is the browser to use; empty is the first that is found.
	Executable string
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
	v := &validation{problem.Many{Code: problem.BadConfig}}
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
	case !local && loopbackName(u.Hostname()):
		v.flaw("browser.control_url", "write something like http://127.0.0.1:18791",
			"on this machine it is http, with a port from 1 to 65534")
	}
	if _, ok := b.RGB(); !ok {
		v.flaw("browser.color", "write something like #FF4500, in quotes", "%q is not a colour", b.Color)
	}
	oneOf(v, "browser.headless", b.Headless, HeadlessAuto, HeadlessYes, HeadlessNo)
	if b.Executable != "" {
		if !filepath.IsAbs(b.Executable) {
			v.flaw("browser.executable", "name it by its absolute path", "%q is not an absolute path", b.Executable)
		} else {
			v.path("browser.executable", b.Executable)
		}
	}
}

func loopbackName(host string) bool {
	addr, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && addr.IsLoopback()
}
