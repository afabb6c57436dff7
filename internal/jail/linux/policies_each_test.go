//go:build linux

package linux

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/testenv"
)

// eachPolicy is what a full Chromium says of every entry of the policies when it has read them, and what shows that it obeys
// where a browser without a window does something that can be seen.
var eachPolicy = map[string]struct {
	value string
	shown func(d *driven) bool
	by    string // the test that shows it instead
}{
	"AlwaysOpenPdfExternally":            {value: `true`, shown: (*driven).savesPDF},
	"AutofillAddressEnabled":             {value: `false`},
	"AutofillCreditCardEnabled":          {value: `false`},
	"BackgroundModeEnabled":              {value: `false`},
	"BrowserSignin":                      {value: `0`},
	"DefaultFileSystemReadGuardSetting":  {value: `2`},
	"DefaultFileSystemWriteGuardSetting": {value: `2`},
	"DnsOverHttpsMode":                   {value: `off`},
	"ExtensionInstallBlocklist":          {value: `[*]`},
	"NetworkPredictionOptions":           {value: `2`},
	"PasswordManagerEnabled":             {value: `false`},
	"QuicAllowed":                        {value: `false`},
	"SavingBrowserHistoryDisabled":       {value: `true`},
	"SearchSuggestEnabled":               {value: `false`},
	"SpellCheckServiceEnabled":           {value: `false`},
	"SSLErrorOverrideAllowed":            {value: `false`, by: "TestNothingGoesPastACertificateThatNobodyTrusts"},
	"SyncDisabled":                       {value: `true`},
	"TranslateEnabled":                   {value: `false`},
	"URLBlocklist":                       {value: readable, by: "TestBrowsersOpenNoneOfTheirOwnPages"},
}

// readable is the list of blocked addresses without the browser's own, which the test reads what there is from.
const readable = `[file://*,filesystem:*,chrome-untrusted://*,chrome-extension://*,chrome-search://*,devtools://*,` +
	`chrome-devtools://*,view-source:*]`

// savesPDF says whether a PDF is saved, and not opened by the extension that shows them.
func (d *driven) savesPDF() bool {
	d.open()
	result := d.call("Page.navigate", `{"url":"data:application/pdf;base64,JVBERi0xLjAKdHJhaWxlcjw8L1Jvb3QgMSAwIFI+Pgo="}`)
	return result["isDownload"] == true
}

// texts is all that a page shows, that of its components as well.
const texts = `(function f(n) { let s = ''
for (const c of n.childNodes) {
	if (c.nodeType === 3) s += c.data.trim() + ' '
	else if (c.tagName !== 'STYLE' && c.tagName !== 'SCRIPT') s += f(c) + (c.shadowRoot ? f(c.shadowRoot) : '')
}
return s })(document).replace(/\s+/g, ' ')`

// readBack is what the browser has read of each policy. A policy that it does not know, or not with such a value, is left out.
func (d *driven) readBack() map[string]string {
	d.t.Helper()
	d.open()
	if text := d.call("Page.navigate", `{"url":"chrome://policy/"}`)["errorText"]; text != nil {
		d.t.Fatalf("the page that says what was read does not open: %v", text)
	}
	var shown string
	testenv.Eventually(d.t, 20*time.Second, func() bool {
		params, err := json.Marshal(map[string]any{"expression": texts, "returnByValue": true})
		must(d.t, err)
		result, _ := d.call("Runtime.evaluate", string(params))["result"].(map[string]any)
		shown, _ = result["value"].(string)
		return strings.Contains(shown, "URLBlocklist ")
	}, "the page that says what was read stays empty")
	out := make(map[string]string)
	row := regexp.MustCompile(`([A-Z][A-Za-z]+) ([^ ]+|\[[^\]]*\]) Platform Machine Mandatory (OK|Deprecated) `)
	for _, m := range row.FindAllStringSubmatch(shown, -1) {
		out[m[1]] = strings.NewReplacer(`"`, "", " ", "").Replace(m[2])
	}
	return out
}

func TestEveryPolicyIsRead(t *testing.T) {
	var entries map[string]any
	must(t, json.Unmarshal(jail.Policies(), &entries))
	for name := range entries {
		if _, ok := eachPolicy[name]; !ok {
			t.Errorf("%s is a policy without a case: say here what the browser says of it, and what shows that it obeys", name)
		}
	}
	blocked, _ := entries["URLBlocklist"].([]any)
	entries["URLBlocklist"] = slices.DeleteFunc(blocked, func(address any) bool { return address == "chrome://*" })
	folder := t.TempDir()
	for dir := folder; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		must(t, os.Chmod(dir, 0o755)) // the jail's user reads it
	}
	text, err := json.Marshal(entries)
	must(t, err)
	must(t, os.Mkdir(filepath.Join(folder, jail.PoliciesManaged), 0o755))
	must(t, os.WriteFile(filepath.Join(folder, jail.PoliciesManaged, jail.PoliciesFile), text, 0o644))

	template := testenv.Template(t)
	h := newTestHost(t, func(o *Options) { o.Templates = filepath.Dir(template) })
	with := drive(t, h, chromiumSpec("chromium", "--headless=new"), func(s *specs.Spec) {
		for i := range s.Mounts {
			if s.Mounts[i].Destination == jail.PoliciesDir {
				s.Mounts[i].Source = folder
			}
		}
	})
	read := with.readBack()
	without := drive(t, h, chromiumSpec("chromium", "--headless=new"), withoutPolicies)
	if left := without.readBack(); len(left) > 0 {
		t.Errorf("without the file it has read %q", left)
	}
	for name, c := range eachPolicy {
		if read[name] != c.value {
			t.Errorf("%s: the browser has read %q, not %q", name, read[name], c.value)
		}
		if c.shown == nil {
			continue
		}
		if !c.shown(with) {
			t.Errorf("%s has no effect", name)
		}
		if c.shown(without) {
			t.Errorf("%s: the same is there without the file: this test shows nothing", name)
		}
	}
}
