package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"reflect"

	"github.com/danielgtaylor/huma/v2"

	"github.com/clawjail/clawjail/internal/credential"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/session"
	"github.com/clawjail/clawjail/internal/vault"
)

// RefreshRequest is the body that opens a session to log in with.
type RefreshRequest struct {
	Tenant string `json:"tenant,omitempty" doc:"whose account it will be; the caller's own, or default, when it is left out"`
	Domain string `json:"domain" doc:"the registrable domain to log in to"`
	URL    string `json:"url,omitempty" doc:"where to begin; https://DOMAIN/ when it is left out"`
}

// RefreshSession is a session to log in with.
type RefreshSession struct {
	Session session.Session `json:"session"`
	// ConsoleURL is by the name under which the caller knows this server.
	ConsoleURL string `json:"console_url,omitempty" doc:"the page on which its opener logs in; missing when there is no console"`
}

// FinishRequest is the body that keeps what somebody has logged in to.
type FinishRequest struct {
	Domains []string `json:"domains" nullable:"false" doc:"registrable domains whose cookies are kept, one account for each"`
	// Origins may be left out, which is all of them; an empty list is none.
	Origins       []string        `json:"origins,omitzero" nullable:"false" doc:"origins of the domains whose storage is kept; all when they are left out"`
	EgressDomains []string        `json:"egress_domains,omitempty" nullable:"false" doc:"other domains, or hosts, that the site needs; they are proposed for grants"`
	SignedIn      *vault.SignedIn `json:"signed_in,omitempty" doc:"how to check later whether the account is still signed in: the proposal of seen, or a better one"`
}

func (a *API) refreshRoutes() {
	a.plain(route{method: http.MethodPost, path: "/v1/refreshes", id: "open-refresh", summary: "Open a session to log in with",
		status: http.StatusCreated, body: reflect.TypeFor[RefreshRequest]()}, nil,
		map[string]*huma.Schema{"application/json": a.schema(reflect.TypeFor[RefreshSession]())}, a.openRefresh)
	add(a, route{method: http.MethodGet, path: ofSession + "/seen", id: "seen", summary: "What a session to log in with has seen"}, a.seen)
	add(a, route{method: http.MethodPost, path: ofSession + "/refresh", id: "finish-refresh", summary: "Keep what was logged in to, and end the session",
		status: http.StatusOK, body: reflect.TypeFor[FinishRequest]()}, a.finishRefresh)
}

func (a *API) openRefresh(w http.ResponseWriter, req *http.Request, by identity.Principal) error {
	text, err := bodyOf(req)
	if err != nil {
		return err
	}
	body, err := decode[RefreshRequest](text)
	if err != nil {
		return err
	}
	if err := op.CheckTenant(body.Tenant); err != nil {
		return err
	}
	opened, err := a.Sessions.OpenRefresh(req.Context(), by, session.RefreshRequest{Tenant: body.Tenant, Domain: body.Domain, URL: body.URL})
	if err != nil {
		return err
	}
	out := RefreshSession{Session: opened}
	if a.Console != nil {
		out.ConsoleURL = a.consoleURL(req) + consolePath + "/refresh/" + url.PathEscape(opened.ID)
	}
	answer, err := json.Marshal(out)
	if err != nil {
		return fmt.Errorf("encode the answer: %w", err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	if _, err := w.Write(answer); err != nil {
		a.Log.Debug("answer a request", "error", err) // the caller has gone
	}
	return nil
}

func (a *API) seen(ctx context.Context, by identity.Principal, in *getInput) (*answer[session.Seen], error) {
	out, err := a.Sessions.Seen(ctx, by, in.ID)
	if err != nil {
		return nil, err
	}
	out.Sites, out.Hosts = list(out.Sites), list(out.Hosts)
	for n := range out.Sites {
		out.Sites[n].Cookies = list(out.Sites[n].Cookies)
	}
	return &answer[session.Seen]{out}, nil
}

func (a *API) finishRefresh(ctx context.Context, by identity.Principal, in *sessionBody) (*answer[op.CookieSets], error) {
	body, err := decode[FinishRequest](in.RawBody)
	if err != nil {
		return nil, err
	}
	sets, err := a.Credentials.FinishRefresh(ctx, by, credential.FinishRefresh{Session: in.ID, Domains: body.Domains, Origins: body.Origins,
		EgressDomains: body.EgressDomains, SignedIn: body.SignedIn})
	if err != nil {
		return nil, err
	}
	return &answer[op.CookieSets]{op.CookieSets{Sets: list(sets)}}, nil
}
