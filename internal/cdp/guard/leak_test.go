//go:build unix

package guard

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/clawjail/clawjail/internal/policy/redact"
)

// drive goes through every channel that is known to carry cookies, as a client that wants them.
func drive(u *user, s *site) {
	_, session := u.page("")
	u.onEvent = func(m message) {
		if m.Method != "Fetch.requestPaused" {
			return
		}
		id, request := findText([]byte(m.Params), "requestId"), find([]byte(m.Params), "request")
		if find([]byte(m.Params), "responseStatusCode") != nil {
			u.post(m.SessionID, "Fetch.continueRequest", fmt.Sprintf(`{"requestId":%q}`, id))
			return
		}
		// The headers that the client was shown go back, as clients do that change one header.
		var headers []string
		_ = object(find(request, "headers"), func(name []byte, value jsontext.Value) error {
			headers = append(headers, fmt.Sprintf(`{"name":%q,"value":%s}`, name, value))
			return nil
		})
		u.post(m.SessionID, "Fetch.continueRequest", fmt.Sprintf(`{"requestId":%q,"headers":[%s]}`, id, strings.Join(headers, ",")))
	}
	for _, c := range [][2]string{
		{"Network.enable", `{}`}, {"Page.enable", `{}`}, {"Runtime.enable", `{}`}, {"Log.enable", `{}`}, {"Audits.enable", `{}`},
		{"Fetch.enable", `{"patterns":[{"requestStage":"Request"},{"requestStage":"Response"}]}`},
	} {
		u.must(session, c[0], c[1])
	}
	u.must(session, "Page.navigate", fmt.Sprintf(`{"url":%q}`, s.URL+"/"))
	u.event("Page.loadEventFired")
	u.evaluate(session, `(async () => {
		await fetch('/api'); await fetch('/set'); await fetch('/move');
		await fetch('/api', {headers: {Authorization: 'Basic `+basic+`'}});
		await new Promise(done => { const w = new WebSocket('ws://' + location.host + '/ws'); w.onclose = done; w.onerror = done; });
		return 'done' })()`)
	for _, c := range [][2]string{
		{"Network.getCookies", `{}`}, {"Network.getAllCookies", `{}`}, {"Storage.getCookies", `{}`},
		{"Page.getResourceTree", `{}`}, {"DOMSnapshot.captureSnapshot", `{"computedStyles":[]}`},
		{"Page.captureSnapshot", `{}`}, {"HeapProfiler.enable", `{}`},
		{"Network.loadNetworkResource", fmt.Sprintf(`{"url":%q,"options":{"disableCache":true,"includeCredentials":true}}`, s.URL+"/echo")},
	} {
		u.call(session, c[0], c[1])
	}
	for _, c := range [][2]string{
		{"Storage.getCookies", `{}`}, {"Target.attachToBrowserTarget", `{}`}, {"Target.getTargets", `{}`}, {"SystemInfo.getInfo", `{}`},
	} {
		u.call("", c[0], c[1])
	}
}

func TestNoValueOfTheJarGetsToAnOperatorsClient(t *testing.T) {
	eachBuild(t, func(t *testing.T, program string, flags ...string) {
		conn, mux := open(t, program, flags...)
		s := newSite(t)
		inject(t, conn, s)

		u := guarded(t, mux, Options{Mode: Operator})
		drive(u, s)
		for _, secret := range []string{injected, fresh, moved, basic} {
			if found := u.has(secret); len(found) > 0 {
				t.Errorf("%.8s… is in %v", secret, found)
			}
		}
		// The page had its cookies all the time, although the client sent the redacted header back.
		if got := s.cookie("/api"); !strings.Contains(got, "sid="+injected) || strings.Contains(got, redacted) {
			t.Errorf("the site was sent %q", got)
		}
		// The events are there: clients wait for them.
		for _, event := range []string{"Network.requestWillBeSentExtraInfo", "Network.responseReceivedExtraInfo", "Fetch.requestPaused",
			"Network.webSocketWillSendHandshakeRequest", "Network.webSocketHandshakeResponseReceived"} {
			if !slices.ContainsFunc(u.received, func(m message) bool { return m.Method == event }) {
				t.Errorf("no %s came", event)
			}
		}
		u.client.Close()

		// The same without the guard finds the values everywhere, so the test can fail.
		open := join(t, mux, nil)
		drive(open, s)
		for secret, channels := range map[string][]string{
			injected: {"Network.requestWillBeSentExtraInfo", "Network.webSocketWillSendHandshakeRequest", "Fetch.requestPaused"},
			fresh:    {"Network.responseReceivedExtraInfo"},
			moved:    {"Network.responseReceivedExtraInfo"},
			basic:    {"Network.requestWillBeSent"},
		} {
			found := open.has(secret)
			for _, channel := range channels {
				if !slices.Contains(found, channel) {
					t.Errorf("without the guard %.8s… is not in %s; it is in %v", secret, channel, slices.Compact(found))
				}
			}
		}
		jar := 0
		for _, name := range open.has(injected) {
			if strings.HasPrefix(name, "reply") {
				jar++
			}
		}
		if jar < 4 {
			t.Errorf("without the guard %d replies had the cookie", jar)
		}
	})
}

func TestAClientOfACleanSessionHasItsOwnCookies(t *testing.T) {
	_, mux := open(t, shell(t))
	s := newSite(t)
	u := guarded(t, mux, Options{Mode: Clean})
	drive(u, s)
	if found := u.has(fresh); !slices.Contains(found, "Network.responseReceivedExtraInfo") {
		t.Errorf("the client's own cookie is only in %v", found)
	}
	context := findText([]byte(u.must("", "Target.createBrowserContext", `{}`)), "browserContextId")
	u.must("", "Storage.setCookies", fmt.Sprintf(`{"browserContextId":%q,"cookies":[{"name":"a","value":"own-value-1","url":%q}]}`, context, s.URL))
	u.must("", "Storage.getCookies", fmt.Sprintf(`{"browserContextId":%q}`, context))
	if len(u.has("own-value-1")) != 1 {
		t.Error("the client does not get its own cookie back")
	}
}

func TestLiteralValuesAreScrubbedFromWhatLeaves(t *testing.T) {
	conn, mux := open(t, shell(t))
	s := newSite(t)
	inject(t, conn, s)
	for _, scrub := range []*redact.Values{redact.New([]byte(injected)), nil} {
		u := guarded(t, mux, Options{Mode: Operator, Scrub: scrub})
		_, session := u.page("")
		u.must(session, "Runtime.enable", `{}`)
		u.must(session, "Page.enable", `{}`)
		u.must(session, "Page.navigate", fmt.Sprintf(`{"url":%q}`, s.URL+"/echo"))
		u.event("Page.loadEventFired")
		u.evaluate(session, `console.log(document.body.innerText); console.log(btoa(document.body.innerText)); document.body.innerText`)
		u.call(session, "Runtime.evaluate", `{"expression":"throw new Error(document.body.innerText)"}`)
		if scrub == nil {
			if len(u.has(injected)) < 3 {
				t.Error("without the scrub the values are not there either")
			}
			continue
		}
		if found := u.has(injected); len(found) > 0 {
			t.Errorf("the value is in %v", found)
		}
		if len(u.has(redact.Mark)) < 3 {
			t.Error("nothing was replaced")
		}
	}
}
