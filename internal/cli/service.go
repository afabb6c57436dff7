package cli

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/client"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/problem"
)

func newServiceCommand(p *program) *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "service",
		Short: "Let agents use services with credentials that they never see",
		Long: "A service is an HTTP server whose requests the gateway makes itself, at /svc/NAME/ in a jail: it puts the credential in on the way " +
			"out, and takes it out of the answer. The credential is a secret of the vault: clawjail secret set NAME.",
	})
	cmd.AddCommand(newServiceAdd(p), described(p, op.ListServices()), newServiceShow(p), newServiceRemove(p))
	return cmd
}

// said prints a line about what was done.
func said(cmd *cobra.Command, format string, args ...any) error {
	for n, arg := range args {
		args[n] = printable(fmt.Sprint(arg))
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), format+"\n", args...)
	return err
}

// The services that are known.
const (
	presetGitHub   = "github"
	presetTelegram = "telegram"
)

// servicePreset fills in what is known of a service, and says what else there is to know.
func servicePreset(cmd *cobra.Command, name string, r *op.ServiceRequest) (note string, err error) {
	switch name {
	case "":
		r.Inject.Type = egress.InjectBearer
		return "", nil
	case presetGitHub:
		r.BaseURL, r.Git = "https://github.com", "https://github.com/"
		r.Inject = egress.Injection{Type: egress.InjectBasic, User: "x-access-token"}
		r.Allow = []egress.Allowance{
			{Methods: []string{"GET"}, Path: "/*/*/info/refs"},
			{Methods: []string{"POST"}, Path: "/*/*/git-upload-pack"},
			{Methods: []string{"POST"}, Path: "/*/*/git-receive-pack"},
		}
		return "this is for git; the API of GitHub is a service of its own: " +
			"clawjail service add github-api --url https://api.github.com --secret " + r.Secret + " --allow 'GET /**'; its secret has to be stored " +
			"for both: clawjail secret set " + r.Secret + " --origin https://github.com --origin https://api.github.com", nil
	case presetTelegram:
		r.BaseURL, r.Inject = "https://api.telegram.org/bot"+egress.Placeholder, egress.Injection{Type: egress.InjectPath}
		r.Allow = []egress.Allowance{{Methods: []string{"GET", "POST"}, Path: "/*"}}
		return "this is for the methods of a bot; files that it was sent are a service of their own: clawjail service add files-" + r.Name + " --url '" +
			"https://api.telegram.org/file/bot" + egress.Placeholder + "' --inject path --secret " + r.Secret + " --allow 'GET /**'; it allows all methods, also those that send what the bot gets elsewhere (setWebhook): --allow narrows it", nil
	}
	return "", usage(cmd, "there is no preset %q; there are github and telegram", name)
}

func newServiceAdd(p *program) *cobra.Command {
	var whose whoseFlags
	var flags op.ServiceRequest // what was said on the command line
	var preset, inject, at, scrub, compressed, slash string
	var allow, env []string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "add NAME",
		Short: "Make a service, or replace the one of the same name",
		Long: "Makes a service, or replaces the one of the same name, tenant and agent. --allow says what may be done, as METHODS PATH: the path is " +
			"below the URL of the service, * stands for one of its segments and ** at its end for any number; without methods it is all of them. " +
			"--inject says how the credential goes in; with path, {secret} in the path of the URL is where. --preset github fills in what git needs: " +
			"then `git clone https://github.com/…` works in a jail as it is. --preset telegram is for a bot, whose token is a part of the path.",
		Example: "  clawjail secret set github < token.txt\n  clawjail service add github --preset github --agent writer\n" +
			"  clawjail service add tracker --url https://tracker.example.com/api --inject header --inject-name X-Api-Key --allow 'GET,POST /issues/**'\n" +
			"  clawjail service add hooks --url 'https://hooks.example.com/{secret}' --inject path --allow 'POST /'",
		Args: arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := whose.check(cmd); err != nil {
				return err
			}
			request := op.ServiceRequest{Whose: whose.Whose, Name: args[0], Secret: flags.Secret, Note: flags.Note}
			if request.Secret == "" {
				request.Secret = args[0]
			}
			note, err := servicePreset(cmd, preset, &request)
			if err != nil {
				return err
			}
			changed := cmd.Flags().Changed
			if changed("url") {
				request.BaseURL = flags.BaseURL
			}
			if changed("git") {
				request.Git = flags.Git
			}
			if changed("inject") {
				request.Inject = egress.Injection{Type: egress.InjectionType(inject)}
			}
			if changed("inject-name") {
				request.Inject.Name = flags.Inject.Name
			}
			if changed("user") {
				request.Inject.User = flags.Inject.User
			}
			if len(allow) > 0 {
				if request.Allow, err = allowances(cmd, allow); err != nil {
					return err
				}
			}
			request.Scrub, request.Compressed, request.EncodedSlash = egress.Scrub(scrub), egress.Compressed(compressed), egress.EncodedSlash(slash)
			if request.Address, err = address(cmd, at); err != nil {
				return err
			}
			if request.Env, err = variables(cmd, env); err != nil {
				return err
			}
			switch {
			case request.BaseURL == "":
				return usage(cmd, "where the service is, is missing: --url https://api.example.com, or --preset github")
			case len(request.Allow) == 0:
				return usage(cmd, "what may be done is missing: --allow 'GET,POST /issues/**', or --allow '/**' for everything")
			}
			c, err := p.client()
			if err != nil {
				return err
			}
			made, err := client.Call(cmd.Context(), c, op.PutService(), op.NewService{Body: op.With(request)})
			if err != nil {
				return err
			}
			if note != "" {
				if _, err := fmt.Fprintln(cmd.ErrOrStderr(), note); err != nil {
					return err
				}
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), made)
			}
			return said(cmd, "service %s: %s", made.Name, made.BaseURL)
		},
	}
	whose.add(p, cmd)
	f := cmd.Flags()
	f.StringVar(&preset, "preset", "", "fill in what is known of a service: github or telegram")
	f.StringVar(&flags.BaseURL, "url", "", "base `URL`, such as https://api.example.com/v1")
	f.StringVar(&inject, "inject", "", "how the credential goes in: bearer, basic, header, query, path or none (default bearer)")
	f.StringVar(&flags.Inject.Name, "inject-name", "", "`name` of the header or the query parameter")
	f.StringVar(&flags.Inject.User, "user", "", "user `name` of basic; without it the secret is user:password")
	f.StringVar(&flags.Secret, "secret", "", "`name` of the secret in the vault (default the name of the service)")
	f.StringArrayVar(&allow, "allow", nil, "what may be done, as `'METHODS PATH'`; may be repeated")
	f.StringVar(&flags.Git, "git", "", "`prefix` of repository URLs that git in a jail takes to the service, such as https://git.example.com/")
	f.StringArrayVar(&env, "env", nil, "variable of tools in jails, as `K=V`, in which {url} stands for the service there; may be repeated")
	f.StringVar(&scrub, "scrub", "", "what becomes of an answer with the credential in it: redact or block (default redact)")
	f.StringVar(&compressed, "compressed", "", "what becomes of an answer that is compressed: decode or refuse (default decode)")
	f.StringVar(&slash, "encoded-slash", "", "what becomes of a path with %2F in it: deny, or allow for servers that have names with a slash, such as npm's and GitLab's (default deny)")
	f.StringVar(&at, "address", "", "private `address` to connect to; only an admin of the installation may")
	f.StringVar(&flags.Note, "note", "", "a `text` for people")
	f.BoolVar(&asJSON, "json", false, "print the service as JSON")
	p.completeFlag(cmd, "secret", serviceNames)
	complete(cmd, "preset", presetGitHub, presetTelegram)
	complete(cmd, "inject", string(egress.InjectBearer), string(egress.InjectBasic), string(egress.InjectHeader), string(egress.InjectQuery), string(egress.InjectPath), string(egress.InjectNone))
	complete(cmd, "scrub", string(egress.ScrubRedact), string(egress.ScrubBlock))
	complete(cmd, "encoded-slash", string(egress.EncodedSlashDeny), string(egress.EncodedSlashAllow))
	complete(cmd, "compressed", string(egress.CompressedDecode), string(egress.CompressedRefuse))
	return cmd
}

// allowances reads what may be done: METHODS PATH, or a path alone.
func allowances(cmd *cobra.Command, texts []string) (out []egress.Allowance, err error) {
	for _, text := range texts {
		one, err := egress.ParseAllowance(text)
		if err != nil {
			return nil, usage(cmd, "--allow %q: write methods and a path, such as 'GET,POST /issues/**', or '/**' for everything", text)
		}
		out = append(out, one)
	}
	return out, nil
}

// variables reads K=V.
func variables(cmd *cobra.Command, texts []string) (map[string]string, error) {
	out := map[string]string{}
	for _, text := range texts {
		name, value, ok := strings.Cut(text, "=")
		if !ok || name == "" {
			return nil, usage(cmd, "--env %q: write a name and a value, such as API_URL={url}", text)
		}
		out[name] = value
	}
	return out, nil
}

// entryFlags say which of several entries of a name it is.
type entryFlags struct{ tenant, agent string }

func (e *entryFlags) add(p *program, cmd *cobra.Command) {
	p.tenantFlag(cmd, &e.tenant)
	cmd.Flags().StringVar(&e.agent, "agent", "", "the one of the agent of this `name`")
	p.completeFlag(cmd, "agent", agentNames)
}

// entry is what a service or a provider is known by. It is an agent's own, a tenant's, or everybody's.
type entry struct{ id, name, tenant, agent string }

// theOne finds the service that a name, or an id, is of.
func theOne(e entryFlags, name string, all []op.Service) (op.Service, error) {
	var found []op.Service
	var ids []string
	for _, one := range all {
		if about := aboutService(one); about.id == name || about.name == name && (e.agent == "" || about.agent == e.agent) {
			found, ids = append(found, one), append(ids, about.id)
		}
	}
	switch len(found) {
	case 0:
		return op.Service{}, problem.New(problem.NotFound, "list them: clawjail service ls", "there is no service %q", name)
	case 1:
		return found[0], nil
	}
	return op.Service{}, problem.New(problem.Conflict, "say which, with --tenant or --agent, or by its id: "+strings.Join(ids, ", "),
		"there are %d of the name %q", len(found), name)
}

// theAdded finds the id of the entry that add has made for those, or the one of an id. Another one of the name is somebody else's: a
// removal that is repeated must not come to it.
func theAdded(whose op.Whose, what, name string, all []entry) (string, error) {
	var others []string
	for _, e := range all {
		if e.id == name || e == (entry{e.id, name, whose.Tenant, whose.Agent}) {
			return e.id, nil
		}
		if e.name == name {
			others = append(others, e.id)
		}
	}
	if len(others) > 0 {
		return "", problem.New(problem.NotFound, "say whose, as add does with --agent, --tenant or --all-tenants; or name its id: "+strings.Join(others, ", "),
			"there is no %s %q that was added so; somebody else has one", what, name)
	}
	return "", problem.New(problem.NotFound, "list them: clawjail "+what+" ls", "there is no %s %q", what, name)
}

// removal is the command that removes entries: those that add has made with the same flags.
func removal(p *program, what string, list func(ctx context.Context, c *client.Client, tenant string) ([]entry, error),
	remove func(ctx context.Context, c *client.Client, id string) error, complete names) *cobra.Command {
	var whose whoseFlags
	cmd := &cobra.Command{
		Use:     "rm NAME…",
		Aliases: []string{"remove"},
		Short:   "Remove " + what + "s; their secrets stay",
		Long: "Removes " + what + "s by name: those of the tenant that are for all its agents; with --agent those of one agent alone, and with " +
			"--all-tenants those of all tenants. What others have of the name stays. An id, as `ls --json` has it, is enough by itself.",
		Example:           "  clawjail " + what + " rm NAME --agent writer",
		Args:              arguments(1, -1),
		ValidArgsFunction: p.completeAll(complete),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := whose.check(cmd); err != nil {
				return err
			}
			c, err := p.client()
			if err != nil {
				return err
			}
			all, err := list(cmd.Context(), c, whose.Tenant)
			if err != nil {
				return err
			}
			of := whose.Whose
			if !of.AllTenants {
				if of.Tenant, err = tenantMeant(cmd.Context(), c, of.Tenant); err != nil {
					return err
				}
			}
			return each(cmd, args, func(name string) error {
				id, err := theAdded(of, what, name, all)
				if err != nil {
					return err
				}
				return remove(cmd.Context(), c, id)
			})
		},
	}
	whose.add(p, cmd)
	return cmd
}

func aboutService(s op.Service) entry {
	return entry{s.ID, s.Name, s.Tenant, cmp.Or(s.AgentName, s.Agent)}
}

func newServiceShow(p *program) *cobra.Command {
	var which entryFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:               "show NAME",
		Short:             "Show a service",
		Args:              arguments(1, 1),
		ValidArgsFunction: p.completeFirst(egressServiceNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := p.client()
			if err != nil {
				return err
			}
			all, err := client.Call(cmd.Context(), c, op.ListServices(), op.OfTenant{Tenant: which.tenant})
			if err != nil {
				return err
			}
			s, err := theOne(which, args[0], all.Services)
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), s)
			}
			return fields(cmd.OutOrStdout(), serviceFields(s, p.now()))
		},
	}
	which.add(p, cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func serviceFields(s op.Service, now time.Time) [][2]string {
	tenant, agent := forWhom(s.Meta, s.AgentName)
	at := ""
	if s.Address.IsValid() {
		at = s.Address.String()
	}
	out := [][2]string{{"name", printable(s.Name)}, {"id", s.ID}, {"tenant", tenant}, {"agent", agent}, {"url", printable(s.BaseURL)}, {"address", at},
		{"credential", printable(s.Credential())}, {"secret", printable(s.Secret)}, {"scrub", printable(string(s.Scrub))},
		{"compressed", printable(string(s.Compressed))}, {"encoded slash", printable(string(s.EncodedSlash))}, {"git", printable(s.Git)}}
	for _, text := range s.Allows() {
		out = append(out, [2]string{"allows", printable(text)})
	}
	for _, name := range slices.Sorted(maps.Keys(s.Env)) {
		out = append(out, [2]string{"env", printable(name + "=" + s.Env[name])})
	}
	return append(out, [2]string{"note", printable(s.Note)}, [2]string{"made", when(s.CreatedAt, now)}, [2]string{"by", printable(s.CreatedBy)})
}

func newServiceRemove(p *program) *cobra.Command {
	return removal(p, "service", func(ctx context.Context, c *client.Client, tenant string) (out []entry, err error) {
		all, err := client.Call(ctx, c, op.ListServices(), op.OfTenant{Tenant: tenant})
		for _, s := range all.Services {
			out = append(out, aboutService(s))
		}
		return out, err
	}, func(ctx context.Context, c *client.Client, id string) error {
		return client.Do(ctx, c, op.RemoveService(), op.ServiceNamed{ID: id})
	}, egressServiceNames)
}

func egressServiceNames(ctx context.Context, c *client.Client, tenant string) ([]string, error) {
	all, err := client.Call(ctx, c, op.ListServices(), op.OfTenant{Tenant: tenant})
	return namesOf(all.Services, err, func(s op.Service) (string, string) { return s.Name, s.BaseURL })
}
