package browser

import (
	"context"
	_ "embed"
	"slices"
	"strings"
	"unicode/utf16"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/policy/redact"
	"github.com/clawjail/clawjail/internal/problem"
)

//go:embed inpage/conceal.js
var concealJS string

// maxFound bounds how often a document is asked anew because it has come to show more of what is concealed.
const maxFound = 5

// Conceal makes everything that pages say from now on lose the values, before it is cut, compared or waited for: a cut
// of what would be found shows a part of it, and a comparison confirms it.
//
// The code that runs in a page is never told a value that the page does not have. It answers with all that it read, which is
// looked through here; when something is found the page is asked again, and takes that out by itself.
func (b *Browser) Conceal(values *redact.Values) { b.concealed.Store(values) }

// shown is a text of a page without the values, cut.
func (b *Browser) shown(text string, maximum int) string {
	return bounded(b.concealed.Load().Text(text), maximum)
}

// titled is the title of a page, as shown.
func (b *Browser) titled(title string) string {
	return bounded(b.uncut(title, cdp.LongestTitle), maxText)
}

// uncut is a text without the values that the browser or a page has cut, if it has the length of the cut in UTF-16.
func (b *Browser) uncut(text string, length int) string {
	if len(text) >= length && len(utf16.Encode([]rune(text))) >= length {
		return b.concealed.Load().CutText(text)
	}
	return b.concealed.Load().Text(text)
}

// clean is JSON of the browser's without the values.
func (b *Browser) clean(raw jsontext.Value) jsontext.Value { return b.concealed.Load().JSON(raw) }

// said is all that a document says.
type said struct{ Texts, Attributes string }

// concealing is an argument of what runs in a page: the texts to take out. An empty list alone would not be sent.
type concealing struct {
	Texts []string `json:"texts"`
}

// openly gets an answer of a page in which nothing of the values is left. ask is given the texts to take out, nil when
// there is nothing to look for; with others, its answer is a [said] as Read, and Answer.
func (b *Browser) openly(ask func(texts []string) (jsontext.Value, error)) (jsontext.Value, error) {
	if b.concealed.Load().Empty() {
		return ask(nil)
	}
	return b.without([]string{}, ask)
}

// without is openly for values that there are, where some texts are known.
func (b *Browser) without(texts []string, ask func(texts []string) (jsontext.Value, error)) (jsontext.Value, error) {
	for range maxFound {
		answer, found, err := b.looked(ask(texts))
		if err != nil {
			return nil, err
		}
		known := len(texts)
		for _, text := range found {
			if !slices.Contains(texts, text) {
				texts = append(texts, text)
			}
		}
		if len(texts) == known {
			return b.clean(answer), nil
		}
	}
	return nil, problem.New(problem.ActOperationFailed, "wait until the page rests, and try again",
		"the page changes what it shows faster than it can be looked through")
}

// looked takes an answer of a page and what was read for it apart, and finds the values in that.
func (b *Browser) looked(raw jsontext.Value, err error) (jsontext.Value, []string, error) {
	var out struct {
		Read   said
		Answer jsontext.Value
	}
	if err == nil {
		err = cdp.Decode(raw, &out)
	}
	if err != nil {
		return nil, nil, err
	}
	if len(out.Answer) == 0 {
		out.Answer = jsontext.Value("null")
	}
	values := b.concealed.Load()
	return out.Answer, slices.Concat(values.In(out.Read.Texts), values.In(out.Read.Attributes)), nil
}

// confirms refuses a selector that compares attributes in a document one of whose attributes has a value: whether it
// matches would tell a part of the value. It is asked after the selector was used and before anybody learns the answer.
func (f *frame) confirms(ctx context.Context, selector string) error {
	values := f.page.b.concealed.Load()
	// A backslash may spell any letter (CSS Syntax, section 4.3.7).
	if values.Empty() || !strings.ContainsAny(selector, `[\`) && !strings.Contains(strings.ToLower(selector), "lang") {
		return nil
	}
	var read said
	if err := f.ask(ctx, remake, "read", &read, nil); err != nil {
		return err
	}
	if !values.Has(read.Attributes) {
		return nil
	}
	return problem.New(problem.BadRequest, "take a snapshot and use a ref, or name the element by its tag, id or class",
		"the page has a value of the account in an attribute, and attributes cannot be compared there")
}
