package selftest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"image/color"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// The page that browsers are sent to. The name exists nowhere but in the private instance's configuration (RFC
// 6761 keeps .test from ever being a real one).
const (
	siteHost  = "site.clawjail.test"
	siteTitle = "clawjail self-test: the script ran"
)

var siteColor = color.NRGBA{R: 0x1f, G: 0x6f, B: 0x5c, A: 0xff}

const sitePage = `<!doctype html><meta charset="utf-8"><title>clawjail self-test</title>
<style>html{background:#1f6f5c}</style>
<script>document.title += ": the script ran"</script>`

// site is an HTTPS server on loopback with a certificate of its own authority.
type site struct {
	ca    []byte // PEM
	port  int
	count atomic.Int64
	http  *http.Server
	done  chan struct{}
}

func newSite() (*site, error) {
	ca, cert, err := certificates()
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &site{ca: ca, port: l.Addr().(*net.TCPAddr).Port, done: make(chan struct{})}
	s.http = &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/" {
				http.NotFound(w, r)
				return
			}
			s.count.Add(1)
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			_, _ = io.WriteString(w, sitePage) // a visitor who left is seen by what the browser reports
		}),
		ReadHeaderTimeout: 10 * time.Second,
		ErrorLog:          log.New(io.Discard, "", 0), // a browser that refuses the certificate reports it itself
	}
	go func() {
		defer close(s.done)
		_ = s.http.Serve(tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{cert}})) // ends with Close
	}()
	return s, nil
}

func (s *site) url() string   { return fmt.Sprintf("https://%s:%d/", siteHost, s.port) }
func (s *site) visits() int64 { return s.count.Load() }

func (s *site) close() {
	_ = s.http.Close() // it was on loopback, for this run
	<-s.done
}

// certificates makes an authority that is valid for a day, and a certificate by it.
func certificates() (ca []byte, cert tls.Certificate, err error) {
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, cert, err
	}
	now := time.Now()
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: "clawjail self-test"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	caDER, err := x509.CreateCertificate(rand.Reader, authority, authority, &caKey.PublicKey, caKey)
	if err != nil {
		return nil, cert, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, cert, err
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano() + 1), Subject: pkix.Name{CommonName: siteHost}, DNSNames: []string{siteHost},
		NotBefore: authority.NotBefore, NotAfter: authority.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, authority, &key.PublicKey, caKey)
	if err != nil {
		return nil, cert, err
	}
	ca = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caDER})
	return ca, tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
