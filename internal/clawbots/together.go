package clawbots

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/clawjail/clawjail/internal/config/yamldoc"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// Together is [Parse] for agents that are values already: it looks at every value, and decides what agents of one file would be to each
// other. The error has fields of the first agent as they are, and those of others with clawbots[n] before them.
func Together(agents ...Agent) ([]Agent, error) {
	f := &file{dir: "/", agents: slices.Clone(agents)}
	for i := range f.agents {
		f.fields = append(f.fields, fmt.Sprintf("clawbots[%d]", i))
		f.take(f.fields[i]+".", &f.agents[i])
	}
	f.decide()
	flaws := problem.ValidationError{Code: problem.BadRequest}
	for _, flaw := range f.late.Flaws {
		flaw.Field = strings.TrimPrefix(flaw.Field, "clawbots[0].")
		flaws.AddFlaw(flaw)
	}
	if err := flaws.Err(); err != nil {
		return nil, presentable(err)
	}
	return f.agents, nil
}

// take looks at what the readers of a file look at.
func (f *file) take(at string, a *Agent) {
	a.Line, a.Siblings, a.Accounts = 0, nil, slices.Clone(a.Accounts)
	f.look(at, *a)
	f.wrong(at+"name", jail.ValidAgentName(a.Name))
	f.madeOf(at, a.Template != "", a.Image != "")
	f.program(at+"command", a.Command, a.Image != "")
	if a.Workspace == "" {
		a.WorkspaceMode = ""
	} else {
		path, err := f.workspace(a.Workspace)
		a.Workspace, a.WorkspaceMode = path, cmp.Or(a.WorkspaceMode, ReadWrite)
		f.wrong(at+"workspace", err)
	}
	f.few(at+"env", "keys", len(a.Env), maxEnv)
	for _, name := range slices.Sorted(maps.Keys(a.Env)) {
		f.wrong(at+"env."+name, checkVariable(name, a.Env[name]))
	}
	for _, name := range a.Without {
		f.wrong(at+"env."+name, checkWithout(name))
	}
	for i, r := range a.Allow {
		f.wrong(fmt.Sprintf("%sallow[%d]", at, i), r.behind(a.Allow[:i]))
	}
	for i, t := range a.Tools {
		if t.URL == "" || len(t.Methods) == 0 {
			f.flaw(fmt.Sprintf("%stools[%d]", at, i), "", "a tool needs a url and methods")
		}
	}
	for i := range a.Accounts {
		f.wrong(fmt.Sprintf("%saccounts[%d]", at, i), a.Accounts[i].check(a.Accounts[:i]))
	}
}

// look looks at the values of a struct as the tags of its fields say, and at those of lists: most is how many of what one may have.
func (f *file) look(at string, of any) {
	yamldoc.Walk(reflect.ValueOf(of), func(path string, is reflect.Value, tags reflect.StructTag) {
		field := at + path
		if is.Kind() != reflect.Slice {
			if !is.IsZero() {
				f.wrong(field, allowed(is, tags, is))
			}
			return
		}
		number, what, _ := strings.Cut(tags.Get("most"), " ")
		if limit, err := strconv.Atoi(number); err == nil && !f.few(field, what, is.Len(), limit) {
			return
		}
		for i := range is.Len() {
			item, under := is.Index(i), fmt.Sprintf("%s[%d]", field, i)
			if item.Kind() != reflect.String {
				f.look(under+".", item.Interface())
				continue
			}
			err := allowed(item, tags, item)
			if err == nil && what == "names" && slices.Contains(is.Slice(0, i).Interface().([]string), item.String()) {
				err = problem.New(problem.BadRequest, "name it once", "%s is there already", item)
			}
			f.wrong(under, err)
		}
	})
}

// few says whether there are no more of something than there may be, and reports it.
func (f *file) few(field, what string, n, limit int) bool {
	if n > limit {
		f.flaw(field, "", "has %d %s, more than %d", n, what, limit)
	}
	return n <= limit
}
