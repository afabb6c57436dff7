package op

import (
	"context"
	"net/http"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/identity/signin"
	"github.com/clawjail/clawjail/internal/problem"
)

// SignIns is the answer to a listing.
type SignIns struct {
	SignIns []signin.SignIn `json:"sign_ins" nullable:"false"`
}

// SignInNamed names a sign-in to the console.
type SignInNamed struct {
	ID string `path:"id" maxLength:"64" doc:"the sign-in's id" arg:"1" complete:"sign-ins"`
}

// ListSignIns lists who is signed in to the console: the caller, and of an admin those of its tenant, or everybody.
func ListSignIns() Op[None, SignIns] {
	return Op[None, SignIns]{Method: http.MethodGet, Path: "/v1/console/sign-ins", ID: "list-sign-ins", Summary: "List who is signed in to the console",
		Right:   identity.SignInList,
		Command: Command{Use: "sign-ins", Short: "List your sign-ins to the console; of an admin those of the tenant, or all"},
		Call: func(ctx context.Context, s Backend, by identity.Principal, _ None) (SignIns, error) {
			if s.SignIns == nil {
				return SignIns{}, errNoConsole()
			}
			all, err := s.SignIns.List(ctx, by, signin.SignIn{})
			return SignIns{all}, err
		},
		View: func(all SignIns) []Block {
			out := table(all.SignIns, []any{"ID", "TENANT", "NAME", "WITH", "FROM", "BROWSER", "SINCE", "USED", "ENDS"}, func(s signin.SignIn) []any {
				return []any{s.ID, s.Tenant, s.Name, s.Method, s.Remote, s.UserAgent, s.CreatedAt, s.UsedAt, Ends(s.ExpiresAt)}
			})
			out.Folds = 2
			return []Block{out}
		}}
}

// EndSignIn signs somebody out of the console.
func EndSignIn() Op[SignInNamed, None] {
	return Op[SignInNamed, None]{Method: http.MethodDelete, Path: "/v1/console/sign-ins/{id}", ID: "end-sign-in", Summary: "Sign somebody out of the console",
		Right:   identity.SignInEnd,
		Command: Command{Use: "sign-out ID…", Short: "End sign-ins to the console", Example: "  clawjail operator sign-ins\n  clawjail operator sign-out si_abcdefgh23456789"},
		Call: func(ctx context.Context, s Backend, by identity.Principal, in SignInNamed) (None, error) {
			if s.SignIns == nil {
				return None{}, errNoConsole()
			}
			return None{}, s.SignIns.End(ctx, by, in.ID)
		}}
}

func errNoConsole() error {
	return problem.New(problem.NotFound, "set console.enabled to true in the configuration, and start clawjail again", "the console is switched off")
}
