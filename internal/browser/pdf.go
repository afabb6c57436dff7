package browser

import (
	"context"
	"errors"
	"time"

	devio "github.com/chromedp/cdproto/io"
	"github.com/chromedp/cdproto/page"

	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	pdfTimeout    = 60 * time.Second
	maxPDFTimeout = 120 * time.Second
	// maxPages bounds what is printed of a page that never ends.
	maxPages = "1-500"
)

// Tool implements Operation.
func (PDF) Tool() string { return "pdf" }

// Target implements Operation.
func (o PDF) Target() string { return bounded(o.TargetID, maxTargetID) }

// Effect implements Operation.
func (PDF) Effect() Effect { return Looks }

// Validate implements Operation.
func (o PDF) Validate() error {
	flaws := problem.ValidationError{Code: problem.BadRequest}
	checkPlace(&flaws, o.TargetID, "")
	if _, _, ok := o.paper(); !ok {
		flaws.Add("paper", "%q is not one of a4, letter and legal", bounded(o.Paper, 40))
	}
	timeoutWithin(&flaws, o.TimeoutMS, minTimeout, int(maxPDFTimeout.Milliseconds()))
	return flaws.Err()
}

// paper is the size of a page, in inches.
func (o PDF) paper() (width, height float64, ok bool) {
	switch o.Paper {
	case "", "a4":
		return 8.27, 11.69, true
	case "letter":
		return 8.5, 11, true
	case "legal":
		return 8.5, 14, true
	}
	return 0, 0, false
}

// Limit implements Operation.
func (o PDF) Limit() time.Duration { return limit(o.TimeoutMS, pdfTimeout) }

// Result implements Operation.
func (PDF) Result() any { return new(Picture) }

// Run implements Operation. At most 500 pages are printed; beyond 64 MB it is a bad_request.
func (o PDF) Run(ctx context.Context, b *Browser) (any, error) {
	p, err := b.tab(ctx, o.TargetID)
	if err != nil {
		return nil, err
	}
	release, err := hold(ctx, p.photographed)
	if err != nil {
		return nil, err
	}
	defer release()
	width, height, _ := o.paper()
	background := true
	printed, err := cdp.Do(ctx, p.session, page.PrintToPDF, page.PrintToPDFParams{
		Landscape: &o.Landscape, PaperWidth: width, PaperHeight: height, PrintBackground: &background,
		PageRanges: maxPages, TransferMode: page.PrintToPDFTransferModeReturnAsStream,
	})
	if err != nil {
		return nil, err
	}
	picture := Picture{OK: true, TargetID: p.handle(), ContentType: "application/pdf"}
	picture.Data, err = p.stream(ctx, printed.Stream)
	if err != nil {
		return nil, err
	}
	if picture.URL, _, err = p.info(ctx); err != nil {
		return nil, err
	}
	b.media.keep(&picture)
	return picture, nil
}

// stream reads what the browser has ready, and lets it go.
func (p *Page) stream(ctx context.Context, handle devio.StreamHandle) (data []byte, err error) {
	defer func() {
		tidy, cancel := context.WithTimeout(context.WithoutCancel(ctx), quietTimeout)
		defer cancel()
		_, closeErr := cdp.Do(tidy, p.session, devio.Close, devio.CloseParams{Handle: handle})
		if err != nil {
			err = errors.Join(err, closeErr)
		}
	}()
	for {
		var part struct {
			Encoded bool   `json:"base64Encoded"`
			Data    []byte `json:"data"`
			EOF     bool   `json:"eof"`
		}
		err := p.session.Call(ctx, devio.Read.Method, devio.ReadParams{Handle: handle, Size: chunkBytes}, &part)
		if err != nil {
			return nil, err
		}
		data = append(data, part.Data...)
		if len(data) > maxPicture {
			return nil, problem.New(problem.BadRequest, "print a smaller page", "the PDF has more than %d bytes", maxPicture)
		}
		if part.EOF {
			return data, nil
		}
		if len(part.Data) == 0 {
			return nil, errors.New("the browser's stream has no end")
		}
	}
}
