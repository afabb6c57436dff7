package llm

import (
	"bytes"
	"io"
	"net/http"
	"slices"
	"sync"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/clawjail/clawjail/internal/problem"
)

// added is what the gateway has put into a request and can take out again: some servers refuse a member that they do not know.
type added struct {
	from, to int
	was      string
	words    []string // what a refusal because of it has in it, in lower case
}

// add puts a text in place of a part of the body, in a way that can be taken back.
func (a *ask) add(from, to int, text string, words ...string) {
	a.added = &added{from: from, to: from + len(text), was: string(a.body[from:to]), words: words}
	a.body = spliced(a.body, from, to, text)
}

// refused says whether a server refuses a request because of what was added. The answer can still be read from its beginning.
func (a *added) refused(resp *http.Response) bool {
	if a == nil || resp.StatusCode != http.StatusBadRequest && resp.StatusCode != http.StatusUnprocessableEntity {
		return false
	}
	// An error of the rest comes again when it is read.
	text, err := io.ReadAll(io.LimitReader(resp.Body, longestRefusal))
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(text), resp.Body), resp.Body}
	text = bytes.ToLower(text)
	return err == nil && slices.ContainsFunc(a.words, func(word string) bool { return bytes.Contains(text, []byte(word)) })
}

// longestRefusal bounds what is read of an error of a server.
const longestRefusal = 64 << 10

// takeBack is the request without what the gateway has added to it.
func (a *ask) takeBack() {
	if a.added == nil {
		return
	}
	a.body = spliced(a.body, a.added.from, a.added.to, a.added.was)
	a.added, a.hidden = nil, false
}

// askUsage makes a chat stream end with its usage. inside is where the first member begins; options is the value of
// stream_options, if there is one, and end where it ends.
func (a *ask) askUsage(inside int, options jsontext.Value, end int) *problem.Error {
	const wanted = `"include_usage":true`
	switch {
	case options == nil:
		a.hidden = true
		a.add(inside, inside, `"stream_options":{`+wanted+`},`, keyStreamOptions)
		return nil
	case options.Kind() == 'n':
		a.hidden = true
		a.add(end-len(options), end, `{`+wanted+`}`, keyStreamOptions)
		return nil
	case options.Kind() != '{':
		return badBody("%q is not an object", keyStreamOptions)
	}
	start := end - len(options)
	value, valueEnd, ok := member(options, keyIncludeUsage)
	if !ok {
		if bytes.ContainsRune(options, '"') {
			a.body = spliced(a.body, start+1, start+1, wanted+",")
		} else {
			a.body = spliced(a.body, start+1, start+1, wanted)
		}
		a.hidden = true
		return nil
	}
	on, p := boolOf(keyIncludeUsage, value, false)
	if p != nil || on {
		return p
	}
	a.hidden = true
	a.body = spliced(a.body, start+valueEnd-len(value), start+valueEnd, "true")
	return nil
}

// keepNothing makes a provider not keep the response that it answers with. It then asks for the thoughts of the model in a form
// that only the provider can read: the next request brings them along.
func (a *ask) keepNothing() {
	value, end, said := member(a.body, "store")
	switch {
	case !said:
		start := bytes.IndexByte(a.body, '{') + 1 // the body is an object with a model in it
		a.body = spliced(a.body, start, start, `"store":false,`)
	case value.Kind() == 'n':
		a.body = spliced(a.body, end-len(value), end, "false")
	default:
		return // the agent has decided, and knows what comes of it
	}
	const wanted = `"reasoning.encrypted_content"`
	list, end, said := member(a.body, "include")
	start := end - len(list)
	words := []string{"include", "encrypted"}
	switch {
	case !said:
		start := bytes.IndexByte(a.body, '{') + 1
		a.add(start, start, `"include":[`+wanted+`],`, words...)
	case list.Kind() == 'n':
		a.add(start, end, "["+wanted+"]", words...)
	case list.Kind() != '[':
	default:
		with := "[" + wanted + "]"
		for e := range elements(list) {
			if string(e) == wanted {
				return
			}
			with, end = "["+wanted+",", start+1
		}
		a.add(start, end, with, words...)
	}
}

// spliced is b with what stands from one place to another replaced.
func spliced(b []byte, from, to int, with string) []byte {
	out := make([]byte, 0, len(b)+len(with))
	out = append(out, b[:from]...)
	out = append(out, with...)
	return append(out, b[to:]...)
}

// unwanted remembers which models of which providers refuse what the gateway adds, for an agent: the next request does not try.
type unwanted struct {
	mu    sync.Mutex
	known map[unwantedKey]struct{}
}

type unwantedKey struct {
	tenant, agent, provider string
	version                 int64
	path, model             string
}

const maxUnwanted = 4096

func (u *unwanted) has(key unwantedKey) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	_, ok := u.known[key]
	return ok
}

func (u *unwanted) note(key unwantedKey) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.known == nil || len(u.known) >= maxUnwanted {
		u.known = map[unwantedKey]struct{}{}
	}
	u.known[key] = struct{}{}
}
