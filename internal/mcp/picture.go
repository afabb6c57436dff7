package mcp

import (
	"bytes"
	"image"
	"image/color"
	"image/jpeg"
	"image/png"

	"github.com/clawjail/clawjail/internal/problem"
)

// Bounds of a picture, in pixels and bytes. Models scale down what is larger, and are paid for it.
const (
	defaultWidth = 1280
	maxWidth     = 4096
	maxHeight    = 8000
	// maxPixels bounds what is unpacked here: a picture of another size is not looked at.
	maxPixels = 64 << 20
	maxBytes  = 5 << 20
)

// fitted is a picture as it is answered.
type fitted struct {
	data          []byte
	kind          string
	width, height int
}

// fit makes a picture small enough. One that is small enough already stays as it is.
func fit(data []byte, widest, quality int) (fitted, error) {
	size, format, err := image.DecodeConfig(bytes.NewReader(data))
	if err != nil || format != "png" && format != "jpeg" {
		return fitted{}, problem.Wrap(err, problem.BrowserExited, "take it again", "the browser did not return a picture")
	}
	out := fitted{data: data, kind: "image/" + format, width: size.Width, height: size.Height}
	w, h := shrunk(size.Width, size.Height, widest)
	if w != size.Width {
		if size.Width*size.Height > maxPixels {
			return fitted{}, tooLarge()
		}
		picture, _, err := image.Decode(bytes.NewReader(data))
		if err != nil {
			return fitted{}, problem.Wrap(err, problem.BrowserExited, "take it again", "the browser did not return a picture")
		}
		var b bytes.Buffer
		if format == "png" {
			err = png.Encode(&b, shrink(picture, w, h))
		} else {
			err = jpeg.Encode(&b, shrink(picture, w, h), &jpeg.Options{Quality: quality})
		}
		if err != nil {
			return fitted{}, err
		}
		out.data, out.width, out.height = b.Bytes(), w, h
	}
	if len(out.data) > maxBytes {
		return fitted{}, tooLarge()
	}
	return out, nil
}

func tooLarge() error {
	return problem.New(problem.BadRequest, "leave fullPage out, use type jpeg, or a smaller maxWidth",
		"the picture is too large to be answered")
}

// shrunk is the size of a picture that is to be within the bounds.
func shrunk(w, h, widest int) (int, int) {
	if w > widest {
		w, h = widest, max(1, h*widest/w)
	}
	if h > maxHeight {
		w, h = max(1, w*maxHeight/h), maxHeight
	}
	return w, h
}

// shrink makes every pixel the mean of those that it stands for.
func shrink(from image.Image, w, h int) *image.RGBA {
	b := from.Bounds()
	to := image.NewRGBA(image.Rect(0, 0, w, h))
	for y := range h {
		top, bottom := b.Min.Y+y*b.Dy()/h, b.Min.Y+(y+1)*b.Dy()/h
		for x := range w {
			left, right := b.Min.X+x*b.Dx()/w, b.Min.X+(x+1)*b.Dx()/w
			var r, g, bl, n uint32
			for sy := top; sy < max(bottom, top+1); sy++ {
				for sx := left; sx < max(right, left+1); sx++ {
					pr, pg, pb, _ := from.At(sx, sy).RGBA()
					r, g, bl, n = r+pr>>8, g+pg>>8, bl+pb>>8, n+1
				}
			}
			to.SetRGBA(x, y, color.RGBA{R: uint8(r / n), G: uint8(g / n), B: uint8(bl / n), A: 255})
		}
	}
	return to
}
