//go:build unix

package browser

import (
	"fmt"
	"testing"
	"time"
)

// Chromium loses about every fiftieth of these pictures, when a screencast goes on through changes of size.
func TestEveryPictureOfAPageThatChangesItsSizeArrives(t *testing.T) {
	const rounds = 120
	anyBuild(t, func(t *testing.T, build Build) {
		b := liveSite(t, build, map[string]string{"/": "<title>t</title><body>hello"})
		arrive(t, b, "/")
		v := b.Live().Watch()
		defer v.Close()
		nextFrame(t, v, func(*Frame) bool { return true })
		p, err := b.Live().page(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for n := range rounds {
			size := [][2]int{{60, 1900}, {2400, 90}, {1280, 800}}[n%3]
			if err := p.session.Call(within(t, 10*time.Second), "Emulation.setDeviceMetricsOverride",
				map[string]any{"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": false}, nil); err != nil {
				t.Fatal(err)
			}
			read(t, b, fmt.Sprintf("document.body.style.background = 'rgb(%d,200,200)'", n))
			nextFrame(t, v, func(f *Frame) bool { return f.Width == size[0] && f.Height == size[1] })
		}
	})
}
