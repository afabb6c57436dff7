//go:build vm

package vm

import (
	"fmt"
	"image/png"
	"strings"
)

// showsAPage opens a session, has its page be of a colour, and looks for that in a picture of it.
func showsAPage(m *machine) {
	opened := m.within(2*commandLimit, "clawjail session open")
	if opened.Status != 0 {
		m.t.Fatalf("no session opens: %s", opened.Stderr)
	}
	id := strings.TrimSpace(string(opened.Stdout))
	colour := func() string {
		m.sh("clawjail session screenshot --timeout 2m " + id + " -o /root/page.png")
		picture, err := png.Decode(strings.NewReader(m.get("/root/page.png")))
		if err != nil {
			m.t.Fatal(err)
		}
		middle := picture.Bounds().Max.Div(2)
		r, g, b, _ := picture.At(middle.X, middle.Y).RGBA()
		return fmt.Sprintf("rgb(%d, %d, %d)", r>>8, g>>8, b>>8)
	}
	const want = "rgb(255, 106, 0)"
	if got := colour(); got == want {
		m.t.Errorf("an empty page is %s", got)
	}
	m.sh("clawjail session eval " + id + ` 'document.documentElement.style.background = "` + want + `"'`)
	if got := colour(); got != want {
		m.t.Errorf("the page is %s, want %s", got, want)
	}
	m.sh("clawjail session close " + id + " && rm /root/page.png")
}
