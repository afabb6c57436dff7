package doctor

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/health"
	"github.com/clawjail/clawjail/internal/hostd"
)

// keyFiles are the files that open something, of which each is made on the first start.
func keyFiles(c config.Config) []string {
	own := hostd.ControlDir(c)
	vault := c.Vault.KeyFile
	if vault == "" {
		vault = filepath.Join(own, "vault.key")
	}
	return []string{vault, filepath.Join(own, "admin.key"), filepath.Join(own, "audit.key"), filepath.Join(own, "grants.key")}
}

// keys checks which users can read the files of keys. It does not read them.
func keys(_ context.Context, e *exam) Result {
	users, err := e.accounts()
	if err != nil {
		return e.failed(err)
	}
	owner := slices.IndexFunc(users, func(a account) bool { return a.name == e.Config.User })
	found := 0
	for _, path := range keyFiles(e.Config) {
		info, err := os.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return e.failed(err)
		}
		found++
		if !info.Mode().IsRegular() {
			return fails("the key %s is not a file of its own", path).hint("put the file itself there").fact("path", path)
		}
		if open := info.Mode().Perm() & 0o077; open != 0 {
			return fails("the key %s is open to others (%o)", path, info.Mode().Perm()).hint("sudo chmod 600 %s, and make new keys: others may have read it", path).fact("path", path)
		}
		if of, ok := info.Sys().(*syscall.Stat_t); ok && owner >= 0 && uint64(of.Uid) != users[owner].uid {
			return fails("the key %s belongs to user %d, so the control plane cannot read it", path, of.Uid).
				hint("sudo chown %s: %s", e.Config.User, path).fact("path", path)
		}
	}
	if found == 0 {
		return fine("there are no keys yet; they are made on the first start")
	}
	return fine("%d keys are the control plane's alone", found).fact("keys", found)
}

// certificateWarning is how long before the end of the API's certificate there is a warning.
const certificateWarning = 14 * 24 * time.Hour

func certificate(_ context.Context, e *exam) Result {
	files := e.Config.TLS
	if !files.Set() {
		return fine("the API has no certificate of its own")
	}
	const renew = "put a new one at tls.cert and tls.key"
	pair, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if errors.Is(err, fs.ErrPermission) && e.UID != 0 {
		return e.failed(err)
	}
	if err != nil {
		return fails("the certificate of the API cannot be used: %v", err).hint("correct tls.cert and tls.key: PEM, and of each other")
	}
	now, end := e.Now(), pair.Leaf.NotAfter
	day := end.UTC().Format(time.DateOnly)
	switch {
	case now.Before(pair.Leaf.NotBefore):
		return fails("the certificate of the API is good from %s on, which is not yet", pair.Leaf.NotBefore.UTC().Format(time.DateOnly)).hint("see whether the clock is right").fact("ends", end)
	case !end.After(now):
		return fails("the certificate of the API has ended on %s", day).hint(renew).fact("ends", end)
	case end.Sub(now) < certificateWarning:
		return warning("the certificate of the API ends on %s", day).hint(renew).fact("ends", end)
	}
	return fine("the certificate of the API is good until %s", day).fact("ends", end)
}

// clock asks whether the clock is kept right: grants, passkeys and certificates are good for a time.
func clock(ctx context.Context, e *exam) Result {
	text, err := e.Command(ctx, "timedatectl", "show", "--property=NTPSynchronized")
	if err != nil {
		return skipped("whether the clock is kept right is not known here: there is no timedatectl that answers")
	}
	if strings.TrimSpace(text) == "NTPSynchronized=yes" {
		return fine("the clock is kept right over the network")
	}
	return warning("nothing that systemd knows of keeps the clock right, and grants, passkeys and certificates are good for a time").
		hint("sudo timedatectl set-ntp true")
}

// installedPackage asks dpkg how far the installation of clawjail's own package has got. Until it ends, the user of the control plane
// may be missing, and what a package declares as needed may be, too.
func installedPackage(ctx context.Context, e *exam) Result {
	out, err := e.Command(ctx, "dpkg-query", "-W", "-f", "${db:Status-Status} ${Version}", "clawjail")
	if err != nil {
		if ctx.Err() != nil {
			return e.failed(ctx.Err())
		}
		return fine("clawjail is not installed as a package of Debian") // or there is no dpkg
	}
	state, version, _ := strings.Cut(strings.TrimSpace(out), " ")
	facts := Facts{"state": state, "version": version}
	switch state {
	case "installed", "triggers-awaited", "triggers-pending":
		return fine("the package clawjail %s is installed", version).facts(facts)
	case "config-files", "not-installed":
		return fine("clawjail is not installed as a package of Debian").facts(facts)
	}
	return fails("the package clawjail %s is %s: its installation did not end", version, state).facts(facts).
		hint("sudo apt-get install --fix-broken")
}

// units looks at the services of systemd, where they are installed.
func units(ctx context.Context, e *exam) Result {
	all := health.Units(ctx, filepath.Join(e.Root, "run/systemd/system"), e.Command)
	if len(all) == 0 {
		return fine("clawjail is not looked after by systemd here")
	}
	// The unit of the control plane starts the host daemon's, too.
	wanted := slices.ContainsFunc(all, func(u health.Unit) bool {
		return u.Name == health.ControlUnit && u.Enabled && u.State != "not installed" && u.State != health.Masked
	})
	var wrong, missing []string
	for _, u := range all {
		switch {
		case u.State == health.Masked:
			return fails("the service %s is masked, so systemd does not start it", u.Name).
				hint("sudo systemctl unmask %s && sudo systemctl enable --now %s %s", u.Name, health.HostUnit, health.ControlUnit).fact("units", all)
		case u.State == "failed":
			return fails("the service %s has failed", u.Name).hint("sudo journalctl -u %s -n 30", u.Name).fact("units", all)
		case u.State == health.Failing:
			return fails("the service %s does not start, and systemd tries it again and again", u.Name).hint("sudo journalctl -u %s -n 30", u.Name).fact("units", all)
		case u.State == "not installed":
			missing = append(missing, u.Name)
		case u.State != "active":
			wrong = append(wrong, fmt.Sprintf("%s is %s", u.Name, u.State))
		case !u.Enabled && !(u.Name == health.HostUnit && wanted):
			wrong = append(wrong, u.Name+" does not start with the machine")
		}
	}
	switch {
	case len(missing) == len(all):
		return fine("the services of systemd are not installed; `clawjail up` does without them")
	case len(missing) > 0:
		return warning("one service is installed and %s is not", missing[0]).hint("install both units").fact("units", all)
	case len(wrong) > 0:
		return warning("%s", strings.Join(wrong, "; ")).hint("sudo systemctl enable --now %s %s", health.HostUnit, health.ControlUnit).fact("units", all)
	}
	return fine("both services of systemd run, and start with the machine").fact("units", all)
}
