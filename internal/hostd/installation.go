package hostd

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// Installation is what stays the same for as long as a data directory exists: the mark that everything on the host
// carries, and the network of the jails. It is <data_dir>/installation.json.
type Installation struct {
	ID      jail.Installation `json:"id"`
	Subnet  netip.Prefix      `json:"subnet"`
	Created time.Time         `json:"created"`
}

// InstallationFile is the name of the file in the data directory.
const InstallationFile = "installation.json"

// maxInstallation is far more than the file has.
const maxInstallation = 4 << 10

// OpenInstallation reads the installation of a data directory, or makes it: once, whoever is first. configured is
// the subnet of the configuration, or the zero Prefix; then choose finds one, and is called only when the
// installation is made.
func OpenInstallation(ctx context.Context, dir string, configured netip.Prefix, choose func(context.Context, jail.Installation) (netip.Prefix, error), now func() time.Time) (Installation, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return Installation{}, fmt.Errorf("open the data directory: %w", err)
	}
	defer root.Close() // nothing is written through it
	in, err := readInstallation(root)
	if errors.Is(err, fs.ErrNotExist) {
		in = Installation{ID: randomID(), Subnet: configured.Masked(), Created: now().UTC().Truncate(time.Second)}
		if !configured.IsValid() {
			if in.Subnet, err = choose(ctx, in.ID); err != nil {
				return Installation{}, fmt.Errorf("choose a subnet: %w", err)
			}
		}
		if err := writeInstallation(root, in, root.Link); err != nil {
			return Installation{}, fullDisk(fmt.Errorf("make the installation: %w", err))
		}
		in, err = readInstallation(root) // another process may have been first
	}
	if err != nil {
		return Installation{}, err
	}
	if configured.IsValid() && configured.Masked() != in.Subnet {
		return Installation{}, problem.New(problem.BadConfig,
			"remove subnet from the configuration, or stop clawjail and end its jails: sudo clawjail uninstall, which keeps all data",
			"the subnet is configured as %s, but this installation has jails in %s", configured, in.Subnet)
	}
	return in, nil
}

// settle opens the installation for a start. While it has no jails its network may change: to the configured one, or to a free
// one where something else uses its own. Nothing is written before the network is known to be free. That of pods is the cluster's.
func (o RunOptions) settle(ctx context.Context) (Installation, error) {
	in, found, err := FindInstallation(o.Config)
	if err != nil {
		return in, err
	}
	open := func() (Installation, error) {
		return OpenInstallation(ctx, o.Config.DataDir, o.Config.Subnet, o.Substrate.FreeSubnet, o.Now)
	}
	want := cmp.Or(o.Config.Subnet.Masked(), in.Subnet)
	if o.ending || o.Config.Kubernetes.On() || want == (netip.Prefix{}) || found && hasRecords(o.Config) {
		return open()
	}
	if check := o.Substrate.CheckSubnet; check != nil {
		err = check(ctx, in.ID, want)
	}
	if problem.CodeOf(err) == problem.BadConfig && !o.Config.Subnet.IsValid() {
		o.Log.Warn("something else uses the network of the installation, which gets a free one", "error", err)
		want, err = o.Substrate.FreeSubnet(ctx, in.ID)
	}
	switch {
	case err != nil || want == in.Subnet:
		return in, err
	case !found:
		return open()
	}
	root, err := os.OpenRoot(o.Config.DataDir)
	if err != nil {
		return in, fmt.Errorf("open the data directory: %w", err)
	}
	defer root.Close() // what is written is synced
	in.Subnet = want
	if err := writeInstallation(root, in, root.Rename); err != nil {
		return in, fullDisk(fmt.Errorf("change the network of the installation: %w", err))
	}
	return in, nil
}

// hasRecords says whether there are jails or containers in the journals. A journal that cannot be read may have some.
func hasRecords(c config.Config) bool {
	for _, dir := range []string{journalPath(c), containerJournalPath(c)} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) ||
			slices.ContainsFunc(entries, func(e os.DirEntry) bool { return filepath.Ext(e.Name()) == recordSuffix }) {
			return true
		}
	}
	return false
}

// randomID is a letter and three letters or digits: 26 * 36³, about 1.2 million.
func randomID() jail.Installation {
	const letters, both = "abcdefghijklmnopqrstuvwxyz", "abcdefghijklmnopqrstuvwxyz0123456789"
	var random [4]byte
	rand.Read(random[:]) // never fails, see its documentation
	id := []byte{letters[int(random[0])%len(letters)]}
	for _, r := range random[1:] {
		id = append(id, both[int(r)%len(both)])
	}
	return jail.Installation(id)
}

// writeInstallation puts the complete file in its place: with a link, unlike a rename, unless there is one. That somebody was
// first is not an error.
func writeInstallation(root *os.Root, in Installation, put func(from, to string) error) error {
	data, err := json.Marshal(in, jsontext.WithIndent("  "))
	if err != nil {
		return err
	}
	temp := tempPrefix + InstallationFile + "." + rand.Text() + tempSuffix
	f, err := root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(data, '\n'))
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = put(temp, InstallationFile)
	}
	if errors.Is(err, fs.ErrExist) {
		err = nil
	}
	gone := root.Remove(temp)
	if errors.Is(gone, fs.ErrNotExist) {
		gone = nil // renamed
	}
	return errors.Join(err, gone, syncDir(root))
}

func syncDir(root *os.Root) error {
	d, err := root.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func readInstallation(root *os.Root) (Installation, error) {
	f, err := root.Open(InstallationFile)
	if err != nil {
		return Installation{}, fmt.Errorf("open the installation: %w", err)
	}
	defer f.Close() // only read from
	damaged := func(err error) error {
		return problem.Wrap(err, problem.BadConfig, "put the right file back from a backup; without it the jails of this installation cannot be told from others",
			"%s in the data directory is damaged", InstallationFile)
	}
	info, err := f.Stat()
	if err != nil {
		return Installation{}, fmt.Errorf("look at the installation: %w", err)
	}
	if owner, ok := ownerOf(info); !ok || owner != uint32(os.Geteuid()) || !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0 {
		return Installation{}, problem.New(problem.BadConfig, "chown it to root and chmod it to 0600, if you know why it was changed",
			"%s in the data directory is not a file that only user %d can read and write", InstallationFile, os.Geteuid())
	}
	data, err := io.ReadAll(io.LimitReader(f, maxInstallation))
	if err != nil {
		return Installation{}, fmt.Errorf("read the installation: %w", err)
	}
	var in Installation
	if err := json.Unmarshal(data, &in, strict()); err != nil {
		return Installation{}, damaged(err)
	}
	if _, err := jail.ParseInstallation(string(in.ID)); err != nil {
		return Installation{}, damaged(err)
	}
	if _, err := jail.NewPool(in.Subnet, 0); err != nil {
		return Installation{}, damaged(err)
	}
	if in.Subnet != in.Subnet.Masked() {
		return Installation{}, damaged(fmt.Errorf("the subnet %s has bits of a host", in.Subnet))
	}
	return in, nil
}
