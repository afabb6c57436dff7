package cli

import (
	"cmp"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/op"
)

// described makes the command of an operation that is described. before does what the description cannot say, once the rest of the request is there.
func described[In, Out any](p *program, o op.Op[In, Out], before ...func(cmd *cobra.Command, c *client.Client, in *In) error) *cobra.Command {
	in := new(In)
	var asJSON bool
	c := o.Command
	cmd := &cobra.Command{Use: c.Use, Aliases: c.Aliases, Short: cmp.Or(c.Short, o.Summary), Long: c.Long, Example: c.Example}
	values := &given{p: p, cmd: cmd, without: c.Without}
	values.add(reflect.ValueOf(in).Elem())
	many := strings.HasSuffix(c.Use, "…")
	minimum, maximum := 0, len(values.args)
	for _, a := range values.args {
		if !strings.HasSuffix(a.Tag.Get("arg"), "?") {
			minimum++
		}
	}
	if many {
		maximum = -1
	}
	cmd.Args, cmd.ValidArgsFunction = arguments(minimum, maximum), values.complete(many)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := values.check(args, c.Nothing); err != nil {
			return err
		}
		control, err := p.client()
		if err != nil {
			return err
		}
		do := func(args ...string) error {
			values.take(args)
			asked := *in
			for _, do := range before {
				if err := do(cmd, control, &asked); err != nil {
					return err
				}
			}
			out, err := client.Call(cmd.Context(), control, o, asked)
			if err != nil || o.View == nil {
				return err
			}
			if o.Warns != nil {
				if text := o.Warns(out); text != "" {
					fmt.Fprintf(cmd.ErrOrStderr(), "clawjail: warning: %s\n", printable(text)) // the answer is there
				}
			}
			if asJSON {
				err = writeJSON(cmd.OutOrStdout(), listed(out))
			} else {
				err = p.show(cmd, o.View(out))
			}
			if err != nil || o.Fails == nil {
				return err
			}
			return o.Fails(out)
		}
		if many {
			last := len(values.args) - 1
			return each(cmd, args[last:], func(arg string) error { return do(append(args[:last:last], arg)...) })
		}
		return do(args...)
	}
	if o.View != nil {
		cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	}
	if c.Key {
		p.keyFile(cmd)
	}
	return cmd
}

// given is what somebody gives to a command, and where it goes.
type given struct {
	p    *program
	cmd  *cobra.Command
	args []argument
	// flags are looked at in their order before anybody is asked.
	flags          []func() error
	names, without []string
}

type argument struct {
	op.Field
	at reflect.Value
}

func (g *given) add(in reflect.Value) {
	for _, f := range op.FieldsOf(in.Type()) {
		at := in.FieldByIndex(f.Index)
		if f.Tag.Get("arg") != "" {
			g.args = append(g.args, argument{f, at})
		}
		switch name, letter, _ := strings.Cut(f.Tag.Get("flag"), ","); {
		case slices.Contains(g.without, name):
		case name != "":
			g.flag(name, letter, f, at)
		case at.Kind() == reflect.Struct:
			g.add(at)
		}
	}
	slices.SortFunc(g.args, func(a, b argument) int { return strings.Compare(a.Tag.Get("arg"), b.Tag.Get("arg")) })
}

// flag adds a flag for a field. Other types than these are a mistake in a description, and no command is made then.
func (g *given) flag(name, letter string, f op.Field, at reflect.Value) {
	text, flags := cmp.Or(f.Tag.Get("usage"), f.Tag.Get("doc")), g.cmd.Flags()
	if word := f.Tag.Get("value"); word != "" {
		text = strings.Replace(text, word, "`"+word+"`", 1)
	}
	g.names = append(g.names, name)
	switch to := at.Addr().Interface().(type) {
	case *bool:
		value := flags.BoolP(name, letter, false, text)
		g.flags = append(g.flags, func() error {
			*to = *value != (f.Tag.Get("is") == "absent")
			return nil
		})
	case **bool:
		keep(g, name, to, flags.Bool(name, false, text))
	case **int:
		keep(g, name, to, flags.Int(name, 0, text))
	case **float64:
		keep(g, name, to, flags.Float64(name, 0, text))
	case *int:
		number, _ := strconv.Atoi(f.Tag.Get("default")) // without one, it is 0
		flags.IntVar(to, name, number, text)
		g.flags = append(g.flags, func() error {
			if f.Tag.Get("is") == "positive" && flags.Changed(name) && *to < 1 {
				return usage(g.cmd, "--%s %d: it is at least 1", name, *to)
			}
			return nil
		})
	case *int64:
		flags.Int64Var(to, name, 0, text)
	case *float64:
		flags.Float64Var(to, name, 0, text)
	case *[]string:
		if f.Tag.Get("is") == "scope" {
			g.scope(name, text, strings.Split(f.Tag.Get("offer"), ","), to)
			break
		}
		words := flags.StringSlice(name, nil, text)
		g.flags = append(g.flags, func() error {
			if *to = *words; f.Tag.Get("is") == "methods" {
				*to = upper(*words)
			}
			return nil
		})
	case *[]egress.Allowance:
		g.each(name, text, f, parsed(to, egress.ParseAllowance))
	case *[]egress.Price:
		g.each(name, text, f, parsed(to, egress.ParsePrice))
	case *map[string]string:
		*to = map[string]string{}
		g.each(name, text, f, func(word string) bool {
			key, value, ok := strings.Cut(word, "=")
			(*to)[key] = value
			return ok && key != ""
		})
	case *egress.Injection:
		flags.StringVar((*string)(&to.Type), name, "", text)
		flags.StringVar(&to.Name, name+"-name", "", "`name` of the header or the query parameter")
		if strings.Contains(f.Tag.Get("offer"), string(egress.InjectBasic)) {
			flags.StringVar(&to.User, "user", "", "user `name` of basic; without it the secret is user:password")
		}
	case *time.Time:
		word := flags.String(name, "", text)
		g.flags = append(g.flags, func() (err error) {
			*to, err = moment(g.cmd, name, *word, g.p.now())
			return err
		})
	case *netip.Addr:
		at := flags.String(name, "", text)
		g.flags = append(g.flags, func() (err error) {
			*to, err = address(g.cmd, *at)
			return err
		})
	default:
		value := at.Addr().Convert(reflect.TypeFor[*string]()).Interface().(*string)
		if name == "tenant" {
			g.p.tenantFlag(g.cmd, value)
			break
		}
		flags.StringVar(value, name, "", text)
		g.flags = append(g.flags, func() error { return g.look(name, f, *value) })
	}
	if f.Tag.Get("is") == "natural" {
		g.flags = append(g.flags, func() error {
			if at.CanInt() && at.Int() < 0 || at.CanFloat() && !(at.Float() >= 0) {
				return usage(g.cmd, "--%s %v: it is at least 0", name, at)
			}
			return nil
		})
	}
	if need := f.Tag.Get("need"); need != "" {
		g.flags = append(g.flags, func() error {
			if at.IsZero() || at.Kind() == reflect.Slice && at.Len() == 0 {
				return usage(g.cmd, "%s", need)
			}
			return nil
		})
	}
	if others := f.Tag.Get("alone"); others != "" {
		for other := range strings.SplitSeq(others, ",") {
			g.flags = append(g.flags, func() error { return exclusive(g.cmd, other, name) })
		}
	}
	if whose := f.Tag.Get("complete"); whose != "" {
		g.p.completeFlag(g.cmd, name, namesBy(whose))
	} else if words := cmp.Or(f.Tag.Get("offer"), f.Tag.Get("enum")); words != "" {
		complete(g.cmd, name, strings.Split(words, ",")...)
	}
}

// keep gives a field the value of its flag, where that was said.
func keep[T any](g *given, name string, to **T, value *T) {
	g.flags = append(g.flags, func() error {
		if g.cmd.Flags().Changed(name) {
			*to = value
		}
		return nil
	})
}

// each adds a flag that may be repeated, each time with a text of a form of its own.
func (g *given) each(name, text string, f op.Field, read func(string) bool) {
	words := g.cmd.Flags().StringArray(name, nil, text)
	g.flags = append(g.flags, func() error {
		for _, word := range *words {
			if !read(word) {
				return usage(g.cmd, "--%s %q: %s", name, word, f.Tag.Get("read"))
			}
		}
		return nil
	})
}

func parsed[T any](to *[]T, parse func(string) (T, error)) func(string) bool {
	return func(text string) bool {
		one, err := parse(text)
		*to = append(*to, one)
		return err == nil
	}
}

// scope adds a flag that is one of some words. The last of them is a list of none.
func (g *given) scope(name, text string, words []string, to *[]string) {
	word := g.cmd.Flags().String(name, "", text)
	g.flags = append(g.flags, func() error {
		last := len(words) - 1
		switch n := slices.Index(words, *word); {
		case !g.cmd.Flags().Changed(name):
		case n < 0:
			return usage(g.cmd, "--%s is %s or %s, not %q", name, strings.Join(words[:last], ", "), words[last], *word)
		case n == last:
			*to = []string{}
		default:
			*to = []string{*word}
		}
		return nil
	})
}

// look refuses what a flag cannot be.
func (g *given) look(name string, f op.Field, text string) error {
	switch f.Tag.Get("is") {
	case "life":
		if text != op.Never {
			return duration(g.cmd, name, text)
		}
	case "one":
		if words := strings.Split(f.Tag.Get("enum"), ","); text != "" && !slices.Contains(words, text) {
			return usage(g.cmd, "--%s %q is neither %s", name, text, strings.Join(words, " nor "))
		}
	case "day":
		if _, err := time.Parse(time.DateOnly, text); text != "" && err != nil {
			return usage(g.cmd, "--%s %q is not a day: write it like 2026-01-31", name, text)
		}
	case "span":
		return span(g.cmd, name, text)
	case "duration":
		return duration(g.cmd, name, text)
	}
	return nil
}

// check refuses what is wrong before anybody is asked.
func (g *given) check(args []string, nothing string) error {
	for n, a := range g.args {
		if words := strings.Split(a.Tag.Get("enum"), ","); words[0] != "" && !slices.Contains(words, args[n]) {
			return usage(g.cmd, "%q is neither %s", args[n], strings.Join(words, " nor "))
		}
	}
	if nothing != "" && !slices.ContainsFunc(g.names, g.cmd.Flags().Changed) {
		return usage(g.cmd, "%s", nothing)
	}
	for _, check := range g.flags {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// take takes the arguments.
func (g *given) take(args []string) {
	for n, arg := range args {
		g.args[n].at.SetString(arg)
	}
}

// complete offers the words of the argument that is next; with many, the last one is there again and again.
func (g *given) complete(many bool) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		n := len(args)
		if many {
			n = min(n, len(g.args)-1)
		}
		if n < len(g.args) {
			tag := g.args[n].Tag
			if whose := tag.Get("complete"); whose != "" {
				return g.p.completer(namesBy(whose, args...))(cmd, args, begun)
			}
			if words := tag.Get("enum"); words != "" {
				return strings.Split(words, ","), cobra.ShellCompDirectiveNoFileComp
			}
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}

// namesBy are the names that a description offers, behind those arguments. One that is not here is a mistake in it, and no command is made then.
func namesBy(whose string, behind ...string) names {
	first := ""
	if len(behind) > 0 {
		first = behind[0]
	}
	known, ok := map[string]names{
		"nodes": nodeNames, "tenants": tenantNames, "operators": operatorIDs, "agents": agentNames, "accounts": domainsOfSets, "allowed accounts": domainsAllowed,
		"mcp servers": mcpServerNames, "access": accessIDs, "rules": ruleIDs, "secrets": serviceNames, "services": namesOfEntries(serviceEntries), "providers": namesOfEntries(providerEntries), "sessions": sessionIDs, "recordings": recordingIDs,
		"tokens": agentTokenIDs(first), "session tokens": sessionTokenIDs(first), "processes": processIDs(first), "sign-ins": signInIDs,
	}[whose]
	if !ok {
		panic("nobody knows the names of " + whose)
	}
	return known
}

// listed is an answer for programs: of one that has a list and nothing else, the list. Why it is not all is no part of it.
func listed(out any) any {
	v := reflect.ValueOf(out)
	for n := 1; n < v.NumField(); n++ {
		if v.Field(n).Type() != reflect.TypeFor[*op.Problem]() && !v.Field(n).IsZero() {
			return out
		}
	}
	if v.NumField() > 0 && v.Field(0).Kind() == reflect.Slice {
		return v.Field(0).Interface()
	}
	return out
}

// show writes an answer for people.
func (p *program) show(cmd *cobra.Command, blocks []op.Block) error {
	for _, b := range blocks {
		w := cmd.OutOrStdout()
		if b.Aside {
			w = cmd.ErrOrStderr()
		}
		var err error
		switch {
		case b.Table != nil:
			err = table(w, rowsOf(b, p.now()))
		case b.Pairs != nil:
			var pairs [][2]string
			for _, pair := range b.Pairs {
				pairs = append(pairs, [2]string{fmt.Sprint(pair[0]), legible(pair[1], p.now())})
			}
			err = fields(w, pairs)
		default:
			var args []any
			for _, arg := range b.Args {
				args = append(args, legible(arg, p.now()))
			}
			_, err = fmt.Fprintf(w, b.Line+"\n", args...)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// rowsOf are the rows of a table.
func rowsOf(b op.Block, now time.Time) (rows [][]string) {
	for _, row := range b.Table {
		var cells []string
		for _, cell := range row {
			cells = append(cells, dash(legible(cell, now)))
		}
		rows = append(rows, cells)
	}
	if b.Folds > 0 {
		return manyTenants(rows, b.Folds-1)
	}
	return rows
}

// legible is a value as people read it, and no terminal obeys it.
func legible(value any, now time.Time) string {
	switch v := value.(type) {
	case time.Time:
		return when(v, now)
	case bool:
		return yesNo(v)
	case op.Age:
		return since(time.Time(v), now)
	case op.Ends:
		return until(time.Time(v), now)
	case op.Deadline:
		return when(time.Time(v), now) + " (" + age(time.Time(v).Sub(now)) + ")"
	case op.Bytes:
		return size(int64(v))
	case op.Key:
		return keyState(v.Revoked, v.Expires, now)
	case op.Count:
		return count(v.N, v.Of)
	case op.Joined:
		var b strings.Builder
		for _, part := range v {
			b.WriteString(legible(part, now))
		}
		return b.String()
	case []string:
		return printable(strings.Join(v, ","))
	case float64:
		return strconv.FormatFloat(v, 'f', 4, 64)
	}
	return printable(fmt.Sprint(value))
}
