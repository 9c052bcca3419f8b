package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"text/tabwriter"
	"time"
)

// listFlows prints the connection table of the router that answers at the address.
func listFlows(ctx context.Context, at netip.AddrPort, out io.Writer) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at.String()+"/flows", nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("%w: does a router run here, with this -listen?", err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%v answers %s: is it a router?", at, res.Status)
	}
	return printFlows(json.NewDecoder(res.Body), out)
}

// batchRows is how many rows are lined up together: a long table is printed as it
// comes.
const batchRows = 1000

func printFlows(in *json.Decoder, out io.Writer) error {
	buffered := bufio.NewWriter(out)
	table := tabwriter.NewWriter(buffered, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "SERVICE\tCLIENT\tDIALLED\tSTATE\tSERVED BY\tIDLE")
	for n := 1; ; n++ {
		var f flow
		err := in.Decode(&f)
		if err != nil || n%batchRows == 0 {
			if flushed := errors.Join(table.Flush(), buffered.Flush()); flushed != nil {
				return flushed
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("the table breaks off: %w", err)
		}
		peer := f.Peer
		switch {
		case f.Lost:
			peer = "a host that is gone"
		case peer == "":
			peer = "this host"
		}
		if f.Server.IsValid() {
			peer = fmt.Sprintf("%s (%v > %v)", peer, f.Source, f.Server)
		}
		idle := time.Duration(f.Idle * float64(time.Second)).Round(time.Millisecond)
		fmt.Fprintf(table, "%s\t%v\t%v\t%s\t%s\t%v\n", f.Service, f.Client, f.Dialled, f.State, peer, idle)
	}
}
