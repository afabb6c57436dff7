package console

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/op"
)

// into fills the fields of a request of package op by their names. Mistakes are put into the form; what is returned is no
// mistake of whoever filled it in. Fields of other kinds than these are not in forms.
func (f *form) into(request any) error {
	in := reflect.ValueOf(request).Elem()
	for _, field := range op.FieldsOf(in.Type()) {
		var err error
		name, at := field.Name, in.FieldByIndex(field.Index)
		switch to := at.Addr().Interface().(type) {
		case *bool:
			*to = f.Has(name)
		case *int:
			if text := f.Get(name); text != "" {
				if *to, err = strconv.Atoi(text); err != nil || *to < 1 {
					f.wrong(name, "is not a number from 1 to 999", "lower comes first")
				}
			}
		case *[]string:
			if *to = f.Words(name); field.Tag.Get("is") == "methods" {
				*to = upper(*to)
			}
		case *netip.Addr:
			if text := f.Get(name); text != "" {
				if *to, err = netip.ParseAddr(text); err != nil {
					f.wrong(name, "is not an address", "such as 192.168.1.30")
				}
			}
		case *egress.Injection:
			*to = egress.Injection{Type: egress.InjectionType(f.Get(name)), Name: f.Get(name + "_name"), User: f.Get(name + "_user")}
		case *[]egress.Allowance:
			if *to, err = parsedLines(f, name, egress.ParseAllowance); err != nil {
				return err
			}
		case *[]egress.Price:
			if *to, err = parsedLines(f, name, egress.ParsePrice); err != nil {
				return err
			}
		case *map[string]string:
			*to = map[string]string{}
			for _, line := range f.lines(name) {
				key, value, ok := strings.Cut(line, "=")
				if !ok || key == "" {
					f.wrong(name, "has a line without a name and a value", "such as API_URL={url}")
				}
				(*to)[strings.TrimSpace(key)] = strings.TrimSpace(value)
			}
		default:
			at.SetString(f.Get(name))
		}
	}
	return nil
}

// parsedLines reads the lines of a field.
func parsedLines[T any](f *form, name string, read func(string) (T, error)) (out []T, _ error) {
	for _, line := range f.lines(name) {
		one, err := read(line)
		if err != nil && !f.blame(name, err) {
			return nil, err
		}
		out = append(out, one)
	}
	return out, nil
}

// from fills a form with what is there, so that into has the same of it again.
func (f *form) from(entry any) {
	of := reflect.ValueOf(entry)
	for _, field := range op.FieldsOf(of.Type()) {
		text, at := "", of.FieldByIndex(field.Index)
		switch v := at.Interface().(type) {
		case int:
			text = strconv.Itoa(v)
		case netip.Addr:
			if v.IsValid() {
				text = v.String()
			}
		case egress.Injection:
			text = string(v.Type)
			f.Values.Set(field.Name+"_name", v.Name)
			f.Values.Set(field.Name+"_user", v.User)
		case map[string]string:
			for _, key := range slices.Sorted(maps.Keys(v)) {
				text += key + "=" + v[key] + "\n"
			}
		default:
			if at.Kind() == reflect.String {
				text = at.String()
			} else if at.Kind() == reflect.Slice {
				for n := range at.Len() {
					text += fmt.Sprintln(at.Index(n))
				}
			}
		}
		f.Values.Set(field.Name, text)
	}
}
