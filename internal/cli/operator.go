package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/identity/signin"
	"github.com/clawjail/clawjail/internal/op"
)

func newOperatorCommand(p *program) *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "operator",
		Short: "Give keys to people and their programs",
		Long: "An operator has a key and a role: viewers look, operators work with sessions, accounts and agents, admins " +
			"decide who may. Without a tenant an operator is of all tenants, which only admins can be. The key of the " +
			"installation, admin.key, belongs to no operator: " +
			"it can do everything, and these commands use it unless $" + keyVariable + " says otherwise.",
	})
	cmd.AddCommand(described(p, op.ListOperators()), described(p, op.CreateOperator()), described(p, op.RotateOperator()), described(p, op.RevokeOperator()),
		described(p, op.ListSignIns()), described(p, op.EndSignIn()))
	return cmd
}

// keyState says in a word whether a key is good.
func keyState(revoked, expires, now time.Time) string {
	switch {
	case !revoked.IsZero():
		return "revoked"
	case !expires.IsZero() && !now.Before(expires):
		return "expired"
	}
	return "good"
}

// duration refuses a flag that is no duration. Empty leaves it to the control plane.
func duration(cmd *cobra.Command, flag, text string) error {
	if text == "" {
		return nil
	}
	if d, err := texts.Duration(text); err != nil || d < 0 {
		return usage(cmd, "--%s %q is not a duration: write a number with s, m, h or d, such as 30m", flag, text)
	}
	return nil
}

// span refuses what is not for how long something is given.
func span(cmd *cobra.Command, flag, text string) error {
	if _, err := grant.ParseFor(text); err != nil {
		return usage(cmd, "--%s %q is not a time from 1s to 366d: write a number with d, h or m, such as 30d", flag, text)
	}
	return nil
}

func operatorIDs(ctx context.Context, c *client.Client, tenant string) ([]string, error) {
	all, err := client.Call(ctx, c, op.ListOperators(), op.OfTenant{Tenant: tenant})
	return namesOf(all.Operators, err, func(o op.Operator) (string, string) { return o.ID, o.Name + " (" + string(o.Role) + ")" })
}

func signInIDs(ctx context.Context, c *client.Client, _ string) ([]string, error) {
	all, err := client.Call(ctx, c, op.ListSignIns(), op.None{})
	return namesOf(all.SignIns, err, func(s signin.SignIn) (string, string) { return s.ID, s.Name })
}
