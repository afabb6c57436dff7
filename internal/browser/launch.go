package browser

import (
	"net"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/clawjail/clawjail/internal/problem"
)

// Build is one of the two programs that Chromium is delivered as.
type Build string

const (
	// Shell is the headless shell: small, quick, without the parts of a desktop browser. It ignores enterprise policy.
	Shell Build = "shell"
	// Full is the whole browser without a window: what people log in with.
	Full Build = "full"
)

// binary is where Debian installs a build. The scripts in /usr/bin are not used: they read flags and API keys from
// /etc/chromium.d.
func (b Build) binary() string {
	if b == Full {
		return "/usr/lib/chromium/chromium"
	}
	return "/usr/lib/chromium/chromium-headless-shell"
}

// Options say how a browser is started inside its jail. All paths are the jail's.
type Options struct {
	Build Build
	// Binary is the program; empty is where Debian installs the build.
	Binary string
	// Proxy is the only way out: scheme, host and port of an HTTP proxy, such as "http://10.69.0.1:3000".
	Proxy string
	// ProfileDir is where the browser keeps its state. It is on a tmpfs and belongs to the jail's user alone.
	ProfileDir string
	// Home is the home folder. Additional authorities are trusted by a database below it, in .pki/nssdb.
	Home string
	// TempDir is for temporary files; it must be writable. Empty is Home.
	TempDir string
	// Width and Height are the size of the window in pixels; zero is 1280 by 800.
	Width, Height int
	// Language is the language that pages are asked for, such as "en-US"; empty is that.
	Language string
	// NoSandbox starts it without its own sandbox, where jails do not let it have one. The jail is the only wall then.
	NoSandbox bool
}

// Validate reports everything that is wrong, with the code bad_config. Values of flags are narrow on purpose: a
// value must not become a second flag.
func (o Options) Validate() error {
	flaws := problem.ValidationError{Code: problem.BadConfig}
	if o.Build != Shell && o.Build != Full {
		flaws.Add("build", "%q is neither shell nor full", bounded(string(o.Build), 40))
	}
	if !proxyAddress(o.Proxy) {
		flaws.Add("proxy", "%q is not the address of an HTTP proxy, such as http://10.69.0.1:3000", bounded(o.Proxy, 100))
	}
	for _, path := range []struct {
		name, value string
		optional    bool
	}{{"binary", o.Binary, true}, {"profile_dir", o.ProfileDir, false}, {"home", o.Home, false}, {"temp_dir", o.TempDir, true}} {
		if path.value == "" && path.optional {
			continue
		}
		if !filepath.IsAbs(path.value) || filepath.Clean(path.value) != path.value || strings.ContainsAny(path.value, "\x00\n") {
			flaws.Add(path.name, "%q is not an absolute, clean path", bounded(path.value, 100))
		}
	}
	for _, side := range []struct {
		name  string
		value int
	}{{"width", o.Width}, {"height", o.Height}} {
		if side.value < 0 || side.value > maxViewport {
			flaws.Add(side.name, "%d is not between 1 and %d", side.value, maxViewport)
		}
	}
	if strings.Trim(o.Language, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-") != "" || len(o.Language) > 20 {
		flaws.Add("language", "%q is not a language tag such as en-US", bounded(o.Language, 40))
	}
	return flaws.Err()
}

func proxyAddress(raw string) bool {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "http" || u.User != nil || u.Path != "" || u.RawQuery != "" || u.Fragment != "" ||
		strings.ContainsAny(raw, ";, ?#") {
		return false
	}
	host, port, err := net.SplitHostPort(u.Host)
	number, portErr := strconv.ParseUint(port, 10, 16)
	return err == nil && portErr == nil && host != "" && number > 0
}

func (o Options) complete() Options {
	if o.Binary == "" {
		o.Binary = o.Build.binary()
	}
	if o.TempDir == "" {
		o.TempDir = o.Home
	}
	if o.Width == 0 {
		o.Width = 1280
	}
	if o.Height == 0 {
		o.Height = 800
	}
	if o.Language == "" {
		o.Language = "en-US"
	}
	return o
}

// Command is the program and its arguments. The browser speaks the DevTools protocol on file descriptors 3 (commands)
// and 4 (replies), and opens about:blank. Its own sandbox is on, unless NoSandbox: it needs a user that is not root and may
// make user namespaces.
func Command(options Options) ([]string, error) {
	if err := options.Validate(); err != nil {
		return nil, err
	}
	o := options.complete()
	line := []string{o.Binary}
	if o.Build == Full {
		// The shell has no other mode.
		line = append(line, "--headless=new")
	} else {
		// Nothing of what pages keep is written to a file. The full browser knows this for windows only: see [Occupied].
		line = append(line, "--incognito")
	}
	if o.NoSandbox {
		line = append(line, "--no-sandbox")
	}
	line = append(line,
		"--remote-debugging-pipe",
		"--user-data-dir="+o.ProfileDir,
		"--proxy-server="+o.Proxy,
		// Without this, loopback and link-local addresses (a cloud's metadata service among them) go past the proxy.
		"--proxy-bypass-list=<-loopback>",
		"--window-size="+strconv.Itoa(o.Width)+","+strconv.Itoa(o.Height),
		"--lang="+o.Language,
	)
	line = append(line, commonFlags()...)
	line = append(line, "--disable-features="+strings.Join(disabledFeatures(), ","))
	return append(line, blank), nil
}

// Occupied are paths below the profile at which an empty file must be before the browser starts. Where Chromium wants a
// file it finds a folder, and where it wants a folder a file: it then keeps cookies and the storage of pages in memory
// for as long as it runs, and neither caches responses nor writes down which pages are open.
func (b Build) Occupied() []string {
	if b != Full {
		return nil
	}
	return []string{
		"Default/Cookies/occupied", "Default/Cache", "Default/Sessions", "Default/Sessions_Encrypted", "Default/Local Storage",
		"Default/Session Storage",
	}
}

// Environment is the whole environment of the browser. Nothing of the caller's comes along.
func Environment(options Options) ([]string, error) {
	if err := options.Validate(); err != nil {
		return nil, err
	}
	o := options.complete()
	return []string{
		"HOME=" + o.Home,
		"TMPDIR=" + o.TempDir,
		"PATH=/usr/bin:/bin",
		"LANG=C.UTF-8",
		// Absent, these make Chromium look for keys of its own or complain on every start; "no" switches them off.
		"GOOGLE_API_KEY=no",
		"GOOGLE_DEFAULT_CLIENT_ID=no",
		"GOOGLE_DEFAULT_CLIENT_SECRET=no",
		// There is no bus in a jail; an address that cannot work ends the search for one at once.
		"DBUS_SESSION_BUS_ADDRESS=disabled:",
	}, nil
}

// commonFlags are the same for every browser of both builds.
func commonFlags() []string {
	return []string{
		"--no-first-run",
		"--no-default-browser-check",
		// A frame of another site has a process of its own. Full Chromium does it by itself, the shell only when asked.
		"--site-per-process",
		// Drawing happens on the processor: a jail has no graphics device, and looking for one costs 10 ms and 11 MB.
		"--disable-gpu",
		"--disable-software-rasterizer",
		// Things that the browser would do on the network by itself.
		"--disable-background-networking",
		"--disable-component-update",
		"--disable-default-apps",
		"--disable-domain-reliability",
		"--disable-client-side-phishing-detection",
		"--disable-extensions",
		"--disable-sync",
		"--allow-browser-signin=false",
		// Two things that full Chromium asks for whatever the flags above say: updates of components that it finds it
		// needs, and whether anyone is signed in. They get addresses that the browser itself refuses to open: a file,
		// and a port on its list of unsafe ones.
		"--component-updater=url-source=file:///nowhere",
		"--gaia-url=http://accounts.invalid:1/",
		"--disable-breakpad",
		"--metrics-recording-only",
		"--no-pings",
		// No keyring: a jail has none, and the profile does not outlive it.
		"--password-store=basic",
		// Peer connections would tell the jail's addresses, and try to leave by UDP.
		"--webrtc-ip-handling-policy=disable_non_proxied_udp",
		"--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
	}
}

// disabledFeatures are parts of Chromium that reach for the network by themselves, or for devices around it, that
// keep what should be gone, or that work in vain.
func disabledFeatures() []string {
	return []string{
		"MediaRouter",                 // looks for screens on the local network
		"OptimizationHints",           // asks a server about pages
		"Translate",                   // asks a server for models
		"NetworkTimeServiceQuerying",  // asks a server for the time
		"AutofillServerCommunication", // asks a server about forms
		"BackForwardCache",            // keeps documents alive that were left, with the scripts in them
		"PreloadTopChromeWebUI",       // loads pages of the browser's own window that may never be shown
	}
}
