package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/agent/compose"
	"github.com/clawjail/clawjail/internal/clawbots"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

const (
	// composeFile is where the file for docker-compose goes, where nothing else is said.
	composeFile   = "docker-compose.clawbots.yml"
	composeTokens = "./.clawbots"
	composeMark   = "# Made from "
)

// composeOptions are what a file for docker-compose was asked for.
type composeOptions struct {
	file, output, subnet string
	compose              compose.Options
	only                 []string
}

func newAgentCompose(p *program) *cobra.Command {
	var o composeOptions
	cmd := &cobra.Command{
		Use:   "compose [NAME…]",
		Short: "Write clawbots.yml as a file for docker-compose",
		Long: "Writes a file for docker-compose with the containers that `clawjail agent sync` would make, confined in the same way. Nothing is " +
			"asked of the control plane. What docker-compose cannot do stands at the head of the file.",
		Example:           "  clawjail agent compose\n  clawjail agent compose -f agents/clawbots.yml -o - | less",
		Args:              arguments(0, -1),
		ValidArgsFunction: completeDeclared(&o.file),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.only = args
			return p.compose(cmd, o)
		},
	}
	fileFlag(cmd, &o.file)
	f := cmd.Flags()
	f.StringVarP(&o.output, "output", "o", composeFile, "`file` to write; - is standard output")
	f.StringVar(&o.subnet, "subnet", "", "`network` of agents' containers (default docker.subnet of the configuration)")
	f.StringVar(&o.compose.Tokens, "tokens", composeTokens, "`folder` with the folder of each agent's token")
	f.StringVar(&o.compose.Tenant, "tenant", store.DefaultTenant, "`tenant` whose they are")
	return cmd
}

func (p *program) compose(cmd *cobra.Command, o composeOptions) error {
	c, err := p.config()
	if err != nil {
		return err
	}
	text, err := readDeclarations(o.file, input(cmd))
	if err != nil {
		return err
	}
	dir, err := whereItStarts(o.file)
	if err != nil {
		return err
	}
	file, err := clawbots.Parse(o.file, text, dir)
	if err != nil {
		return mistakes(cmd.ErrOrStderr(), o.file, text, err)
	}
	for _, name := range o.only {
		if !slices.ContainsFunc(file.Agents, func(a clawbots.Agent) bool { return a.Name == name }) {
			return problem.New(problem.NotFound, "the names are in the file", "%s declares no agent %s", o.file, printable(name))
		}
	}
	if len(o.only) > 0 {
		file.Agents = slices.DeleteFunc(file.Agents, func(a clawbots.Agent) bool { return !slices.Contains(o.only, a.Name) })
	}
	o.compose.Image, o.compose.Limits, o.compose.Subnet = c.Docker.Image, c.Agents.Limits, c.Docker.Subnet
	o.compose.Port = c.Gateway.Port
	if o.subnet == "" && !o.compose.Subnet.IsValid() {
		return usage(cmd, "the network is missing: write docker.subnet into the configuration, or name it with --subnet")
	}
	if o.subnet != "" {
		if o.compose.Subnet, err = netip.ParsePrefix(o.subnet); err != nil {
			return usage(cmd, "--subnet %q is not a network such as 10.214.0.0/24", o.subnet)
		}
	}
	if strings.HasPrefix(o.compose.Tokens, "./") { // beside the file
		if o.compose.Tokens, err = filepath.Abs(filepath.Join(filepath.Dir(o.output), o.compose.Tokens)); err != nil {
			return fmt.Errorf("find the folder of the tokens: %w", err)
		}
	}
	if o.output != standardInput {
		if err := ownCompose(o.output); err != nil {
			return err
		}
	}
	made, err := output(cmd, o.output, 0o644, func(w io.Writer) error { return compose.Write(w, file, o.compose) })
	if err != nil || !made {
		return err
	}
	_, err = fmt.Fprintf(cmd.ErrOrStderr(), "wrote %s with %s; what to do before it is used stands at its head\n", filepath.ToSlash(o.output), count(len(file.Agents), "agent"))
	return err
}

// ownCompose refuses to write over a file that somebody else has made.
func ownCompose(path string) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !info.Mode().IsRegular() { // a device or a pipe has nothing to lose
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at %s: %w", path, err)
	}
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("look at %s: %w", path, err)
	}
	defer f.Close() // it was read
	begin := make([]byte, len(composeMark))
	if _, err := io.ReadFull(f, begin); err != nil || !strings.HasPrefix(string(begin), composeMark) {
		return problem.New(problem.Conflict, "name another one with -o", "%s is there, and is not one that clawjail has made", path)
	}
	return nil
}
