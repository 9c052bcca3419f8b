package node

// TunnelSecret is for tests that forge packets with the right key.
var TunnelSecret = tunnelSecret
