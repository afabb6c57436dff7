package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/problem"
)

// browserCommand is a command that is one operation of the browser.
type browserCommand struct {
	use, short, long, example string
	minimum, limit            int
	// make adds the flags of the operation, and returns what makes it of them and the arguments.
	make func(cmd *cobra.Command, p *program) func(args []string) (browser.Operation, error)
	// words complete the first argument.
	words []string
	// file says that the result can be written to a file.
	file bool
}

// newBrowserOperations are the commands that drive the browser.
func newBrowserOperations(p *program) (out []*cobra.Command) {
	for _, c := range slices.Concat(browserTabs(), browserLooks(), browserActs()) {
		out = append(out, c.command(p))
	}
	return out
}

func (c browserCommand) command(p *program) *cobra.Command {
	var asJSON bool
	var file string
	cmd := &cobra.Command{Use: c.use, Short: c.short, Long: c.long, Example: c.example, Args: arguments(c.minimum, c.limit)}
	if c.words != nil {
		cmd.ValidArgs = c.words
	}
	build := c.make(cmd, p)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		op, err := build(args)
		if err != nil {
			return err
		}
		if err := pictureFile(cmd, op, file, asJSON); err != nil {
			return err
		}
		if err := op.Validate(); err != nil {
			return err // before a server is started for it
		}
		b, err := p.hostBrowser()
		if err != nil {
			return err
		}
		result, err := b.drive(cmd.Context(), op)
		if err != nil {
			return err
		}
		if file != "" {
			return b.save(cmd, result, file)
		}
		return b.show(cmd, result, asJSON)
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	if c.file {
		cmd.Flags().StringVarP(&file, "output", "o", "", "`file` to write, - for standard output; without it the address of the picture is printed")
	}
	return cmd
}

// pictureFile checks -o, whose name decides the format of a picture that has none.
func pictureFile(cmd *cobra.Command, op browser.Operation, file string, asJSON bool) error {
	if file == "" {
		return nil
	}
	if asJSON {
		return usage(cmd, "the picture is written with -o, or described with --json: give one of the two")
	}
	if _, tty := terminal(cmd.OutOrStdout()); tty && file == standardInput {
		return usage(cmd, "a picture is not written to a terminal")
	}
	if picture, ok := op.(*browser.Screenshot); ok && picture.Type == "" {
		picture.Type = formatOf(file)
	}
	return nil
}

// tabFlag adds --tab.
func tabFlag(cmd *cobra.Command, p *program, tab *string) {
	cmd.Flags().StringVar(tab, "tab", "", "`tab` to use: a handle (t1), a label or an id; default: the current one")
	if err := cmd.RegisterFlagCompletionFunc("tab", p.completeTabs); err != nil {
		panic(err) // there is no such flag: a mistake in this package
	}
}

// timeoutFlag adds a flag with a duration for a field in milliseconds, and says in its help between which bounds, in milliseconds as well.
func timeoutFlag(cmd *cobra.Command, name string, into *int, what string, least, most int) {
	m := &milliseconds{into, least, most}
	cmd.Flags().Var(m, name, what+"; "+m.bounds())
}

// operationTimeout adds --timeout for an operation that loads no page.
func operationTimeout(cmd *cobra.Command, into *int, what string) {
	timeoutFlag(cmd, "timeout", into, what, browser.MinTimeoutMS, browser.MaxTimeoutMS)
}

// milliseconds is a flag with a duration, such as 30s.
type milliseconds struct {
	into        *int
	least, most int
}

func (m *milliseconds) bounds() string { return inWords(m.least) + " to " + inWords(m.most) }

// inWords is a number of milliseconds as a flag takes it, such as 2m.
func inWords(milliseconds int) string {
	text := (time.Duration(milliseconds) * time.Millisecond).String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

func (m *milliseconds) String() string {
	if m.into == nil || *m.into == 0 {
		return ""
	}
	return inWords(*m.into)
}

func (m *milliseconds) Set(text string) error {
	d, err := texts.Duration(text)
	if n := int(d / time.Millisecond); err != nil || n < m.least || n > m.most {
		return fmt.Errorf("write a number with ms, s, m or h, such as 30s; %s", m.bounds())
	}
	*m.into = int(d / time.Millisecond)
	return nil
}

func (*milliseconds) Type() string { return "duration" }

// completeTabs asks the server that runs. A shell that completes starts none.
func (p *program) completeTabs(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if cmd.Parent().Name() == "session" { // a flag of the same command there
		return p.completeSessionTabs(cmd, args, begun)
	}
	b, err := p.hostBrowser()
	if err != nil || len(args) > 0 && cmd.Flag("tab") == nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var answer browser.TabsResult
	if up, err := b.health(cmd.Context()); err != nil || !up || b.call(cmd.Context(), "GET", "/tabs", &answer) != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	for _, tab := range answer.Tabs {
		out = append(out, cobra.CompletionWithDesc(tab.TabID, printable(tab.Title)))
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

func first(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}

// operation is the usual way to make one: the flags are in it, and the first argument belongs in a field.
func operation(op browser.Operation, field *string) func([]string) (browser.Operation, error) {
	return func(args []string) (browser.Operation, error) {
		if field != nil && len(args) > 0 {
			*field = args[0]
		}
		return op, nil
	}
}

func browserTabs() []browserCommand {
	type build = func([]string) (browser.Operation, error)
	return []browserCommand{
		{use: "tabs", short: "List the open tabs",
			make: func(*cobra.Command, *program) build { return operation(&browser.Tabs{}, nil) }},
		{use: "open URL", short: "Open an address, in the tab that shows it already or in a new one", minimum: 1, limit: 1,
			example: "  clawjail browser open https://example.com/ --label docs",
			make: func(cmd *cobra.Command, _ *program) build {
				op := &browser.OpenTab{}
				cmd.Flags().StringVar(&op.Label, "label", "", "`name` for the tab, by which it can be named from now on")
				cmd.Flags().BoolVar(&op.NewTab, "new-tab", false, "open a new one, also when a tab shows it already")
				timeoutFlag(cmd, "timeout", &op.TimeoutMS, "how long the page may take, such as 30s", browser.MinNavigationMS, browser.MaxTimeoutMS)
				return operation(op, &op.URL)
			}},
		{use: "focus TAB", short: "Make a tab the current one", minimum: 1, limit: 1,
			make: func(cmd *cobra.Command, p *program) build {
				cmd.ValidArgsFunction = p.completeTabs
				op := &browser.FocusTab{}
				return operation(op, &op.TargetID)
			}},
		{use: "close [TAB]", short: "Close a tab, or the current one", limit: 1,
			make: func(cmd *cobra.Command, p *program) build {
				cmd.ValidArgsFunction = p.completeTabs
				op := &browser.CloseTab{}
				return operation(op, &op.TargetID)
			}},
		{use: "navigate URL", short: "Open an address in the current tab", minimum: 1, limit: 1,
			make: func(cmd *cobra.Command, p *program) build {
				op := &browser.Navigate{}
				tabFlag(cmd, p, &op.TargetID)
				timeoutFlag(cmd, "timeout", &op.TimeoutMS, "how long the page may take, such as 30s", browser.MinNavigationMS, browser.MaxTimeoutMS)
				return operation(op, &op.URL)
			}},
	}
}

func browserLooks() []browserCommand {
	type build = func([]string) (browser.Operation, error)
	return []browserCommand{
		{use: "snapshot", short: "Describe the page in text, with a ref for everything that can be used",
			example: "  clawjail browser snapshot --interactive",
			make: func(cmd *cobra.Command, p *program) build {
				op := &browser.Snapshot{}
				f := cmd.Flags()
				tabFlag(cmd, p, &op.TargetID)
				f.StringVar(&op.Format, "format", "", "ai (the default), aria or domSnapshot")
				f.IntVar(&op.Max, "limit", 0, "how many nodes, of aria and domSnapshot")
				f.IntVar(&op.MaxChars, "max-chars", 0, "how many characters, of ai")
				f.BoolVar(&op.Interactive, "interactive", false, "only elements that can be used")
				f.BoolVar(&op.Compact, "compact", false, "without elements that only group others")
				f.IntVar(&op.Depth, "depth", 0, "how many levels of elements")
				f.StringVar(&op.Selector, "selector", "", "only below the element with this CSS `selector`")
				f.BoolVar(&op.URLs, "urls", false, "with the addresses of links")
				f.StringVar(&op.Mode, "mode", "", "efficient: interactive, compact, and short")
				complete(cmd, "format", "ai", "aria", "domSnapshot")
				complete(cmd, "mode", "efficient")
				operationTimeout(cmd, &op.TimeoutMS, "how long it may take, such as 30s")
				return operation(op, nil)
			}},
		{use: "screenshot [TAB]", short: "Take a picture of the page", limit: 1, file: true,
			example: "  clawjail browser screenshot --full-page -o page.png",
			make: func(cmd *cobra.Command, p *program) build {
				cmd.ValidArgsFunction = p.completeTabs
				op := &browser.Screenshot{}
				f := cmd.Flags()
				f.BoolVar(&op.FullPage, "full-page", false, "the whole page instead of what is in view")
				f.StringVar(&op.Ref, "ref", "", "only the element with this `ref` of a snapshot")
				f.StringVar(&op.Element, "element", "", "only the element with this CSS `selector`")
				f.StringVar(&op.Type, "type", "", "png or jpeg")
				f.IntVar(&op.Quality, "quality", 0, "1 to 100, of a jpeg")
				f.BoolVar(&op.Labels, "labels", false, "draw the refs of elements that can be used")
				f.IntVar(&op.Width, "width", 0, "`pixels` of the window for this picture, together with --height")
				f.IntVar(&op.Height, "height", 0, "`pixels` of the window for this picture")
				complete(cmd, "type", "png", "jpeg")
				operationTimeout(cmd, &op.TimeoutMS, "how long it may take, such as 30s")
				return operation(op, &op.TargetID)
			}},
		{use: "pdf [TAB]", short: "Print the page", limit: 1, file: true,
			example: "  clawjail browser pdf -o page.pdf",
			make: func(cmd *cobra.Command, p *program) build {
				cmd.ValidArgsFunction = p.completeTabs
				op := &browser.PDF{}
				cmd.Flags().BoolVar(&op.Landscape, "landscape", false, "wider than high")
				cmd.Flags().StringVar(&op.Paper, "paper", "", "a4, letter or legal")
				complete(cmd, "paper", "a4", "letter", "legal")
				operationTimeout(cmd, &op.TimeoutMS, "how long it may take, such as 30s")
				return operation(op, &op.TargetID)
			}},
		{use: "query SELECTOR", short: "Find elements by a CSS selector", minimum: 1, limit: 1,
			make: func(cmd *cobra.Command, p *program) build {
				op := &browser.Query{}
				tabFlag(cmd, p, &op.TargetID)
				cmd.Flags().IntVar(&op.Max, "limit", 0, "how many")
				return operation(op, &op.Selector)
			}},
		{use: "dom", short: "Print the page as HTML or text",
			make: func(cmd *cobra.Command, p *program) build {
				op := &browser.DOM{}
				tabFlag(cmd, p, &op.TargetID)
				cmd.Flags().StringVar(&op.Format, "format", "", "html (the default) or text")
				cmd.Flags().StringVar(&op.Selector, "selector", "", "only the element with this CSS `selector`")
				cmd.Flags().IntVar(&op.MaxChars, "max-chars", 0, "how many characters")
				complete(cmd, "format", "html", "text")
				return operation(op, nil)
			}},
		{use: "eval JS", short: "Run JavaScript in the page", minimum: 1, limit: 1,
			example: "  clawjail browser eval 'document.title'",
			make: func(cmd *cobra.Command, p *program) build {
				op := &browser.Eval{}
				tabFlag(cmd, p, &op.TargetID)
				cmd.Flags().BoolVar(&op.Await, "await", false, "wait for the promise that it returns")
				operationTimeout(cmd, &op.TimeoutMS, "how long it may take, such as 30s")
				return operation(op, &op.JS)
			}},
		{use: "console", short: "Print what the page's scripts have printed",
			make: func(cmd *cobra.Command, p *program) build {
				op := &browser.Console{}
				tabFlag(cmd, p, &op.TargetID)
				cmd.Flags().StringVar(&op.Level, "level", "", "the lowest level that is printed: debug, info, warning or error")
				cmd.Flags().BoolVar(&op.Clear, "clear", false, "then forget all messages, also those that were not printed")
				complete(cmd, "level", "debug", "info", "warning", "error")
				return operation(op, nil)
			}},
		{use: "errors", short: "Print exceptions that the page's scripts did not catch",
			make: func(cmd *cobra.Command, p *program) build {
				op := &browser.Errors{}
				tabFlag(cmd, p, &op.TargetID)
				cmd.Flags().BoolVar(&op.Clear, "clear", false, "then forget all of them")
				return operation(op, nil)
			}},
		{use: "requests", short: "Print what the page has asked the network for",
			make: func(cmd *cobra.Command, p *program) build {
				op := &browser.Requests{}
				tabFlag(cmd, p, &op.TargetID)
				cmd.Flags().StringVar(&op.Filter, "filter", "", "only addresses with this `text` in them")
				cmd.Flags().BoolVar(&op.Clear, "clear", false, "then forget all of them")
				return operation(op, nil)
			}},
	}
}

func browserActs() []browserCommand {
	type build = func([]string) (browser.Operation, error)
	return []browserCommand{
		{use: "act KIND [REF…]", minimum: 1, limit: -1,
			short: "Click, type, press, hover, drag, select, fill, resize: what a person does",
			long: "Does one thing in the page. A ref of the last snapshot, or --selector, names the element. The action can also be given " +
				"whole, as the JSON of the control contract; with - it is read from standard input, where no list of processes shows " +
				"what is typed.",
			example: "  clawjail browser act click e12\n  clawjail browser act type e3 'some text' --submit\n  clawjail browser act press Enter\n" +
				"  clawjail browser act select e7 blue\n  clawjail browser act drag e1 e2\n" +
				`  clawjail browser act '{"kind":"fill","fields":[{"ref":"e3","value":"ada"}]}'`,
			words: []string{"click", "clickCoords", "type", "press", "hover", "scrollIntoView", "drag", "dragCoords", "select", "fill", "resize",
				"wait", "evaluate", "close", "batch"},
			make: func(cmd *cobra.Command, p *program) build {
				op := &browser.Act{}
				f := cmd.Flags()
				tabFlag(cmd, p, &op.TargetID)
				f.StringVar(&op.Selector, "selector", "", "CSS `selector` of the element, instead of a ref")
				f.BoolVar(&op.Submit, "submit", false, "type: press Enter behind it")
				f.BoolVar(&op.Slowly, "slowly", false, "type: one key after the other")
				f.BoolVar(&op.Double, "double", false, "click: twice")
				f.StringVar(&op.Button, "button", "", "click: left, right or middle")
				f.StringSliceVar(&op.Modifiers, "modifiers", nil, "click: `keys` that are held: Alt, Control, ControlOrMeta, Meta, Shift")
				f.StringVar(&op.Fn, "fn", "", "evaluate: a JavaScript `function`")
				complete(cmd, "button", "left", "right", "middle")
				operationTimeout(cmd, &op.TimeoutMS, "how long it may take, such as 10s; 1m at most but for wait, evaluate and batch")
				return func(args []string) (browser.Operation, error) { return op, actOf(cmd, op, args) }
			}},
		{use: "upload FILE…", minimum: 1, limit: -1,
			short: "Give the page files of the browser's folder",
			long: "Gives the page files of the browser's folder, by their names there: to the element that is named, or to the file chooser that is " +
				"open, or that the page opens next.",
			example: "  clawjail browser upload photo.jpg --ref e7",
			make: func(cmd *cobra.Command, p *program) build {
				op := &browser.ChooseFiles{}
				tabFlag(cmd, p, &op.TargetID)
				cmd.Flags().StringVar(&op.Ref, "ref", "", "`ref` of the input, or of what opens the file chooser")
				cmd.Flags().StringVar(&op.Element, "element", "", "CSS `selector` of the input")
				operationTimeout(cmd, &op.TimeoutMS, "how long it may take, such as 30s")
				return func(args []string) (browser.Operation, error) {
					op.Paths = args
					return op, nil
				}
			}},
		{use: "dialog ANSWER", minimum: 1, limit: 1,
			short: "Say how the next dialog is answered: accept or dismiss",
			long: "Says how the next dialog of the page is answered. Without it dialogs are dismissed, and reported by the command that " +
				"caused them.",
			example: "  clawjail browser dialog accept --prompt Ada",
			words:   []string{"accept", "dismiss"},
			make: func(cmd *cobra.Command, p *program) build {
				op := &browser.SetDialog{}
				tabFlag(cmd, p, &op.TargetID)
				cmd.Flags().StringVar(&op.PromptText, "prompt", "", "`text` to answer a prompt with")
				operationTimeout(cmd, &op.TimeoutMS, "how long the answer is kept, such as 2m")
				return func(args []string) (browser.Operation, error) {
					if args[0] != "accept" && args[0] != "dismiss" {
						return nil, usage(cmd, "the answer %q is neither accept nor dismiss", args[0])
					}
					op.Accept = args[0] == "accept"
					return op, nil
				}
			}},
		{use: "wait [SELECTOR]", short: "Wait for an element, a text, an address or a time", limit: 1,
			example: "  clawjail browser wait --text 'Thank you'\n  clawjail browser wait '#result' --timeout 30s",
			make: func(cmd *cobra.Command, p *program) build {
				op := &browser.Act{Kind: "wait"}
				var text string
				f := cmd.Flags()
				tabFlag(cmd, p, &op.TargetID)
				f.StringVar(&text, "text", "", "until the page has this text")
				f.StringVar(&op.TextGone, "text-gone", "", "until the page does not have this text any more")
				f.StringVar(&op.URL, "url", "", "until the address is like this; * stands for any text")
				f.StringVar(&op.LoadState, "load", "", "until it has loaded: load, domcontentloaded or networkidle")
				f.StringVar(&op.Fn, "fn", "", "until this JavaScript `function` returns something true")
				timeoutFlag(cmd, "time", &op.TimeMS, "wait this long, such as 2s", 1, browser.MaxWaitTimeMS)
				operationTimeout(cmd, &op.TimeoutMS, "how long it may take, such as 30s")
				complete(cmd, "load", "load", "domcontentloaded", "networkidle")
				return func(args []string) (browser.Operation, error) {
					if cmd.Flags().Changed("text") {
						op.Text = &text
					}
					op.Selector = first(args)
					return op, nil
				}
			}},
	}
}

// maxAction bounds an action on standard input, in bytes.
const maxAction = 1 << 20

// actOf reads an action from the arguments: a kind and what belongs to it, or all of it as JSON.
func actOf(cmd *cobra.Command, op *browser.Act, args []string) error {
	text := []byte(args[0])
	if args[0] == standardInput {
		var err error
		if text, err = readInput(cmd, maxAction); err != nil {
			return err
		}
	}
	if text = bytes.TrimSpace(text); bytes.HasPrefix(text, []byte("{")) || args[0] == standardInput {
		d := json.NewDecoder(bytes.NewReader(text))
		d.DisallowUnknownFields()
		if err := d.Decode(op); err != nil {
			return problem.New(problem.BadJSON, "see: "+cmd.CommandPath()+" --help", "the action is not the JSON of one: %s", printable(err.Error()))
		}
		return nil
	}
	op.Kind, args = args[0], args[1:]
	switch op.Kind {
	case "press":
		op.Key = first(args)
		return nil
	case "close":
		if len(args) > 0 {
			op.TargetID = args[0]
		}
		return nil
	case "resize":
		return numbers(cmd, args, 2, func(n []float64) { op.Width, op.Height = int(n[0]), int(n[1]) })
	case "clickCoords":
		return numbers(cmd, args, 2, func(n []float64) { op.X, op.Y = &n[0], &n[1] })
	case "dragCoords":
		return numbers(cmd, args, 4, func(n []float64) { op.X, op.Y, op.EndX, op.EndY = &n[0], &n[1], &n[2], &n[3] })
	case "drag":
		if len(args) == 2 {
			op.StartRef, op.EndRef = args[0], args[1]
		}
		return nil
	}
	if op.Selector == "" && len(args) > 0 {
		op.Ref, args = args[0], args[1:]
	}
	switch op.Kind {
	case "type":
		if len(args) > 1 {
			return usage(cmd, "the text is one argument: put it in quotes")
		}
		if len(args) == 1 {
			op.Text = &args[0]
		}
	case "select":
		op.Values = args
	default:
		if len(args) > 0 {
			return usage(cmd, "%s does not take %q", op.Kind, args[0])
		}
	}
	return nil
}

func numbers(cmd *cobra.Command, args []string, want int, use func([]float64)) error {
	if len(args) != want {
		return usage(cmd, "it needs %d numbers", want)
	}
	out := make([]float64, want)
	for n, text := range args {
		var err error
		if out[n], err = strconv.ParseFloat(text, 64); err != nil {
			return usage(cmd, "%q is not a number", text)
		}
	}
	use(out)
	return nil
}
