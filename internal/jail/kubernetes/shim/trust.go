package shim

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"math/big"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
)

// ServerTLS is the control plane's side, and the pin by which pods know it: the SHA-256 of its public key, as a SubjectPublicKeyInfo, in base64.
func ServerTLS(key ed25519.PrivateKey) (_ *tls.Config, pin string, err error) {
	// Pods check only the key of the certificate.
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC), NotAfter: time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, "", err
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, "", err
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, MinVersion: tls.VersionTLS13}, pinOf(certificate), nil
}

// ClientTLS is a pod's side, which speaks only with the holder of the key.
func ClientTLS(pin string) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, VerifyConnection: func(state tls.ConnectionState) error {
		if len(state.PeerCertificates) == 0 || pinOf(state.PeerCertificates[0]) != pin {
			return problem.New(problem.Unauthorized, "look who answers at its address", "what answers there is not the control plane: it has another key")
		}
		return nil
	}}
}

func pinOf(c *x509.Certificate) string {
	sum := sha256.Sum256(c.RawSubjectPublicKeyInfo)
	return base64.StdEncoding.EncodeToString(sum[:])
}

// ValidPin says whether a text can be a pin.
func ValidPin(pin string) bool {
	sum, err := base64.StdEncoding.DecodeString(pin)
	return err == nil && len(sum) == sha256.Size
}
