package console

import (
	"cmp"
	"slices"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/identity/signin"
	"github.com/clawjail/clawjail/internal/problem"
)

const peoplePath = settingsPath + "/people"

// operatorRow is an operator as a page shows it.
type operatorRow struct {
	identity.Operator
	State string
	Self  bool
}

// people is the page with who may use this console.
type people struct {
	Tabs      []section
	Operators []operatorRow
	Gone      int // whose keys are over: they are not shown
	MaySee    bool
	SignIns   []signin.SignIn
	Passkeys  passkeyList
	Tenants   []option
	Roles     []option
	Form      *form
	Wrong     bool // the form was sent, and something of it was
}

func (c *Console) peoplePage(q *request) error {
	return c.showPeople(q, blank("role", string(identity.RoleOperator)))
}

func (c *Console) showPeople(q *request, f *form) error {
	data := people{Wrong: !f.ok(), Tabs: c.settingsTabs("/people"), Form: f, MaySee: identity.Can(q.by, identity.OperatorList, q.by.Tenant) == nil,
		Roles: []option{{Value: "viewer", Label: "viewer: looks"}, {Value: "operator", Label: "operator: works with sessions, accounts and agents"},
			{Value: "admin", Label: "admin: decides who may"}}}
	if data.MaySee {
		all, err := c.Identity.Operators(q.ctx(), q.by, q.by.Tenant)
		if err != nil {
			return err
		}
		now := c.Now()
		for _, o := range all {
			row := operatorRow{Operator: o, State: "active", Self: q.by.Kind == identity.KindOperator && o.ID == q.by.ID}
			switch {
			case !o.RevokedAt.IsZero():
				row.State = "revoked"
			case !o.ExpiresAt.IsZero() && !o.ExpiresAt.After(now):
				row.State = "expired"
			}
			data.Operators = append(data.Operators, row)
		}
		slices.SortStableFunc(data.Operators, func(a, b operatorRow) int {
			over := func(r operatorRow) int { // those that are over come last
				if r.State == "active" {
					return 0
				}
				return 1
			}
			return cmp.Or(cmp.Compare(over(a), over(b)), cmp.Compare(a.Name, b.Name))
		})
		if limit := 100; len(data.Operators) > limit {
			data.Gone = len(data.Operators) - limit
			data.Operators = data.Operators[:limit]
		}
		if data.Tenants, err = c.tenantOptions(q); err != nil {
			return err
		}
		if data.Tenants != nil {
			data.Tenants = append([]option{{Value: "", Label: "all tenants (admins alone)"}}, data.Tenants...)
		}
	}
	var err error
	if data.SignIns, err = c.SignIn.List(q.ctx(), q.by, q.in); err != nil {
		return err
	}
	if data.Passkeys, err = q.passkeys(peoplePath); err != nil {
		return err
	}
	if !f.ok() {
		return q.again("settings_people", "People", data)
	}
	return q.show("settings_people", "People", data)
}

func (c *Console) addOperator(q *request) error {
	f, err := q.form()
	if err != nil {
		return err
	}
	life, err := lifeOf(f.Get("life"))
	if err != nil && !f.refuse(err, nil) {
		return err
	}
	if f.ok() {
		key, o, err := c.Identity.CreateOperator(q.ctx(), q.by,
			identity.NewOperator{Name: f.Get("name"), Tenant: q.by.Among(f.Get("tenant")), Role: identity.Role(f.Get("role")), Life: life})
		if err == nil {
			return c.showKey(q, "The key of "+o.Name, key, o)
		}
		if problem.CodeOf(err) == problem.Forbidden || !f.refuseName(err, "name", nil) {
			return err
		}
	}
	return c.showPeople(q, f)
}

func (c *Console) showKey(q *request, title string, key identity.Key, o identity.Operator) error {
	return q.show("token", title, issued{Title: title, Name: o.Name, Tenant: o.Tenant, Key: key.Reveal(), Expires: o.ExpiresAt, Back: peoplePath, Operator: true,
		Snippets: []snippet{{"shell", "Shell", "For clawjail's commands. On the sign-in page of this console the key alone is enough.",
			"export CLAWJAIL_URL=" + c.address(q.r) + "\nexport CLAWJAIL_KEY=" + key.Reveal() + "\nclawjail whoami"}}})
}

func (c *Console) rotateOperator(q *request) error {
	f, err := q.form()
	if err != nil {
		return err
	}
	life, err := lifeOf(f.Get("life"))
	if err != nil {
		return q.failed(peoplePath, err)
	}
	key, o, err := c.Identity.RotateOperator(q.ctx(), q.by, q.value("id"), life)
	if err != nil {
		return q.failed(peoplePath, err)
	}
	return c.showKey(q, "The new key of "+o.Name, key, o)
}

func (c *Console) revokeOperator(q *request) error {
	return q.act(peoplePath, c.Identity.RevokeOperator(q.ctx(), q.by, q.value("id")), "The key is revoked. What was open with it has ended.")
}

func (c *Console) endSignIn(q *request) error {
	return q.act(peoplePath, c.SignIn.End(q.ctx(), q.by, q.value("id")), "That sign-in has ended.")
}
