//go:build linux

package operators

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/cdp/cdptest"
	"github.com/clawjail/clawjail/internal/testenv"
)

// otherMachine is another machine: a network namespace with one cable to this one.
type otherMachine struct {
	name, here string // of the namespace, and this machine's address on the cable
}

func newOtherMachine(t *testing.T) otherMachine {
	t.Helper()
	ip := testenv.Tool(t, "ip")
	n := otherMachine{name: fmt.Sprintf("cjhb-%d", os.Getpid()), here: "198.18.77.1"}
	run := func(args ...string) {
		t.Helper()
		if out, err := exec.Command(ip, args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
	cable := fmt.Sprintf("cjhb%d", os.Getpid()%100_000)
	run("netns", "add", n.name)
	t.Cleanup(func() { run("netns", "del", n.name) }) // the cable goes with it
	run("link", "add", cable, "type", "veth", "peer", "name", "far", "netns", n.name)
	run("addr", "add", n.here+"/30", "dev", cable)
	run("link", "set", cable, "up")
	run("-n", n.name, "addr", "add", "198.18.77.2/30", "dev", "far")
	run("-n", n.name, "link", "set", "far", "up")
	return n
}

// certify writes a certificate for an address, and its key, which the user of the desktop alone may read.
func (d *desktop) certify(address string) (cert, key string) {
	d.t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		d.t.Fatal(err)
	}
	form := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "desktop"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.ParseIP(address)}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, form, form, private.Public(), private)
	if err != nil {
		d.t.Fatal(err)
	}
	pkcs, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		d.t.Fatal(err)
	}
	cert, key = filepath.Join(d.home, "browser.crt"), filepath.Join(d.home, "browser.key")
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: pkcs}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			d.t.Fatal(err)
		}
		if err := os.Chown(path, ordinary, ordinary); err != nil {
			d.t.Fatal(err)
		}
	}
	return cert, key
}

// TestAnotherMachineDrivesTheBrowserWithTLSAndAToken drives the host browser over a network, with the program itself as the
// client, and shows what is refused on the same way.
func TestAnotherMachineDrivesTheBrowserWithTLSAndAToken(t *testing.T) {
	executable := testenv.ChromiumFull(t)
	curl := testenv.Tool(t, "curl")
	d := newDesktop(t)
	n := newOtherMachine(t)
	site := newVisits(t)
	cert, key := d.certify(n.here)
	near, far := testenv.FreePort(t), testenv.FreePort(t)
	remoteToken := filepath.Join(d.home, "remote.token")
	settings := fmt.Sprintf("  control_url: http://127.0.0.1:%d\n  executable: %s\n  headless: true\n  listen: %s:%d\n", near, executable, n.here, far)
	tls, token := fmt.Sprintf("  tls: {cert: %s, key: %s}\n", cert, key), "  token: "+remoteToken+"\n"
	for missing, text := range map[string]string{"browser.tls": settings + token, "browser.token": settings + tls} {
		d.settings(text)
		if out, err := d.browser("start"); err == nil || !strings.Contains(out, missing) || !strings.Contains(out, "is missing") {
			t.Errorf("without %s: %v: %s", missing, err, out)
		}
	}
	d.settings(settings + tls + token)
	t.Cleanup(func() { d.must("stop") })
	d.must("start")

	// The other machine has an address, a certificate to trust, and a copy of the token.
	elsewhere := cdptest.Dir(t)
	folder := filepath.Join(elsewhere, ".config", "clawjail")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	secret, err := os.ReadFile(remoteToken)
	if err != nil {
		t.Fatal(err)
	}
	base := fmt.Sprintf("https://%s:%d", n.here, far)
	for name, content := range map[string]string{"browser.token": string(secret), "clawjail.yml": "browser:\n  control_url: " + base + "\n"} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cdptest.Give(t, elsewhere)
	there := func(name string, args ...string) (string, error) {
		cmd := exec.Command("ip", append([]string{"netns", "exec", n.name, "setpriv", fmt.Sprintf("--reuid=%d", ordinary),
			fmt.Sprintf("--regid=%d", ordinary), "--clear-groups", name}, args...)...)
		cmd.Dir = d.home
		cmd.Env = []string{"HOME=" + elsewhere, "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "SSL_CERT_FILE=" + cert}
		cmd.WaitDelay = 5 * time.Second
		timer := time.AfterFunc(testenv.Patience*30*time.Second, func() { _ = cmd.Process.Kill() }) // it may have ended
		defer timer.Stop()
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	drive := func(args ...string) string {
		t.Helper()
		out, err := there(d.program, append([]string{"browser"}, args...)...)
		if err != nil {
			t.Fatalf("from elsewhere: clawjail browser %s: %v: %s", strings.Join(args, " "), err, out)
		}
		return out
	}
	drive("open", site.URL+"/driven")
	if out := drive("eval", "document.title"); !strings.Contains(out, "driven") {
		t.Errorf("from elsewhere the page is %s", out)
	}
	if out := d.must("tabs"); !strings.Contains(out, "driven") {
		t.Errorf("it is not the browser of the desktop: %s", out)
	}
	var at struct {
		CDP string `json:"cdp_url"`
		WS  string `json:"ws_url"`
	}
	prefix := fmt.Sprintf("wss://%s:%d/", n.here, far+1)
	if err := json.Unmarshal([]byte(drive("cdp", "--json")), &at); err != nil || !strings.HasPrefix(at.WS, prefix) {
		t.Fatalf("DevTools clients are sent to %+v: %v", at, err)
	}

	local, err := os.ReadFile(filepath.Join(d.home, ".config", "clawjail", "browser.token"))
	if err != nil {
		t.Fatal(err)
	}
	bearer := func(token []byte) string { return "Authorization: Bearer " + strings.TrimSpace(string(token)) }
	right := bearer(secret)
	socket := []string{"-H", "Connection: Upgrade", "-H", "Upgrade: websocket", "-H", "Sec-WebSocket-Version: 13",
		"-H", "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==", "--max-time", "2"}
	devtools := strings.Replace(at.WS, "wss://", "https://", 1)
	for name, tt := range map[string]struct {
		want string
		args []string
	}{
		"all of it":               {"200", []string{"-H", right, base + "/"}},
		"no token":                {"401", []string{base + "/"}},
		"a wrong token":           {"401", []string{"-H", right + "0", base + "/"}},
		"the desktop's token":     {"401", []string{"-H", bearer(local), base + "/"}},
		"no TLS":                  {"400", []string{"-H", right, strings.Replace(base, "https:", "http:", 1) + "/"}},
		"a web page":              {"403", []string{"-H", right, "-H", "Origin: " + base, base + "/"}},
		"a page of loopback":      {"403", []string{"-H", right, "-H", "Origin: http://127.0.0.1:3000", base + "/"}},
		"a name that leads here":  {"403", []string{"-H", right, "-H", "Host: evil.example", base + "/"}},
		"loopback's name":         {"403", []string{"-H", right, "-H", "Host: localhost", base + "/"}},
		"DevTools":                {"101", append(socket, devtools)},
		"DevTools with no ticket": {"401", append(socket, strings.Split(devtools, "?")[0])},
		"DevTools of a page":      {"403", append(socket, "-H", "Origin: https://evil.example", devtools)},
		"loopback's port":         {"000", []string{"-H", bearer(local), fmt.Sprintf("http://%s:%d/", n.here, near)}},
	} {
		out, _ := there(curl, append([]string{"-s", "--http1.1", "-o", "/dev/null", "-w", "%{http_code}", "--cacert", cert}, tt.args...)...) // the status counts
		if strings.TrimSpace(out) != tt.want {
			t.Errorf("%s: %s, want %s", name, out, tt.want)
		}
	}
	// The token of other machines is nothing on this one.
	out, err := d.command(curl, "-s", "-o", "/dev/null", "-w", "%{http_code}", "-H", right, fmt.Sprintf("http://127.0.0.1:%d/", near)).CombinedOutput()
	if string(out) != "401" {
		t.Errorf("the token of other machines on loopback: %s, %v", out, err)
	}
}
