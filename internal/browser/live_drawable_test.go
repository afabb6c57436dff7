package browser

import (
	"bytes"
	"image"
	"image/jpeg"
	"testing"
)

func TestAPictureThatIsTooLargeIsShownToNobody(t *testing.T) {
	picture := func(width, height int) []byte {
		var out bytes.Buffer
		if err := jpeg.Encode(&out, image.NewGray(image.Rect(0, 0, width, height)), nil); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	l := &Live{cast: &cast{}}
	for name, c := range map[string]struct {
		jpeg  []byte
		shown bool
	}{
		"a window":     {picture(1280, 800), true},
		"the largest":  {picture(2*maxLiveWidth, 10), true},
		"too wide":     {picture(2*maxLiveWidth+1, 10), false},
		"too high":     {picture(10, 2*maxLiveHeight+1), false},
		"no picture":   {[]byte("GIF89a"), false},
		"nothing":      {nil, false},
		"an odd start": {picture(10, 10)[1:], false},
	} {
		l.frame = nil
		waits := l.publish(l.cast, &Frame{JPEG: c.jpeg}) // for somebody to draw it
		if shown := l.frame != nil; shown != c.shown || waits != c.shown {
			t.Errorf("%s: shown is %t, and is waited for: %t", name, shown, waits)
		}
	}
}
