package guard

import (
	"fmt"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/clawjail/clawjail/internal/cdp"
)

// maxFiles bounds the files of one command.
const maxFiles = 1000

// fileCommands adds the code for commands that name files or folders.
func fileCommands(commands map[string]rewritten) {
	commands["DOM.setFileInputFiles"] = rewritten{command: func(g *Guard, m *cdp.Message) (jsontext.Value, error) {
		return members("nodeId", "backendNodeId", "objectId").with("files", g.files).command(m.Params)
	}}
	commands["Input.dispatchDragEvent"] = rewritten{command: func(g *Guard, m *cdp.Message) (jsontext.Value, error) {
		data := members("dragOperationsMask").with("items", droppedItems).with("files", g.files)
		return members("type", "x", "y", "modifiers").with("data", data.command).command(m.Params)
	}}
	commands["Browser.setDownloadBehavior"] = rewritten{command: browserDownloads}
	commands["Page.setDownloadBehavior"] = rewritten{command: func(g *Guard, m *cdp.Message) (jsontext.Value, error) {
		return g.downloads(m.Params, members())
	}}
}

// files looks every name up among the session's files, and gives the browser the paths that they have in its jail. Only
// the last part of a name counts: some clients make a path of their own machine of what a script gave them.
func (g *Guard) files(value jsontext.Value) (jsontext.Value, error) {
	count := 0
	return elements(value, func(element jsontext.Value) (jsontext.Value, bool, error) {
		given, err := text(element)
		if count++; err != nil || count > maxFiles {
			return nil, false, &refusal{"that is no list of names, or a very long one", "Give the names of the session's files."}
		}
		name := lastPart(given)
		if g.options.File != nil && name != "" && name != "." && name != ".." {
			if path, ok := g.options.File(name); ok {
				return quoted(path), true, nil
			}
		}
		return nil, false, &refusal{fmt.Sprintf("the session has no file %.200q", name),
			"Put it into the session's files first, and name it as it is listed there."}
	})
}

// droppedItems leaves out addresses that are not of the web: where no page takes what is dropped, the browser opens it in
// a new tab, and the shell opens local files too. Clients send back what a page let them drag, so the rest goes on.
func droppedItems(value jsontext.Value) (jsontext.Value, error) {
	item := members("mimeType", "data", "title").with("baseURL", func(value jsontext.Value) (jsontext.Value, error) {
		if base, err := text(value); err != nil || !pageAddresses(base) {
			return nil, nil
		}
		return value, nil
	})
	return elements(value, func(element jsontext.Value) (jsontext.Value, bool, error) {
		element, err := item.command(element)
		kind, _, _ := strings.Cut(findText(element, "mimeType"), ";")
		if strings.EqualFold(strings.TrimSpace(kind), "text/uri-list") && !pageAddresses(findText(element, "data")) {
			return nil, false, err
		}
		return element, true, err
	})
}

// pageAddresses says whether a page may go to all addresses of a list (RFC 2483, section 5), also when it is read as one.
func pageAddresses(list string) bool {
	for _, line := range append(strings.FieldsFunc(list, func(r rune) bool { return r == '\r' || r == '\n' }), list) {
		if _, err := pageAddress(quoted(line)); err != nil {
			return false
		}
	}
	return true
}

// browserDownloads is for a context, or for all pages of the default one.
func browserDownloads(g *Guard, m *cdp.Message) (jsontext.Value, error) {
	context := findText(m.Params, "browserContextId")
	if err := g.usable(context); err != nil {
		return nil, err
	}
	return g.downloads(m.Params, members("eventsEnabled", "browserContextId"))
}

// downloads puts all downloads into the session's folder, under names that the browser makes up: the client is told the
// name that the site wanted. A client may refuse those of contexts of its own only.
func (g *Guard) downloads(params jsontext.Value, others shape) (jsontext.Value, error) {
	context := findText(params, "browserContextId")
	denied := g.options.DownloadsPath == "" ||
		findText(params, "behavior") == "deny" && context != "" && g.options.Registry.owns(g, context)
	behavior, path := "allowAndName", quoted(g.options.DownloadsPath)
	if denied {
		behavior, path = "deny", nil
	}
	out, err := others.with("behavior", func(jsontext.Value) (jsontext.Value, error) { return quoted(behavior), nil }).
		with("downloadPath", drop).command(params)
	if err != nil || path == nil {
		return out, err
	}
	b := builder(strings.TrimSuffix(string(out), "}"))
	if len(b) == 1 {
		b = nil
	}
	b.add("downloadPath", path)
	return b.object(), nil
}

// baseName cuts a path to its last part, whichever way its system writes paths.
func baseName(value jsontext.Value) (jsontext.Value, error) {
	path, err := text(value)
	if err != nil {
		return nil, nil // no text, and so no path
	}
	return quoted(lastPart(path)), nil
}

func lastPart(path string) string { return path[strings.LastIndexAny(path, `/\`)+1:] }
