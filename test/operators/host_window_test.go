//go:build linux

package operators

import (
	"bufio"
	"bytes"
	"context"
	xwd "encoding/binary"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/cdp/cdptest"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/test/testkit"
)

// desktop is a display of a user who is not root, with a home folder and the program in it.
type desktop struct {
	t             *testing.T
	home, program string
	display       string
	frames        string // Xvfb keeps what the display shows in this file, in the format of xwd
}

func newDesktop(t *testing.T) *desktop {
	t.Helper()
	testenv.Root(t)
	xvfb := testenv.Tool(t, "Xvfb")
	program, err := testkit.Program()
	if err != nil {
		t.Fatal(err)
	}
	home := cdptest.Dir(t)
	d := &desktop{t: t, home: home, program: filepath.Join(home, "clawjail"), frames: filepath.Join(home, "Xvfb_screen0")}
	content, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(d.program, content, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(home, ".config", "clawjail"), 0o700); err != nil {
		t.Fatal(err)
	}
	cdptest.Give(t, home)
	// Servers of displays share this folder. The system makes it where there is a desktop.
	sockets := "/tmp/.X11-unix"
	if err := os.Mkdir(sockets, 0o777); err == nil {
		if err := os.Chmod(sockets, 0o777|os.ModeSticky); err != nil {
			t.Fatal(err)
		}
	} else if !errors.Is(err, fs.ErrExist) {
		t.Fatal(err)
	}
	number, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer number.Close()
	// Without -noreset it begins anew when the last program leaves, and lets nobody in meanwhile.
	server := d.command(xvfb, "-displayfd", "3", "-screen", "0", "2000x700x24", "-fbdir", home, "-nolisten", "tcp", "-noreset")
	server.ExtraFiles = []*os.File{write}
	d.start(server)
	write.Close()
	if err := number.SetReadDeadline(time.Now().Add(testenv.Patience * 10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	text, err := bufio.NewReader(number).ReadString('\n')
	if err != nil {
		t.Fatalf("Xvfb does not say which display it has: %v", err)
	}
	d.display = ":" + strings.TrimSpace(text)
	return d
}

// command is a program of the user.
func (d *desktop) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Dir = d.home
	cmd.Env = []string{"HOME=" + d.home, "PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8", "TMPDIR=" + d.home, "XDG_RUNTIME_DIR=" + d.home}
	if d.display != "" {
		cmd.Env = append(cmd.Env, "DISPLAY="+d.display)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: &syscall.Credential{Uid: ordinary, Gid: ordinary}}
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// start starts a program, and returns how to end it. It ends with the test at the latest.
func (d *desktop) start(cmd *exec.Cmd) (end func()) { return d.startTo(cmd, nil) }

// startTo is start with its output in a file of the caller's.
func (d *desktop) startTo(cmd *exec.Cmd, to *os.File) (end func()) {
	d.t.Helper()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if to != nil {
		cmd.Stdout = to
	}
	if err := cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	end = sync.OnceFunc(func() {
		_ = syscall.Kill(cmd.Process.Pid, syscall.SIGTERM) // it may be gone
		done := make(chan struct{})
		go func() {
			_ = cmd.Wait() // it was told to end
			close(done)
		}()
		select {
		case <-done:
		case <-time.After(10 * time.Second):
		}
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what is left of its children
		<-done
		if d.t.Failed() {
			d.t.Logf("%s wrote:\n%s", filepath.Base(cmd.Path), tailOf(out.String()))
		}
	})
	d.t.Cleanup(end)
	return end
}

func tailOf(text string) string { return text[max(0, len(text)-2000):] }

// settings writes the user's configuration.
func (d *desktop) settings(text string) {
	d.t.Helper()
	path := filepath.Join(d.home, ".config", "clawjail", "clawjail.yml")
	if err := os.WriteFile(path, []byte("browser:\n"+text), 0o600); err != nil {
		d.t.Fatal(err)
	}
	if err := os.Chown(path, ordinary, ordinary); err != nil {
		d.t.Fatal(err)
	}
}

// browser runs `clawjail browser`.
func (d *desktop) browser(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), testenv.Patience*30*time.Second)
	defer cancel()
	cmd := d.command(d.program, append([]string{"browser"}, args...)...)
	cmd = withContext(ctx, cmd)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func withContext(ctx context.Context, cmd *exec.Cmd) *exec.Cmd {
	out := exec.CommandContext(ctx, cmd.Path, cmd.Args[1:]...)
	out.Dir, out.Env, out.SysProcAttr, out.WaitDelay = cmd.Dir, cmd.Env, cmd.SysProcAttr, cmd.WaitDelay
	return out
}

// must is browser for what works.
func (d *desktop) must(args ...string) string {
	d.t.Helper()
	out, err := d.browser(args...)
	if err != nil {
		d.t.Fatalf("clawjail browser %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return out
}

// window is a window of the display.
type window struct {
	title, class string
	at           image.Rectangle
}

// windowLine is a window as xwininfo lists it: number, title, class and place.
var windowLine = regexp.MustCompile(`0x[0-9a-f]+ "(.*)": \("(.*)" "(.*)"\) +(\d+)x(\d+)\+-?\d+\+-?\d+ +\+(-?\d+)\+(-?\d+)`)

// windows are those that are large enough for a person to see.
func (d *desktop) windows() (out []window) {
	d.t.Helper()
	var list []byte
	testenv.Eventually(d.t, 10*time.Second, func() bool {
		var err error
		list, err = d.command(testenv.Tool(d.t, "xwininfo"), "-root", "-tree").CombinedOutput()
		return err == nil // it ends with an error when a window goes while it lists
	}, "the windows cannot be listed")
	for _, m := range windowLine.FindAllStringSubmatch(string(list), -1) {
		var n [4]int
		for i := range n {
			var err error
			if n[i], err = strconv.Atoi(m[4+i]); err != nil {
				d.t.Fatal(err)
			}
		}
		if n[0] > 100 && n[1] > 100 {
			out = append(out, window{title: m[1], class: m[2], at: image.Rect(n[2], n[3], n[2]+n[0], n[3]+n[1])})
		}
	}
	return out
}

// titled waits for a window with that title.
func (d *desktop) titled(title string) (found window) {
	d.t.Helper()
	var all []window
	for deadline := time.Now().Add(testenv.Patience * 10 * time.Second); time.Now().Before(deadline); {
		all = d.windows()
		for _, w := range all {
			if strings.HasPrefix(w.title, title+" - ") {
				return w
			}
		}
	}
	d.t.Fatalf("no window is titled %q: %v", title, all)
	return found
}

// picture is what the display shows.
func (d *desktop) picture() *image.RGBA {
	d.t.Helper()
	data, err := os.ReadFile(d.frames)
	if err != nil {
		d.t.Fatal(err)
	}
	// XWDFile.h: numbers of 32 bits. Needed are the size of the header, of the picture, of a line, and of the colours.
	field := func(n int) int { return int(xwd.BigEndian.Uint32(data[4*n:])) }
	if len(data) < 100 || field(1) != 7 || field(11) != 32 || field(7) != 0 {
		d.t.Fatalf("the display is not kept in the format that this test knows")
	}
	width, height, line, from := field(4), field(5), field(12), field(0)+12*field(19)
	out := image.NewRGBA(image.Rect(0, 0, width, height))
	for y := range height {
		for x := range width {
			p := data[from+y*line+4*x:]
			out.SetRGBA(x, y, color.RGBA{R: p[2], G: p[1], B: p[0], A: 255})
		}
	}
	return out
}

// orangeShare is how much of a window's frame, beside its tabs, has the hue of #FF4500 so that one sees it.
func orangeShare(picture *image.RGBA, w window) float64 {
	hits, all := 0, 0
	for x := w.at.Min.X + w.at.Dx()/2; x < w.at.Max.X-20; x++ {
		p := picture.RGBAAt(x, w.at.Min.Y+8)
		all++
		r, g, b := int(p.R), int(p.G), int(p.B)
		// Red is the most and blue the least. Half as saturated as the colour itself is still orange; pink is not.
		if r > 200 && r > g && g > b && 2*(r-b) > r && 100*(g-b) < 60*(r-b) {
			hits++
		}
	}
	return float64(hits) / float64(max(1, all))
}

// written says whether a window shows a page with text, below its tabs and its address.
func written(picture *image.RGBA, w window) bool {
	dark := 0
	for y := w.at.Min.Y + 100; y < w.at.Min.Y+170; y++ {
		for x := w.at.Min.X; x < w.at.Min.X+300; x++ {
			if p := picture.RGBAAt(x, y); p.R < 50 && p.G < 50 && p.B < 50 {
				dark++
			}
		}
	}
	return dark > 200 && dark < 10_000
}

// keep writes the picture to the folder that CLAWJAIL_TEST_PICTURES names: the one in the documentation is made so.
func (d *desktop) keep(picture *image.RGBA, name string) {
	d.t.Helper()
	dir := os.Getenv("CLAWJAIL_TEST_PICTURES")
	if dir == "" {
		return
	}
	var b bytes.Buffer
	e := png.Encoder{CompressionLevel: png.BestCompression}
	if err := e.Encode(&b, picture); err != nil {
		d.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), b.Bytes(), 0o644); err != nil {
		d.t.Fatal(err)
	}
}

// visits is a site that remembers which cookies came with each path.
type visits struct {
	*httptest.Server
	mu      sync.Mutex
	cookies map[string]string
}

func newVisits(t *testing.T) *visits {
	v := &visits{cookies: map[string]string{}}
	v.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := strings.Trim(r.URL.Path, "/")
		v.mu.Lock()
		v.cookies[name] = r.Header.Get("Cookie")
		v.mu.Unlock()
		if who, first := strings.CutSuffix(name, "-enters"); first {
			http.SetCookie(w, &http.Cookie{Name: who, Value: "1", Path: "/", MaxAge: 3600})
		}
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, "<!doctype html><title>%s</title><h1>%s</h1>", name, name)
	}))
	t.Cleanup(v.Close)
	return v
}

// sent are the cookies that came with a path.
func (v *visits) sent(path string) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.cookies[path]
}

// windowed are the browsers of this machine that can have a window: the distribution's, and Chrome where it is installed.
func windowed(t *testing.T) map[string]string {
	out := map[string]string{"chromium": testenv.ChromiumFull(t)}
	for _, name := range []string{"google-chrome-stable", "google-chrome-unstable"} {
		if path, err := exec.LookPath(name); err == nil {
			out[name] = path
		}
	}
	return out
}

// TestTheHostBrowserIsSeenBesideThePersonsOwn looks at a display as a person does: the agent's browser is orange and titled, the
// person's own is neither, and neither knows of the other.
func TestTheHostBrowserIsSeenBesideThePersonsOwn(t *testing.T) {
	for name, executable := range windowed(t) {
		t.Run(name, func(t *testing.T) {
			d := newDesktop(t)
			site := newVisits(t)
			d.settings(fmt.Sprintf("  control_url: http://127.0.0.1:%d\n  executable: %s\n", testenv.FreePort(t), executable))
			t.Cleanup(func() { d.must("stop") })

			// The person's, with the profile that it has without being told.
			own := []string{"--no-first-run", "--no-default-browser-check", "--password-store=basic", "--disable-background-networking",
				"--window-position=1080,10", "--window-size=900,680"}
			endOwn := d.start(d.command(executable, append(own, site.URL+"/person-enters")...))
			d.titled("person-enters")

			if out := d.must("start"); !strings.Contains(out, "window:    yes") {
				t.Fatalf("start says %s", out)
			}
			d.must("open", site.URL+"/agent-enters")
			agent, person := d.titled("agent-enters"), d.titled("person-enters")
			if !strings.Contains(agent.class, filepath.Join("clawjail", "browser", "clawd")) || strings.Contains(person.class, "clawd") {
				t.Errorf("the windows are of %q and %q", agent.class, person.class)
			}

			var picture *image.RGBA
			testenv.Eventually(t, 5*time.Second, func() bool {
				picture = d.picture()
				return orangeShare(picture, agent) > 0.9
			}, "the frame of the agent's browser is orange")
			if share := orangeShare(picture, person); share > 0.01 {
				t.Errorf("%.2f of the frame of the person's browser is orange", share)
			}

			// Neither has the other's cookies or tabs.
			d.must("open", site.URL+"/agent-at-work")
			again := d.command(executable, append(own, site.URL+"/person-at-work")...)
			if out, err := again.CombinedOutput(); err != nil {
				t.Fatalf("the person opens a page: %v: %s", err, out)
			}
			agent, person = d.titled("agent-at-work"), d.titled("person-at-work")
			testenv.Eventually(t, 5*time.Second, func() bool {
				picture = d.picture()
				return written(picture, agent) && written(picture, person)
			}, "both pages are drawn")
			d.keep(picture, "host-browser.png")
			if a, p := site.sent("agent-at-work"), site.sent("person-at-work"); a != "agent=1" || p != "person=1" {
				t.Errorf("the agent's browser sent %q, the person's %q", a, p)
			}
			if out := d.must("tabs"); strings.Contains(out, "person-") || !strings.Contains(out, "agent-at-work") {
				t.Errorf("the agent's tabs are %s", out)
			}

			// Each ends without the other.
			d.must("stop")
			testenv.Eventually(t, 10*time.Second, func() bool {
				return !slices.ContainsFunc(d.windows(), func(w window) bool { return strings.Contains(w.class, "clawd") })
			}, "after a stop there are windows of the agent's browser")
			d.titled("person-at-work")
			d.must("open", site.URL+"/agent-anew")
			endOwn()
			d.titled("agent-anew")
			if out := d.must("eval", "document.title"); !strings.Contains(out, "agent-anew") {
				t.Errorf("without the person's browser the agent's says %s", out)
			}
			if got := site.sent("agent-anew"); got != "agent=1" {
				t.Errorf("the agent's profile did not stay: %q", got)
			}
		})
	}
}

// TestAttachOnlyUsesWhatAPersonStarted shows attach_only in use: nothing that an agent can ask for opens a window, and what
// the person started is used.
func TestAttachOnlyUsesWhatAPersonStarted(t *testing.T) {
	executable := testenv.ChromiumFull(t)
	d := newDesktop(t)
	site := newVisits(t)
	d.settings(fmt.Sprintf("  control_url: http://127.0.0.1:%d\n  executable: %s\n  attach_only: true\n", testenv.FreePort(t), executable))
	for _, args := range [][]string{{"start"}, {"open", site.URL + "/refused"}} {
		if out, err := d.browser(args...); err == nil || !strings.Contains(out, "serve --start") {
			t.Errorf("clawjail browser %s: %v: %s", args[0], err, out)
		}
	}
	if got := d.windows(); len(got) != 0 {
		t.Errorf("there are windows: %v", got)
	}
	end := d.start(d.command(d.program, "browser", "serve", "--start"))
	d.titled("about:blank")
	d.must("open", site.URL+"/attached")
	d.titled("attached")
	// Nor does anything that an agent can ask for end it.
	if out, err := d.browser("stop"); err == nil || !strings.Contains(out, "the person who started the browser ends it") {
		t.Errorf("clawjail browser stop: %v: %s", err, out)
	}
	for range 3 { // one more than there are
		d.must("close")
	}
	d.must("open", site.URL+"/still-there")
	d.titled("still-there")
	// The person ends it, and it is not started again by a command.
	end()
	testenv.Eventually(t, 10*time.Second, func() bool { return len(d.windows()) == 0 }, "there are windows of a browser that has ended")
	if out, err := d.browser("open", site.URL+"/refused"); err == nil || !strings.Contains(out, "serve --start") {
		t.Errorf("open after the end: %v: %s", err, out)
	}
}
