package cli

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/browser/control"
	"github.com/clawjail/clawjail/internal/problem"
)

// mediaURL is where a picture can be fetched for a while.
func (b *hostBrowser) mediaURL(id string) string { return b.control.JoinPath("media", id).String() }

// save writes a picture or a print to a file.
func (b *hostBrowser) save(cmd *cobra.Command, result any, file string) error {
	picture, ok := result.(browser.Picture)
	if !ok {
		return fmt.Errorf("the answer %T is no picture", result)
	}
	answer, err := b.drive(cmd.Context(), &browser.GetMedia{ID: picture.Media})
	if err != nil {
		return err
	}
	content, ok := answer.(browser.FileContent)
	if !ok {
		return fmt.Errorf("the answer %T is no picture", answer)
	}
	return save(cmd, file, content.Data)
}

// show prints the result of an operation: as JSON, or as people and agents read it.
func (b *hostBrowser) show(cmd *cobra.Command, result any, asJSON bool) error {
	w := cmd.OutOrStdout()
	if picture, ok := result.(browser.Picture); ok {
		result = control.Picture{Picture: picture, MediaURL: b.mediaURL(picture.Media)}
	}
	var refused error
	if r, ok := result.(browser.Result); ok {
		refused = refusedBy(r, "")
	}
	if asJSON {
		return cmp.Or(writeJSON(w, result), refused)
	}
	var text strings.Builder
	switch r := result.(type) {
	case browser.TabsResult:
		return tabTable(w, r.Tabs)
	case browser.OpenTabResult:
		fmt.Fprintf(&text, "%s %s%s\n", r.SuggestedTargetID, printable(r.URL), refusal(r.Status))
		dialogs(&text, r.Dialogs)
	case browser.Result:
		fmt.Fprintf(&text, "%s %s%s\n", r.TargetID, printable(r.URL), refusal(r.Status))
		dialogs(&text, r.Dialogs)
	case browser.Done:
		fmt.Fprintln(&text, strings.TrimSpace("done "+r.TargetID))
	case control.Picture:
		fmt.Fprintf(&text, "MEDIA:%s\n", r.MediaURL)
	case browser.SnapshotResult:
		snapshotText(&text, r)
	case browser.QueryResult:
		queryText(&text, r)
	case browser.DOMResult:
		fmt.Fprintln(&text, lines(r.Text))
		truncated(&text, r.Truncated)
	case browser.EvalResult:
		return evalText(cmd, r)
	case browser.ConsoleResult:
		messages(&text, r.Messages)
		truncated(&text, r.Truncated)
	case browser.ErrorsResult:
		messages(&text, r.Errors)
		truncated(&text, r.Truncated)
	case browser.RequestsResult:
		for _, request := range r.Requests {
			status := strconv.Itoa(request.Status)
			if request.Error != "" {
				status = printable(request.Error)
			}
			fmt.Fprintf(&text, "%s %s %s (%s)\n", printable(request.Method), printable(request.URL), status, printable(request.Type))
		}
		truncated(&text, r.Truncated)
	case browser.ActResult:
		actText(&text, r)
	default:
		return writeJSON(w, result)
	}
	_, err := io.WriteString(w, text.String())
	return cmp.Or(err, refused)
}

// refusedBy says of a page that it is the gateway's, and nothing of the host that was asked for.
func refusedBy(page browser.Result, before string) error {
	if page.Refused == "" {
		return nil
	}
	return problem.New(printable(page.Refused), "ask why: clawjail rules explain URL --session ID", "%sthe gateway refused the page: %s", before, printable(page.Refused))
}

// refusal says what the server, or the gateway in its place, thought of a request. It is empty when the page is the one
// that was asked for.
func refusal(status int) string {
	if status < 400 {
		return ""
	}
	return fmt.Sprintf(" (HTTP %d)", status)
}

func tabTable(w io.Writer, tabs []browser.Tab) error {
	rows := [][]string{{"TAB", "", "LABEL", "TITLE", "URL"}}
	for _, t := range tabs {
		rows = append(rows, []string{t.TabID, map[bool]string{true: "*"}[t.IsActive], dash(printable(t.Label)), map[bool]string{true: "[crashed] "}[t.Crashed] + printable(t.Title), printable(t.URL)})
	}
	return table(w, rows)
}

func snapshotText(w *strings.Builder, r browser.SnapshotResult) {
	if r.Snapshot != "" {
		fmt.Fprintln(w, lines(r.Snapshot))
	}
	for _, n := range r.Nodes {
		what := n.Role
		if what == "" {
			what = n.Tag
		}
		line := strings.Repeat("  ", min(max(n.Depth, 0), 40)) + printable(what)
		for _, text := range []string{n.Name, n.Text, n.Value} {
			if text != "" {
				line += " " + strconv.Quote(printable(text))
			}
		}
		if n.Ref != "" {
			line += " [ref=" + printable(n.Ref) + "]"
		}
		fmt.Fprintln(w, line)
	}
	dialogs(w, r.Dialogs)
	truncated(w, r.Truncated)
}

func queryText(w *strings.Builder, r browser.QueryResult) {
	for _, e := range r.Elements {
		line := fmt.Sprintf("%d <%s>", e.Index, printable(e.Tag))
		for _, part := range []struct{ name, value string }{{"id", e.ID}, {"class", e.Class}, {"href", e.Href}, {"value", e.Value}, {"text", e.Text}} {
			if part.value != "" {
				line += " " + part.name + "=" + strconv.Quote(printable(part.value))
			}
		}
		fmt.Fprintln(w, line)
	}
	if r.Truncated {
		fmt.Fprintf(w, "(truncated: %d of %d)\n", len(r.Elements), r.Total)
	}
}

// evalText prints a value as JSON, alone, so that a script can use it.
func evalText(cmd *cobra.Command, r browser.EvalResult) error {
	if r.Exception != "" {
		return fmt.Errorf("the script threw: %s", printable(r.Exception))
	}
	if r.Value == nil && r.Description != "" {
		_, err := fmt.Fprintln(cmd.OutOrStdout(), printable(r.Description))
		return err
	}
	if err := encoder(cmd.OutOrStdout()).Encode(r.Value); err != nil {
		return fmt.Errorf("print the value: %w", err)
	}
	return nil
}

func actText(w *strings.Builder, r browser.ActResult) {
	fmt.Fprintln(w, strings.TrimSpace("done "+r.TargetID+" "+printable(r.URL)))
	if r.Value != nil {
		_ = encoder(w).Encode(r.Value) // it has come as JSON
	}
	for _, step := range r.Results {
		if step.OK {
			fmt.Fprintf(w, "  %s: done\n", printable(step.Kind))
		} else {
			fmt.Fprintf(w, "  %s: %s\n", printable(step.Kind), printable(step.Error))
		}
	}
	for _, tab := range r.Opened {
		fmt.Fprintf(w, "opened the tab %s %s\n", tab.TabID, printable(tab.URL))
	}
	for _, file := range r.Downloads {
		fmt.Fprintf(w, "downloads %s\n", printable(file.Name))
	}
	if r.FileChooser {
		fmt.Fprintln(w, "the page waits for files")
	}
	dialogs(w, r.Dialogs)
}

func messages(w *strings.Builder, all []browser.ConsoleMessage) {
	for _, m := range all {
		fmt.Fprintf(w, "%s %s\n", printable(m.Level), printable(m.Text))
	}
}

func dialogs(w *strings.Builder, all []browser.Dialog) {
	for _, d := range all {
		fmt.Fprintf(w, "the page asked (%s): %s\n", printable(d.Type), printable(d.Message))
	}
}

func truncated(w *strings.Builder, yes bool) {
	if yes {
		fmt.Fprintln(w, "(truncated: there is more)")
	}
}

// lines is a page's text of several lines for a terminal.
func lines(text string) string {
	var out []string
	for line := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n") {
		out = append(out, printable(line))
	}
	return strings.Join(out, "\n")
}
