package session

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"strings"

	"github.com/clawjail/clawjail/internal/problem"
)

// Bounds of the certificates that browsers trust besides the public ones. The database that is made of them has to be
// staged into every jail.
const (
	maxCertificates     = 64
	maxCertificateBytes = 256 << 10
)

// Certificates are certificate authorities. The zero value is none.
type Certificates struct {
	der    [][]byte
	digest string // of all of them, in their order
}

// Len is how many there are.
func (c Certificates) Len() int { return len(c.der) }

// ParseCertificates reads certificates in PEM form. source is the name of the file, for messages. Anything but
// certificates is an error: a private key in that file is a mistake that its owner wants to know about.
func ParseCertificates(source string, text []byte) (Certificates, error) {
	bad := func(err error, hint, what string) (Certificates, error) {
		return Certificates{}, problem.Wrap(err, problem.BadConfig, hint, "extra_ca: %s %s", source, what)
	}
	var out Certificates
	for {
		var block *pem.Block
		text = bytes.TrimSpace(text)
		if len(text) == 0 {
			break
		}
		if block, text = pem.Decode(text); block == nil {
			return bad(nil, "it must hold certificates in PEM form and nothing else", "is not PEM")
		}
		if block.Type != "CERTIFICATE" {
			return bad(nil, "remove everything but the certificates from it", "holds a "+strings.ToLower(block.Type))
		}
		if len(block.Headers) > 0 {
			return bad(nil, "remove the lines with a colon from it", "holds a certificate with headers, which not every reader of certificates takes")
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return bad(err, "replace it", "holds a certificate that cannot be read")
		}
		if !certificate.IsCA {
			return bad(nil, "name the authority that signed it instead", "holds the certificate of "+quote(certificate.Subject.CommonName)+", which is not an authority")
		}
		out.der = append(out.der, block.Bytes)
	}
	if len(out.der) == 0 {
		return bad(nil, "remove it from extra_ca", "holds no certificate")
	}
	return out.Add(Certificates{})
}

// Add returns both together.
func (c Certificates) Add(more Certificates) (Certificates, error) {
	der := append(append([][]byte(nil), c.der...), more.der...)
	total := 0
	sum := sha256.New()
	for _, one := range der {
		total += len(one)
		sum.Write(one) // DER says its own length, so the parts cannot be confused
	}
	if len(der) > maxCertificates || total > maxCertificateBytes {
		return Certificates{}, problem.New(problem.BadConfig, "list only the authorities that jailed browsers need",
			"extra_ca: %d certificates with %d bytes are more than %d with %d", len(der), total, maxCertificates, maxCertificateBytes)
	}
	if len(der) == 0 {
		return Certificates{}, nil
	}
	return Certificates{der: der, digest: hex.EncodeToString(sum.Sum(nil))}, nil
}
