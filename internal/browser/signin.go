package browser

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	protocol "github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/cdproto/target"

	"github.com/clawjail/clawjail/internal/cdp"
)

//go:embed inpage/signin.js
var signInJS string

// SignInPage is the part of a page that has to do with signing in.
type SignInPage struct {
	// URL is where the tab is. It is empty when there is no such tab, and nothing else is known then.
	URL string `json:"url"`
	// Tab names the tab, and Document the document: it is another one after each load.
	Tab      string `json:"-"`
	Document string `json:"-"`
	// Failed says that the page could not be loaded, and shows an error of the browser's.
	Failed bool `json:"-"`
	// Status is the HTTP status of the document; zero when there was none.
	Status int `json:"status"`
	// Loaded says that the page has loaded, and Cut that it is too large to be looked at whole.
	Loaded bool `json:"loaded"`
	Cut    bool `json:"cut"`

	// Passwords are fields for passwords, NewPasswords those of them that take another one than the account has, and Form
	// says that one of them stands beside a field for a name, as in a form to sign in.
	Passwords    int  `json:"passwords"`
	NewPasswords int  `json:"newPasswords"`
	Form         bool `json:"form"`
	// Identifier is a form that asks for a name alone, Code a field for a code that is good once, and Federated a control
	// that signs in with another site or a passkey.
	Identifier bool `json:"identifier"`
	Code       bool `json:"code"`
	Federated  bool `json:"federated"`
	// SignIn and SignOut are controls that do that, and Offer a selector of one that signs out, where there is a simple one.
	SignIn  bool   `json:"signIn"`
	SignOut bool   `json:"signOut"`
	Offer   string `json:"offer"`
	// Captcha is a field or frame for one. Human and Blocked say that the text asks whether a person reads it, or says that
	// the request was blocked, Away that the site does not serve now; Paywall that headings or buttons sell something.
	Captcha bool `json:"captcha"`
	Human   bool `json:"human"`
	Blocked bool `json:"blocked"`
	Away    bool `json:"away"`
	Paywall bool `json:"paywall"`
	// Matches says which of the selectors an element matches, and Bad which are no selectors.
	Matches []bool `json:"matches"`
	Bad     []bool `json:"bad"`
}

// SignIn says what of a tab's page has to do with signing in, the current tab's when none is named, and which of some CSS
// selectors it has an element for. No tab is opened for it, and the page's scripts do not notice and cannot answer for it.
func (b *Browser) SignIn(ctx context.Context, tab string, selectors ...string) (SignInPage, error) {
	out, err := b.signIn(ctx, tab, selectors)
	var refused *cdp.Error
	if errors.As(err, &refused) || errors.Is(err, cdp.ErrSessionGone) {
		return SignInPage{}, nil // the page went away at this moment
	}
	return out, explain(err, "look whether the page asks to sign in")
}

func (b *Browser) signIn(ctx context.Context, ref string, selectors []string) (out SignInPage, err error) {
	if err := b.tabs.begin(ctx); err != nil {
		return out, err
	}
	tab := b.tabs.named(ref)
	if tab == nil || tab.hasCrashed() { // it may have been closed
		return out, nil
	}
	out, err = b.askSignIn(ctx, tab, append([]string{}, selectors...))
	if err == nil {
		err = out.complete(len(selectors))
	}
	if err != nil {
		return SignInPage{}, err
	}
	if strings.HasPrefix(out.URL, "chrome-error:") {
		out.Failed = true
		info, err := cdp.Do(ctx, b.conn.Browser(), target.GetTargetInfo, target.GetTargetInfoParams{TargetID: tab.id})
		if err != nil || info.TargetInfo == nil {
			return SignInPage{}, err
		}
		out.URL = info.TargetInfo.URL
	}
	out.Tab, out.URL = tab.handle(), b.shown(out.URL, maxURL)
	return out, nil
}

// Where names a tab, the current one when none is named, and the document that it shows, both as [Browser.SignIn] does. They are empty
// where they are not known: of a tab that is not there, and the document of one that no [Page] drives.
func (b *Browser) Where(ref string) (name, document string) {
	tab := b.tabs.named(ref)
	if tab == nil {
		return "", ""
	}
	if driven := b.tabs.driven(tab); driven != nil {
		document = driven.documentName()
	}
	return tab.handle(), document
}

func (p *Page) documentName() string { return strconv.FormatUint(p.generation(), 10) }

// complete refuses an answer that does not speak of each selector: a browser that somebody has taken over answers anything.
func (p SignInPage) complete(selectors int) error {
	if p.URL != "" && (len(p.Matches) != selectors || len(p.Bad) != selectors) {
		return fmt.Errorf("the page answers %d and %d times for %d selectors", len(p.Matches), len(p.Bad), selectors)
	}
	return nil
}

// askSignIn asks the document. A tab that no [Page] drives gets a session for it that switches nothing on: its events and
// dialogs are those of a client.
func (b *Browser) askSignIn(ctx context.Context, tab *record, selectors []string) (out SignInPage, err error) {
	if driven := b.tabs.driven(tab); driven != nil {
		if err := driven.mainFrame().ask(ctx, remake, "signIn", &out, selectors); err != nil {
			return out, err
		}
		out.Document = driven.documentName()
		return out, nil
	}
	b.tabs.mu.Lock()
	id := tab.id
	b.tabs.mu.Unlock()
	session, err := b.conn.Browser().Attach(ctx, id)
	if err != nil {
		return out, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), quietTimeout)
		defer cancel()
		_ = b.conn.Browser().Detach(ctx, session)
	}()
	tree, err := cdp.Do(ctx, session, page.GetFrameTree, protocol.Empty{})
	if err != nil || tree.FrameTree == nil || tree.FrameTree.Frame == nil {
		return out, err
	}
	top := tree.FrameTree.Frame
	world, err := cdp.Do(ctx, session, page.CreateIsolatedWorld, page.CreateIsolatedWorldParams{FrameID: top.ID, WorldName: worldName})
	if err != nil {
		return out, err
	}
	argument, err := json.Marshal(selectors)
	if err != nil {
		return out, err
	}
	byValue := true
	answer, err := cdp.Do(ctx, session, runtime.CallFunctionOn, runtime.CallFunctionOnParams{
		FunctionDeclaration: "function(selectors){'use strict';\n" + signInJS + "\nreturn signIn(selectors);}",
		ExecutionContextID:  world.ExecutionContextID, ReturnByValue: &byValue, Arguments: []*runtime.CallArgument{{Value: argument}}})
	if err != nil {
		return out, err
	}
	if answer.ExceptionDetails != nil || answer.Result == nil {
		return out, thrown(answer.ExceptionDetails)
	}
	out.Document = bounded(string(top.LoaderID), maxText)
	return out, cdp.Decode(answer.Result.Value, &out)
}

// TabOf is the tab that an operation names; empty when it names none.
func TabOf(op Operation) string {
	if v := reflect.ValueOf(op); v.Kind() == reflect.Struct {
		if field := v.FieldByName("TargetID"); field.IsValid() && field.Kind() == reflect.String {
			return field.String()
		}
	}
	return ""
}
