package browser

import (
	"context"
	"path"
	"time"

	protocol "github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/dom"

	"github.com/clawjail/clawjail/internal/cdp"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	chooseTimeout    = 20 * time.Second
	armedTimeout     = time.Minute // how long files wait for a chooser, unless the caller says so
	maxChooseTimeout = 120 * time.Second
	// maxChosen bounds the files that are given at once.
	maxChosen = 100
	// chooserPoll is how often the page is asked whether it has opened a file chooser.
	chooserPoll = 25 * time.Millisecond
)

// Tool implements Operation.
func (ChooseFiles) Tool() string { return "choose_files" }

// Target implements Operation.
func (o ChooseFiles) Target() string {
	if len(o.Paths) == 0 {
		return ""
	}
	return bounded(o.Paths[0], 200)
}

// Effect implements Operation.
func (ChooseFiles) Effect() Effect { return Steers }

// Validate implements Operation.
func (o ChooseFiles) Validate() error {
	if len(o.Paths) == 0 {
		return problem.New(problem.BadRequest, "name files of the browser's folder", "paths are required")
	}
	flaws := problem.ValidationError{Code: problem.BadRequest}
	checkPlace(&flaws, o.TargetID, o.Element)
	if len(o.Paths) > maxChosen {
		flaws.Add("paths", "%d are more than %d", len(o.Paths), maxChosen)
	}
	for _, name := range o.Paths[:min(len(o.Paths), maxChosen)] {
		if checkFileName(name) != nil {
			flaws.Add("paths", "%q is not the name of a file", bounded(name, 100))
		}
	}
	named := 0
	for _, name := range []string{o.Ref, o.InputRef, o.Element} {
		if name != "" {
			named++
		}
	}
	if named > 1 {
		flaws.Add("ref", "ref, inputRef and element name an element each; give one of them")
	}
	timeoutWithin(&flaws, o.TimeoutMS, minTimeout, int(maxChooseTimeout.Milliseconds()))
	return flaws.Err()
}

// Limit implements Operation.
func (o ChooseFiles) Limit() time.Duration { return limit(o.TimeoutMS, chooseTimeout) }

// Result implements Operation.
func (ChooseFiles) Result() any { return new(Done) }

// Run implements Operation. With the ref of what opens a file chooser it is clicked, and the chooser is waited for.
// Without any element, the chooser that is open gets the files; where none is, Run does not wait: the files are for the
// next one that the tab opens, within TimeoutMS or a minute. Files of an earlier call that wait for a chooser are given to none any more.
func (o ChooseFiles) Run(ctx context.Context, b *Browser) (any, error) {
	p, err := b.tab(ctx, o.TargetID)
	if err != nil {
		return nil, err
	}
	paths, err := b.stage(ctx, o.Paths)
	if err != nil {
		return nil, err
	}
	p.disarmChooser()
	where := Where{Ref: first(o.InputRef, o.Ref), Selector: o.Element}
	if where != (Where{}) {
		done, err := p.fillInput(ctx, where, paths, o.Ref != "")
		if err != nil || done {
			return Done{OK: done, TargetID: p.handle()}, err
		}
		if _, err := (Act{Kind: "click", Ref: o.Ref, TargetID: p.handle()}).Run(ctx, b); err != nil {
			return nil, err
		}
	}
	if answered, err := p.answerChooser(ctx, paths); answered || err != nil {
		return Done{OK: answered, TargetID: p.handle()}, err
	}
	if where == (Where{}) {
		p.armChooser(limit(o.TimeoutMS, armedTimeout), paths)
		return Done{OK: true, TargetID: p.handle()}, nil
	}
	return Done{OK: true, TargetID: p.handle()}, p.awaitChooser(ctx, paths)
}

// arming is files that wait for a page's next file chooser.
type arming struct {
	cancel context.CancelFunc
	over   chan struct{} // closed when they are given to none any more
}

// armChooser lets the next file chooser of the page have files, and none has those of an earlier call any more.
func (p *Page) armChooser(d time.Duration, paths []string) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	a := &arming{cancel, make(chan struct{})}
	f := &p.b.folder
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.armed == nil {
		f.armed = make(map[*Page]*arming)
	}
	if before := f.armed[p]; before != nil { // of a call at the same moment
		before.cancel()
	}
	f.armed[p] = a
	f.task.Go(func() {
		defer close(a.over)
		defer cancel()
		// No caller is told the error: that no chooser came, or one that cannot be answered, shows in the page.
		_ = p.awaitChooser(ctx, paths)
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.armed[p] == a {
			delete(f.armed, p)
		}
	})
}

// disarmChooser takes back the files of an earlier call that no chooser got, and returns when none can get them any more.
func (p *Page) disarmChooser() {
	f := &p.b.folder
	f.mu.Lock()
	a := f.armed[p]
	f.mu.Unlock()
	if a != nil {
		a.cancel()
		<-a.over
	}
}

// isFileInput says whether an element takes files: 1 for one, 2 for many, 0 for none.
const isFileInput = `function (element) {
	if (!(element instanceof HTMLInputElement)) return 0;
	const get = (name) => Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, name).get.call(element);
	return get('type') !== 'file' ? 0 : get('multiple') ? 2 : 1;
}`

// fillInput gives files to an input. Done is false for another element, if it may be one.
func (p *Page) fillInput(ctx context.Context, where Where, paths []string, other bool) (done bool, err error) {
	found, err := p.find(ctx, where)
	if err != nil {
		return false, err
	}
	defer found.release()
	var takes int
	if err := found.call(ctx, isFileInput, &takes); err != nil {
		return false, err
	}
	switch {
	case takes == 0 && other:
		return false, nil
	case takes == 0:
		return false, problem.New(problem.ActOperationFailed, "name the input of the type file, or with ref what opens a file chooser",
			"the element %s takes no files", where)
	case takes == 1 && len(paths) > 1:
		return false, onlyOne(len(paths))
	}
	_, err = cdp.Do(ctx, found.session, dom.SetFileInputFiles, dom.SetFileInputFilesParams{Files: paths, ObjectID: found.object})
	return err == nil, err
}

func onlyOne(given int) error {
	return problem.New(problem.BadRequest, "give one file", "the page takes one file, and %d were given", given)
}

// answerChooser gives files to the file chooser that is open; answered is false when none is.
func (p *Page) answerChooser(ctx context.Context, paths []string) (answered bool, err error) {
	node, mode, ok := p.takeFileChooser()
	switch {
	case !ok:
		return false, nil
	case mode == "selectSingle" && len(paths) > 1:
		return false, onlyOne(len(paths))
	case node == 0:
		return false, problem.New(problem.ActOperationFailed, "use an input of the page",
			"the page opened a file chooser of a kind that cannot be answered")
	}
	_, err = cdp.Do(ctx, p.session, dom.SetFileInputFiles,
		dom.SetFileInputFilesParams{Files: paths, BackendNodeID: protocol.BackendNodeID(node)})
	return err == nil, err
}

// awaitChooser gives files to the file chooser that is open or opens before ctx ends.
func (p *Page) awaitChooser(ctx context.Context, paths []string) error {
	tick := time.NewTicker(chooserPoll)
	defer tick.Stop()
	for {
		if ctx.Err() == nil { // a chooser that opened is not lost to files that were taken back
			if answered, err := p.answerChooser(ctx, paths); answered || err != nil {
				return err
			}
		}
		select {
		case <-tick.C:
		case <-p.gone:
			return cdp.ErrSessionGone
		case <-ctx.Done():
			return problem.Wrap(context.Cause(ctx), problem.CodeOf(context.Cause(ctx)),
				"click what opens the file chooser, or name the input with inputRef or element", "the page opened no file chooser")
		}
	}
}

// stage finds the paths of files. A page learns the name of what it is given: a download, which is stored under its
// GUID, is copied within the browser to a file with its name first.
func (b *Browser) stage(ctx context.Context, names []string) ([]string, error) {
	paths := make([]string, len(names))
	for n, name := range names {
		file, err := b.folder.complete(name)
		if err != nil {
			return nil, err
		}
		paths[n] = file.path
		if file.Kind == upload || path.Base(file.path) == file.Name {
			continue
		}
		err = b.withHidden(ctx, func(ctx context.Context, h *hiddenPage) error {
			size, err := h.load(ctx, file.path)
			if err != nil {
				return err
			}
			paths[n], err = h.save(ctx, b.folder.place(), file.Name, "saveInput", size)
			return err
		})
		if err != nil {
			return nil, err
		}
		b.folder.staged(name, file.path, paths[n])
	}
	return paths, nil
}

// staged remembers where a copy with the right name is.
func (f *folder) staged(name, old, copied string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if file := f.find(name); file != nil && file.path == old {
		file.path = copied
	}
}
