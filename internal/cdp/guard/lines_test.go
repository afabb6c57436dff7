//go:build unix

package guard

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/clawjail/clawjail/internal/cdp"
)

// texts are the paths of all texts in the parameters of a command, written as in fields.tsv.
func (p protocol) texts(domain string, f property, path string, depth int) []string {
	if f.Ref != "" {
		in, name := domain, f.Ref
		if before, after, found := strings.Cut(f.Ref, "."); found {
			in, name = before, after
		}
		for _, d := range p.Domains {
			for _, t := range d.Types {
				if d.Domain == in && t.ID == name && depth < 5 { // a type may have itself as a member
					return p.texts(in, property{Type: t.Type, Enum: t.Enum, Items: t.Items, Properties: t.Properties}, path, depth+1)
				}
			}
		}
		return nil
	}
	switch {
	case (f.Type == "string" || f.Type == "binary") && len(f.Enum) == 0:
		return []string{path}
	case f.Type == "array" && f.Items != nil:
		return p.texts(domain, *f.Items, path+"[]", depth+1)
	case f.Type == "object" && len(f.Properties) == 0:
		return []string{path + "{}"}
	case f.Type == "object":
		var out []string
		for _, member := range f.Properties {
			out = append(out, p.texts(domain, member, path+"."+member.Name, depth+1)...)
		}
		return out
	}
	return nil
}

// undecided are the texts that only one of the table and the protocol has. Commands that nobody may give have none.
func undecided(table string, p protocol) (missing, extra []string) {
	inTable := map[string]bool{}
	for line := range strings.SplitSeq(strings.TrimSpace(table), "\n") {
		cells := strings.Split(line, "\t")
		for _, path := range strings.Fields(cells[2]) {
			inTable[cells[0]+" "+path] = true
		}
	}
	delete(inTable, "command fields")
	book, err := tableRows()
	if err != nil {
		return []string{err.Error()}, nil
	}
	for _, d := range p.Domains {
		for _, c := range d.Commands {
			if r := book["command"+d.Domain+"."+c.Name]; r.clean == deny && r.operator == deny {
				continue
			}
			for _, f := range c.Parameters {
				for _, path := range p.texts(d.Domain, f, f.Name, 0) {
					name := d.Domain + "." + c.Name + " " + path
					if !inTable[name] {
						missing = append(missing, name)
					}
					delete(inTable, name)
				}
			}
		}
	}
	for name := range inTable {
		extra = append(extra, name)
	}
	slices.Sort(extra)
	return missing, extra
}

func tableRows() (map[string]row, error) {
	rows, err := table(verdicts)
	out := make(map[string]row, len(rows))
	for _, r := range rows {
		out[r.kind+r.name] = r
	}
	return out, err
}

func TestEveryTextOfTheProtocolHasACheck(t *testing.T) {
	eachBuild(t, func(t *testing.T, program string, flags ...string) {
		p := describe(t, program, flags...)
		missing, extra := undecided(fields, p)
		if len(missing) > 0 {
			t.Errorf("decide whether these become a part of a request, and how they are checked:\n%s", strings.Join(missing, "\n"))
		}
		if len(extra) > 0 {
			t.Errorf("the browser does not know:\n%s", strings.Join(extra, "\n"))
		}
		// A field that is taken away is missed, and one too many is found.
		if missing, _ := undecided(strings.Replace(fields, "\tmethod\tmethod\n", "\tmethod\t\n", 1), p); len(missing) != 1 {
			t.Errorf("without the method %v are missed", missing)
		}
		if _, extra := undecided(fields+"No.such\tnone\tthing\n", p); len(extra) != 1 {
			t.Errorf("of one that is too many %v are found", extra)
		}
	})
}

// ends are texts that end the line they stand in, to some program.
func ends() []string {
	return []string{"a\r\nX-Other: 1", "a\nb", "a\rb", "a\x00b", "a\u0085b", "a\x7fb", "\x0b"}
}

// params writes the parameters in which a field has a value.
func params(path []string, value string) string {
	for i := len(path) - 1; i >= 0; i-- {
		if path[i] == "[]" {
			value = "[" + value + "]"
		} else {
			value = fmt.Sprintf("{%q:%s}", path[i], value)
		}
	}
	return value
}

func TestWhatAClientWritesStaysWithinItsLine(t *testing.T) {
	checked, err := fieldsOf(fields)
	if err != nil {
		t.Fatal(err)
	}
	rows, err := tableRows()
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]string{} // command and path, the kind of check
	for line := range strings.SplitSeq(strings.TrimSpace(fields), "\n") {
		cells := strings.Split(line, "\t")
		for _, path := range strings.Fields(cells[2]) {
			kinds[cells[0]+" "+path] = cells[1]
		}
	}
	good := map[string]string{
		"method": `"PATCH"`, "address": `"https://site.example/a?b=c#d"`, "line": `"Name/1.0 (é; x)"`, "text": `"Wört 語"`,
		"header": `{"name":"X-Own","value":"é, \t1"}`, "headers": `{"X-Own":"1","Accept-Language":"de"}`, "raw": `"` + base64Of("X-Own: 1\x00Other: 2\x00") + `"`,
	}
	bad := map[string][]string{
		"method": {`"TRACE"`, `"trace"`, `"TRACK"`, `"CONNECT"`, `" GET"`, `"GET "`, `"GET\t"`, `"get"`, `""`, `1`, `{}`,
			`"POST /note HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nGET"`, `"GET http://other.example/ HTTP/1.1\r\n\r\nGET"`},
		"address": {`"https://site.example/\u0000x"`, `"https://site.example/\u0085"`, `{}`},
		"line":    {`"Ċ"`, `"語"`, `{}`}, "text": {`{}`},
		"header": {`{"name":"","value":"1"}`, `{"name":"X Y","value":"1"}`, `{"name":"X:","value":"1"}`, `{"name":"X-É","value":"1"}`,
			`{"name":"X\r\nCookie","value":"sid=1"}`, `{"name":"X-Own","value":1}`, `{"name":"X-HTTP-Method-Override","value":"TRACE"}`,
			`{"name":"x-http-method","value":"GET, track"}`, `{"name":"X-Method-Override","value":"CONNECT"}`, `{"name":"X-Original-Method","value":" trace "}`, `"X-Own: 1"`},
		"headers": {`{"X Y":"1"}`, `{"X-Own":"1\r\nCookie: sid=1"}`, `{"X-Own":"Ċ"}`, `{"X-Own":1}`, `{"X-HTTP-Method-Override":"trace"}`, `[]`},
		"raw":     {`"no base64!"`, `"` + base64Of("HTTP/1.1 200 OK\x00") + `"`, `"` + base64Of("X-Own: 1\r\nSet-Cookie: a=b\x00") + `"`, `1`},
	}
	for _, text := range ends() {
		bad["line"] = append(bad["line"], string(quoted(text)))
		bad["text"] = append(bad["text"], string(quoted(text)))
		bad["header"] = append(bad["header"], fmt.Sprintf(`{"name":"X-Own","value":%s}`, quoted(text)), fmt.Sprintf(`{"name":%s,"value":"1"}`, quoted(text)))
	}
	looked := 0
	for command, list := range checked {
		for _, f := range list {
			path := strings.ReplaceAll(strings.Join(f.path, "."), ".[]", "[]")
			kind := kinds[command+" "+path]
			for _, suffix := range []string{".name", "{}"} {
				if kind == "" {
					kind = kinds[command+" "+path+suffix]
				}
			}
			if good[kind] == "" || len(bad[kind]) == 0 {
				t.Fatalf("%s %s has the check %q, of which the test knows nothing", command, path, kind)
			}
			looked++
			for _, mode := range []Mode{Clean, Operator} {
				if v := rows["command"+command].in(mode); v == deny || v == fake {
					continue
				}
				g, err := New(Options{Mode: mode})
				if err != nil {
					t.Fatal(err)
				}
				refuses := func(value string) bool {
					return g.rules.commands[command].inLines(mode, []byte(params(f.path, value))) != nil
				}
				if refuses(good[kind]) {
					t.Errorf("%s in a %s session: %s %s is refused", command, mode, path, good[kind])
				}
				for _, value := range bad[kind] {
					if !refuses(value) {
						t.Errorf("%s in a %s session: %s %s is not refused", command, mode, path, value)
					}
				}
				if kind == "method" {
					reply := g.Command(&cdp.Message{Method: command, SessionID: "S", Params: []byte(`{"requestId":"1","method":"TRACE"}`)})
					if reply == nil || reply.Error == nil || !strings.Contains(reply.Error.Message, "not allowed in this session") {
						t.Errorf("%s in a %s session answers %+v", command, mode, reply)
					}
				}
			}
		}
	}
	if looked < 30 {
		t.Errorf("only %d fields were looked at", looked)
	}
	for address, want := range map[string]bool{
		"https://u:p@site.example/": true, "HTTPS:\\\\u@site.example/": true, "ht\ntp:u@site.example": true,
		"https://site.example/@": false, "https://site.example?a@b": false, "data:text/plain,a@b": false,
	} {
		if hasUser(address) != want {
			t.Errorf("a login in %q: %v", address, !want)
		}
	}
}

func base64Of(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }

// rawSite writes down every byte that it is sent, and answers each read with an empty page.
type rawSite struct {
	net.Listener
	mu  sync.Mutex
	got bytes.Buffer
}

func newRawSite(t testing.TB) *rawSite {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &rawSite{Listener: listener}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { s.serve(conn) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		serving.Wait()
	})
	return s
}

func (s *rawSite) serve(conn net.Conn) {
	defer conn.Close()
	buffer := make([]byte, 64<<10)
	n, err := conn.Read(buffer)
	if err != nil {
		return
	}
	s.mu.Lock()
	s.got.Write(buffer[:n])
	s.mu.Unlock()
	_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
}

func (s *rawSite) all() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.got.String()
}

// TestNoRequestIsWrittenIntoAnother lets a client hold a request of a page that has a cookie and go on with a method, an
// address and headers of its own, before a site that writes down what it is really sent.
func TestNoRequestIsWrittenIntoAnother(t *testing.T) {
	eachBuild(t, func(t *testing.T, program string, flags ...string) {
		conn, mux := open(t, program, flags...)
		try := func(filter cdp.Filter) (account, other string) {
			account1, other1 := newRawSite(t), newRawSite(t)
			host := account1.Addr().String()
			elsewhere := fmt.Sprintf("other.test:%d", other1.Addr().(*net.TCPAddr).Port)
			u := join(t, mux, filter)
			defer u.client.Close()
			_, session := u.page("")
			err := conn.Browser().Call(within(t), "Storage.setCookies", map[string]any{"cookies": []any{map[string]any{
				"name": "sid", "value": injected, "url": "http://" + host, "httpOnly": true}}}, nil)
			if err != nil {
				t.Fatal(err)
			}
			u.must(session, "Page.enable", `{}`)
			u.must(session, "Page.navigate", fmt.Sprintf(`{"url":"http://%s/"}`, host))
			u.event("Page.loadEventFired")
			u.must(session, "Fetch.enable", `{"patterns":[{"urlPattern":"*held*"}]}`)
			next := base64Of("POST /next HTTP/1.1\r\nHost: " + host + "\r\nContent-Length: 1400\r\n\r\n")
			for n, change := range []string{
				`"postData":"` + next + `"`, `"method":"HEAD","postData":"` + next + `"`, `"method":"DELETE","postData":"` + next + `"`,
				`"method":"GET"`, `"method":"OPTIONS"`, // of a request that has a body, see below
				`"method":"PUT","postData":"` + base64Of("a body of its own\r\n\r\n") + `"`,
				`"method":"TRACE"`, `"method":"TRACK"`, `"method":" TRACE"`, `"method":"TRACE\t"`,
				`"method":` + string(quoted("POST /note HTTP/1.1\r\nHost: "+host+"\r\nContent-Length: 1400\r\n\r\nGET")),
				`"method":` + string(quoted("GET http://"+elsewhere+"/ HTTP/1.1\r\nX-Rest:")),
				`"method":` + string(quoted("GET /one HTTP/1.1\r\nCookie: sid=own\r\n\r\nGET")),
				`"headers":[{"name":"X-Own","value":"1\r\nX-Injected: yes"}]`,
				`"headers":[{"name":"X-HTTP-Method-Override","value":"TRACE"}]`,
				`"headers":[{"name":"Host","value":"other.test"},{"name":"Content-Length","value":"77"},{"name":"X-Kept","value":"1"}]`,
				fmt.Sprintf(`"url":"http://%s/elsewhere-held"`, elsewhere),
				fmt.Sprintf(`"url":"http://%s/a\r\nX-Injected: yes"`, host),
			} {
				with := ""
				if change == `"method":"GET"` || change == `"method":"OPTIONS"` {
					with = ", {method: 'POST', body: 'POST /next HTTP/1.1'}"
				}
				done := u.post(session, "Runtime.evaluate", fmt.Sprintf(
					`{"expression":"fetch('/held%d'%s).then(a => a.text(), String)","awaitPromise":true,"returnByValue":true}`, n, with))
				paused := u.until("the held request", func(m message) bool {
					return m.Method == "Fetch.requestPaused" && strings.HasSuffix(findText(find([]byte(m.Params), "request"), "url"), fmt.Sprintf("/held%d", n))
				})
				id := findText([]byte(paused.Params), "requestId")
				if reply := u.call(session, "Fetch.continueRequest", fmt.Sprintf(`{"requestId":%q,%s}`, id, change)); reply.Error != nil {
					u.call(session, "Fetch.continueRequest", fmt.Sprintf(`{"requestId":%q,"method":"PATCH"}`, id))
				}
				u.until("the end of the request", func(m message) bool { return m.Method == "" && m.ID == done })
			}
			return account1.all(), other1.all()
		}
		g, err := New(Options{Mode: Operator})
		if err != nil {
			t.Fatal(err)
		}
		account, other := try(g)
		lines := strings.Split(account, "\r\n")
		requests, method := 0, ""
		for i, line := range lines {
			switch {
			case strings.HasSuffix(line, " HTTP/1.1"):
				requests++
				method, _, _ = strings.Cut(line, " ")
				if !slices.Contains(methods, method) || i > 0 && lines[i-1] != "" {
					t.Errorf("the site was sent %q after %q", line, lines[max(0, i-1)])
				}
			case strings.HasPrefix(line, "Content-Length: ") && line != "Content-Length: 0":
				if !slices.Contains(withBody, method) {
					t.Errorf("the site was sent a %s with %q", method, line)
				}
			case line == "Host: other.test", strings.HasPrefix(line, "X-Injected"),
				strings.Contains(line, "sid=own"), strings.HasPrefix(strings.ToLower(line), "x-http-method"):
				t.Errorf("the site was sent %q", line)
			}
		}
		if requests < 10 || strings.Count(account, "sid="+injected) < 10 || !strings.Contains(account, "X-Kept: 1") || !strings.Contains(account, "a body of its own") {
			t.Errorf("%d requests came, and what came is\n%s", requests, account)
		}
		if !strings.Contains(other, "elsewhere-held") {
			t.Errorf("the other site was sent %q", other)
		}
		if strings.Contains(other, injected) {
			t.Errorf("the other site was sent the cookie: %q", other)
		}

		// Without the guard the browser writes all of it.
		account, _ = try(nil)
		for _, want := range []string{"GET /held0 HTTP/1.1", "POST /next HTTP/1.1", "TRACE /held", "POST /note HTTP/1.1", "Cookie: sid=own", http.MethodTrace} {
			if !strings.Contains(account, want) {
				t.Errorf("without the guard the site is not sent %q:\n%s", want, account)
			}
		}
	})
}
