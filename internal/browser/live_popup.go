package browser

import (
	"context"
	"slices"
	"strconv"
	"strings"

	protocol "github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/dom"
	interception "github.com/chromedp/cdproto/fetch"
	"github.com/chromedp/cdproto/page"

	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	// maxPopups bounds the popups that wait for a person. Further ones are dismissed.
	maxPopups = 50
	// maxSecret bounds a user name and a password of HTTP authentication, in bytes.
	maxSecret = 4 << 10
)

// popup is a [Popup] and what its answer is for.
type popup struct {
	Popup
	page    *Page
	session cdp.Session            // of the frame that asks
	node    protocol.BackendNodeID // files: the input
	request interception.RequestID // auth
	choice  *choice                // select
}

// dialog says whether the page waits for the answer, and does nothing else.
func (p *popup) dialog() bool {
	return slices.Contains([]PopupKind{PopupAlert, PopupConfirm, PopupPrompt, PopupLeave}, p.Kind)
}

// offer lets a popup wait. It is false when there are too many, or no person to answer.
func (l *Live) offer(p *popup) bool {
	l.mu.Lock()
	if !l.held.Load() || len(l.popups) >= maxPopups {
		l.mu.Unlock()
		return false
	}
	l.asked++
	p.ID = "p" + strconv.FormatUint(l.asked, 10)
	l.popups = append(l.popups, p)
	if p.dialog() && l.hands.at == p.page && l.hands.interrupt != nil {
		// The page answers no input any more.
		l.hands.interrupt(errAsked)
	}
	l.mu.Unlock()
	l.poke()
	return true
}

// offerDialog lets a dialog wait for a person. It is false when no person steers.
func (l *Live) offerDialog(p *Page, e page.EventJavascriptDialogOpening) bool {
	if l.renewing.Load() || !l.held.Load() {
		return false
	}
	kind := PopupKind(e.Type)
	switch e.Type {
	case page.DialogTypeAlert, page.DialogTypeConfirm, page.DialogTypePrompt:
	case page.DialogTypeBeforeunload:
		kind = PopupLeave
	default:
		return false
	}
	return l.offer(&popup{page: p, session: p.session, Popup: Popup{Kind: kind, Message: bounded(e.Message, maxText),
		Origin: asker(e.URL), Default: bounded(e.DefaultPrompt, maxText)}})
}

// asker is the site that a page's address, as the browser writes it, is of. The rest of it is the page's words, and would be
// read as somebody else's.
func asker(address string) string {
	scheme, rest, _ := strings.Cut(address, ":")
	authority, web := strings.CutPrefix(rest, "//")
	if !web || scheme != "http" && scheme != "https" {
		return bounded(scheme, maxLiveURL) + ":"
	}
	if end := strings.IndexAny(authority, "/?#"); end >= 0 {
		authority = authority[:end]
	}
	// A name and a password in front of the host are words, too.
	return bounded(scheme+"://"+authority[strings.LastIndexByte(authority, '@')+1:], maxLiveURL)
}

// offerFiles lets a file chooser wait for a person. It is false when no person steers.
func (l *Live) offerFiles(p *Page, s cdp.Session, e page.EventFileChooserOpened) bool {
	if !l.held.Load() {
		return false
	}
	asked := &popup{page: p, session: s, node: e.BackendNodeID,
		Popup: Popup{Kind: PopupFiles, Multiple: e.Mode == page.FileChooserOpenedModeSelectMultiple}}
	// The types of files that the chooser accepts are an attribute; the goroutine that reads the page's events cannot ask for it.
	return l.runHeld(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, quietTimeout)
		defer cancel()
		described, err := cdp.Do(ctx, s, dom.DescribeNode, dom.DescribeNodeParams{BackendNodeID: e.BackendNodeID})
		if err == nil && described.Node != nil {
			for i := 0; i+1 < len(described.Node.Attributes); i += 2 {
				if described.Node.Attributes[i] == "accept" {
					asked.Accept = l.b.shown(described.Node.Attributes[i+1], maxText)
				}
			}
		}
		l.offer(asked) // one that cannot be answered any more was not shown, and does not wait
	})
}

// dialogClosed forgets the dialog of a page.
func (l *Live) dialogClosed(p *Page) {
	l.dropped(func(asked *popup) bool { return asked.page == p && asked.dialog() })
}

// left forgets what the last document of a page asked for. A request for a password stays: it waits in front of the next one.
func (l *Live) left(p *Page) {
	l.dropped(func(asked *popup) bool { return asked.page == p && asked.Kind != PopupAuth })
}

// forget forgets all about a page that is gone.
func (l *Live) forget(p *Page) {
	l.dropped(func(asked *popup) bool { return asked.page == p })
	l.poke()
}

func (l *Live) dropped(which func(*popup) bool) {
	l.mu.Lock()
	before := len(l.popups)
	l.popups = slices.DeleteFunc(l.popups, which)
	changed := len(l.popups) != before
	l.mu.Unlock()
	if changed {
		l.poke()
	}
}

// find is the popup with an id; with take it waits no more.
func (l *Live) find(id string, take bool) *popup {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.IndexFunc(l.popups, func(p *popup) bool { return p.ID == id })
	if i < 0 {
		return nil
	}
	found := l.popups[i]
	if take {
		l.popups = slices.Delete(l.popups, i, i+1)
		l.poke()
	}
	return found
}

// asks is the dialog that keeps a page from everything else.
func (l *Live) asks(p *Page) *popup {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, asked := range l.popups {
		if asked.page == p && asked.dialog() {
			return asked
		}
	}
	return nil
}

func noPopup() error {
	return problem.New(problem.NotFound, "it was answered, or its page went on", "there is no such popup any more")
}

// answer answers one popup, as a person wants it.
func (l *Live) answer(ctx context.Context, in LiveInput) error {
	asked := l.find(in.Popup, false)
	if asked == nil {
		return noPopup()
	}
	ctx, cancel := context.WithTimeout(ctx, fileTimeout)
	defer cancel()
	var paths []string
	if asked.Kind == PopupFiles && in.Accept {
		if err := (ChooseFiles{Paths: in.Files}).Validate(); err != nil {
			return err
		}
		if !asked.Multiple && len(in.Files) > 1 {
			return onlyOne(len(in.Files))
		}
		var err error
		if paths, err = l.b.stage(ctx, in.Files); err != nil {
			return err
		}
	}
	if asked.Kind == PopupSelect && in.Accept {
		if err := asked.choice.check(in.Options); err != nil {
			return err
		}
	}
	if asked = l.find(in.Popup, true); asked == nil {
		return noPopup()
	}
	err := l.settlePopup(ctx, asked, in, paths)
	if refusedOrGone(err) {
		return problem.Wrap(err, problem.NotFound, "its page went on", "there is no such popup any more")
	}
	return err
}

// settlePopup does what the answer says, to a popup that waits no more.
func (l *Live) settlePopup(ctx context.Context, asked *popup, in LiveInput, paths []string) error {
	ctx, cancel := context.WithTimeout(ctx, dialogTimeout)
	defer cancel()
	switch asked.Kind {
	case PopupFiles:
		if !in.Accept {
			return nil
		}
		_, err := cdp.Do(ctx, asked.session, dom.SetFileInputFiles,
			dom.SetFileInputFilesParams{Files: paths, BackendNodeID: asked.node})
		return err
	case PopupAuth:
		response := &interception.AuthChallengeResponse{Response: interception.AuthChallengeResponseResponseCancelAuth}
		if in.Accept {
			response = &interception.AuthChallengeResponse{Response: interception.AuthChallengeResponseResponseProvideCredentials,
				Username: in.User, Password: in.Password}
		}
		_, err := cdp.Do(ctx, asked.session, interception.ContinueWithAuth,
			interception.ContinueWithAuthParams{RequestID: asked.request, AuthChallengeResponse: response})
		return err
	case PopupSelect:
		defer asked.choice.release()
		if !in.Accept {
			return nil
		}
		return asked.choice.set(ctx, in.Options)
	}
	_, err := cdp.Do(ctx, asked.session, page.HandleJavaScriptDialog,
		page.HandleJavaScriptDialogParams{Accept: in.Accept, PromptText: in.Text})
	return err
}

// dismiss answers everything that waits with no, or what waits in one page.
func (l *Live) dismiss(ctx context.Context, of *Page) {
	l.mu.Lock()
	var waiting []*popup
	l.popups = slices.DeleteFunc(l.popups, func(asked *popup) bool {
		if of != nil && asked.page != of {
			return false
		}
		waiting = append(waiting, asked)
		return true
	})
	l.mu.Unlock()
	for _, asked := range waiting {
		ctx, cancel := context.WithTimeout(ctx, quietTimeout)
		// An error means that it is not there any more.
		_ = l.settlePopup(ctx, asked, LiveInput{}, nil)
		cancel()
	}
	l.poke()
}
