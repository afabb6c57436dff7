package grant

import (
	"encoding/base64"
	"fmt"

	"golang.org/x/crypto/blake2b"
)

// keyID names a public key as PASERK does (k4.pid, operations/ID of its specification): the BLAKE2b-264 of the key's
// own PASERK. Other implementations of PASETO find the same name.
func keyID(public []byte) (string, error) {
	hash, err := blake2b.New(33, nil)
	if err != nil {
		return "", fmt.Errorf("name a key: %w", err)
	}
	hash.Write([]byte("k4.pid.k4.public." + base64.RawURLEncoding.EncodeToString(public)))
	return "k4.pid." + base64.RawURLEncoding.EncodeToString(hash.Sum(nil)), nil
}
