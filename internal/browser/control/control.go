// Package control is the control contract as HTTP: which request is which operation of package browser, and which
// answer is its result. Both halves are here, so that a server and its clients cannot differ: [Route.Decode] and [Write]
// are the server's, [Request] and [Read] the client's.
//
// It knows addresses and bytes, and nothing of sessions, keys or errors of a server. The server puts the routes below an
// address of its own, authenticates the caller, runs the operation and answers errors.
//
// Requests are read strictly. A body is one JSON object of at most [MaxBody] bytes, without unknown and doubled keys;
// parameters of the query are those of the route, once each, in the form that [Request] writes; a file is raw bytes, at
// most [MaxFile].
package control

import (
	"net/http"
	"reflect"
	"strings"

	"github.com/clawjail/clawjail/internal/browser"
)

const (
	// MaxBody bounds a JSON body in bytes.
	MaxBody = 1 << 20
	// MaxFile bounds a file that is put into a browser's folder, in bytes.
	MaxFile = 32 << 20
)

// Route is one request of the control contract.
type Route struct {
	Method string
	// Path is relative to where the routes are served, with at most one wildcard: /tabs/{targetId}.
	Path string
	// ID is unique among the routes.
	ID      string
	Summary string
	// New returns a pointer to the zero value of the operation.
	New func() browser.Operation
	// Raw says that the body is bytes, at most MaxFile, instead of JSON.
	Raw bool

	// field is the JSON name of the field that the wildcard stands for.
	field string
}

// Routes are all requests of the contract. Where an operation has several, [Request] makes the first whose wildcard has
// a value.
func Routes() []Route {
	const get, post, put, remove = http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete
	return []Route{
		route[browser.Status](get, "/status", "browser-status", "Does the browser run"),

		route[browser.Tabs](get, "/tabs", "list-tabs", "List the open tabs"),
		route[browser.OpenTab](post, "/tabs/open", "open-tab", "Open an address in a tab"),
		route[browser.FocusTab](post, "/tabs/focus", "focus-tab", "Make a tab the current one"),
		route[browser.CloseTab](remove, "/tabs/{targetId}", "close-tab", "Close a tab"),
		route[browser.CloseTab](post, "/tabs/close", "close-current-tab", "Close the current tab, or another"),
		route[browser.TabAction](post, "/tabs/action", "tab-action", "List, open, label, close or select a tab"),

		route[browser.Navigate](post, "/navigate", "navigate", "Load a page"),
		route[browser.Act](post, "/act", "act", "Click, type, fill, wait: one thing, or several"),
		route[browser.SetDialog](post, "/hooks/dialog", "set-dialog", "Say how the next dialog is answered"),
		route[browser.ChooseFiles](post, "/hooks/file-chooser", "choose-files", "Give files of the folder to the page"),
		route[browser.WaitDownload](post, "/wait/download", "wait-download", "Wait until a download has ended"),

		route[browser.Snapshot](get, "/snapshot", "snapshot", "Describe the page for a program that reads"),
		route[browser.Screenshot](post, "/screenshot", "take-screenshot", "Take a screenshot"),
		route[browser.Screenshot](get, "/screenshot", "screenshot", "Take a screenshot, as a picture"),
		route[browser.PDF](post, "/pdf", "print-pdf", "Print the page"),
		route[browser.GetMedia](get, "/media/{media}", "get-media", "A picture that was taken a while ago").with("id"),
		route[browser.Query](post, "/query", "query", "Find elements by a CSS selector"),
		route[browser.Query](get, "/query", "get-query", "Find elements by a CSS selector"),
		route[browser.DOM](post, "/dom", "dom", "The page as HTML or text"),
		route[browser.DOM](get, "/dom", "get-dom", "The page as HTML or text"),
		route[browser.Eval](post, "/eval", "eval", "Run JavaScript in the page"),
		route[browser.Console](get, "/console", "console", "What the page's scripts have printed"),
		route[browser.Errors](get, "/errors", "page-errors", "Exceptions that the page's scripts did not catch"),
		route[browser.Requests](get, "/requests", "page-requests", "What the page has asked the network for"),

		route[browser.Files](get, "/files", "list-files", "List downloads, and what is there for uploads"),
		route[browser.GetFile](get, "/files/{name}", "get-file", "Fetch a file of the folder"),
		route[browser.PutFile](put, "/files/{name}", "put-file", "Put a file into the folder, for uploads").raw(),
		route[browser.DeleteFile](remove, "/files/{name}", "delete-file", "Remove a file of the folder"),
	}
}

// operation is what a pointer to an operation's type must be.
type operation[T any] interface {
	*T
	browser.Operation
}

func route[T any, P operation[T]](method, path, id, summary string) Route {
	r := Route{Method: method, Path: path, ID: id, Summary: summary, New: func() browser.Operation { return P(new(T)) }}
	r.field = r.wildcard()
	return r
}

// with says which field the wildcard stands for, where it has another name.
func (r Route) with(field string) Route {
	r.field = field
	return r
}

func (r Route) raw() Route {
	r.Raw = true
	return r
}

// wildcard is the name in the path's braces; empty when it has none.
func (r Route) wildcard() string {
	_, rest, _ := strings.Cut(r.Path, "{")
	name, _, _ := strings.Cut(rest, "}")
	return name
}

// HasBody says whether a request of the route has one. Without one, the fields are in the query.
func (r Route) HasBody() bool { return r.Method == http.MethodPost || r.Method == http.MethodPut }

// Field is one field of a route's operation.
type Field struct {
	// Name is that of the JSON.
	Name string
	Type reflect.Type
	// Required says that it is always written.
	Required bool

	index []int
}

// InPath says which field the wildcard of the path stands for. ok is false when there is no wildcard.
func (r Route) InPath() (wildcard string, f Field, ok bool) {
	for _, f := range fields(r.kind()) {
		if r.field != "" && f.Name == r.field {
			return r.wildcard(), f, true
		}
	}
	return "", Field{}, false
}

// InQuery are the fields that the query may have, in the order of the operation's.
func (r Route) InQuery() (out []Field) {
	if r.HasBody() {
		return nil
	}
	for _, f := range fields(r.kind()) {
		if f.Name != r.field {
			out = append(out, f)
		}
	}
	return out
}

// kind is the operation's type, without the pointer.
func (r Route) kind() reflect.Type { return reflect.TypeOf(r.New()).Elem() }

// fields are those that are in the JSON.
func fields(t reflect.Type) (out []Field) {
	for _, f := range reflect.VisibleFields(t) {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous || !f.IsExported() || name == "" || name == "-" {
			continue
		}
		out = append(out, Field{Name: name, Type: f.Type, Required: !strings.Contains(options, "omitempty"), index: f.Index})
	}
	return out
}
