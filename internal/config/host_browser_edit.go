package config

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"

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
// written; comments and all other keys stay as they are. The error for wrong settings is a *problem.ValidationError.
func (e Environment) EditHostBrowser(source string, data []byte, to HostBrowser) ([]byte, error) {
	if err := to.Validate(); err != nil {
		return nil, err
	}
	want, err := e.Parse(source, data)
	if err != nil {
		return nil, err
	}
	before := map[string]string{}
	want.HostBrowser.written(func(path, value string) { before[path] = value })
	to.written(func(path, value string) {
		if err == nil && value != before[path] {
			data, err = yamldoc.Set(data, value, strings.Split(path, ".")...)
		}
	})
	if err != nil {
		return nil, err
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

// written tells the settings as the file has them, always in the same order.
func (b HostBrowser) written(tell func(path, value string)) {
	yamldoc.Walk(reflect.ValueOf(b), func(path string, at reflect.Value, tags reflect.StructTag) {
		value := fmt.Sprint(at)
		if listen, is := at.Interface().(netip.AddrPort); is && !listen.IsValid() {
			value = ""
		}
		if at.Kind() != reflect.Bool && tags.Get("enum") == "" {
			value = yamldoc.Quote(value)
		}
		tell("browser."+path, value)
	})
}
