package browsers

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/pbkdf2"
	"crypto/sha1"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/target"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/cdp/cdptest"
	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/secretscan"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/test/testkit"
)

// unsealed is what Chromium has encrypted in a file with the key that it has without a keyring.
func unsealed(t *testing.T, data []byte) (plain []byte) {
	t.Helper()
	key, err := pbkdf2.Key(sha1.New, "peanuts", []byte("saltysalt"), 1, 16)
	if err != nil {
		t.Fatal(err)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		t.Fatal(err)
	}
	for {
		_, rest, found := bytes.Cut(data, []byte("v10"))
		if !found {
			return plain
		}
		// How long it is, is not known: the blocks after it become noise.
		sealed := bytes.Clone(rest[:min(len(rest), 512)&^15])
		cipher.NewCBCDecrypter(block, bytes.Repeat([]byte{' '}, 16)).CryptBlocks(sealed, sealed)
		plain = append(plain, sealed...)
		data = rest
	}
}

// onDisk is where below folders one of the values is, in any form. The folders may be those of another root, which a search
// that follows links leaves.
func onDisk(t *testing.T, set *secretscan.Set, roots ...string) (found []string) {
	t.Helper()
	for _, root := range roots {
		err := filepath.WalkDir(root+"/", func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // it went meanwhile
			}
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			data, err := os.ReadFile(path)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			for _, hit := range slices.Concat(set.In(path, append([]byte(path), data...)), set.In(path+", decrypted", unsealed(t, data))) {
				found = append(found, hit.String())
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return found
}

// bareProfile is the folder of a Chromium without a jail, with the launch line of jails except for what keeps its profile in
// memory, that has visited a page.
func bareProfile(t *testing.T, build browser.Build, l *testkit.Lab) string {
	t.Helper()
	home := cdptest.Dir(t)
	o := browser.Options{Build: build, Proxy: "http://127.0.0.1:9", ProfileDir: home + "/profile", Home: home, Binary: testenv.Chromium(t)}
	if build == browser.Full {
		o.Binary = testenv.ChromiumFull(t)
	}
	line, err := browser.Command(o)
	if err != nil {
		t.Fatal(err)
	}
	line = slices.DeleteFunc(line, func(arg string) bool { return arg == "--incognito" || strings.HasPrefix(arg, "--proxy-") })
	env, err := browser.Environment(o)
	if err != nil {
		t.Fatal(err)
	}
	process := cdptest.Start(t, line, env)
	conn, err := cdp.New(process.Replies, process.Commands, cdp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	for range 2 { // the second time it sends what it has
		url := fmt.Sprintf("http://127.0.0.1:%d/kept?%d", l.Port(), time.Now().UnixNano())
		if err := conn.Call(t.Context(), "", "Target.createTarget", map[string]any{"url": url}, nil); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, 20*time.Second, func() bool {
			all, err := cdp.Do(t.Context(), conn.Browser(), target.GetTargets, target.GetTargetsParams{})
			return err == nil && slices.ContainsFunc(all.TargetInfos, func(i *target.Info) bool { return i.URL == url && i.Title == "kept" })
		}, "the page does not load")
	}
	// Chromium writes cookies down after half a minute, and at once when 512 changes wait.
	more := make([]map[string]any, 600)
	for n := range more {
		more[n] = map[string]any{"name": "more", "value": "x", "domain": fmt.Sprintf("n%d.example", n), "expires": time.Now().Add(time.Hour).Unix()}
	}
	if err := conn.Call(t.Context(), "", "Storage.setCookies", map[string]any{"cookies": more}, nil); err != nil {
		t.Fatal(err)
	}
	return o.ProfileDir
}

// inside are the folders that a jail of this instance can write to, as root sees them.
func (v *laboratory) inside() (roots []string) {
	v.T.Helper()
	processes, err := secretscan.AllProcesses()
	if err != nil {
		v.T.Fatal(err)
	}
	for _, pid := range processes {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // one that has ended has none
		group, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		_, err := os.Stat(fmt.Sprintf("/proc/%d/root%s/profile", pid, jail.HomeDir)) // who starts jails is in their group as well
		if err == nil && bytes.Contains(line, []byte("--remote-debugging-pipe")) && bytes.Contains(group, []byte("clawjail-"+string(v.HostScope().Installation))) {
			for _, dir := range []string{jail.HomeDir, "/tmp", "/dev/shm"} {
				roots = append(roots, fmt.Sprintf("/proc/%d/root%s", pid, dir))
			}
			return roots
		}
	}
	v.T.Fatal("no browser of this instance runs")
	return nil
}

// TestNoValueIsOnTheDiskOfAJail has an account's browser keep what it was sent in every way that a page can have it, and
// searches all that the jail can write to. Beside it runs a browser without what keeps its profile in memory: once its
// values are on disk, those of the jail would be, too.
func TestNoValueIsOnTheDiskOfAJail(t *testing.T) {
	v := newLaboratory(t)
	set := secretscan.New(t, map[string]string{"secret": v.lab.Secret, "rotated": v.lab.Rotated})
	for _, build := range builds {
		t.Run(build, func(t *testing.T) {
			inner := &laboratory{Installation: &testkit.Installation{Instance: v.Instance, T: t, API: v.API}, lab: v.lab}
			s, env := inner.operator(build)
			for _, path := range []string{"/account", "/kept", "/kept?again"} {
				if _, err := v.API.Navigate(t.Context(), s.ID, browser.Navigate{URL: v.lab.URL(path)}); err != nil {
					t.Fatal(err)
				}
			}
			bare := bareProfile(t, browser.Build(build), v.lab)
			for _, place := range []string{"Default/Cookies, decrypted", "Default/Cache/", "Default/Local Storage/"} {
				testenv.Eventually(t, 60*time.Second, func() bool {
					return slices.ContainsFunc(onDisk(t, set, bare), func(hit string) bool { return strings.Contains(hit, place) })
				}, "a browser that keeps its profile on disk has no value in "+place)
			}
			roots := inner.inside()
			for _, hit := range onDisk(t, set, roots...) {
				t.Error(hit)
			}
			// The same search finds what is there.
			planted := filepath.Join(roots[0], "planted")
			if err := os.WriteFile(planted, []byte(v.lab.Secret), 0o600); err != nil {
				t.Fatal(err)
			}
			if len(onDisk(t, set, roots...)) == 0 {
				t.Error("a value in the home folder of the jail is not found")
			}
			if err := os.Remove(planted); err != nil {
				t.Error(err)
			}
			inner.readsNoProfile(s.ID, roots[0])
			inner.opensNothingOfTheBrowsersOwn(s.ID, env)
		})
	}
}

// readsNoProfile asks for the files of a browser's home folder by every name, as if they were files of its session.
func (v *laboratory) readsNoProfile(session, home string) {
	t := v.T
	t.Helper()
	read := func(name string) error {
		_, err := v.API.Drive(t.Context(), session, browser.GetFile{Name: name})
		return err
	}
	if _, err := v.API.Drive(t.Context(), session, browser.PutFile{Name: "own.txt", Data: []byte("own")}); err != nil || read("own.txt") != nil {
		t.Errorf("a file of the session's own: %v, %v", err, read("own.txt"))
	}
	if err := os.WriteFile(filepath.Join(home, "profile", "planted"), []byte("x"), 0o644); err != nil { // one in memory may have none
		t.Fatal(err)
	}
	asked := 0
	err := fs.WalkDir(os.DirFS(home), "profile", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || asked == 100 {
			return nil // it is being removed
		}
		asked++
		for _, name := range []string{jail.HomeDir + "/" + path, "../" + path, "file://" + jail.HomeDir + "/" + path, d.Name(), path} {
			if err := read(name); problem.CodeOf(err) != problem.NotFound {
				t.Errorf("%s of the profile is read as %q: %v", path, name, err)
			}
		}
		return nil
	})
	if err != nil || asked == 0 {
		t.Errorf("no file of the profile was asked for: %v", err)
	}
}

// opensNothingOfTheBrowsersOwn has a DevTools client of a session with an account open PDFs, local files and the browser's own
// pages, run a script in everything that attaches, and look for what the browser has put among the files of the session.
func (v *laboratory) opensNothingOfTheBrowsersOwn(session string, env map[string]string) {
	t := v.T
	t.Helper()
	d := drive(t, env["WS_URL"])
	first, site := d.session, env["SITE"]
	d.must("Target.setAutoAttach", map[string]any{"autoAttach": true, "waitForDebuggerOnStart": false, "flatten": true}, nil)
	const profile = "file://" + jail.HomeDir + "/profile/"
	places := map[string]bool{}
	for _, address := range []string{site + "/document.pdf", site + "/documents", "about:blank", profile + "Default/Cookies", profile, "chrome://version/",
		"view-source:" + site + "/account", "chrome-extension://mhjfbmdgcfjbbpaeojofohoefgiehjai/index.html", site + "/account"} {
		d.session = first
		d.call("Page.navigate", map[string]any{"url": address}, nil) // refused or not
		// Until nothing new has come up for a second.
		for end, known := time.Now().Add(time.Second), 0; time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			sessions := []string{first}
			for _, e := range d.events {
				var attached struct{ SessionID string }
				if e.Method == "Target.attachedToTarget" && json.Unmarshal(e.Params, &attached) == nil {
					sessions = append(sessions, attached.SessionID)
				}
			}
			for _, d.session = range sessions {
				var ran struct{ Result struct{ Value string } }
				script := map[string]any{"expression": "location.href + ' ' + typeof (globalThis.chrome || {}).tabs", "returnByValue": true}
				if d.call("Runtime.evaluate", script, &ran) == "" {
					places[ran.Result.Value] = true
				}
			}
			if now := len(sessions) + len(places); now > known {
				end, known = time.Now().Add(time.Second), now
			}
		}
	}
	for place := range places {
		address, tabs, _ := strings.Cut(place, " ")
		if tabs != "undefined" || !strings.HasPrefix(address, "http://") && address != "about:blank" && !strings.HasPrefix(address, "chrome-error:") {
			t.Errorf("a script of the client ran in %s", place)
		}
	}
	if !places[site+"/documents undefined"] || !places[site+"/inner undefined"] && !places[site+"/account undefined"] {
		t.Errorf("scripts ran in %v only", places)
	}
	got, err := client.As[browser.FilesResult](v.API.Drive(t.Context(), session, browser.Files{}))
	if err != nil {
		t.Fatal(err)
	}
	pdf := false
	for _, f := range got.Files {
		pdf = pdf || strings.HasSuffix(f.Name, ".pdf")
		if !strings.HasSuffix(f.Name, ".pdf") && f.Name != "own.txt" {
			t.Errorf("%s became a file of the session", f.Name)
		}
	}
	if !pdf {
		t.Errorf("the document was not downloaded: %+v", got)
	}
}
