package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/api"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/identity"
)

func newOperatorCommand(p *program) *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "operator",
		Short: "Give people, and programs of theirs, keys",
		Long: "An operator has a key and a role: viewers look, operators work with sessions, accounts and agents, admins " +
			"decide who may. Without a tenant an operator is of all tenants, which only admins can be. The key of the " +
			"installation, admin.key, is no operator's: " +
			"it can do everything, and these commands use it unless $" + keyVariable + " says otherwise.",
	})
	cmd.AddCommand(newOperatorList(p), newOperatorCreate(p), newOperatorRotate(p), newOperatorRevoke(p))
	return cmd
}

func newOperatorList(p *program) *cobra.Command {
	var tenant string
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List operators",
		Args:    arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := p.client()
			if err != nil {
				return err
			}
			operators, err := c.Operators(cmd.Context(), tenant)
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), operators)
			}
			return table(cmd.OutOrStdout(), operatorRows(operators, p.now()))
		},
	}
	p.tenantFlag(cmd, &tenant)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func operatorRows(operators []api.Operator, now time.Time) [][]string {
	rows := [][]string{{"ID", "NAME", "TENANT", "ROLE", "KEY", "STATE", "MADE", "EXPIRES"}}
	for _, o := range operators {
		tenant := o.Tenant
		if tenant == "" {
			tenant = "(all)"
		}
		rows = append(rows, []string{o.ID, printable(o.Name), tenant, string(o.Role), o.KeyHint + "…",
			keyState(o.RevokedAt, o.ExpiresAt, now), when(o.CreatedAt, now), until(o.ExpiresAt, now)})
	}
	return rows // whether an operator is of all tenants is always of interest
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

// expiresFlag adds --expires, which is the life of a key.
func expiresFlag(cmd *cobra.Command, life *string) {
	cmd.Flags().StringVar(life, "expires", "", "how long the key is good, such as 720h, or never")
	complete(cmd, "expires", "24h", "720h", never)
}

// never is the life of a key that is good until it is revoked.
const never = "never"

// checkLife finds out about a life before anything is asked.
func checkLife(cmd *cobra.Command, life string) error {
	if life == never {
		return nil
	}
	return duration(cmd, "expires", life)
}

// duration refuses a flag that is no duration. Empty leaves it to the control plane.
func duration(cmd *cobra.Command, flag, text string) error {
	if text == "" {
		return nil
	}
	if d, err := time.ParseDuration(text); err != nil || d < 0 {
		return usage(cmd, "--%s %q is not a duration: write a number with s, m or h, such as 30m", flag, text)
	}
	return nil
}

// showKey prints a new key: alone on standard output, so that a script can keep it, and on standard error whose it is.
func showKey(cmd *cobra.Command, key, whose string, expires, now time.Time) error {
	if _, err := fmt.Fprintln(cmd.OutOrStdout(), key); err != nil {
		return err
	}
	return sayKey(cmd.ErrOrStderr(), whose, expires, now)
}

func sayKey(w io.Writer, whose string, expires, now time.Time) error {
	_, err := fmt.Fprintf(w, "this is the key of %s; it is shown once. It expires: %s\n", printable(whose), until(expires, now))
	return err
}

func newOperatorCreate(p *program) *cobra.Command {
	var request api.OperatorRequest
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "create NAME --role ROLE",
		Short: "Make an operator, and print the key",
		Long: "Makes an operator. The key alone is on standard output, and is never shown again. Its owner sets it in the variable " +
			keyVariable + ".",
		Example: "  clawjail operator create ada --tenant default --role operator --expires 720h > ada.key",
		Args:    arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if request.Role == "" {
				return usage(cmd, "what they may do is missing: --role admin, operator or viewer")
			}
			if err := checkLife(cmd, request.Life); err != nil {
				return err
			}
			c, err := p.client()
			if err != nil {
				return err
			}
			request.Name = args[0]
			issued, err := c.CreateOperator(cmd.Context(), request)
			if err != nil {
				return err
			}
			return p.showOperator(cmd, issued, asJSON)
		},
	}
	p.tenantFlag(cmd, &request.Tenant)
	cmd.Flags().StringVar(&request.Role, "role", "", "admin, operator or viewer")
	complete(cmd, "role", string(identity.RoleAdmin), string(identity.RoleOperator), string(identity.RoleViewer))
	expiresFlag(cmd, &request.Life)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the key and the operator as JSON")
	return cmd
}

func (p *program) showOperator(cmd *cobra.Command, issued api.IssuedOperator, asJSON bool) error {
	if asJSON {
		return writeJSON(cmd.OutOrStdout(), issued)
	}
	o := issued.Operator
	return showKey(cmd, issued.Key, fmt.Sprintf("the %s %s (%s)", o.Role, o.Name, o.ID), o.ExpiresAt, p.now())
}

func newOperatorRotate(p *program) *cobra.Command {
	var request api.LifeRequest
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "rotate ID",
		Short: "Give an operator a new key, and revoke the old one at once",
		Long: "Gives an operator a new key, which has an id of its own, and revokes the old one at once, with everything that " +
			"is open with it. Who needs both for a while is made a second operator first.",
		Args:              arguments(1, 1),
		ValidArgsFunction: p.completeFirst(operatorIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkLife(cmd, request.Life); err != nil {
				return err
			}
			c, err := p.client()
			if err != nil {
				return err
			}
			issued, err := c.RotateOperator(cmd.Context(), args[0], request)
			if err != nil {
				return err
			}
			return p.showOperator(cmd, issued, asJSON)
		},
	}
	expiresFlag(cmd, &request.Life)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the key and the operator as JSON")
	return cmd
}

func newOperatorRevoke(p *program) *cobra.Command {
	return &cobra.Command{
		Use:               "revoke ID…",
		Short:             "Revoke keys of operators, and end what is open with them",
		Args:              arguments(1, -1),
		ValidArgsFunction: p.completeAll(operatorIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := p.client()
			if err != nil {
				return err
			}
			return each(cmd, args, func(id string) error { return c.RevokeOperator(cmd.Context(), id) })
		},
	}
}

func operatorIDs(ctx context.Context, c *client.Client, tenant string) ([]string, error) {
	operators, err := c.Operators(ctx, tenant)
	return namesOf(operators, err, func(o api.Operator) (string, string) { return o.ID, o.Name + " (" + string(o.Role) + ")" })
}

func newWhoAmICommand(p *program) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "whoami",
		Short: "Show whose key is used",
		Args:  arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := p.client()
			if err != nil {
				return err
			}
			me, err := c.WhoAmI(cmd.Context())
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), me)
			}
			tenant := me.Tenant
			if tenant == "" {
				tenant = "(all)"
			}
			return fields(cmd.OutOrStdout(), [][2]string{
				{"kind", string(me.Kind)}, {"id", me.ID}, {"name", printable(me.Name)}, {"tenant", tenant}, {"role", string(me.Role)},
				{"key expires", until(me.ExpiresAt, p.now())},
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
