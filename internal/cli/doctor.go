package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/doctor"
	"github.com/clawjail/clawjail/internal/hostcmd"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/jail/zfs"
	"github.com/clawjail/clawjail/internal/jailspawn"
	"github.com/clawjail/clawjail/internal/problem"
)

func newDoctorCommand(p *program) *cobra.Command {
	var asJSON, cluster bool
	var record string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find out what this machine can do for clawjail, by trying it",
		Long: "Tries what jails are made of (a clone, a cgroup, a firewall table, a network slot, a browser with its own sandbox) and says what " +
			"does not work and what to do about it. Each trial is undone, and running jails are not touched. Without root it does what it can.\n\n" +
			"Where jails are pods of a cluster it asks the API server what there is and what may be done, and starts a browser in a pod. " +
			"With --kubernetes it fails where the configuration names no cluster.\n\n" +
			"With --record, on FreeBSD, it writes down what the host's commands answer, for the tests of clawjail: what only looks, and a try that " +
			"makes and removes a dataset, two interfaces, an address in a table and an empty jail. Names and addresses of the host are masked.",
		Example: "  sudo clawjail doctor\n  sudo clawjail doctor --json\n  sudo clawjail doctor --record host.jsonl",
		Args:    arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			o, err := p.doctorOptions(ctx)
			if err != nil {
				return err
			}
			if cluster && o.ConfigErr == nil && !o.Config.Kubernetes.On() {
				return problem.New(problem.BadConfig, "set kubernetes.namespace, and what docs/kubernetes.md says besides", "the configuration names no cluster")
			}
			if record != "" {
				if o.ConfigErr != nil {
					return o.ConfigErr
				}
				return recordHost(cmd, o.Config, record, p.now)
			}
			if runtime.GOOS == "freebsd" {
				o.Spawn = func(ctx context.Context) (string, error) { return p.examineSpawn(ctx, o.Config) }
			}
			o.Slow = func(check string, bound time.Duration) {
				fmt.Fprintf(cmd.ErrOrStderr(), "%s is still being tried; it may take %s\n", check, bound)
			}
			report := doctor.Run(ctx, o, doctor.ThisHost(o))
			if asJSON {
				err = writeJSON(cmd.OutOrStdout(), report)
			} else {
				_, signs := terminal(cmd.OutOrStdout())
				err = report.Write(cmd.OutOrStdout(), signs)
			}
			if err != nil {
				return err
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if failed := report.Count(doctor.Fail); failed > 0 {
				return problem.New(problem.Unsupported, "do what the hints say, then run it again",
					"%d of %d checks failed", failed, len(report.Checks))
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&cluster, "kubernetes", false, "fail where the configuration names no cluster, and jails are not pods")
	cmd.Flags().StringVar(&record, "record", "", "write what this FreeBSD host's commands answer to a new `file`, and examine nothing")
	return cmd
}

// doctorOptions are for this machine. A configuration that cannot be read is one of the things that a doctor tells.
func (p *program) doctorOptions(ctx context.Context) (doctor.Options, error) {
	o := doctor.Options{ConfigPath: p.configFile(), Pace: p.pace(ctx)}
	load := config.Load
	if os.Geteuid() == 0 {
		load = config.LoadTrusted // as the host daemon reads it
	}
	if o.Config, o.ConfigErr = load(o.ConfigPath); o.ConfigErr != nil {
		o.Config = config.Default() // the rest of the machine is worth looking at all the same
	}
	url, err := p.controlURL(o.Config)
	if err != nil {
		return o, err
	}
	o.ControlURL = url.String()
	return o, nil
}

// examineSpawn is the privilege mode that programs would be spawned with, and why it would not work.
func (p *program) examineSpawn(ctx context.Context, c config.Config) (string, error) {
	mode, err := jailspawn.ChooseMode(p.getenv("CLAWJAIL_PRIV_MODE"), func() bool {
		_, err := hostd.NewClient(hostd.SocketPath(c), nil).Info(ctx)
		return err == nil
	})
	if err != nil || mode == jailspawn.ModeHostd {
		return string(mode), err
	}
	return string(mode), jailspawn.Probe(ctx, jailspawn.Options{Mode: mode, UID: os.Geteuid()}).Err()
}

// recordedTemplate is the dataset of the browser's template, or nothing when there is none: then the recording does without.
func recordedTemplate(ctx context.Context, c config.Config) string {
	d, err := zfs.New(hostcmd.Runner{}, c.ZFSDataset)
	if err != nil {
		return ""
	}
	name, err := zfs.NewTrees(d).Dataset(ctx, filepath.Join(c.TemplatesDir, "browser", "rootfs"))
	if err != nil {
		return ""
	}
	return d.Full(name)
}

// recordHost writes a transcript of this host to a new file. Nothing of it stays when that fails.
func recordHost(cmd *cobra.Command, c config.Config, file string, now func() time.Time) (err error) {
	if runtime.GOOS != "freebsd" {
		return problem.New(problem.Unsupported, "run it on a FreeBSD host", "a recording is of the commands of a FreeBSD host")
	}
	if err := needRoot(cmd); err != nil {
		return err
	}
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("read the name of this host: %w", err)
	}
	if err := os.MkdirAll(c.RunDir, 0o755); err != nil {
		return fmt.Errorf("make the folder of the recording's jail: %w", err)
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return problem.New(problem.Conflict, "remove it, or name another", "there is a file %s already", file)
	}
	if err != nil {
		return fmt.Errorf("write the recording: %w", err)
	}
	err = doctor.Record(cmd.Context(), doctor.RecordOptions{Dataset: c.ZFSDataset, Template: recordedTemplate(cmd.Context(), c), Dir: c.RunDir, HostName: host, Now: now, To: f})
	if err := errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(file))
	}
	return said(cmd, "%s has what the commands of this host answered; look through it before you give it to anybody", file)
}
