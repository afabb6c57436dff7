package api

import (
	"context"
	"net/http"
	"reflect"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/session"
)

// TakeOverRequest is the body that takes a session's browser over. It may be left out.
type TakeOverRequest struct {
	Force bool `json:"force" required:"false" doc:"also from another person who has it"`
}

// HandBackRequest is the body that hands a session's browser back. It may be left out.
type HandBackRequest struct {
	Anyway bool `json:"anyway" required:"false" doc:"also while a password stands in a page, where whoever used the session before can read it"`
}

// sessionBody is a request about a session, with a body.
type sessionBody struct {
	ID      string `path:"id" maxLength:"64" doc:"the session's id"`
	RawBody []byte `contentType:"application/json"`
}

func (a *API) takeOverRoutes() {
	add(a, route{method: http.MethodPost, path: ofSession + "/take-over", id: "take-over", summary: "Take a session's browser over, as a person",
		status: http.StatusOK, body: reflect.TypeFor[TakeOverRequest]()}, a.takeOver)
	add(a, route{method: http.MethodPost, path: ofSession + "/hand-back", id: "hand-back", summary: "Hand a session's browser back",
		status: http.StatusOK, body: reflect.TypeFor[HandBackRequest]()}, a.handBack)
}

func (a *API) takeOver(ctx context.Context, by identity.Principal, in *sessionBody) (*answer[session.Session], error) {
	body, err := decode[TakeOverRequest](in.RawBody)
	if err != nil {
		return nil, err
	}
	out, err := a.Sessions.TakeOver(ctx, by, in.ID, body.Force)
	if err != nil {
		return nil, err
	}
	return &answer[session.Session]{out}, nil
}

func (a *API) handBack(ctx context.Context, by identity.Principal, in *sessionBody) (*answer[session.Session], error) {
	body, err := decode[HandBackRequest](in.RawBody)
	if err != nil {
		return nil, err
	}
	out, err := a.Sessions.HandBack(ctx, by, in.ID, body.Anyway)
	if err != nil {
		return nil, err
	}
	return &answer[session.Session]{out}, nil
}
