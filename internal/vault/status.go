package vault

import (
	"context"
	"time"
)

// Status is the state of a vault, without anything secret.
type Status struct {
	KeyFile string `json:"key_file"`
	// Keys are sorted by age, the primary one last.
	Keys []KeyStatus `json:"keys"`
	// Unreadable is how many entries name a key that is not in the file, or none at all.
	Unreadable int `json:"unreadable"`
	// Rotating says that a rotation has not ended: it is running, or has to be started again.
	Rotating bool `json:"rotating"`
}

// KeyStatus is one key, and how many entries are encrypted with it.
type KeyStatus struct {
	ID         string    `json:"id"`
	Primary    bool      `json:"primary"`
	CreatedAt  time.Time `json:"created_at"`
	CookieSets int       `json:"cookie_sets"`
	Secrets    int       `json:"secrets"`
}

// Status reads the key file and counts the entries. It decrypts nothing.
func (v *Vault) Status(ctx context.Context) (Status, error) {
	keys, err := v.reload()
	if err != nil {
		return Status{}, err
	}
	rows, err := v.rows(ctx)
	if err != nil {
		return Status{}, err
	}
	out := Status{KeyFile: v.path, Rotating: len(keys.created) > 1}
	at := map[keyID]int{}
	for i, id := range keys.ids() {
		at[id] = i
		out.Keys = append(out.Keys, KeyStatus{ID: id.String(), Primary: id == keys.primary, CreatedAt: keys.created[id]})
	}
	for _, r := range rows {
		id, ok := keyOf(r.head)
		i, known := at[id]
		switch {
		case !ok || !known:
			out.Unreadable++
		case r.place.kind == kindCookies:
			out.Keys[i].CookieSets++
		default:
			out.Keys[i].Secrets++
		}
	}
	return out, nil
}
