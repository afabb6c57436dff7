package peer

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/base/secret"
)

const (
	// certificateLife is how long a node's certificate is good. Clocks may be a day apart.
	certificateLife  = 72 * time.Hour
	certificateEarly = 24 * time.Hour
	// certificateUse is how long a node uses one.
	certificateUse = 12 * time.Hour
)

// authority makes the certificates of nodes. Its key follows from a secret, so that nodes with the same secret have the same authority.
type authority struct {
	node string
	now  func() time.Time
	root *x509.Certificate
	key  ed25519.PrivateKey

	mu     sync.Mutex // guards what follows
	used   *tls.Certificate
	issued time.Time
}

func newAuthority(node string, from secret.Value, now func() time.Time) (a *authority, err error) {
	a = &authority{node: node, now: now}
	if err := from.Use(func(seed []byte) error {
		if len(seed) != ed25519.SeedSize {
			return fmt.Errorf("the secret of nodes has %d bytes, not %d", len(seed), ed25519.SeedSize)
		}
		a.key = ed25519.NewKeyFromSeed(seed)
		return nil
	}); err != nil {
		return nil, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "clawjail nodes"},
		NotBefore: time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC), NotAfter: time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	if err == nil {
		a.root, err = x509.ParseCertificate(der)
	}
	if err != nil {
		return nil, fmt.Errorf("make the authority of nodes: %w", err)
	}
	_, err = a.certificate()
	return a, err
}

// certificate is the node's own: a new one when the last one has been used for a while.
func (a *authority) certificate() (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.now()
	if a.used != nil && now.Sub(a.issued).Abs() < certificateUse {
		return a.used, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the certificate of the node: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("make the certificate of the node: %w", err)
	}
	template := &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: a.node}, DNSNames: []string{a.node},
		NotBefore: now.Add(-certificateEarly), NotAfter: now.Add(certificateLife), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, a.root, key.Public(), a.key)
	if err != nil {
		return nil, fmt.Errorf("make the certificate of the node: %w", err)
	}
	a.used, a.issued = &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, now
	return a.used, nil
}

func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.root)
	return pool
}

// server is how a node is reached: by other nodes alone.
func (a *authority) server() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: []string{"http/1.1"}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: a.pool(), Time: a.now,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return a.certificate() }}
}

// client is how a node reaches the one of a name.
func (a *authority) client(name string) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: []string{"http/1.1"}, RootCAs: a.pool(), ServerName: name, Time: a.now,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return a.certificate() }}
}
