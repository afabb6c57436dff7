package doctor

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/config"
)

func (f *fake) wants(check string, status Status, says, advises string) {
	f.t.Helper()
	f.UID = 0
	if r := f.check(check); r.Status != status || !strings.Contains(r.Message, says) || !strings.Contains(r.Hint, advises) {
		f.t.Errorf("%s: %+v, want %s that says %q and advises %q", check, r, status, says, advises)
	}
}

func TestAKeyThatOthersCanReadFails(t *testing.T) {
	f := newFake(t)
	f.wants("keys", OK, "no keys yet", "")
	const key = "var/lib/clawjail/control/vault.key"
	f.write(key, "secret")
	f.write("etc/passwd", fmt.Sprintf("clawjail:x:%d:999:::/usr/sbin/nologin\n", os.Getuid()))
	f.wants("keys", Fail, "open to others", "chmod 600")
	path := filepath.Join(f.Root, key)
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	f.wants("keys", OK, "1 keys", "")
	f.write("etc/passwd", fmt.Sprintf("clawjail:x:%d:999:::/usr/sbin/nologin\n", os.Getuid()+1))
	f.wants("keys", Fail, "belongs to user", "chown clawjail")
	f.Config.Vault.KeyFile = filepath.Join(f.Root, "elsewhere.key")
	if err := os.Symlink(path, f.Config.Vault.KeyFile); err != nil {
		t.Fatal(err)
	}
	f.wants("keys", Fail, "not a file of its own", "itself")
}

func TestACertificateIsToldBeforeItEnds(t *testing.T) {
	f := newFake(t)
	f.wants("certificate", OK, "no certificate", "")
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	of := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: start, NotAfter: start.AddDate(0, 3, 0)}
	der, err := x509.CreateCertificate(rand.Reader, of, of, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	f.write("cert.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	f.write("key.pem", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs})))
	f.Config.TLS = config.TLS{Cert: filepath.Join(f.Root, "cert.pem"), Key: filepath.Join(f.Root, "key.pem")}
	for _, test := range []struct {
		now    time.Time
		status Status
		says   string
	}{
		{start.Add(-time.Hour), Fail, "not yet"}, {start.AddDate(0, 1, 0), OK, "good until 2026-04-01"},
		{start.AddDate(0, 2, 20), Warn, "ends on 2026-04-01"}, {start.AddDate(0, 3, 0), Fail, "has ended"},
	} {
		f.Now = func() time.Time { return test.now }
		f.wants("certificate", test.status, test.says, "")
	}
	f.write("key.pem", "nothing")
	f.wants("certificate", Fail, "cannot be used", "tls.key")
}

func TestAClockThatNobodyKeepsRightIsToldOf(t *testing.T) {
	f := newFake(t)
	const line = "timedatectl show --property=NTPSynchronized"
	f.commands[line] = "NTPSynchronized=no\n"
	f.wants("clock", Warn, "grants", "set-ntp")
	delete(f.commands, line)
	f.wants("clock", Skip, "not known", "")
}

func TestServicesThatDoNotRunAreToldOf(t *testing.T) {
	f := newFake(t)
	f.wants("units", OK, "not looked after", "")
	f.write("run/systemd/system/none", "")
	say := func(name, load, active, enabled string) {
		f.commands["systemctl show "+name+" --property=LoadState,ActiveState,SubState,UnitFileState"] = "LoadState=" + load + "\nActiveState=" + active + "\nUnitFileState=" + enabled + "\n"
	}
	const host, control = "clawjail-hostd.service", "clawjail.service"
	for _, test := range []struct {
		host, control [3]string
		status        Status
		says, advises string
	}{
		{[3]string{"not-found", "inactive", ""}, [3]string{"not-found", "inactive", ""}, OK, "not installed", ""},
		{[3]string{"loaded", "active", "enabled"}, [3]string{"loaded", "active", "enabled"}, OK, "both", ""},
		{[3]string{"loaded", "active", "enabled"}, [3]string{"not-found", "inactive", ""}, Warn, "clawjail.service is not", "both"},
		{[3]string{"loaded", "active", "disabled"}, [3]string{"loaded", "active", "enabled"}, OK, "start with the machine", ""}, // which that of the control plane starts
		{[3]string{"loaded", "active", "enabled"}, [3]string{"loaded", "active", "disabled"}, Warn, "clawjail.service does not start with", "enable --now"},
		{[3]string{"loaded", "active", "disabled"}, [3]string{"loaded", "active", "disabled"}, Warn, "clawjail-hostd.service does not start with", "enable --now"},
		{[3]string{"loaded", "activating\nSubState=auto-restart", "enabled"}, [3]string{"loaded", "active", "enabled"}, Fail, "tries it again and again", "journalctl -u clawjail-hostd.service"},
		{[3]string{"loaded", "inactive", "enabled"}, [3]string{"loaded", "active", "enabled"}, Warn, "is inactive", "enable --now"},
		{[3]string{"loaded", "active", "enabled"}, [3]string{"loaded", "failed", "enabled"}, Fail, "has failed", "journalctl -u clawjail.service"},
		{[3]string{"masked", "inactive", "masked"}, [3]string{"loaded", "failed", "enabled"}, Fail, "clawjail-hostd.service is masked", "unmask clawjail-hostd.service"},
		{[3]string{"loaded", "active", "enabled"}, [3]string{"masked", "active", "masked"}, Fail, "clawjail.service is masked", "unmask clawjail.service"},
	} {
		say(host, test.host[0], test.host[1], test.host[2])
		say(control, test.control[0], test.control[1], test.control[2])
		f.wants("units", test.status, test.says, test.advises)
	}
}
