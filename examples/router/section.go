package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// A document is a YAML file that is being read. It collects all that is wrong.
type document struct {
	file  string
	lines map[string]int // of each field that is there, by its path
	errs  []error
	warns []string
}

// parse returns the top of the file, nil if it is not even YAML.
func (d *document) parse(text []byte) *section {
	d.lines = make(map[string]int)
	var root, more yaml.Node
	documents := yaml.NewDecoder(bytes.NewReader(text))
	if err := documents.Decode(&root); err != nil && err != io.EOF {
		d.errs = append(d.errs, fmt.Errorf("%s: %s: correct the YAML there", d.file, strings.TrimPrefix(err.Error(), "yaml: ")))
		return nil
	}
	if documents.Decode(&more) != io.EOF {
		d.errs = append(d.errs, fmt.Errorf("%s:%d: a second document begins: give one, without ---", d.file, max(more.Line, 1)))
		return nil
	}
	if len(root.Content) == 0 {
		d.errs = append(d.errs, fmt.Errorf("%s:1: there is nothing in it: begin with router.yaml of this example", d.file))
		return nil
	}
	return d.section("", root.Content[0])
}

func (d *document) fail(n *yaml.Node, path, format string, args ...any) {
	if path == "" {
		path = "the file"
	}
	d.errs = append(d.errs, fmt.Errorf("%s:%d: %s: %s", d.file, n.Line, path, fmt.Sprintf(format, args...)))
}

// warn keeps what is allowed and yet should not be.
func (d *document) warn(n *yaml.Node, path, text string) {
	d.warns = append(d.warns, fmt.Sprintf("%s:%d: %s: %s", d.file, n.Line, path, text))
}

func (d *document) err() error { return errors.Join(d.errs...) }

// A section is one mapping of the file. Its fields are asked for one by one; done
// then complains of those that nobody asked for.
type section struct {
	doc    *document
	path   string
	node   *yaml.Node
	fields map[string]*yaml.Node
	known  []string
}

// section returns the mapping at n, without fields if it is none.
func (d *document) section(path string, n *yaml.Node) *section {
	n = resolve(n)
	s := &section{doc: d, path: path, node: n, fields: make(map[string]*yaml.Node)}
	if n.Kind != yaml.MappingNode {
		d.fail(n, path, "%s: give fields of the form name: value", describe(n))
		return s
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], resolve(n.Content[i+1])
		if s.fields[key.Value] != nil {
			d.fail(key, s.at(key.Value), "is there twice: remove one")
		}
		s.fields[key.Value] = value
		d.lines[s.at(key.Value)] = key.Line
	}
	return s
}

func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "these are fields"
	case yaml.SequenceNode:
		return "this is a list"
	}
	return fmt.Sprintf("%q", n.Value)
}

func (s *section) at(key string) string {
	if s.path == "" {
		return key
	}
	return s.path + "." + key
}

// done complains of unknown fields.
func (s *section) done() {
	if s.node.Kind != yaml.MappingNode {
		return
	}
	for i := 0; i < len(s.node.Content); i += 2 {
		if key := s.node.Content[i]; !slices.Contains(s.known, key.Value) {
			s.doc.fail(key, s.at(key.Value), "there is no such field: there are %s", strings.Join(s.known, ", "))
		}
	}
}

// get returns a field; nil if it is not there or null.
func (s *section) get(key string) *yaml.Node {
	s.known = append(s.known, key)
	n := s.fields[key]
	if n == nil || n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return nil
	}
	return n
}

// scalar reads a field by parse, whose error is what the field must be.
func (s *section) scalar(key string, parse func(text string) error) {
	if n := s.get(key); n != nil {
		s.doc.scalar(n, s.at(key), parse)
	}
}

func (d *document) scalar(n *yaml.Node, path string, parse func(text string) error) {
	err := errors.New("give one value")
	if n.Kind == yaml.ScalarNode {
		err = parse(n.Value)
	}
	if err != nil {
		d.fail(n, path, "%s: %s", describe(n), beyond(describe(n), err))
	}
}

// beyond returns what an error says after a value that it may repeat, without the name
// of a package.
func beyond(value string, err error) string {
	if _, after, ok := strings.Cut(err.Error(), value+": "); ok {
		return after
	}
	return strings.TrimPrefix(err.Error(), "lb: ")
}

// list reads each item of a field. A single value is a list of one.
func (s *section) list(key string, item func(n *yaml.Node, path string)) {
	n := s.get(key)
	if n == nil {
		return
	}
	if n.Kind != yaml.SequenceNode {
		item(n, s.at(key))
		return
	}
	for i, x := range n.Content {
		path := fmt.Sprintf("%s[%d]", s.at(key), i)
		s.doc.lines[path] = x.Line
		item(resolve(x), path)
	}
}

func (s *section) text(key string, to *string) {
	s.scalar(key, func(text string) error { *to = text; return nil })
}

// number reads an integer from lo to hi.
func (s *section) number(key string, to *int, lo, hi int) {
	s.scalar(key, func(text string) (err error) {
		n, err := strconv.Atoi(text)
		if err != nil || n < lo || n > hi {
			return fmt.Errorf("give a number from %d to %d", lo, hi)
		}
		*to = n
		return nil
	})
}

func (s *section) port(key string, to *uint16) {
	n := int(*to)
	s.number(key, &n, 1, 65535)
	*to = uint16(n)
}

func (s *section) duration(key string, to *time.Duration) {
	s.scalar(key, func(text string) error {
		d, err := time.ParseDuration(text)
		if err != nil {
			return errors.New("give a time with its unit, such as 500ms or 2h5m")
		}
		if d <= 0 {
			return errors.New("give a time above 0")
		}
		*to = d
		return nil
	})
}

func parseAddr(text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	if err != nil || a.Zone() != "" {
		return netip.Addr{}, errors.New("give an IPv4 or IPv6 address, such as 192.0.2.1 or 2001:db8::1")
	}
	return a.Unmap(), nil
}

// items reads a list of different things by parse, whose error is what an item must be.
func items[T comparable](s *section, key string, to *[]T, parse func(text string) (T, error)) {
	s.list(key, func(n *yaml.Node, path string) {
		s.doc.scalar(n, path, func(text string) error {
			x, err := parse(text)
			if err == nil && slices.Contains(*to, x) {
				err = errors.New("it is there twice: remove one")
			}
			*to = append(*to, x)
			return err
		})
	})
}
