package console

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// The backgrounds that the accent is read on, as console.css has them.
const (
	lightGround = "#FFFFFF"
	darkGround  = "#1B1A18"
)

// readable is the contrast that text needs with what is behind it (WCAG 2.2, AA).
const readable = 4.5

// themeOf is the style sheet with the colours of the configuration: the accent, and that of the host browser. Each is there as it
// is, for what is filled, with what can be read on it, and as much darker or lighter as text of it needs to be read.
func themeOf(accent, hostBrowser string) []byte {
	out := []byte(":root{")
	out = appendColor(out, "accent", accent, "#C2410C")
	out = appendColor(out, "host-browser", hostBrowser, "#FF4500")
	return append(out, "}\n"...)
}

// appendColor adds the variables of a colour; otherwise is what it is when the text is none.
func appendColor(out []byte, name, text, otherwise string) []byte {
	fill, ok := parseColor(text)
	if !ok {
		fill, _ = parseColor(otherwise)
	}
	light, _ := parseColor(lightGround)
	dark, _ := parseColor(darkGround)
	on := color{255, 255, 255}
	if contrast(fill, on) < readable {
		on = color{0, 0, 0}
	}
	return fmt.Appendf(out, "--%s:%s;--on-%s:%s;--%s-light:%s;--%s-dark:%s;", name, fill, name, on, name, toward(fill, light), name, toward(fill, dark))
}

type color [3]float64

func parseColor(text string) (color, bool) {
	digits, ok := strings.CutPrefix(text, "#")
	n, err := strconv.ParseUint(digits, 16, 24)
	return color{float64(n >> 16), float64(n >> 8 & 255), float64(n & 255)}, ok && err == nil && len(digits) == 6
}

// String is #rrggbb.
func (c color) String() string {
	return fmt.Sprintf("#%02x%02x%02x", int(math.Round(c[0])), int(math.Round(c[1])), int(math.Round(c[2])))
}

// toward makes a colour so much darker, or lighter, that it can be read on a ground. A little more than needed: grounds
// have shades.
func toward(c, ground color) color {
	end := color{0, 0, 0}
	if luminance(ground) < 0.5 {
		end = color{255, 255, 255}
	}
	for step := range 100 {
		part := float64(step) / 100
		mixed := color{}
		for n := range c {
			mixed[n] = c[n]*(1-part) + end[n]*part
		}
		if contrast(mixed, ground) >= readable+0.9 {
			return mixed
		}
	}
	return end
}

// contrast and luminance are those of WCAG 2.2.
func contrast(a, b color) float64 {
	la, lb := luminance(a), luminance(b)
	return (max(la, lb) + 0.05) / (min(la, lb) + 0.05)
}

func luminance(c color) float64 {
	var l [3]float64
	for n, v := range c {
		v /= 255
		if v <= 0.04045 {
			l[n] = v / 12.92
		} else {
			l[n] = math.Pow((v+0.055)/1.055, 2.4)
		}
	}
	return 0.2126*l[0] + 0.7152*l[1] + 0.0722*l[2]
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
