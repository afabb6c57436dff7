package op

import (
	"context"
	"net/http"
	"strings"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/vault"
)

// VaultStatus is the state of the vault, without anything secret.
type VaultStatus vault.Status

// ShowVault describes the keys of the vault.
func ShowVault() Op[None, VaultStatus] {
	return Op[None, VaultStatus]{Method: http.MethodGet, Path: "/v1/vault", ID: "vault-status", Summary: "Show what is encrypted with which key", Right: identity.VaultStatus,
		Command: Command{Use: "status", Short: "Show the keys of the vault, and what is encrypted with each"},
		Call: func(ctx context.Context, s Backend, by identity.Principal, _ None) (VaultStatus, error) {
			status, err := s.Credentials.VaultStatus(ctx, by)
			return VaultStatus(status), err
		},
		View: func(v VaultStatus) []Block {
			var rotating, unreadable any = "", ""
			if v.Rotating {
				rotating = "a rotation has not ended; clawjail vault rotate goes on with it"
			}
			if v.Unreadable > 0 {
				unreadable = Joined{Count{v.Unreadable, "entry"}, " of a key that is not in the file"}
			}
			return []Block{{Pairs: [][2]any{{"key file", v.KeyFile}, {"rotating", rotating}, {"unreadable", unreadable}}}, line(""),
				table(v.Keys, []any{"KEY", "MADE", "COOKIE SETS", "SECRETS", "STATE"}, func(k vault.KeyStatus) []any {
					state := "opens what it has encrypted"
					if k.Primary {
						state = "in use"
					}
					return []any{k.ID, k.CreatedAt, k.CookieSets, k.Secrets, state}
				})}
		}}
}

// RotateVault encrypts everything with a new key. It can take long.
func RotateVault() Op[None, vault.Rotation] {
	return Op[None, vault.Rotation]{Method: http.MethodPost, Path: "/v1/vault/rotate", ID: "rotate-vault", Summary: "Encrypt everything with a new key", Right: identity.VaultRotate,
		Command: Command{Use: "rotate", Short: "Encrypt everything with a new key, and destroy the old one",
			Long: "Makes a new key, encrypts every entry with it, and destroys the old key. The vault can be used meanwhile, and an " +
				"interrupted rotation goes on when the command is given again. Older backups of the key file do not " +
				"open what is stored from now on: make a new one."},
		Call: func(ctx context.Context, s Backend, by identity.Principal, _ None) (vault.Rotation, error) {
			done, err := s.Credentials.RotateVault(ctx, by)
			done.Destroyed = listOf(done.Destroyed, same)
			return done, err
		},
		View: func(done vault.Rotation) []Block {
			text, more := "%s encrypted with the new key %s%s", ""
			if done.Resumed {
				text = "went on with an earlier rotation: %s encrypted with the key %s%s"
			}
			if len(done.Destroyed) > 0 {
				more = "; destroyed " + strings.Join(done.Destroyed, ", ")
			}
			return []Block{line(text, Count{done.Entries, "entry"}, done.Key, more)}
		}}
}
