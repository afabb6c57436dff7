package session

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// trust makes the NSS database that tells Chromium on Linux which further authorities to trust. Only NSS's own
// certutil writes that format, so it runs in the template: in a jail of its own, without network, once per template
// and list of authorities.
type trust struct {
	service *Service
	turn    chan struct{} // one token, held while a database is made

	// Guarded by turn.
	key  string
	made []jail.File
}

func newTrust(svc *Service) *trust { return &trust{service: svc, turn: make(chan struct{}, 1)} }

// databaseFiles are the files of an NSS database, in the order in which the script prints them. Chromium looks for
// them below its home directory.
func databaseFiles() []string { return []string{"cert9.db", "key4.db", "pkcs11.txt"} }

const (
	databaseDir = ".pki/nssdb"
	// databaseBytes bounds one file. An empty database has 65 kB in two files, and a certificate adds a few.
	databaseBytes = jail.MaxHomeFiles * 3 / 4
	// noCertutil is the status of the script where there is no certutil: that of a shell that finds no program.
	noCertutil = 127
)

// databaseScript reads one certificate per line, base64 of DER, and prints each file with its name and size before it.
// The database is made where the browser will have it, because its configuration holds its own path. C is "trusted to
// sign certificates of servers", and nothing else.
const databaseScript = `set -eu
command -v certutil >/dev/null || exit 127
d="$HOME/.pki/nssdb"
mkdir -p "$d"
certutil -N -d "sql:$d" --empty-password
n=0
while read -r line; do
  n=$((n+1))
  { echo "-----BEGIN CERTIFICATE-----"; echo "$line" | fold -w 64; echo "-----END CERTIFICATE-----"; } >"$d/one.pem"
  certutil -A -d "sql:$d" -n "clawjail-extra-$n" -t C,, -a -i "$d/one.pem"
done
for f in cert9.db key4.db pkcs11.txt; do
  echo "$f $(wc -c <"$d/$f")"
  cat "$d/$f"
done
`

// files are what has to be in the home directory of a browser's jail.
func (t *trust) files(ctx context.Context, template, digest string) ([]jail.File, error) {
	if t.service.ExtraCA.Len() == 0 {
		return nil, nil
	}
	select {
	case t.turn <- struct{}{}:
		defer func() { <-t.turn }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	key := template + " " + digest + " " + t.service.ExtraCA.digest
	if t.key == key {
		return t.made, nil
	}
	made, err := t.service.makeDatabase(ctx, template)
	if err != nil {
		return nil, fmt.Errorf("make the list of extra authorities for template %s: %w", template, err)
	}
	// One is kept: nearly always there is one template, and a database is a tenth of a megabyte.
	t.key, t.made = key, made
	return made, nil
}

// makeDatabase runs certutil in a jail.
func (svc *Service) makeDatabase(ctx context.Context, template string) (_ []jail.File, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	j, err := svc.Driver.Create(ctx, jail.Spec{
		Kind: jail.KindBrowser, Lifetime: jail.LifetimeOwner, Template: template,
		Program: jail.Program{
			Argv: []string{"/bin/sh", "-c", databaseScript},
			Env:  map[string]string{"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C"},
			Wire: jail.WireStdio,
		},
		Limits: jail.Limits{Memory: 128 << 20, MilliCPU: 2000, Tasks: 32, Disk: 16 << 20, SharedMemory: 1 << 20, Files: 256, WallClock: 2 * time.Minute},
	})
	if err != nil {
		return nil, err
	}
	i := &instance{jail: j, drained: make(chan struct{})}
	svc.tasks.Go(func() {
		defer close(i.drained)
		i.drain(j.Stdio.Err)
	})
	defer func() { err = errors.Join(err, svc.destroy(ctx, i)) }()
	// A jail that is ended closes its pipes; one that hangs is ended by closing ours.
	defer context.AfterFunc(ctx, func() {
		_ = i.hangUp() // destroy reports the same again
	})()

	var files []jail.File
	var group errgroup.Group
	group.Go(func() error { return svc.ExtraCA.send(j.Stdio.In) })
	group.Go(func() (err error) {
		files, err = readDatabase(j.Stdio.Out)
		return err
	})
	err = group.Wait()
	if err == nil {
		return files, nil
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	exit, waitErr := svc.Driver.Wait(ctx, j.Name)
	switch {
	case waitErr != nil:
		return nil, errors.Join(err, waitErr)
	case exit.Code == noCertutil:
		return nil, problem.New(problem.ToolMissing, "add the package libnss3-tools to the template, or remove extra_ca",
			"template %s has no certutil, which extra_ca needs", template)
	}
	return nil, problem.Wrap(err, problem.JailFailed, "check the files of extra_ca with `openssl x509 -text`",
		"certutil ended: %s%s", exit.Words(), lastWords(i))
}

// send writes the certificates as the script reads them, and the end.
func (c Certificates) send(w io.WriteCloser) error {
	var text bytes.Buffer
	for _, der := range c.der {
		text.WriteString(base64.StdEncoding.EncodeToString(der))
		text.WriteByte('\n')
	}
	_, err := w.Write(text.Bytes())
	return errors.Join(err, w.Close())
}

// readDatabase reads what the script prints. It comes out of a jail: everything in it is checked and bounded.
func readDatabase(r io.Reader) ([]jail.File, error) {
	in := bufio.NewReaderSize(r, 64)
	var out []jail.File
	for _, want := range databaseFiles() {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return nil, fmt.Errorf("read the size of %s: %w", want, err)
		}
		name, size, _ := strings.Cut(strings.TrimSuffix(string(line), "\n"), " ")
		n, err := strconv.ParseUint(strings.TrimSpace(size), 10, 32)
		if name != want || err != nil || n == 0 || n > databaseBytes {
			return nil, fmt.Errorf("%s comes with the header %q", want, line)
		}
		data := make([]byte, n)
		if _, err := io.ReadFull(in, data); err != nil {
			return nil, fmt.Errorf("read %s: %w", want, err)
		}
		out = append(out, jail.File{Path: databaseDir + "/" + want, Data: data})
	}
	if _, err := in.ReadByte(); err != io.EOF {
		return nil, errors.New("there is more than the database")
	}
	return out, nil
}
