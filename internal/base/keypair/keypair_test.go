package keypair

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// made is a pair with a serial number.
func made(t *testing.T, serial int64) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"clawjail.test"}}
	der, err := x509.CreateCertificate(rand.Reader, c, c, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})
}

func TestRenewedFilesAreUsedOnceTheyAreOfEachOther(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	when := time.Now()
	write := func(path string, text []byte) {
		t.Helper()
		when = when.Add(time.Second) // file systems keep times by as much
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, when, when); err != nil {
			t.Fatal(err)
		}
	}
	oldCert, oldKey := made(t, 1)
	newCert, newKey := made(t, 2)
	var log bytes.Buffer
	load := func() (*Pair, error) { return Load(cert, key, slog.New(slog.NewTextHandler(&log, nil))) }
	write(cert, oldCert)
	if _, err := load(); err == nil {
		t.Fatal("a certificate without a key is loaded")
	}
	write(key, newKey)
	if _, err := load(); err == nil {
		t.Fatal("the key of another certificate is loaded")
	}
	write(key, oldKey)
	p, err := load()
	if err != nil {
		t.Fatal(err)
	}
	serves := func(what string, want int64) {
		t.Helper()
		for range 2 {
			shown, err := p.Config().GetCertificate(&tls.ClientHelloInfo{})
			if err != nil || shown.Leaf.SerialNumber.Int64() != want || p.Leaf().SerialNumber.Int64() != want {
				t.Errorf("%s: %v, %v", what, shown.Leaf.SerialNumber, err)
			}
		}
	}
	serves("at first", 1)
	write(cert, newCert)
	serves("half renewed", 1)
	if n := strings.Count(log.String(), "cannot be used"); n != 1 {
		t.Errorf("what cannot be used is told %d times: %s", n, &log)
	}
	write(key, newKey)
	serves("renewed", 2)
	if err := os.Remove(cert); err != nil {
		t.Fatal(err)
	}
	serves("gone", 2)
	if n := strings.Count(log.String(), "cannot be used"); n != 2 {
		t.Errorf("a file that is gone is told of %d times: %s", n-1, &log)
	}
	write(cert, []byte("nothing"))
	serves("broken", 2)
	var none *Pair
	if none.Leaf() != nil {
		t.Error("there is a certificate where none is")
	}
}
