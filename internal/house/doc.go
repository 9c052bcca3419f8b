// Package house holds the rules of this tree, as tests: what may stand at its
// top level, which package may import which, and which may not read a clock. A
// test that fails says which rule was broken, by which chain of imports, and why
// the rule exists. There is nothing to import here.
package house
