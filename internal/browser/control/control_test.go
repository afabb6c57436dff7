package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/clawjail/clawjail/internal/base/strict"
	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv/property"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// under is where the routes are served in these tests.
const under = "/v1/sessions/{id}"

// serve is a mux with every route, whose handler is told which of them it was.
func serve(t testing.TB, handle func(Route, http.ResponseWriter, *http.Request)) *http.ServeMux {
	t.Helper()
	mux := http.NewServeMux()
	for _, r := range Routes() {
		mux.HandleFunc(r.Method+" "+under+r.Path, func(w http.ResponseWriter, req *http.Request) { handle(r, w, req) })
	}
	return mux
}

func base(t testing.TB) *url.URL {
	t.Helper()
	u, err := url.Parse("http://127.0.0.1:1/v1/sessions/s_1")
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// same compares operations; nil and empty lists are the same in JSON.
func same() cmp.Options {
	return cmp.Options{cmpopts.EquateEmpty(), cmp.Exporter(func(reflect.Type) bool { return true })}
}

// fill gives every field of the contract a value.
func fill(t *rapid.T, v reflect.Value, depth int) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(rapid.String().Draw(t, "text"))
	case reflect.Bool:
		v.SetBool(rapid.Bool().Draw(t, "truth"))
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(rapid.Int32().Draw(t, "number")))
	case reflect.Float64:
		v.SetFloat(rapid.Float64Range(-1e6, 1e6).Draw(t, "fraction"))
	case reflect.Interface:
		v.Set(reflect.ValueOf(rapid.OneOf(rapid.String().AsAny(), rapid.Bool().AsAny(), rapid.Float64Range(-1e6, 1e6).AsAny()).Draw(t, "value")))
	case reflect.Pointer:
		if rapid.Bool().Draw(t, "there") {
			v.Set(reflect.New(v.Type().Elem()))
			fill(t, v.Elem(), depth)
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			v.SetBytes(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes"))
			return
		}
		n := 0
		if depth < 3 {
			n = rapid.IntRange(0, 2).Draw(t, "length")
		}
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			fill(t, v.Index(i), depth+1)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() {
				fill(t, v.Field(i), depth)
			}
		}
	default:
		t.Fatalf("no value for %s: teach the test", v.Type())
	}
}

func TestWhatIsAskedForIsWhatArrives(t *testing.T) {
	for _, r := range Routes() {
		t.Run(r.ID, func(t *testing.T) {
			var got browser.Operation
			var failed error
			mux := serve(t, func(matched Route, _ http.ResponseWriter, req *http.Request) {
				if matched.ID != r.ID {
					failed = fmt.Errorf("it is a request of %s", matched.ID)
					return
				}
				got, failed = matched.Decode(req)
			})
			property.Check(t, func(t *rapid.T) {
				op := r.New()
				value := reflect.ValueOf(op).Elem()
				fill(t, value, 0)
				if _, f, ok := r.InPath(); ok {
					name := rapid.StringMatching(`[ -~]{1,20}|..?é/%2F?#`).Filter(func(s string) bool { return s != "." && s != ".." && s != "/" }).Draw(t, "name")
					value.FieldByIndex(f.index).SetString(name)
				}
				path, ok := r.address(value)
				if !ok {
					t.Fatalf("%+v has no address", op)
				}
				req, err := r.request(context.Background(), base(nilTB{}), path, op)
				if err != nil {
					t.Fatal(err)
				}
				got, failed = nil, errors.New("it did not arrive")
				mux.ServeHTTP(httptest.NewRecorder(), sent(req))
				if failed != nil {
					t.Fatalf("%s %s: %v", req.Method, req.URL, failed)
				}
				if diff := cmp.Diff(op, got, same()); diff != "" {
					t.Fatalf("%s %s: %s", req.Method, req.URL, diff)
				}
			})
		})
	}
}

// nilTB is for helpers within a property, whose failures are panics.
type nilTB struct{ testing.TB }

func (nilTB) Helper()           {}
func (nilTB) Fatal(args ...any) { panic(fmt.Sprint(args...)) }

// sent is a client's request as its server sees it.
func sent(req *http.Request) *http.Request {
	body, _ := io.ReadAll(orEmpty(req.Body)) // of memory
	out := httptest.NewRequest(req.Method, req.URL.String(), bytes.NewReader(body))
	out.Header = req.Header.Clone()
	return out
}

func orEmpty(r io.Reader) io.Reader {
	if r == nil {
		return strings.NewReader("")
	}
	return r
}

func TestEveryOperationHasARequest(t *testing.T) {
	ids, patterns := map[string]bool{}, map[string]bool{}
	for _, r := range Routes() {
		if ids[r.ID] || patterns[r.Method+" "+r.Path] || r.Summary == "" {
			t.Errorf("%s %s %s is there twice, or says nothing", r.ID, r.Method, r.Path)
		}
		ids[r.ID], patterns[r.Method+" "+r.Path] = true, true
		if _, _, ok := r.InPath(); ok != strings.Contains(r.Path, "{") {
			t.Errorf("%s: nothing is in the wildcard", r.Path)
		}
		if !r.HasBody() && r.Method == http.MethodPost {
			t.Errorf("%s %s has no body", r.Method, r.Path)
		}
		op := r.New()
		if _, f, ok := r.InPath(); ok {
			reflect.ValueOf(op).Elem().FieldByIndex(f.index).SetString("x")
		}
		for _, form := range []any{op, reflect.ValueOf(op).Elem().Interface()} {
			req, err := Request(t.Context(), base(t), form.(browser.Operation))
			if err != nil || !strings.HasPrefix(req.URL.Path, "/v1/sessions/s_1/") {
				t.Errorf("%T: %v", form, err)
			}
		}
	}
}

func TestANameCannotMakeItTheRequestOfSomethingElse(t *testing.T) {
	for _, op := range []browser.Operation{browser.DeleteFile{Name: ".."}, browser.DeleteFile{Name: "."}, browser.GetFile{}, browser.GetMedia{ID: ".."},
		browser.PutFile{Name: ".."}, browser.DeleteFile{Name: "/"}} {
		if req, err := Request(t.Context(), base(t), op); problem.CodeOf(err) != problem.NotFound {
			t.Errorf("%+v: %v, %v", op, req, err)
		}
	}
	// A tab is closed by a body then.
	req, err := Request(t.Context(), base(t), browser.CloseTab{TargetID: ".."})
	if err != nil || req.URL.Path != "/v1/sessions/s_1/tabs/close" {
		t.Errorf("%v, %v", req, err)
	}
}

// decode makes a request as anybody may.
func decode(t *testing.T, method, path, body string, change ...func(*http.Request)) (op browser.Operation, err error) {
	t.Helper()
	err = errors.New("no route")
	mux := serve(t, func(r Route, _ http.ResponseWriter, req *http.Request) { op, err = r.Decode(req) })
	req := httptest.NewRequest(method, "/v1/sessions/s_1"+path, strings.NewReader(body))
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for _, f := range change {
		f(req)
	}
	mux.ServeHTTP(httptest.NewRecorder(), req)
	return op, err
}

func TestBadRequestsAreRefused(t *testing.T) {
	plain := func(r *http.Request) { r.Header.Set("Content-Type", "text/plain") }
	silent := func(r *http.Request) { r.ContentLength = -1 }
	large := `{"url":"` + strings.Repeat("x", MaxBody) + `"}`
	file := strings.Repeat("x", MaxFile+1)
	for name, test := range map[string]struct {
		method, path, body string
		change             []func(*http.Request)
		code, want         string
	}{
		"unknown parameter":          {"GET", "/snapshot?colour=1", "", nil, problem.BadRequest, "query.colour"},
		"repeated parameter":         {"GET", "/snapshot?limit=1&limit=2", "", nil, problem.BadRequest, "more than once"},
		"no number":                  {"GET", "/snapshot?limit=many", "", nil, problem.BadRequest, "whole number"},
		"a number in another form":   {"GET", "/snapshot?limit=%2B5", "", nil, problem.BadRequest, "whole number"},
		"a number beyond":            {"GET", "/snapshot?limit=99999999999999999999", "", nil, problem.BadRequest, "whole number"},
		"no truth":                   {"GET", "/snapshot?urls=1", "", nil, problem.BadRequest, "true or false"},
		"no escape":                  {"GET", "/snapshot?selector=%zz", "", nil, problem.BadRequest, "cannot be read"},
		"what is in the path":        {"GET", "/files/a?name=b", "", nil, problem.BadRequest, "query.name"},
		"what is not in JSON":        {"GET", "/files/a?Data=b", "", nil, problem.BadRequest, "query.Data"},
		"a hundred parameters":       {"GET", "/snapshot?" + manyParameters(), "", nil, problem.BadRequest, "100 parameters"},
		"parameter beside a body":    {"POST", "/navigate?url=x", "{}", nil, problem.BadRequest, "query.url"},
		"unknown key":                {"POST", "/navigate", `{"link":"x"}`, nil, problem.BadJSON, "not known"},
		"unknown key below":          {"POST", "/act", `{"kind":"batch","actions":[{"kind":"click","x":1,"z":2}]}`, nil, problem.BadJSON, "not known"},
		"doubled key":                {"POST", "/navigate", `{"url":"x","url":"y"}`, nil, problem.BadJSON, "twice"},
		"another case":               {"POST", "/navigate", `{"URL":"x"}`, nil, problem.BadJSON, "not known"},
		"wrong type":                 {"POST", "/navigate", `{"url":1}`, nil, problem.BadJSON, "wrong type"},
		"fraction":                   {"POST", "/navigate", `{"timeoutMs":1.5}`, nil, problem.BadJSON, "wrong type"},
		"an array":                   {"POST", "/navigate", `[]`, nil, problem.BadJSON, "not an object"},
		"behind the end":             {"POST", "/navigate", `{} {}`, nil, problem.BadJSON, "not valid"},
		"not JSON":                   {"POST", "/navigate", `{}`, []func(*http.Request){plain}, problem.BadRequest, "not JSON"},
		"too large":                  {"POST", "/navigate", large, nil, problem.BadRequest, "more than"},
		"too large, silently":        {"POST", "/navigate", large, []func(*http.Request){silent}, problem.BadRequest, "more than"},
		"file too large":             {"PUT", "/files/a", file, []func(*http.Request){plain}, problem.BadRequest, "more than"},
		"file too large, silently":   {"PUT", "/files/a", file, []func(*http.Request){plain, silent}, problem.BadRequest, "more than"},
		"a password is not repeated": {"POST", "/act", `{"kind":"type","text":{"x":"canary"}}`, nil, problem.BadJSON, "wrong type"},
	} {
		t.Run(name, func(t *testing.T) {
			op, err := decode(t, test.method, test.path, test.body, test.change...)
			p, ok := problem.As(err)
			if !ok || p.Code != test.code {
				t.Fatalf("%+v, %v", op, err)
			}
			if text := fmt.Sprint(p.Message, p.Details); !strings.Contains(text, test.want) || strings.Contains(text, "canary") || p.Hint == "" {
				t.Errorf("%s, %q", text, p.Hint)
			}
		})
	}
}

func manyParameters() string {
	query := url.Values{}
	for n := range 100 {
		query.Set(fmt.Sprint("p", n), "1")
	}
	return query.Encode()
}

func TestABodyMayBeLeftOut(t *testing.T) {
	op, err := decode(t, "POST", "/screenshot", "")
	if err != nil || !cmp.Equal(op, browser.Operation(&browser.Screenshot{}), same()) {
		t.Errorf("%+v, %v", op, err)
	}
}

func TestAFileIsItsBytesWhateverTheyAre(t *testing.T) {
	op, err := decode(t, "PUT", "/files/a%2Fb", "{\x00\xff", func(r *http.Request) { r.Header.Set("Content-Type", "image/png") })
	if put, ok := op.(*browser.PutFile); err != nil || !ok || put.Name != "a/b" || string(put.Data) != "{\x00\xff" {
		t.Errorf("%+v, %v", op, err)
	}
}

func media(id string) string { return "/v1/sessions/s_1/media/" + id }

// write answers a request with a result.
func write(t *testing.T, method, accept string, result any) *http.Response {
	t.Helper()
	w := httptest.NewRecorder()
	req := httptest.NewRequest(method, "/x", nil)
	req.Header.Set("Accept", accept)
	if err := Write(w, req, result, media); err != nil {
		t.Fatal(err)
	}
	return w.Result()
}

func TestAPictureIsAnAddressOrItself(t *testing.T) {
	picture := browser.Picture{OK: true, TargetID: "t1", Media: "m1", ContentType: "image/png", Bytes: 3, Data: []byte("\x89PN"), ExpiresAt: time.Unix(1e9, 0).UTC()}
	for _, result := range []any{picture, &picture} {
		a := write(t, "POST", "application/json, */*", result)
		var got Picture
		if err := json.NewDecoder(a.Body).Decode(&got); err != nil || got.MediaURL != "/v1/sessions/s_1/media/m1" || got.TargetID != "t1" || got.Data != nil {
			t.Errorf("%+v, %v", got, err)
		}
		for _, ask := range [][2]string{{"GET", ""}, {"POST", "image/*"}, {"POST", "text/html, Image/PNG;q=0.8"}, {"POST", "application/pdf"}} {
			a := write(t, ask[0], ask[1], result)
			data, err := io.ReadAll(a.Body)
			if err != nil || string(data) != "\x89PN" || a.Header.Get("Content-Type") != "image/png" || a.Header.Get("Content-Location") != got.MediaURL {
				t.Errorf("%v: %q %v, %v", ask, data, a.Header, err)
			}
		}
	}
}

func TestAFileIsSavedAndNeverShown(t *testing.T) {
	for _, test := range [][4]string{ // name and type, and how they are written
		{"a.txt", "text/plain", `attachment; filename=a.txt`, "text/plain; charset=utf-8"},
		{"a.html", "text/html", `attachment; filename=a.html`, unknownType},
		{"a.svg", "image/svg+xml", `attachment; filename=a.svg`, unknownType},
		{"a.xml", "application/xhtml+xml", `attachment; filename=a.xml`, unknownType},
		{"a.js", "text/javascript", `attachment; filename=a.js`, unknownType},
		{"x", "multipart/x-mixed-replace; boundary=a", `attachment; filename=x`, unknownType},
		{"x", "image/png\r\nX-Evil: 1", `attachment; filename=x`, unknownType},
		{"../../etc/passwd", "image/png", `attachment; filename=passwd`, "image/png"},
		{`..\..\boot.ini`, "image/png", `attachment; filename=boot.ini`, "image/png"},
		{"..", "image/png", `attachment`, "image/png"},
		{"a\r\nb", "image/png", `attachment; filename*=utf-8''a%0D%0Ab`, "image/png"},
		{`a"b é`, "image/png", `attachment; filename*=utf-8''a%22b%20%C3%A9`, "image/png"},
	} {
		a := write(t, "GET", "text/html", browser.FileContent{Name: test[0], ContentType: test[1], Data: []byte("<script>")})
		h := a.Header
		if h.Get("Content-Disposition") != test[2] || h.Get("Content-Type") != test[3] || h.Get("X-Content-Type-Options") != "nosniff" ||
			h.Get("Content-Security-Policy") != "default-src 'none'; sandbox" || len(h) != 5 {
			t.Errorf("%q: %v", test[:2], h)
		}
	}
}

// answering is an operation with a result of a known type, whatever the contract's are.
type answering[T any] struct{ browser.Files }

func (answering[T]) Result() any { return new(T) }

func TestAClientGetsWhatTheOperationReturned(t *testing.T) {
	at := time.Unix(1e9, 0).UTC()
	for _, test := range []struct {
		op     browser.Operation
		result any
	}{
		{answering[browser.TabsResult]{}, browser.TabsResult{Running: true, Tabs: []browser.Tab{{URL: "https://example.com/?a=<b>&c"}}}},
		{answering[browser.SnapshotResult]{}, browser.SnapshotResult{Snapshot: "- button \"<&>\u2028\" [ref=e1]", Nodes: []browser.SnapshotNode{{Ref: "ax1", Depth: 2}}}},
		{answering[browser.FilesResult]{}, browser.FilesResult{Files: []browser.File{{Name: "a", Bytes: 3, At: at}}}},
		{answering[browser.FileContent]{}, browser.FileContent{Name: "é \".png", ContentType: "image/png", Data: []byte("\x00\xff")}},
		{answering[browser.Picture]{}, browser.Picture{OK: true, Media: "m1", ContentType: "image/png", Bytes: 2, ExpiresAt: at}},
		{answering[browser.EvalResult]{}, browser.EvalResult{Type: "object", Value: map[string]any{"a": []any{1.5, nil, "x"}}}},
	} {
		got, err := readAs(t, test.op, test.result)
		if diff := cmp.Diff(test.result, got, same()); diff != "" || err != nil {
			t.Errorf("%T: %s, %v", test.result, diff, err)
		}
	}
}

// readAs is asked, for an operation that is no route's.
func readAs(t *testing.T, op browser.Operation, result any) (any, error) {
	t.Helper()
	w := httptest.NewRecorder()
	if err := Write(w, httptest.NewRequest("POST", "/x", nil), result, media); err != nil {
		t.Fatal(err)
	}
	return Read(w.Result(), op)
}

func TestAResultThatIsNoJSONIsAnErrorBeforeAnythingIsWritten(t *testing.T) {
	w := httptest.NewRecorder()
	if err := Write(w, httptest.NewRequest("POST", "/x", nil), make(chan int), media); err == nil || w.Body.Len() > 0 || len(w.Header()) > 0 {
		t.Errorf("%v, %v %q", err, w.Header(), w.Body)
	}
}

func TestAProblemOfTheOtherSideIsAProblemHere(t *testing.T) {
	for body, want := range map[string]string{
		`{"code":"stale_ref","detail":"gone","hint":"look again","details":{"n":1},"errors":[{"field":"a","message":"b"}]}`: "stale_ref gone look again",
		`{"code":"tab_not_found","error":"no tab"}`: "tab_not_found no tab ",
		`{"code":"bad_usage","detail":"x"}`:         "bad_request x ",
	} {
		w := httptest.NewRecorder()
		w.WriteHeader(http.StatusConflict)
		_, _ = io.WriteString(w, body) // of memory
		_, err := Read(w.Result(), browser.Status{})
		p, ok := problem.As(err)
		if !ok || fmt.Sprint(p.Code, " ", p.Message, " ", p.Hint) != want {
			t.Fatalf("%s: %v", body, err)
		}
		if flaws, _ := p.Details["errors"].([]problem.Flaw); strings.Contains(body, "errors") && (len(flaws) != 1 || p.Details["n"] != 1.0) {
			t.Errorf("%+v", p.Details)
		}
	}
	w := httptest.NewRecorder()
	w.WriteHeader(http.StatusBadGateway)
	_, _ = io.WriteString(w, "<html>") // of memory
	if _, err := Read(w.Result(), browser.Status{}); err == nil || problem.CodeOf(err) != problem.Internal {
		t.Errorf("%v", err)
	}
}

func FuzzDecode(f *testing.F) {
	for _, seed := range []string{`{"kind":"click","ref":"e1"}`, `{"kind":"batch","actions":[{"kind":"fill","fields":[{"ref":"e1","value":null}]}]}`,
		`{"kind":"type","text":""}`, `{"kind":"x","x":1e400}`, `{"actions":[[]]}`, strings.Repeat(`{"actions":[`, 200)} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var got browser.Act
		if err := strict.Object(body, &got, Fields); err != nil {
			if problem.CodeOf(err) != problem.BadJSON {
				t.Errorf("%q: %v", body, err)
			}
			return
		}
		text, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		var again browser.Act
		if err := strict.Object(text, &again, Fields); err != nil || !cmp.Equal(got, again, same()) {
			t.Errorf("%q is read, written as %s, and then %v", body, text, err)
		}
	})
}

func TestNoRequestHasWhatIsTypedInItsAddress(t *testing.T) {
	password := "canary-of-a-password"
	for _, op := range []browser.Operation{browser.Act{Kind: "type", Text: &password}, browser.Eval{JS: password}, browser.SetDialog{PromptText: password},
		browser.Act{Kind: "fill", Fields: []browser.ActField{{Ref: "e1", Value: password}}}} {
		req, err := Request(t.Context(), base(t), op)
		if err != nil || strings.Contains(req.URL.String(), password) {
			t.Errorf("%T: %v, %v", op, req.URL, err)
		}
	}
	if i := slices.IndexFunc(Routes(), func(r Route) bool { return !r.HasBody() && r.kind() == reflect.TypeFor[browser.Act]() }); i >= 0 {
		t.Errorf("%+v takes actions in the address", Routes()[i])
	}
}
