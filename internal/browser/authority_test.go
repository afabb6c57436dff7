//go:build unix

package browser

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/cdp/cdptest"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// An authority in the database below Home is trusted, by both builds and without any flag; without it the same page is
// refused.
func TestAnAuthorityInTheHomeIsTrusted(t *testing.T) {
	certutil := testenv.Tool(t, "certutil")
	authority, server := certificates(t)
	secure := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		io.WriteString(w, "<title>Secure</title>")
	}))
	secure.TLS = &tls.Config{Certificates: []tls.Certificate{server}}
	// The browser's refusals are what the test is about, and noise in its output.
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	t.Cleanup(secure.Close)
	proxy := httptest.NewServer(tunnel(secure.Listener.Addr().String()))
	t.Cleanup(proxy.Close)

	for _, trusted := range []bool{true, false} {
		eachBuild(t, func(t *testing.T, build Build) {
			home := cdptest.Dir(t)
			if trusted {
				trust(t, certutil, home, authority)
			}
			o := Options{Build: build, Proxy: proxy.URL, ProfileDir: home + "/profile", Home: home}
			if o.Binary = testenv.Chromium(t); build == Full {
				o.Binary = testenv.ChromiumFull(t)
			}
			_, conn := start(t, o)
			b, err := Open(within(t, 30*time.Second), conn)
			if err != nil {
				t.Fatal(err)
			}
			got, err := b.Navigate(within(t, 20*time.Second), "https://secure.test/")
			if trusted && (err != nil || got.Title != "Secure") {
				t.Errorf("trusted: %+v, %v", got, err)
			}
			if p, _ := problem.As(err); !trusted && (p == nil || p.Details["net_error"] != "net::ERR_CERT_AUTHORITY_INVALID") {
				t.Errorf("not trusted: %+v, %v", got, err)
			}
			if err := b.Close(within(t, 10*time.Second)); err != nil {
				t.Error(err)
			}
		})
	}
}

// trust makes the database as its owner would find it.
func trust(t *testing.T, certutil, home string, authority []byte) {
	t.Helper()
	database := filepath.Join(home, ".pki", "nssdb")
	if err := os.MkdirAll(database, 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "authority.pem")
	if err := os.WriteFile(file, authority, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, arguments := range [][]string{
		{"-N", "--empty-password", "-d", "sql:" + database},
		{"-A", "-d", "sql:" + database, "-n", "test authority", "-t", "C,,", "-i", file},
	} {
		if out, err := exec.Command(certutil, arguments...).CombinedOutput(); err != nil {
			t.Fatalf("certutil %s: %v\n%s", strings.Join(arguments, " "), err, out)
		}
	}
	cdptest.Give(t, home)
}

func certificates(t *testing.T) (authorityPEM []byte, server tls.Certificate) {
	t.Helper()
	now := time.Now()
	template := func(serial int64, name string) *x509.Certificate {
		return &x509.Certificate{SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name},
			NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour), BasicConstraintsValid: true}
	}
	key := func() *ecdsa.PrivateKey {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	authority, authorityKey := template(1, "test authority"), key()
	authority.IsCA, authority.KeyUsage = true, x509.KeyUsageCertSign
	authorityDER, err := x509.CreateCertificate(rand.Reader, authority, authority, authorityKey.Public(), authorityKey)
	if err != nil {
		t.Fatal(err)
	}
	leaf, leafKey := template(2, "secure.test"), key()
	leaf.DNSNames, leaf.ExtKeyUsage = []string{"secure.test"}, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	leafDER, err := x509.CreateCertificate(rand.Reader, leaf, authority, leafKey.Public(), authorityKey)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authorityDER}),
		tls.Certificate{Certificate: [][]byte{leafDER}, PrivateKey: leafKey}
}

// tunnel is a proxy whose every CONNECT ends at one address.
func tunnel(address string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect {
			http.Error(w, "refused", http.StatusForbidden)
			return
		}
		upstream, err := net.Dial("tcp", address)
		if err != nil {
			http.Error(w, "unreachable", http.StatusBadGateway)
			return
		}
		defer upstream.Close()
		client, buffered, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		defer client.Close()
		io.WriteString(client, "HTTP/1.1 200 OK\r\n\r\n")
		finished := make(chan struct{}, 1)
		go func() {
			io.Copy(upstream, buffered)
			upstream.(*net.TCPConn).CloseWrite()
			finished <- struct{}{}
		}()
		io.Copy(client, upstream)
		client.Close()
		<-finished
	})
}
