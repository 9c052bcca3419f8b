package main

import (
	"cmp"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"unicode"

	"github.com/carom-dpr/carom/dpr/node"
	"github.com/carom-dpr/carom/loadinfo/rrdns"
)

// fieldOf finds the field that an error begins with, serviceOf the service that it is
// about.
var (
	fieldOf   = regexp.MustCompile(`^([a-z_]+)(\[\d+\]|\.[\w-]+)?`)
	serviceOf = regexp.MustCompile(`services? "([^"]*)"`)
)

// locate adds to an error of the packages below where in the file its reason is, and
// has it speak of the file's fields.
func (s *settings) locate(err error) error {
	d, text := s.doc, inWords(err.Error())
	field := fieldOf.FindStringSubmatch(text)
	if field == nil {
		field = make([]string, 3)
	}
	part := strings.ReplaceAll(field[2], "-", "_") // as in timeouts.udp_new
	text = field[1] + part + text[len(field[0]):]
	line := max(d.lines[field[1]+part], d.lines[field[1]])
	if m := serviceOf.FindStringSubmatch(text); line == 0 && m != nil {
		for i := range s.Services {
			if s.Services[i].Name == m[1] {
				line = d.lines[fmt.Sprintf("services[%d]", i)]
			}
		}
	}
	where := d.file
	if line > 0 {
		where = fmt.Sprintf("%s:%d", d.file, line)
	}
	return &locatedError{where + ": " + inWords(text), err}
}

// A locatedError is an error in the words of the file.
type locatedError struct {
	text string
	err  error
}

func (e *locatedError) Error() string { return e.text }
func (e *locatedError) Unwrap() error { return e.err }

// words are the names that fields have in the file, by those in Go.
var words = fieldNames(reflect.TypeFor[node.Config](), reflect.TypeFor[node.Service](), reflect.TypeFor[node.Server](), reflect.TypeFor[rrdns.Config]())

// fieldNames returns the names of the structs' fields.
func fieldNames(structs ...reflect.Type) map[string]string {
	names := map[string]string{"Proto": "protocol", "CaptureByRouting": "capture: routing", "NAT": "nat_ports"}
	for _, t := range structs {
		for i := range t.NumField() {
			name := t.Field(i).Name
			names[name] = cmp.Or(names[name], snake(name))
		}
	}
	return names
}

// foreign is what is of Go, not of the file: the name of a package before a message,
// or what may be that of a field; or else what a user wrote, which stays.
var foreign = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|(?m:^|\s)(?:(?:node|dpr|loadinfo|hostnet|tun|gue|sockmeter|gossip|rrdns): )+|\b(?:Config\.)?[A-Z]\w*`)

// inWords returns the text of an error with the names that fields have in the file.
func inWords(text string) string {
	return foreign.ReplaceAllStringFunc(text, func(found string) string {
		if strings.HasSuffix(found, ": ") {
			return found[:strings.IndexFunc(found, unicode.IsLetter)] // the space before
		}
		return cmp.Or(words[strings.TrimPrefix(found, "Config.")], found)
	})
}

// wordEnd is where a word of a name ends and the next one begins, also after
// capitals: SYNRate.
var wordEnd = regexp.MustCompile(`([a-z]|[A-Z]+)([A-Z][a-z])`)

// snake returns the name that a field of Go has in the file: words of small letters
// joined by underscores.
func snake(field string) string {
	return strings.ToLower(wordEnd.ReplaceAllString(field, "${1}_${2}"))
}
