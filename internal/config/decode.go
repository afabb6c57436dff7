package config

import (
	"math"
	"net/netip"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/config/yamldoc"
	"github.com/clawjail/clawjail/internal/problem"
)

// decode takes every known key out of the file. A key that it cannot read keeps its default, so that Validate does not
// report it a second time.
func (c *Config) decode(m *yamldoc.Map) {
	m.Struct(c, readValue)
	m.Struct(&c.Agents.AgentRoots, readValue)
}

// readValue is a [yamldoc.ReadFunc]. The field's tag enum has the words that it can be; a truth with words is the second one.
func readValue(into any, tags reflect.StructTag, v yamldoc.Value) (err error) {
	switch into := into.(type) {
	case *Bytes:
		*into, err = ParseBytes(v.Text)
	case *time.Duration:
		if *into, err = texts.Duration(v.Text); err != nil {
			err = problem.New(problem.BadConfig, "write a number with s, m, h or d, such as 30m", "%q is not a duration", v.Text)
		}
	case *netip.AddrPort:
		*into, err = parseListen(v.Text)
	case *netip.Addr:
		if *into, err = netip.ParseAddr(v.Text); err != nil {
			err = problem.New(problem.BadConfig, "write an IP address, such as 10.1.2.3", "%q is not an IP address", v.Text)
		}
	case *netip.Prefix:
		if *into, err = netip.ParsePrefix(v.Text); err != nil {
			err = problem.New(problem.BadConfig, "write a network, such as 10.90.0.0/20", "%q is not a network", v.Text)
		}
	case *int:
		if strings.Contains(tags.Get("yaml"), ",percent") {
			*into, err = parsePercent(v.Text)
		} else {
			*into, err = whole[int](v, math.MaxInt32)
		}
	case *uint16:
		*into, err = whole[uint16](v, math.MaxUint16)
	case *uint32:
		*into, err = whole[uint32](v, math.MaxUint32)
	case *float64:
		*into, err = v.Number()
	case **bool:
		*into = new(bool)
		**into, err = v.Bool()
	case *bool:
		if words := strings.Split(tags.Get("enum"), ","); len(words) > 1 {
			v.Text, err = v.Word(words...)
			*into = v.Text == words[1]
		} else {
			*into, err = v.Bool()
		}
	default: // a text, empty where it is not given
		if words := tags.Get("enum"); words != "" {
			v.Text, err = v.Word(strings.Split(words, ",")...)
		} else if v.Text == "" {
			err = problem.New(problem.BadConfig, "leave the key out for its default", "is empty")
		}
		reflect.ValueOf(into).Elem().SetString(v.Text)
	}
	return err
}

// whole reads a whole number from 0 to limit, which is what the field's type holds; the narrower bounds are Validate's.
func whole[T int | uint16 | uint32](v yamldoc.Value, limit int64) (T, error) {
	n, err := v.Int()
	if err == nil && (n < 0 || n > limit) {
		err = problem.New(problem.BadLimit, "", "%d is not between 0 and %d", n, limit)
	}
	return T(n), err
}

// parsePercent reads a whole number with a percent sign.
func parsePercent(s string) (int, error) {
	digits, found := strings.CutSuffix(s, "%")
	n, err := strconv.ParseUint(digits, 10, 8)
	if !found || err != nil || strings.Trim(digits, "0123456789") != "" {
		return 0, problem.New(problem.BadLimit, "write a whole number with a percent sign, such as 80%", "%q is not a percentage", s)
	}
	return int(n), nil
}

func parseListen(s string) (netip.AddrPort, error) {
	a, err := netip.ParseAddrPort(s)
	if err != nil {
		return a, problem.New(problem.BadConfig, "write an IP address and a port, such as 127.0.0.1:18780", "%q is not an address and a port", s)
	}
	return a, nil
}
