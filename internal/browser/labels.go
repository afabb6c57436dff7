package browser

import (
	"bytes"
	"context"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/jpeg"
	"image/png"
	"math"

	"github.com/chromedp/cdproto/page"

	"github.com/clawjail/clawjail/internal/problem"
)

// maxLabels bounds the labels of one picture; more hide the page.
const maxLabels = 150

// label is a ref and where its element is in the picture, in pixels.
type label struct {
	ref  string
	area image.Rectangle
}

// labels are those for the refs of the last snapshot that are in view. They are drawn into the picture and not into
// the page: the page neither notices nor can move them, and there is nothing to take away again. clip is the area of
// the page that is taken, nil for what is in view.
func (p *Page) labels(ctx context.Context, clip *page.Viewport, picture *Picture) ([]label, error) {
	all := p.refs()
	if len(all) == 0 {
		return nil, problem.New(problem.BadRequest, "take a snapshot first: labels show its refs", "there are no refs to show")
	}
	boxes, err := p.refBoxes(ctx, maxLabels)
	if err != nil {
		return nil, err
	}
	var offsetX, offsetY float64
	if clip != nil {
		viewport, err := p.viewport(ctx)
		if err != nil {
			return nil, err
		}
		offsetX, offsetY = float64(viewport.PageX)-clip.X, float64(viewport.PageY)-clip.Y
	}
	var out []label
	for _, box := range boxes[:min(len(boxes), maxLabels)] {
		area := image.Rect(pixel(box.X+offsetX), pixel(box.Y+offsetY),
			pixel(box.X+offsetX+box.Width), pixel(box.Y+offsetY+box.Height))
		if clip != nil && !area.Overlaps(image.Rect(0, 0, int(clip.Width), int(clip.Height))) {
			continue
		}
		out = append(out, label{ref: box.Ref, area: area})
	}
	picture.LabelsCount, picture.LabelsSkipped = len(out), max(len(all)-len(out), 0)
	return out, nil
}

// pixel rounds what a page says to where a picture can be.
func pixel(value float64) int {
	return int(math.Round(math.Max(-maxSide, math.Min(value, 2*maxSide))))
}

// drawLabels draws labels into an encoded picture. Pictures come from the browser, so their size is looked at before
// they are decoded.
func drawLabels(data []byte, labels []label, quality int) ([]byte, error) {
	size, format, err := image.DecodeConfig(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("read the picture: %w", err)
	}
	if size.Width > maxSide || size.Height > maxSide || size.Width*size.Height > maxArea {
		return nil, problem.New(problem.BadRequest, "leave out labels, or take what is in view",
			"the picture of %d by %d pixels is too large for labels", size.Width, size.Height)
	}
	decoded, _, err := image.Decode(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("read the picture: %w", err)
	}
	canvas := image.NewRGBA(decoded.Bounds())
	draw.Draw(canvas, canvas.Bounds(), decoded, decoded.Bounds().Min, draw.Src)
	for n, label := range labels {
		drawLabel(canvas, label, labelColor(n))
	}
	var out bytes.Buffer
	if format == "jpeg" {
		err = jpeg.Encode(&out, canvas, &jpeg.Options{Quality: quality})
	} else {
		err = (&png.Encoder{CompressionLevel: png.BestSpeed}).Encode(&out, canvas)
	}
	if err != nil {
		return nil, fmt.Errorf("write the picture: %w", err)
	}
	return out.Bytes(), nil
}

// labelColor gives neighbours different colors, dark enough for white letters.
func labelColor(n int) color.RGBA {
	colors := [...]color.RGBA{
		{0xc6, 0x28, 0x28, 0xff}, {0x15, 0x65, 0xc0, 0xff}, {0x2e, 0x7d, 0x32, 0xff},
		{0x6a, 0x1b, 0x9a, 0xff}, {0xa0, 0x4a, 0x00, 0xff}, {0x00, 0x69, 0x5c, 0xff},
	}
	return colors[n%len(colors)]
}

// Size of a letter, in pixels.
const (
	letterWidth  = 5
	letterHeight = 7
	letterScale  = 2
)

// drawLabel draws a frame around the area, and the ref in its upper left corner.
func drawLabel(canvas *image.RGBA, l label, ink color.RGBA) {
	fill := func(area image.Rectangle, c color.RGBA) {
		draw.Draw(canvas, area.Intersect(canvas.Bounds()), image.NewUniform(c), image.Point{}, draw.Src)
	}
	a, thick := l.area, 2
	fill(image.Rect(a.Min.X, a.Min.Y, a.Max.X, a.Min.Y+thick), ink)
	fill(image.Rect(a.Min.X, a.Max.Y-thick, a.Max.X, a.Max.Y), ink)
	fill(image.Rect(a.Min.X, a.Min.Y, a.Min.X+thick, a.Max.Y), ink)
	fill(image.Rect(a.Max.X-thick, a.Min.Y, a.Max.X, a.Max.Y), ink)

	size := image.Pt(len(l.ref)*(letterWidth+1)*letterScale+letterScale*2, (letterHeight+2)*letterScale)
	at := image.Pt(max(a.Min.X, 0), max(a.Min.Y, 0))
	at.X, at.Y = min(at.X, canvas.Bounds().Dx()-size.X), min(at.Y, canvas.Bounds().Dy()-size.Y)
	fill(image.Rectangle{Min: at, Max: at.Add(size)}, ink)
	pen := at.Add(image.Pt(letterScale, letterScale))
	for _, letter := range []byte(l.ref) {
		for row, bits := range glyph(letter) {
			for column := range letterWidth {
				if bits&(1<<(letterWidth-1-column)) != 0 {
					dot := pen.Add(image.Pt(column*letterScale, row*letterScale))
					fill(image.Rectangle{Min: dot, Max: dot.Add(image.Pt(letterScale, letterScale))}, color.RGBA{0xff, 0xff, 0xff, 0xff})
				}
			}
		}
		pen.X += (letterWidth + 1) * letterScale
	}
}

// glyph is the picture of a letter that a ref can have, in rows of five bits.
func glyph(letter byte) [letterHeight]byte {
	switch letter {
	case '0':
		return [...]byte{0b01110, 0b10001, 0b10011, 0b10101, 0b11001, 0b10001, 0b01110}
	case '1':
		return [...]byte{0b00100, 0b01100, 0b00100, 0b00100, 0b00100, 0b00100, 0b01110}
	case '2':
		return [...]byte{0b01110, 0b10001, 0b00001, 0b00110, 0b01000, 0b10000, 0b11111}
	case '3':
		return [...]byte{0b11110, 0b00001, 0b00001, 0b01110, 0b00001, 0b00001, 0b11110}
	case '4':
		return [...]byte{0b00010, 0b00110, 0b01010, 0b10010, 0b11111, 0b00010, 0b00010}
	case '5':
		return [...]byte{0b11111, 0b10000, 0b11110, 0b00001, 0b00001, 0b10001, 0b01110}
	case '6':
		return [...]byte{0b00110, 0b01000, 0b10000, 0b11110, 0b10001, 0b10001, 0b01110}
	case '7':
		return [...]byte{0b11111, 0b00001, 0b00010, 0b00100, 0b01000, 0b01000, 0b01000}
	case '8':
		return [...]byte{0b01110, 0b10001, 0b10001, 0b01110, 0b10001, 0b10001, 0b01110}
	case '9':
		return [...]byte{0b01110, 0b10001, 0b10001, 0b01111, 0b00001, 0b00010, 0b01100}
	case 'a':
		return [...]byte{0b00000, 0b00000, 0b01110, 0b00001, 0b01111, 0b10001, 0b01111}
	case 'e':
		return [...]byte{0b00000, 0b00000, 0b01110, 0b10001, 0b11111, 0b10000, 0b01110}
	case 'f':
		return [...]byte{0b00110, 0b01001, 0b01000, 0b11100, 0b01000, 0b01000, 0b01000}
	case 'x':
		return [...]byte{0b00000, 0b00000, 0b10001, 0b01010, 0b00100, 0b01010, 0b10001}
	}
	return [...]byte{0b11111, 0b10001, 0b10001, 0b10001, 0b10001, 0b10001, 0b11111}
}
