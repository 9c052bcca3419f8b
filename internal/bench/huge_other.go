//go:build !linux

package main

// hugeSlice returns memory as the flow table has it.
func hugeSlice[T any](n int) []T { return make([]T, n) }
