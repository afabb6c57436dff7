package api

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/clawjail/clawjail/internal/browser/control"
	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/identity/signin"
	"github.com/clawjail/clawjail/internal/op"
)

// SignIn knows who is signed in to the console. *signin.Service is one.
type SignIn interface {
	op.ConsoleSignIns
	NewLink(ctx context.Context, by identity.Principal) (signin.Link, error)
}

// ConsoleSignIn is where the console takes a link's code, as the parameter code.
const ConsoleSignIn = "/console/sign-in"

// ConsoleLink signs its maker in to the console, once. It prints without the code.
type ConsoleLink struct {
	Code      string    `json:"code" doc:"the code of the link; shown only once"`
	URL       string    `json:"url" doc:"where it is used, with the code in it"`
	ExpiresAt time.Time `json:"expires_at"`
}

// Format implements fmt.Formatter, for every verb.
func (l ConsoleLink) Format(f fmt.State, _ rune) { op.WithoutKey(f, "link to the console") }

func (a *API) signInRoutes() {
	a.plain(route{method: http.MethodPost, path: "/v1/console/links", id: "make-console-link", summary: "Make a link with which one signs in to the console, once",
		status: http.StatusOK}, nil, map[string]*huma.Schema{"application/json": a.schema(reflect.TypeFor[ConsoleLink]())}, a.makeConsoleLink)
}

func (a *API) makeConsoleLink(w http.ResponseWriter, req *http.Request, by identity.Principal) error {
	link, err := a.SignIn.NewLink(req.Context(), by)
	if err != nil {
		return err
	}
	return control.Write(w, req, ConsoleLink{Code: link.Code, ExpiresAt: link.ExpiresAt,
		URL: a.consoleURL(req) + ConsoleSignIn + "?" + url.Values{"code": {link.Code}}.Encode()}, nil)
}
