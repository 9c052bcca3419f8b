package main

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// The names that rows and targets go by.
const (
	direct     = "none"
	nftables   = "nftables DNAT"
	haproxy    = "HAProxy"
	caromPlain = "carom, plain TUN"
	carom      = "carom"
	caromLocal = "carom, local"
	caromFlood = "carom, flood"
)

// forwarders are what the lab compares, in the order of the table.
var forwarders = []forwarder{
	{name: direct, set: func(w *world) error { w.target = w.server.Addr4(); return nil }},
	{name: "kernel routing", set: setRouting},
	{name: nftables, missing: lacks("nft"), set: setDNAT},
	{name: haproxy, missing: lacks("haproxy"), set: setHAProxy, noUDP: true},
	{name: "nginx stream", missing: lacksNginx, set: setNginx},
	{name: "Go io.Copy", set: setProxy, noUDP: true},
	{name: caromPlain, set: func(w *world) error { return addCarom(w, true, true, 0) }},
	{name: carom, set: func(w *world) error { return addCarom(w, true, false, 0) }},
	{name: caromLocal, set: setLocal},
	{name: caromFlood, set: setFlood, aside: true},
}

func lacks(program string) func() string {
	return func() string {
		if _, err := exec.LookPath(program); err != nil {
			return program + " is not installed"
		}
		return ""
	}
}

// nginxModules are where packages put nginx's dynamic modules.
var nginxModules = []string{"/usr/lib/nginx/modules", "/usr/lib64/nginx/modules", "/usr/local/lib/nginx/modules"}

// streamModule returns the path of nginx's stream module, "" if it is built in.
func streamModule() (path string, err error) {
	for _, dir := range nginxModules {
		path := filepath.Join(dir, "ngx_stream_module.so")
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	out, err := exec.Command("nginx", "-V").CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("--with-stream ")) {
		return "", fmt.Errorf("nginx has no stream module (libnginx-mod-stream)")
	}
	return "", nil
}

func lacksNginx() string {
	if missing := lacks("nginx")(); missing != "" {
		return missing
	}
	if _, err := streamModule(); err != nil {
		return err.Error()
	}
	return ""
}

// setRouting makes the entry host an ordinary router.
func setRouting(w *world) error {
	w.target = w.server.Addr4()
	if err := w.client.AddRoute(netip.PrefixFrom(w.target, 32), w.entry.Addr4()); err != nil {
		return err
	}
	return w.returnThroughEntry()
}

// returnThroughEntry leads the server's answers to the entry host, which forwards.
func (w *world) returnThroughEntry() error {
	if err := w.entry.SetSysctl("net.ipv4.ip_forward", "1"); err != nil {
		return err
	}
	return w.server.AddRoute(netip.PrefixFrom(w.client.Addr4(), 32), w.entry.Addr4())
}

func setDNAT(w *world) error {
	if err := w.returnThroughEntry(); err != nil {
		return err
	}
	rules := fmt.Sprintf(`table ip bench {
	chain prerouting {
		type nat hook prerouting priority dstnat;
		ip daddr %[1]v tcp dport %[2]d-%[3]d dnat to %[5]v
		ip daddr %[1]v udp dport %[4]d dnat to %[5]v
	}
}`, w.entry.Addr4(), httpPort, bulkPort, udpPort, w.server.Addr4())
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := w.entry.Start(cmd); err != nil {
		return err
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("nft: %w: %s", err, bytes.TrimSpace(out.Bytes()))
	}
	return nil
}

func setHAProxy(w *world) error {
	return w.startProgram("haproxy", "haproxy.cfg", fmt.Sprintf(`global
	maxconn 8000
defaults
	mode tcp
	timeout connect 5s
	timeout client 1h
	timeout server 1h
listen bench
	bind :%d-%d
	server s %v
`, httpPort, bulkPort, w.server.Addr4()), "-db", "-f")
}

func setNginx(w *world) error {
	module, err := streamModule()
	if err != nil {
		return err
	}
	load := ""
	if module != "" {
		load = "load_module " + module + ";"
	}
	conf := load + fmt.Sprintf(`
daemon off;
pid %[1]s/nginx.pid;
error_log %[1]s/error.log;
worker_processes auto;
worker_rlimit_nofile 16384;
events { worker_connections 12000; }
stream {
	proxy_half_close on;
	proxy_timeout 1h;
	server { listen %[2]d backlog=4096; proxy_pass %[5]v:%[2]d; }
	server { listen %[3]d backlog=4096; proxy_pass %[5]v:%[3]d; }
	server { listen %[4]d udp; proxy_pass %[5]v:%[4]d; }
}
`, w.dir, httpPort, bulkPort, udpPort, w.server.Addr4())
	return w.startProgram("nginx", "nginx.conf", conf, "-p", w.dir, "-e", filepath.Join(w.dir, "error.log"), "-c")
}

// startProgram starts a forwarder on the entry host with a configuration file, whose
// name becomes its last argument.
func (w *world) startProgram(program, file, conf string, args ...string) error {
	path := filepath.Join(w.dir, file)
	if err := os.WriteFile(path, []byte(conf), 0o644); err != nil {
		return err
	}
	c, err := startChild(w.entry.Host, program, exec.Command(program, append(args, path)...))
	if err != nil {
		return err
	}
	w.forwarder = append(w.forwarder, c)
	return nil
}

func setProxy(w *world) error {
	c, err := startRole(w.entry.Host, "proxy", role{Proxy: &proxyRole{To: w.server.Addr4().String()}})
	if err != nil {
		return err
	}
	w.forwarder = append(w.forwarder, c)
	return c.awaitReady(w.ctx)
}

// setLocal makes a cluster whose entry host serves all that it is dialled for.
func setLocal(w *world) error {
	w.answers = atEntry
	if err := w.serve(w.entry, atEntry); err != nil {
		return err
	}
	return addCarom(w, false, false, 0)
}

// floodTable is the size of the flow table that is flooded.
const floodTable = 1 << 16

// setFlood makes a cluster with a small flow table, and a host that answers to
// forged addresses go to. What is above the limit for SYNs is served at the entry.
func setFlood(w *world) error {
	if err := w.serve(w.entry, atEntry); err != nil {
		return err
	}
	flooder, err := w.addHost("flooder", 4)
	if err != nil {
		return err
	}
	for _, h := range []*host{w.entry, w.server} {
		if err := h.AddRoute(forged, flooder.Addr4()); err != nil {
			return err
		}
	}
	w.flooder = flooder
	return addCarom(w, true, false, floodTable)
}
