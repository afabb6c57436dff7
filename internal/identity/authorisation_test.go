package identity

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// callers are one principal of each sort.
var callers = []struct {
	name string
	p    Principal
}{
	{"admin", admin},
	{"admin of all", Principal{Kind: KindOperator, ID: "op_all", Role: RoleAdmin}},
	{"admin", Principal{Kind: KindOperator, ID: "op_1", Tenant: "acme", Role: RoleAdmin}},
	{"operator", Principal{Kind: KindOperator, ID: "op_2", Tenant: "acme", Role: RoleOperator}},
	{"viewer", Principal{Kind: KindOperator, ID: "op_3", Tenant: "acme", Role: RoleViewer}},
	{"agent", Principal{Kind: KindAgent, ID: "ag_1", Tenant: "acme"}},
}

// objects are one thing of each sort.
var objects = []struct {
	name string
	o    Object
}{
	{"own", Object{Tenant: "acme", Agent: "ag_1"}},
	{"of the tenant", Object{Tenant: "acme", Agent: "ag_2"}},
	{"of another tenant", Object{Tenant: "rival"}},
	{"of all", Object{}},
}

// answers is what everybody gets for an operation: a letter for each caller, a word for each object.
func answers(table []Rule, op Operation) string {
	var words []string
	for _, object := range objects {
		word := ""
		for _, caller := range callers {
			switch code := problem.CodeOf(decide(table, caller.p, op, object.o)); code {
			case "":
				word += "y"
			case problem.Forbidden:
				word += "-"
			case problem.NotFound:
				word += "0"
			default:
				word += "?"
			}
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

// The whole table as people read it, so that a change to it is seen.
func TestAuthorisationTable(t *testing.T) {
	const path = "testdata/authorisation.txt"
	var b strings.Builder
	fmt.Fprintf(&b, "y may, - is forbidden, 0 does not exist for the caller. The letters are, in this order: the admin key, an admin of\n"+
		"all tenants, an admin, an operator, a viewer and an agent of the tenant. The words are about something that the agent has\n"+
		"made, something else of the tenant, something of another tenant, and what is of all tenants.\n\n")
	for _, rule := range Table() {
		fmt.Fprintf(&b, "%-24s %s\n", rule.Operation, answers(Table(), rule.Operation))
	}
	testenv.Golden(t, path, b.String())
}

// This must hold of the table whatever else changes in it.
func TestNobodyReachesAcrossTenants(t *testing.T) {
	for _, rule := range Table() {
		for _, caller := range callers {
			if caller.p.Tenant == "" {
				continue
			}
			for _, object := range objects[2:] {
				err := decide(Table(), caller.p, rule.Operation, object.o)
				if err == nil {
					t.Errorf("%s may %s what is %s", caller.name, rule.Operation, object.name)
				}
			}
			// A missing object and one of another tenant cannot be told apart, nor one tenant from another.
			one := fmt.Sprint(decide(Table(), caller.p, rule.Operation, Object{Tenant: "rival"}))
			two := fmt.Sprint(decide(Table(), caller.p, rule.Operation, Object{Tenant: "no-such-tenant"}))
			if one != two {
				t.Errorf("%s learns from %s which tenants there are: %s, %s", caller.name, rule.Operation, one, two)
			}
		}
	}
}

func TestAgentsNeverGetNearCredentials(t *testing.T) {
	agent := callers[5].p
	for _, rule := range Table() {
		kind, _, _ := strings.Cut(string(rule.Operation), ".")
		switch kind {
		case "cookies", "secret", "vault", "grant", "audit", "agent", "token", "operator", "tenant", "jail":
			if err := decide(Table(), agent, rule.Operation, Object{Tenant: "acme", Agent: agent.ID}); problem.CodeOf(err) != problem.Forbidden {
				t.Errorf("an agent gets %v for %s", err, rule.Operation)
			}
		}
	}
	for _, op := range []Operation{SessionWatch, SessionRefresh} {
		if problem.CodeOf(Can(agent, op, "acme")) != problem.Forbidden {
			t.Errorf("an agent may %s", op)
		}
	}
}

// A table of which an entry could be another without anybody noticing would be no table.
func TestEveryEntryOfTheTableMatters(t *testing.T) {
	for n, rule := range Table() {
		before := answers(Table(), rule.Operation)
		changes := map[string]func(*Rule){
			"reach": func(r *Rule) {
				if r.Reach = ReachInstallation; rule.Reach == ReachInstallation {
					r.Reach = ReachTenant
				}
			},
			"agents": func(r *Rule) {
				if r.Agents = AgentsOwn; rule.Agents == AgentsOwn {
					r.Agents = AgentsAll
				}
			},
			"operation": func(r *Rule) { r.Operation = "something.else" },
		}
		for _, role := range []Role{RoleViewer, RoleOperator, RoleAdmin, "", "owner"} {
			if role != rule.Min {
				changes["role "+string(role)] = func(r *Rule) { r.Min = role }
			}
		}
		for what, change := range changes {
			table := Table()
			change(&table[n])
			after := answers(table, rule.Operation)
			// An operation on the installation is for admins of all tenants only: they have the highest role, so a
			// lower least role lets nobody else in.
			if rule.Reach == ReachInstallation && (what == "agents" || what == "role viewer" || what == "role operator") {
				if after != before {
					t.Errorf("%s: with another %s somebody else reaches the installation: %s", rule.Operation, what, after)
				}
				continue
			}
			if after == before {
				t.Errorf("%s: another %s changes nothing", rule.Operation, what)
			}
		}
	}
}

func TestWhoIsNobodyMayNothing(t *testing.T) {
	for name, p := range map[string]Principal{
		"zero":                     {},
		"kind that is unknown":     {Kind: "root", Role: RoleAdmin},
		"operator without a role":  {Kind: KindOperator, ID: "x", Tenant: "acme"},
		"operator of odd role":     {Kind: KindOperator, ID: "x", Tenant: "acme", Role: "owner"},
		"viewer of all tenants":    {Kind: KindOperator, ID: "x", Role: RoleViewer},
		"operator of all tenants":  {Kind: KindOperator, ID: "x", Role: RoleOperator},
		"agent without a tenant":   {Kind: KindAgent, ID: "x"},
		"agent with a role":        {Kind: KindAgent, ID: "x", Role: RoleAdmin},
		"admin without a role":     {Kind: KindAdmin},
		"agent of another tenant":  {Kind: KindAgent, ID: "x", Tenant: "rival"},
		"admin of another tenant":  {Kind: KindOperator, ID: "x", Tenant: "rival", Role: RoleAdmin},
		"agent of all, with an id": {Kind: KindAgent, ID: "ag_1", Role: RoleAdmin},
	} {
		for _, rule := range Table() {
			if err := Can(p, rule.Operation, "acme"); err == nil {
				t.Errorf("%s may %s", name, rule.Operation)
			}
		}
	}
	if err := CanWith(Principal{Kind: KindAgent, Tenant: "acme"}, SessionRead, Object{Tenant: "acme"}); err == nil {
		t.Error("an agent without an id has what no agent has made")
	}
	if err := Can(admin, "something.else", "acme"); problem.CodeOf(err) != problem.Forbidden {
		t.Errorf("an operation that is not in the table: %v", err)
	}
}

// The constants and the table are written separately; this is what keeps them together.
func TestEveryOperationIsInTheTable(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "authorisation.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	declared := map[Operation]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if kind, ok := spec.Type.(*ast.Ident); ok && kind.Name == "Operation" {
			value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			declared[Operation(value)] = true
		}
		return true
	})
	if len(declared) < 30 {
		t.Fatalf("read only %d operations", len(declared))
	}
	rows := map[Operation]bool{}
	for _, rule := range Table() {
		if rows[rule.Operation] {
			t.Errorf("%s has two rows", rule.Operation)
		}
		rows[rule.Operation] = true
		if !declared[rule.Operation] {
			t.Errorf("%s has a row and no constant", rule.Operation)
		}
	}
	for op := range declared {
		if !rows[op] {
			t.Errorf("%s has no row", op)
		}
	}
}

func TestRefusalsAreRecordedWithTheirCaller(t *testing.T) {
	w := newFixture(t)
	viewer := callers[4].p
	if err := w.Authorize(t.Context(), viewer, SessionOpen, "acme"); problem.CodeOf(err) != problem.Forbidden {
		t.Errorf("got %v", err)
	}
	refused := func(action, target, reason string) {
		t.Helper()
		if e := w.log.Last(t); e.Action != action || e.Result != "refused" || e.Tenant != "acme" || e.Actor != "operator:op_3" || e.Target != target ||
			e.Detail.String() != fmt.Sprintf(`{"reason":%q}`, reason) {
			t.Errorf("recorded %+v", e)
		}
	}
	refused("session.open", "acme", "forbidden")
	if err := w.AuthorizeWith(t.Context(), viewer, SessionRead, Object{Tenant: "rival"}); problem.CodeOf(err) != problem.NotFound {
		t.Errorf("got %v", err)
	}
	refused("session.read", "rival", "not_found")
	before := len(w.log.All())
	if err := w.Authorize(t.Context(), viewer, SessionRead, "acme"); err != nil {
		t.Error(err)
	}
	if len(w.log.All()) != before {
		t.Error("what is allowed is recorded by who does it")
	}
}

func TestTenantOfARequest(t *testing.T) {
	for _, tt := range []struct {
		p     Principal
		named string
		want  string
	}{
		{admin, "", "default"}, {admin, "acme", "acme"}, {callers[4].p, "", "acme"}, {callers[4].p, "rival", "rival"},
	} {
		if got := tt.p.TenantOr(tt.named); got != tt.want {
			t.Errorf("%s names %q: got %s", tt.p.Actor(), tt.named, got)
		}
	}
}

func TestARefusalOfATokenNamesTheScopeThatWouldDo(t *testing.T) {
	view := admin.Within("s_1", ScopeView, time.Unix(1, 0))
	for op, want := range map[Operation]string{SessionUse: "the scope control", SessionAttach: "the scope cdp", SessionClose: "the key"} {
		p, ok := problem.As(decide(Table(), view, op, Object{Session: "s_1"}))
		if !ok || !strings.Contains(p.Hint, want) {
			t.Errorf("%s: %+v", op, p)
		}
	}
}

// A token for a session opens nothing but that session, and there no more than its scope.
func TestATokenForASessionIsGoodForNothingElse(t *testing.T) {
	for _, maker := range callers {
		for _, scope := range []Scope{ScopeView, ScopeControl, ScopeCDP, "unknown"} {
			p := maker.p.Within("s_1", scope, time.Unix(1, 0))
			for _, rule := range Table() {
				own := Object{Tenant: "acme", Agent: "ag_1", Session: "s_1"}
				got := problem.CodeOf(decide(Table(), p, rule.Operation, own))
				may := problem.CodeOf(decide(Table(), maker.p, rule.Operation, own)) == ""
				minimum := map[Operation]Scope{SessionRead: ScopeView, SessionLook: ScopeView, SessionRecording: ScopeView, SessionUse: ScopeControl,
					SessionWatch: ScopeView, SessionControl: ScopeControl, SessionAttach: ScopeCDP}[rule.Operation]
				want := may && minimum != "" && scope.rank() >= minimum.rank()
				if (got == "") != want {
					t.Errorf("%s with a token of scope %s: %s is %q", maker.name, scope, rule.Operation, got)
				}
				for _, session := range []string{"s_2", ""} {
					other := own
					other.Session = session
					if decide(Table(), p, rule.Operation, other) == nil {
						t.Errorf("%s with a token of scope %s may %s another session", maker.name, scope, rule.Operation)
					}
				}
			}
		}
	}
}
