package clawbots

import (
	"errors"
	"fmt"
	"path"
	"slices"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/config/yamldoc"
	"github.com/clawjail/clawjail/internal/problem"
)

// Bounds of a file.
const (
	MaxAgents = 500
	MaxText   = 1 << 20 // bytes

	maxFlaws    = 100 // that are reported
	maxEnv      = 128
	maxEnvValue = 16 << 10 // bytes
	maxPath     = 1024     // bytes of a workspace
)

// DefaultCommand is what runs in the jail of an agent that has no command: a small program of the default template that
// reads its token, says hello to the gateway and shows that it is alive.
const DefaultCommand = "/usr/local/bin/clawbot"

// Parse reads a file. Source is its name in messages, and dir the absolute folder at which its relative paths start. The
// error is a *problem.ValidationError with every mistake at its place, in the order of the file; [Explain] shows it. It never holds
// what looks like a secret.
func Parse(source string, text []byte, dir string) (File, error) {
	flaws := problem.ValidationError{Code: problem.BadRequest, Source: source}
	if !path.IsAbs(dir) || len(dir) > maxPath {
		flaws.Add("", "the folder at which relative paths start is not known: %.80q is not an absolute path", dir)
	}
	if len(text) > MaxText {
		flaws.Add("", "has %d bytes, more than %d", len(text), MaxText)
	}
	if err := flaws.Err(); err != nil {
		return File{}, err
	}
	f := &file{source: source, dir: dir}
	doc := yamldoc.Read(source, text, f.read)
	f.decide()
	for _, flaw := range f.late.Flaws {
		doc.Report(flaw)
	}
	if err := doc.Err(); err != nil {
		return File{}, presentable(err)
	}
	return File{Source: source, Agents: f.agents, doc: doc, fields: f.fields}, nil
}

// Place is where in the file a field of an agent is, such as workspace or mcp[0], or where the agent is when the file does not
// have the field. Zero is "not known".
func (f File) Place(name, field string) (line, column int) {
	i := slices.IndexFunc(f.Agents, func(a Agent) bool { return a.Name == name })
	if f.doc == nil || i < 0 {
		return 0, 0
	}
	return f.doc.Place(f.fields[i] + "." + field)
}

// file is a file that is being read.
type file struct {
	source string
	dir    string
	agents []Agent
	fields []string // of the agents, such as clawbots[0]
	late   problem.ValidationError
}

func (f *file) read(m *yamldoc.Map) {
	m.Need("begin with the line clawbots:, and clawbots: [] declares none", "has no list of agents", "clawbots")
	if n := m.Length("clawbots"); n > MaxAgents {
		f.flaw(fmt.Sprintf("clawbots[%d]", MaxAgents), "make several files of it", "there are %d agents, more than %d", n, MaxAgents)
	}
	m.Maps("clawbots", func(m *yamldoc.Map) {
		if len(f.agents) >= MaxAgents {
			m.Skip()
			return
		}
		f.agents = append(f.agents, f.agent(m))
		f.fields = append(f.fields, m.Field())
	})
}

// flaw reports what is found after reading, at the place of the field or of what encloses it.
func (f *file) flaw(field, hint, format string, args ...any) {
	f.late.AddFlaw(problem.Flaw{Field: field, Hint: hint, Message: fmt.Sprintf(format, args...)})
}

// wrong is flaw for an error, where there is one.
func (f *file) wrong(field string, err error) {
	if p, ok := problem.As(err); ok {
		f.flaw(field, p.Hint, "%s", p.Message)
	} else if err != nil {
		f.flaw(field, "", "%s", err)
	}
}

// presentable gives the error the code of a bad request, bounds it, and takes out what looks like a secret: somebody's key may
// stand where it does not belong.
func presentable(err error) error {
	var many *problem.ValidationError
	if !errors.As(err, &many) {
		return err
	}
	out := &problem.ValidationError{Code: problem.BadRequest, Source: many.Source}
	for i, flaw := range many.Flaws {
		if i == maxFlaws {
			out.Add("", "there are %d more mistakes", len(many.Flaws)-i)
			break
		}
		flaw.Field, flaw.Message, flaw.Hint = mask(texts.Clip(flaw.Field, 400)), mask(texts.Clip(flaw.Message, 400)), mask(texts.Clip(flaw.Hint, 400))
		out.AddFlaw(flaw)
	}
	return out
}
