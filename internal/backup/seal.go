package backup

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"io"

	"filippo.io/age"

	"github.com/clawjail/clawjail/internal/problem"
)

const ageIntro = "age-encryption.org/v1"

// seal encrypts what is written, when there is a key for it. Close ends the encryption and leaves w open.
func seal(w io.Writer, k Keys) (io.WriteCloser, error) {
	var to []age.Recipient
	for _, text := range k.Recipients {
		r, err := age.ParseX25519Recipient(text)
		if err != nil {
			return nil, problem.Wrap(err, problem.BadRequest, "make one with age-keygen; the public key begins with age1", "the recipient is no public key of age")
		}
		to = append(to, r)
	}
	if k.Passphrase != "" {
		if len(to) > 0 {
			return nil, problem.New(problem.BadRequest, "leave one of the two out", "a backup is encrypted for recipients, or with a passphrase")
		}
		r, err := age.NewScryptRecipient(k.Passphrase)
		if err != nil {
			return nil, err
		}
		to = append(to, r)
	}
	if len(to) == 0 {
		return plain{w}, nil
	}
	return age.Encrypt(w, to...)
}

type plain struct{ io.Writer }

func (plain) Close() error { return nil }

// unseal reads what seal wrote, and unpacks it. Data behind the end of the file is an error.
func unseal(r io.Reader, k Keys) (*gzip.Reader, error) {
	in := bufio.NewReaderSize(r, 64<<10)
	start, err := in.Peek(len(ageIntro))
	if err != nil && err != io.EOF {
		return nil, err
	}
	if bytes.Equal(start, []byte(ageIntro)) {
		var with []age.Identity
		if k.Identities != nil {
			ids, err := age.ParseIdentities(k.Identities)
			if err != nil {
				return nil, problem.Wrap(err, problem.BadRequest, "name the file that age-keygen wrote", "the identity cannot be read")
			}
			with = append(with, ids...)
		}
		if k.Passphrase != "" {
			id, err := age.NewScryptIdentity(k.Passphrase)
			if err != nil {
				return nil, err
			}
			with = append(with, id)
		}
		if len(with) == 0 {
			return nil, problem.New(problem.BadRequest, "say how to open it: --identity or --passphrase-file", "the backup is encrypted")
		}
		opened, err := age.Decrypt(in, with...)
		if err != nil {
			return nil, problem.Wrap(err, problem.BadRequest, "use the key that it was encrypted for", "the backup cannot be decrypted")
		}
		in = bufio.NewReaderSize(opened, 64<<10)
	}
	z, err := gzip.NewReader(in)
	if err != nil {
		return nil, damaged(err)
	}
	return z, nil
}
