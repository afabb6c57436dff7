package session

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// authority makes the certificate of an authority, or of a server.
func authority(t testing.TB, name string, isCA bool) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour),
		IsCA: isCA, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}}, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func TestExtraAuthoritiesAreCertificatesOfAuthoritiesOnly(t *testing.T) {
	one, two, server := authority(t, "one", true), authority(t, "two", true), authority(t, "server", false)
	key := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("secret")})
	for name, test := range map[string]struct {
		text []byte
		want string // in the error
	}{
		"one":                         {one, ""},
		"two with blanks":             {append(append([]byte("\n\n"), one...), append([]byte("\n"), two...)...), ""},
		"nothing":                     {[]byte(" \n"), "holds no certificate"},
		"headers":                     {bytes.Replace(one, []byte("CERTIFICATE-----\n"), []byte("CERTIFICATE-----\nComment: mine\n\n"), 1), "with headers"},
		"text":                        {[]byte("hello"), "is not PEM"},
		"text behind":                 {append(bytes.Clone(one), "hello"...), "is not PEM"},
		"a private key":               {append(bytes.Clone(one), key...), "holds a private key"},
		"of a server":                 {server, "not an authority"},
		"not a certificate":           {pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")}), "cannot be read"},
		"more than there is room for": {bytes.Repeat(one, maxCertificates+1), "are more than"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseCertificates("ca.pem", test.text)
			if test.want == "" {
				if err != nil || got.Len() == 0 || got.digest == "" {
					t.Errorf("got %d certificates, %v", got.Len(), err)
				}
				return
			}
			wantCode(t, err, problem.BadConfig)
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "secret") {
				t.Errorf("the error is %v", err)
			}
		})
	}
	a, b := must(ParseCertificates("a", one)), must(ParseCertificates("b", two))
	ab, ba := must(a.Add(b)), must(b.Add(a))
	if ab.digest == a.digest || ab.Len() != 2 || ba.Len() != 2 || a.Len() != 1 {
		t.Error("adding does not add, or changes what it adds to")
	}
}

// shellDriver is a driver whose jails are processes of this host without any confinement, for the script that makes
// the database.
type shellDriver struct {
	Driver
	t    *testing.T
	path string // of programs
	home string
	runs int
	cmd  *exec.Cmd
	done chan struct{}
}

func (d *shellDriver) Create(ctx context.Context, spec jail.Spec) (*jail.Jail, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	d.runs++
	d.home = d.t.TempDir()
	d.cmd = exec.Command(spec.Program.Argv[0], spec.Program.Argv[1:]...)
	d.cmd.Env = []string{"HOME=" + d.home, "PATH=" + d.path, "LC_ALL=C"}
	inR, inW, err1 := os.Pipe()
	outR, outW, err2 := os.Pipe()
	errR, errW, err3 := os.Pipe()
	for _, err := range []error{err1, err2, err3} {
		if err != nil {
			return nil, err
		}
	}
	d.cmd.Stdin, d.cmd.Stdout, d.cmd.Stderr = inR, outW, errW
	err := d.cmd.Start()
	for _, f := range []*os.File{inR, outW, errW} {
		f.Close()
	}
	if err != nil {
		return nil, err
	}
	d.done = make(chan struct{})
	go func(cmd *exec.Cmd, done chan struct{}) {
		_ = cmd.Wait() // its status is asked for
		close(done)
	}(d.cmd, d.done)
	return &jail.Jail{Name: "bshell00001", Stdio: &jail.Stdio{In: inW, Out: outR, Err: errR}}, nil
}

func (d *shellDriver) Wait(ctx context.Context, _ jail.Name) (jail.Exit, error) {
	<-d.done
	return jail.Exit{Code: d.cmd.ProcessState.ExitCode()}, nil
}

func (d *shellDriver) Destroy(context.Context, jail.Name) error {
	_ = d.cmd.Process.Kill() // it has mostly ended
	<-d.done
	return nil
}

func trusting(t *testing.T, d *shellDriver, text []byte) *Service {
	t.Helper()
	w := newFixture(t)
	o := w.options(func(o *Options) {
		o.Driver = d
		o.ExtraCA = must(ParseCertificates("ca.pem", text))
	})
	svc, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := svc.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return svc
}

// The real certutil makes the database, and says afterwards what is in it.
func TestDatabaseHoldsTheExtraAuthorities(t *testing.T) {
	certutil := testenv.Tool(t, "certutil")
	d := &shellDriver{t: t, path: filepath.Dir(certutil) + ":/usr/bin:/bin"}
	svc := trusting(t, d, append(authority(t, "first", true), authority(t, "second", true)...))
	files, err := svc.trust.files(t.Context(), "browser", "sha256:one")
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	for _, f := range files {
		path := filepath.Join(home, f.Path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, f.Data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.Command(certutil, "-L", "-d", "sql:"+filepath.Join(home, databaseDir)).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, name := range []string{"clawjail-extra-1", "clawjail-extra-2"} {
		if !strings.Contains(string(out), name) {
			t.Errorf("%s is not in the database:\n%s", name, out)
		}
	}
	if strings.Count(string(out), "C,,") != 2 {
		t.Errorf("they are trusted for something else:\n%s", out)
	}
	spec := jail.Spec{Kind: jail.KindBrowser, Lifetime: jail.LifetimeOwner, Template: "browser",
		Program: jail.Program{Argv: []string{"/bin/true"}, Wire: jail.WireStdio}, Limits: must(svc.plan(OpenRequest{})).shape.limits, HomeFiles: files}
	if err := spec.Validate(); err != nil {
		t.Errorf("the files cannot be staged: %v", err)
	}

	// It is made once, and anew for another template.
	for _, again := range []struct {
		digest string
		runs   int
	}{{"sha256:one", 1}, {"sha256:two", 2}, {"sha256:two", 2}} {
		if _, err := svc.trust.files(t.Context(), "browser", again.digest); err != nil || d.runs != again.runs {
			t.Errorf("%s: made %d times, want %d, %v", again.digest, d.runs, again.runs, err)
		}
	}
}

func TestTemplateWithoutCertutilIsNamed(t *testing.T) {
	svc := trusting(t, &shellDriver{t: t, path: t.TempDir()}, authority(t, "first", true))
	_, err := svc.trust.files(t.Context(), "browser", "sha256:one")
	wantCode(t, err, problem.ToolMissing)
}

func TestDatabaseThatAJailMadeUpIsRefused(t *testing.T) {
	good := func(sizes ...int) string {
		var b strings.Builder
		for n, name := range databaseFiles() {
			fmt.Fprintf(&b, "%s %d\n%s", name, sizes[n], strings.Repeat("x", sizes[n]))
		}
		return b.String()
	}
	if files, err := readDatabase(strings.NewReader(good(1, 2, 3))); err != nil || len(files) != 3 || len(files[2].Data) != 3 {
		t.Fatalf("a good one is read as %v, %v", files, err)
	}
	for name, text := range map[string]string{
		"nothing":         "",
		"cut in a header": "cert9.db 1",
		"cut in a file":   good(1, 2, 3)[:20],
		"more":            good(1, 2, 3) + "x",
		"too large":       "cert9.db 1000000000\n",
		"negative":        "cert9.db -1\n",
		"empty":           "cert9.db 0\n",
		"another name":    "../../x 1\nx",
		"no number":       "cert9.db x\n",
		"a long header":   strings.Repeat("c", 1000) + "\n",
	} {
		if files, err := readDatabase(strings.NewReader(text)); err == nil {
			t.Errorf("%s is read as %v", name, files)
		}
	}
}

func FuzzReadDatabase(f *testing.F) {
	f.Add([]byte("cert9.db 1\nxkey4.db 1\nxpkcs11.txt 1\nx"))
	f.Fuzz(func(t *testing.T, text []byte) {
		files, err := readDatabase(io.LimitReader(bytes.NewReader(text), 1<<20))
		if err != nil {
			return
		}
		for n, file := range files {
			if file.Path != databaseDir+"/"+databaseFiles()[n] || len(file.Data) == 0 || len(file.Data) > len(text) {
				t.Errorf("%q with %d bytes out of %d", file.Path, len(file.Data), len(text))
			}
		}
	})
}
