package main

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/carom-dpr/carom/loadinfo"
	"github.com/carom-dpr/carom/loadinfo/gossip"
)

// The words for how reports travel.
const (
	byBroadcast = "broadcast"
	byGossip    = "gossip"
)

// readReports reads how reports travel and to whom: with gossip, those are the hosts by
// which this one finds the others.
func (s *settings) readReports(top *section) {
	word := byBroadcast
	top.scalar("transport", func(text string) error {
		if text != byBroadcast && text != byGossip {
			return errors.New("give broadcast or gossip")
		}
		word = text
		return nil
	})
	if word == byBroadcast {
		items(top, "report", &s.Report, parseTarget)
		return
	}
	items(top, "report", &s.seeds, parseSeed)
	s.Transport = s.openGossip
}

func parseSeed(text string) (string, error) { return text, gossip.ValidateSeed(text) }

// openGossip is the node's Transport.
func (s *settings) openGossip(b *loadinfo.Board, ring *loadinfo.Keyring) (loadinfo.Transport, error) {
	port := s.reportPort()
	conn, ln, err := gossip.Listen(netip.AddrPortFrom(s.Addr, port))
	if err != nil {
		return nil, fmt.Errorf("%w: stop who has report_port %d, or choose another on all hosts", err, port)
	}
	s.gossip, err = gossip.New(gossip.Config{
		Board: b, Conn: conn, Listener: ln, Seeds: s.seeds, Keys: ring, Period: s.Period, Logger: s.Logger,
	})
	if err != nil {
		return nil, errors.Join(err, conn.Close(), ln.Close())
	}
	return s.gossip, nil
}
