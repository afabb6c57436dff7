package op

import (
	"cmp"
	"context"
	"net/http"
	"time"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
)

// AccessQuestion is the body with which an agent asks for access.
type AccessQuestion struct {
	Kind   egress.AccessKind `json:"kind" enum:"host,tool,service,account" example:"host"`
	Target string            `json:"target" doc:"of a host: its name, with a port or as a URL; of a tool: METHOD URL SERVICE, which is whose credential is used; of a service: its name; of an account: its domain, with cdp behind it for DevTools clients" example:"example.net"`
	Reason string            `json:"reason" doc:"for the operator, in a sentence" example:"to read"`
	Wait   string            `json:"wait,omitempty" doc:"how long to wait for the answer, such as 2m; at most 5m; not at all when it is left out"`
}

// AccessAnswer is the body with which an operator answers. One without approve is an error, and no refusal.
type AccessAnswer struct {
	Approve *bool  `json:"approve" doc:"true approves, false refuses" example:"false"`
	Once    bool   `json:"once,omitzero" doc:"of an approval: for one request" flag:"once" usage:"for one request"`
	For     string `json:"for,omitempty" doc:"of an approval: for how long, such as 1h or 30d; without for and once it has no end" flag:"for" usage:"for how long, such as 1h or 30d" is:"span" alone:"once"`
	Comment string `json:"comment,omitempty" doc:"a comment that the agent is shown" flag:"comment" value:"text" usage:"a text that the agent is shown"`
}

// AccessRequests is the answer to a listing.
type AccessRequests struct {
	Requests []egress.AccessRequest `json:"requests" nullable:"false"`
}

type (
	// NewAccess is what an agent asks for.
	NewAccess struct{ Body[AccessQuestion] }

	// AccessListed says which requests are listed.
	AccessListed struct {
		OfTenant
		All bool `query:"all" doc:"also requests that are answered or have expired" flag:"all" usage:"also requests that are answered or have expired"`
	}

	// AccessNamed names a request for access.
	AccessNamed struct {
		ID string `path:"id" maxLength:"64" doc:"the request's id" arg:"1" complete:"access"`
	}

	// AccessShown is a request for access, perhaps with its answer.
	AccessShown struct {
		AccessNamed
		Wait string `query:"wait" maxLength:"20" doc:"how long to wait for its answer, such as 30s; at most 5m" flag:"wait" usage:"how long to wait for its answer, such as 30s" is:"duration"`
	}

	// AccessAnswered is an answer to a request.
	AccessAnswered struct {
		AccessNamed
		Body[AccessAnswer]
	}
)

// waiting reads how long somebody wants to wait for an answer.
func waiting(text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	d, err := texts.Duration(text)
	if err != nil || d < 0 || d > 5*time.Minute {
		return 0, problem.New(problem.BadLimit, "give a time such as 30s, at most 5m", "the wait %s is not valid", quote(text))
	}
	return d, nil
}

// AskForAccess asks the operator, with the key of an agent.
func AskForAccess() Op[NewAccess, egress.AccessRequest] {
	return Op[NewAccess, egress.AccessRequest]{Method: http.MethodPost, Path: "/v1/access-requests", ID: "ask-for-access",
		Summary: "Ask the operator for access, as an agent", Right: identity.AccessAsk,
		Call: func(ctx context.Context, s Backend, by identity.Principal, in NewAccess) (egress.AccessRequest, error) {
			wait, err := waiting(in.Of.Wait)
			if err != nil {
				return egress.AccessRequest{}, err
			}
			return s.Egress.Ask(ctx, by, in.Of.Kind, in.Of.Target, in.Of.Reason, wait)
		}}
}

// ListAccess lists what agents ask for.
func ListAccess() Op[AccessListed, AccessRequests] {
	return Op[AccessListed, AccessRequests]{Method: http.MethodGet, Path: "/v1/access-requests", ID: "list-access-requests", Summary: "List what agents ask for",
		Right:   identity.AccessList,
		Command: Command{Use: "ls", Aliases: []string{"list"}, Short: "List what waits for an answer"},
		Call: func(ctx context.Context, s Backend, by identity.Principal, in AccessListed) (AccessRequests, error) {
			all, err := s.Egress.AccessRequests(ctx, by, by.Among(in.Tenant), in.All)
			return AccessRequests{listOf(all, same)}, err
		},
		View: func(all AccessRequests) []Block {
			out := table(all.Requests, []any{"ID", "AGENT", "TENANT", "KIND", "TARGET", "STATE", "ASKED", "REASON"}, func(r egress.AccessRequest) []any {
				return []any{r.ID, cmp.Or(r.AgentName, r.Agent), r.Tenant, r.Kind, r.Target, r.State, r.CreatedAt, r.Reason}
			})
			out.Folds = 3
			return []Block{out}
		}}
}

// ShowAccess shows what an agent asks for, and waits for its answer when it is told to.
func ShowAccess() Op[AccessShown, egress.AccessRequest] {
	return Op[AccessShown, egress.AccessRequest]{Method: http.MethodGet, Path: "/v1/access-requests/{id}", ID: "get-access-request", Summary: "Show what an agent asks for",
		Right:   identity.AccessList,
		Command: Command{Use: "show ID", Short: "Show what an agent asks for, and what was answered"},
		Call: func(ctx context.Context, s Backend, by identity.Principal, in AccessShown) (egress.AccessRequest, error) {
			wait, err := waiting(in.Wait)
			if err != nil {
				return egress.AccessRequest{}, err
			}
			return s.Egress.AccessRequest(ctx, by, in.ID, wait)
		},
		View: viewAccess}
}

// viewAccess is a request for people.
func viewAccess(r egress.AccessRequest) []Block {
	return []Block{{Pairs: [][2]any{{"id", r.ID}, {"agent", cmp.Or(r.AgentName, r.Agent)}, {"tenant", r.Tenant}, {"kind", r.Kind}, {"target", r.Target},
		{"reason", r.Reason}, {"state", r.State}, {"asked", when(r.CreatedAt)}, {"answered", when(r.AnsweredAt)}, {"by", r.AnsweredBy}, {"answer", r.Answer},
		{"made", r.Made}}}}
}

// AnswerAccess approves or refuses. Its command is the one that approves.
func AnswerAccess() Op[AccessAnswered, egress.AccessRequest] {
	return Op[AccessAnswered, egress.AccessRequest]{Method: http.MethodPost, Path: "/v1/access-requests/{id}/answer", ID: "answer-access-request", Summary: "Approve or refuse",
		Right: identity.AccessAnswer,
		Command: Command{Use: "approve ID", Short: "Give an agent what it asks for", Example: "  clawjail access approve ID --for 1h --comment 'for the release only'",
			Long: "Gives an agent what it asks for: for good, or as --once and --for say. The rule, tool, service or permission for an account that this makes can be " +
				"removed like any other."},
		Call: func(ctx context.Context, s Backend, by identity.Principal, in AccessAnswered) (egress.AccessRequest, error) {
			a := in.Of
			if a.Approve == nil {
				return egress.AccessRequest{}, problem.New(problem.BadRequest, "send approve as true or false", "the answer lacks approve")
			}
			return s.Egress.Answer(ctx, by, in.ID, egress.AccessAnswer{Approve: *a.Approve, Once: a.Once, For: a.For, Comment: a.Comment})
		},
		View: viewAccess,
		Warns: func(r egress.AccessRequest) string {
			if r.Kind != egress.AccessTool || r.State != egress.AccessApproved {
				return ""
			}
			agent := cmp.Or(r.AgentName, r.Agent)
			return agent + " has a list of tools of its own now, also when this one is over: changes of the tenant's list do not reach it; clawjail agent tools " + agent + " --inherit removes it"
		}}
}
