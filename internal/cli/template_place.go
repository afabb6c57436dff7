package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/template"
)

// templatePlace is where a jail of Bastille's is attached that is made for a template: the bridge, and the address that is kept
// for it. Before the host daemon has made the installation it is nowhere, and other systems have none.
func templatePlace(c config.Config) (template.JailPlace, error) {
	if runtime.GOOS != "freebsd" {
		return template.JailPlace{}, nil
	}
	data, err := os.ReadFile(filepath.Join(c.DataDir, hostd.InstallationFile))
	if errors.Is(err, fs.ErrNotExist) {
		return template.JailPlace{}, nil
	}
	var in hostd.Installation
	if err == nil {
		err = json.Unmarshal(data, &in)
	}
	if err != nil {
		return template.JailPlace{}, fmt.Errorf("read %s: %w", hostd.InstallationFile, err)
	}
	pool, err := jail.NewPool(in.Subnet, c.UIDBase)
	if err != nil {
		return template.JailPlace{}, err
	}
	return template.JailPlace{
		Bridge: "cj" + string(in.ID), Address: netip.PrefixFrom(pool.TemplateAddr(), in.Subnet.Bits()), Gateway: pool.Gateway(),
	}, nil
}
