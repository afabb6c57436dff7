//go:build linux

package docs

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/test/testkit"
)

// manualSites are the names that the documentation uses for sites of others. All are the same one here.
var manualSites = []string{"example.com", "www.example.com", "api.example.com", "docs.example.com", "tracker.example.com", "api.github.com", "shop.example.net"}

// manualSite is the Internet of the documentation's readers: one site under all names that pages use, over HTTP and HTTPS at
// the ports that addresses without one mean. It has something of everything that pages do to a site.
func manualSite(t *testing.T, dir string) (address, settings string) {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		first, title := "More information", "Example Domain"
		if strings.HasPrefix(r.Host, "shop.") {
			first, title = "Orders", "Shop"
		}
		if q := r.FormValue("q"); q != "" {
			title = "Found " + q
		}
		who := "Nobody is logged in."
		if c, err := r.Cookie("session"); err == nil && c.Value != "" {
			who = "Hello alice."
		}
		fmt.Fprintf(w, `<!doctype html><title>%s</title><h1>%[1]s</h1><a href=/orders>%s</a>
<form action=/found><input id=q name=q aria-label=Search><button>Go</button></form><p>%s</p>
<button id=ask onclick="confirm('Delete?')">Delete</button><a id=dl href=/report.csv download>Report</a><input id=file type=file>`, title, first, who)
		for n := range 12 {
			fmt.Fprintf(w, "<a href=/order/%d>Order %[1]d</a>\n", n)
		}
	})
	mux.HandleFunc("GET /report.csv", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Disposition", `attachment; filename="report.csv"`)
		fmt.Fprint(w, "a,b\n1,2\n")
	})
	mux.HandleFunc("GET /login", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		fmt.Fprint(w, "<!doctype html><title>Log in</title><form><input name=user><input type=password name=password><button>Log in</button></form>")
	})
	// A model that has seen enough at once.
	mux.HandleFunc("POST /v1/messages", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
		answer := `"/orders"`
		if err != nil || !strings.Contains(string(body), "Orders") {
			answer = `"there is no such page"`
		}
		if strings.Contains(string(body), "this schema describes") {
			answer = `{"link":` + answer + `}`
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"id":"msg_1","type":"message","role":"assistant","model":"m","content":[{"type":"tool_use","id":"toolu_1","name":"act",`+
			`"input":{"do":"done","answer":%s}}],"stop_reason":"tool_use","usage":{"input_tokens":900,"output_tokens":30}}`, answer)
	})
	mux.HandleFunc("POST /", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, `{"number":7}`)
	})

	// An address of this host's that no other run of the tests has: the ports are the usual ones.
	address = net.IPv4(127, 77, byte(os.Getpid()>>8), byte(os.Getpid())).String()
	certificate, authority := certificateFor(t, manualSites)
	file := filepath.Join(dir, "authority.pem")
	testkit.WriteFile(t, file, string(authority))
	for port, config := range map[string]*tls.Config{"80": nil, "443": {Certificates: []tls.Certificate{certificate}}} {
		listener, err := net.Listen("tcp", net.JoinHostPort(address, port))
		if err != nil {
			t.Fatal(err)
		}
		server := &http.Server{Handler: mux, TLSConfig: config, ReadHeaderTimeout: time.Minute}
		ended := make(chan error, 1)
		go func() {
			if config != nil {
				ended <- server.ServeTLS(listener, "", "")
				return
			}
			ended <- server.Serve(listener)
		}()
		t.Cleanup(func() {
			if err := errors.Join(server.Close(), <-ended); !errors.Is(err, http.ErrServerClosed) {
				t.Error(err)
			}
		})
	}
	settings = fmt.Sprintf("extra_ca: [%s]\ngateway:\n  private_destinations:\n", file)
	for _, host := range manualSites {
		settings += fmt.Sprintf("    - {host: %s, address: %s, ports: [80, 443]}\n", host, address)
	}
	return address, settings
}

// certificateFor makes an authority, and a certificate of it for some names.
func certificateFor(t *testing.T, names []string) (certificate tls.Certificate, authority []byte) {
	t.Helper()
	caKey, key := newKey(t), newKey(t)
	ca := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "authority of a test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	leaf := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: names[0]}, DNSNames: names,
		NotBefore: ca.NotBefore, NotAfter: ca.NotAfter, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, ca, key.Public(), caKey)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caDER})
}
