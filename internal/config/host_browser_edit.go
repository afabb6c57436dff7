package config

import (
	"net/netip"
	"reflect"
	"strconv"

	"github.com/clawjail/clawjail/internal/config/yamldoc"
	"github.com/clawjail/clawjail/internal/problem"
)

// Contents is the text of a configuration file, for [Environment.EditHostBrowser].
func Contents(path string) ([]byte, error) {
	data, _, err := read(path)
	return data, err
}

// ParseListen reads an address and a port, as the keys called listen have them. Empty is none.
func ParseListen(text string) (netip.AddrPort, error) {
	if text == "" {
		return netip.AddrPort{}, nil
	}
	return parseListen(text)
}

// EditHostBrowser returns the text of a configuration file with other settings of the host browser. Only what differs is
// written; comments and all other keys stay as they are. The error for wrong settings is a *problem.Many.
func (e Environment) EditHostBrowser(source string, data []byte, to HostBrowser) ([]byte, error) {
	if err := to.Validate(); err != nil {
		return nil, err
	}
	want, err := e.Parse(source, data)
	if err != nil {
		return nil, err
	}
	before := want.HostBrowser.written()
	for n, s := range to.written() {
		if s.value == before[n].value {
			continue
		}
		if data, err = yamldoc.Set(data, s.value, append([]string{"browser"}, s.path...)...); err != nil {
			return nil, err
		}
	}
	want.HostBrowser = to
	if len(data) > largest {
		return nil, problem.New(problem.BadConfig, "write less into it", "the configuration would be larger than %s", Bytes(largest))
	}
	// The next reading of the file must give what was wanted, to the last key.
	got, err := e.Parse(source, data)
	if err != nil {
		return nil, err
	}
	if !reflect.DeepEqual(want, got) {
		return nil, problem.New(problem.BadConfig, "change it in an editor", "the configuration %s cannot be changed by a program, as it is written", source)
	}
	return data, nil
}

// setting is one value as the file has it.
type setting struct {
	path  []string
	value string
}

// written are the settings as the file has them, always in the same order.
func (b HostBrowser) written() []setting {
	listen := ""
	if b.Remote.On() {
		listen = b.Remote.Listen.String()
	}
	return []setting{
		{[]string{"enabled"}, strconv.FormatBool(b.Enabled)},
		{[]string{"control_url"}, yamldoc.Quote(b.ControlURL)},
		{[]string{"color"}, yamldoc.Quote(b.Color)},
		{[]string{"headless"}, string(b.Headless)},
		{[]string{"attach_only"}, strconv.FormatBool(b.AttachOnly)},
		{[]string{"executable"}, yamldoc.Quote(b.Executable)},
		{[]string{"listen"}, yamldoc.Quote(listen)},
		{[]string{"tls", "cert"}, yamldoc.Quote(b.Remote.TLS.Cert)},
		{[]string{"tls", "key"}, yamldoc.Quote(b.Remote.TLS.Key)},
		{[]string{"token"}, yamldoc.Quote(b.Remote.Token)},
	}
}
