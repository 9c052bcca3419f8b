// Command bench measures carom beside what its users would take instead, side by
// side in one run, and prints ratios: machines differ, ratios less.
//
//	go run ./internal/bench -micro    the engine, beside yardsticks
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	doMicro := flag.Bool("micro", false, "measure the engine")
	flag.Parse()
	var err error
	switch {
	case *doMicro:
		err = micro(os.Stdout, []int{1000, 100_000, 1_000_000})
	default:
		flag.Usage()
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}
