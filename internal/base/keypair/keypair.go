// Package keypair has a certificate and its key from two files, and takes them anew when they are renewed.
package keypair

import (
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"os"
	"sync"
	"time"
)

// Pair is a certificate with its key. A nil Pair has none.
type Pair struct {
	cert, key string
	log       *slog.Logger

	mu      sync.Mutex
	used    tls.Certificate
	read    state  // of the files that used comes from
	refused string // why those that are there now cannot be used
}

// state is what of two files changes when they are written.
type state [2]struct {
	changed time.Time
	size    int64
}

// Load reads a pair. Files that take its place later and cannot be used are told of in the log.
func Load(cert, key string, log *slog.Logger) (*Pair, error) {
	p := &Pair{cert: cert, key: key, log: log}
	var err error
	if p.read, err = p.look(); err != nil {
		return nil, err
	}
	if p.used, err = tls.LoadX509KeyPair(cert, key); err != nil {
		return nil, err
	}
	return p, nil
}

// look follows links: renewed certificates are often another target of the same one.
func (p *Pair) look() (out state, err error) {
	for i, path := range []string{p.cert, p.key} {
		info, err := os.Stat(path)
		if err != nil {
			return state{}, err
		}
		out[i].changed, out[i].size = info.ModTime(), info.Size()
	}
	return out, nil
}

// current is the pair that the files have now, or the last one that could be used: between two writes they are not of each other.
func (p *Pair) current() *tls.Certificate {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now, err := p.look(); err != nil || now != p.read {
		p.renew(now, err)
	}
	used := p.used
	return &used
}

// renew reads files that have changed. The caller holds p.mu.
func (p *Pair) renew(now state, err error) {
	fresh := tls.Certificate{}
	if err == nil {
		fresh, err = tls.LoadX509KeyPair(p.cert, p.key)
	}
	switch {
	case err == nil:
		p.used, p.read, p.refused = fresh, now, ""
		p.log.Info("a new certificate is used", "file", p.cert, "until", fresh.Leaf.NotAfter)
	case err.Error() != p.refused:
		p.refused = err.Error()
		p.log.Warn("the new certificate cannot be used, and the one before still is", "file", p.cert, "error", err)
	}
}

// Leaf is the certificate that the last connection was shown, or the first one will be; nil when there is none. It is asked for with each
// request, and looks at no file.
func (p *Pair) Leaf() *x509.Certificate {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used.Leaf
}

// Config are the settings of a server that speaks HTTP/1.1 with the pair, which is not nil.
func (p *Pair) Config() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return p.current(), nil
		}}
}
