package console

import (
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/vault"
)

// keysOf is the page with the keys of the installation.
type keysOf struct {
	Tabs   []section
	MaySee bool
	Vault  vault.Status
	Grants []grant.KeyInfo
	Last   map[string]changedBy
}

func (c *Console) keysPage(q *request) error {
	data := keysOf{Tabs: c.settingsTabs("/keys"), MaySee: identity.Can(q.by, identity.VaultStatus, "") == nil}
	if !data.MaySee {
		return q.show("settings_keys", "Keys", data)
	}
	var err error
	if data.Vault, err = c.Credentials.VaultStatus(q.ctx(), q.by); err != nil {
		return err
	}
	if data.Grants, err = c.Credentials.GrantKeys(q.ctx(), q.by); err != nil {
		return err
	}
	return q.show("settings_keys", "Keys", data)
}

func (c *Console) rotateVault(q *request) error {
	r, err := c.Credentials.RotateVault(q.ctx(), q.by)
	return q.act(settingsPath+"/keys", err, "The vault has a new key. %s encrypted anew, and %s destroyed.", were(r.Entries, "entry"), were(len(r.Destroyed), "old key"))
}

func (c *Console) rotateGrantKeys(q *request) error {
	k, err := c.Credentials.RotateGrantKeys(q.ctx(), q.by)
	return q.act(settingsPath+"/keys", err, "New grants are signed with %s. Grants that were issued before stay good.", k.ID)
}

// were counts things that something was done to.
func were(n int, one string) string {
	if n == 1 {
		return plural(n, one) + " was"
	}
	return plural(n, one) + " were"
}
