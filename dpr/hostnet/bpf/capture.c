/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */

/*
 * capture: decides for each packet that comes in whether the kernel keeps it or
 * the engine gets it.
 *
 * The engine gets the packets of its services that no local socket owns; they are
 * redirected into the transmit path of its TUN interface. The kernel's own socket
 * table tells local flows, so they need no entry anywhere, and a blind SYN meets
 * the socket of the connection that it aims at.
 */

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

char __license[] SEC("license") = "Dual BSD/GPL";

/* Set by the loader. */
const volatile __u32 tun_ifindex = 0;

/* Where this host's probes of its peers come from. Set by the loader. */
const volatile __u16 probe_port = 0;

/* The bucket that SYNs are taken from: the time between two at the limit, and the
 * time that a full bucket lasts beyond it. Nanoseconds; without an interval there is
 * no limit. Set by the loader. */
const volatile __u64 syn_interval = 0;
const volatile __u64 syn_burst = 0;

/* An engine that has not beaten for so long gets nothing new: the kernel serves
 * SYNs, datagrams and what cannot be told. Nanoseconds. */
#define STALE_NS 500000000LL

/* One that has not beaten for so long is not coming back: the kernel answers the
 * flows that were redirected too, by a reset, instead of leaving them to hang. */
#define DEAD_NS 10000000000LL

#define VLAN_ID 0x0fff
#define IPV4_FRAGMENT 0x3fff /* more fragments, or an offset */
#define MAX_EXTENSIONS 4     /* IPv6 extension headers that are skipped */

/* ICMP and ICMPv6 alike: 8 bytes, then the quoted packet (RFC 792, RFC 4443). */
struct icmp {
	__u8 type, code;
	__be16 checksum;
	__be32 rest;
};

#define ICMP_UNREACHABLE 3
#define ICMP_TIME_EXCEEDED 11
#define ICMP_PARAMETER 12
#define ICMPV6_FIRST_INFO 128 /* the types below are errors */

/* States of a socket, as in the kernel's net/tcp_states.h. */
#define STATE_TIME_WAIT 6
#define STATE_LISTEN 10

/* What became of a packet, in the order of Stats on the Go side. */
enum outcome {
	NOT_SERVICE,
	LOCAL_SOCKET,
	CAPTURED_SYN,
	CAPTURED_OTHER,
	FAIL_OPEN,
	LIMITED_SYN,
	TAGGED,
	OUTCOMES,
};

/* An endpoint of a service. IPv4 addresses are mapped into IPv6. With fragment set it
 * stands for all ports, since only the first fragment of a datagram shows them. */
struct endpoint {
	__be32 addr[4];
	__be16 port;
	__u8 protocol;
	__u8 fragment;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1 << 17);
	__type(key, struct endpoint);
	__type(value, __u8);
} services SEC(".maps");

/* The monotonic time of the engine's last heartbeat, in nanoseconds. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} heartbeat SEC(".maps");

/* The bucket of tokens for SYNs, as the time at which it is full again: a token moves
 * it on by syn_interval (the generic cell rate algorithm, ITU-T I.371). */
struct bucket {
	struct bpf_spin_lock lock;
	__u64 full_at;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bucket);
} syn_bucket SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, OUTCOMES);
	__type(key, __u32);
	__type(value, __u64);
} outcomes SEC(".maps");

/* What a packet is about: for most their own headers say it, for ICMP errors the
 * packet that they quote. */
struct packet {
	struct endpoint local;
	__be32 remote[4];
	__be16 remote_port;
	__u8 ipv4;
	__u8 quoted;
	struct tcphdr tcp; /* zero unless the packet itself is TCP */
};

static __always_inline void count(enum outcome why)
{
	__u32 key = why;
	__u64 *n = bpf_map_lookup_elem(&outcomes, &key);
	if (n)
		(*n)++;
}

static __always_inline int pass(enum outcome why)
{
	count(why);
	return TC_ACT_UNSPEC; /* whatever comes after this program decides */
}

/* load copies bytes of the packet, counted from its IP header, wherever they lie:
 * the headers of a super-frame need not be in its linear part, and the interface
 * need not be Ethernet. It returns 0 on success. */
static __always_inline long load(struct __sk_buff *skb, __u32 off, void *to, __u32 len)
{
	return bpf_skb_load_bytes_relative(skb, off, to, len, BPF_HDR_START_NET);
}

static __always_inline void map_ipv4(__be32 to[4], __be32 addr)
{
	to[0] = 0;
	to[1] = 0;
	to[2] = bpf_htonl(0xffff);
	to[3] = addr;
}

/* parse_transport reads ports; it returns whether there are any. */
static __always_inline int parse_transport(struct __sk_buff *skb, struct packet *p, __u8 protocol, __u32 off)
{
	struct udphdr udp;

	p->local.protocol = protocol;
	if (protocol == IPPROTO_TCP) {
		if (load(skb, off, &p->tcp, sizeof(p->tcp)))
			return 0;
		p->local.port = p->tcp.dest;
		p->remote_port = p->tcp.source;
		return 1;
	}
	if (protocol != IPPROTO_UDP || load(skb, off, &udp, sizeof(udp)))
		return 0;
	p->local.port = udp.dest;
	p->remote_port = udp.source;
	return 1;
}

/* parse_quoted_ports reads the ports of a packet that this host sent and that an
 * ICMP error quotes. 8 bytes of its transport header are all that is sure. */
static __always_inline int parse_quoted_ports(struct __sk_buff *skb, struct packet *p, __u8 protocol, __u32 off)
{
	__be16 ports[2];

	if ((protocol != IPPROTO_TCP && protocol != IPPROTO_UDP) || load(skb, off, ports, sizeof(ports)))
		return 0;
	p->quoted = 1;
	p->local.protocol = protocol;
	p->local.port = ports[0];
	p->remote_port = ports[1];
	return 1;
}

static __always_inline int parse_icmp(struct __sk_buff *skb, struct packet *p, __u32 off)
{
	struct icmp icmp;
	struct iphdr ip;

	if (load(skb, off, &icmp, sizeof(icmp)))
		return 0;
	if (icmp.type != ICMP_UNREACHABLE && icmp.type != ICMP_TIME_EXCEEDED && icmp.type != ICMP_PARAMETER)
		return 0;
	off += sizeof(icmp);
	if (load(skb, off, &ip, sizeof(ip)) || ip.version != 4 || ip.ihl < 5)
		return 0;
	map_ipv4(p->local.addr, ip.saddr);
	map_ipv4(p->remote, ip.daddr);
	return parse_quoted_ports(skb, p, ip.protocol, off + ip.ihl * 4);
}

static __always_inline int parse_icmpv6(struct __sk_buff *skb, struct packet *p, __u32 off)
{
	struct icmp icmp;
	struct ipv6hdr ip;

	if (load(skb, off, &icmp, sizeof(icmp)) || icmp.type >= ICMPV6_FIRST_INFO)
		return 0;
	off += sizeof(icmp);
	if (load(skb, off, &ip, sizeof(ip)) || ip.version != 6)
		return 0;
	__builtin_memcpy(p->local.addr, &ip.saddr, sizeof(p->local.addr));
	__builtin_memcpy(p->remote, &ip.daddr, sizeof(p->remote));
	return parse_quoted_ports(skb, p, ip.nexthdr, off + sizeof(ip));
}

/* fragment: all fragments of a datagram take the same way, so that the first one,
 * which has the ports, meets its followers. The engine gives back what is not a
 * service's. */
static __always_inline int fragment(struct packet *p, __u8 protocol)
{
	p->local.protocol = protocol;
	p->local.fragment = 1;
	return 1;
}

static __always_inline int parse_ipv4(struct __sk_buff *skb, struct packet *p)
{
	struct iphdr ip;

	if (load(skb, 0, &ip, sizeof(ip)) || ip.ihl < 5)
		return 0;
	p->ipv4 = 1;
	map_ipv4(p->local.addr, ip.daddr);
	map_ipv4(p->remote, ip.saddr);
	if (ip.frag_off & bpf_htons(IPV4_FRAGMENT))
		return fragment(p, ip.protocol);
	if (ip.protocol == IPPROTO_ICMP)
		return parse_icmp(skb, p, ip.ihl * 4);
	return parse_transport(skb, p, ip.protocol, ip.ihl * 4);
}

static __always_inline int parse_ipv6(struct __sk_buff *skb, struct packet *p)
{
	__u32 off = sizeof(struct ipv6hdr);
	struct ipv6_opt_hdr ext;
	struct ipv6hdr ip;
	__u8 next;

	if (load(skb, 0, &ip, sizeof(ip)))
		return 0;
	__builtin_memcpy(p->local.addr, &ip.daddr, sizeof(p->local.addr));
	__builtin_memcpy(p->remote, &ip.saddr, sizeof(p->remote));
	next = ip.nexthdr;
	for (int i = 0; i < MAX_EXTENSIONS; i++) {
		if (next != IPPROTO_HOPOPTS && next != IPPROTO_DSTOPTS)
			break;
		if (load(skb, off, &ext, sizeof(ext)))
			return 0;
		next = ext.nexthdr;
		off += (ext.hdrlen + 1) * 8;
	}
	if (next == IPPROTO_FRAGMENT)
		return load(skb, off, &ext, sizeof(ext)) ? 0 : fragment(p, ext.nexthdr);
	if (next == IPPROTO_ICMPV6)
		return parse_icmpv6(skb, p, off);
	return parse_transport(skb, p, next, off);
}

/* listener_owns tells whether the packet completes the handshake of a listener that
 * answered with SYN cookies and so has no socket for it yet. */
static __always_inline int listener_owns(struct __sk_buff *skb, struct packet *p, void *listener)
{
	struct ipv6hdr ip6;
	struct iphdr ip;

	if (!p->tcp.ack || p->tcp.syn || p->tcp.rst)
		return 0;
	if (p->ipv4)
		return !load(skb, 0, &ip, sizeof(ip)) &&
		       !bpf_tcp_check_syncookie(listener, &ip, sizeof(ip), &p->tcp, sizeof(p->tcp));
	return !load(skb, 0, &ip6, sizeof(ip6)) &&
	       !bpf_tcp_check_syncookie(listener, &ip6, sizeof(ip6), &p->tcp, sizeof(p->tcp));
}

/* socket_owns tells whether a local TCP socket owns the packet's flow. A socket in
 * TIME_WAIT owns nothing: a new connection may reuse its ports. */
static __always_inline int socket_owns(struct __sk_buff *skb, struct packet *p)
{
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *sk;
	int owns;

	if (p->ipv4) {
		tuple.ipv4.saddr = p->remote[3];
		tuple.ipv4.daddr = p->local.addr[3];
		tuple.ipv4.sport = p->remote_port;
		tuple.ipv4.dport = p->local.port;
		sk = bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
	} else {
		__builtin_memcpy(tuple.ipv6.saddr, p->remote, sizeof(p->remote));
		__builtin_memcpy(tuple.ipv6.daddr, p->local.addr, sizeof(p->local.addr));
		tuple.ipv6.sport = p->remote_port;
		tuple.ipv6.dport = p->local.port;
		sk = bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv6), BPF_F_CURRENT_NETNS, 0);
	}
	if (!sk)
		return 0;
	if (sk->state == STATE_LISTEN)
		owns = listener_owns(skb, p, sk);
	else
		owns = sk->state != STATE_TIME_WAIT;
	bpf_sk_release(sk);
	return owns;
}

/* answers_probe tells whether the packet answers a probe of this host's own: it comes
 * from the network, and from a service's endpoint on this host. */
static __always_inline int answers_probe(struct packet *p)
{
	struct endpoint from = {.port = p->remote_port, .protocol = IPPROTO_TCP};

	if (p->local.port != bpf_htons(probe_port) || p->local.protocol != IPPROTO_TCP || p->quoted)
		return 0;
	__builtin_memcpy(from.addr, p->remote, sizeof(from.addr));
	return bpf_map_lookup_elem(&services, &from) != 0;
}

/* engine_lives tells whether the engine takes such a packet at present. */
static __always_inline int engine_lives(int may_be_redirected)
{
	__u32 key = 0;
	__u64 *beat = bpf_map_lookup_elem(&heartbeat, &key);

	if (!beat)
		return 0;
	/* Signed: the engine may beat while this runs. */
	return (__s64)(bpf_ktime_get_ns() - *beat) <= (may_be_redirected ? DEAD_NS : STALE_NS);
}

/* take_token tells whether one more SYN may go to the engine. All processors share one
 * bucket, since an interface may have one queue or many; in a flood most find it empty
 * and need no lock. */
static __always_inline int take_token(void)
{
	__u32 key = 0;
	struct bucket *b = bpf_map_lookup_elem(&syn_bucket, &key);
	__u64 now = bpf_ktime_get_ns();
	int taken;

	if (!syn_interval)
		return 1;
	if (!b || *(volatile __u64 *)&b->full_at > now + syn_burst)
		return 0;
	bpf_spin_lock(&b->lock);
	taken = b->full_at <= now + syn_burst;
	if (b->full_at < now)
		b->full_at = now;
	if (taken)
		b->full_at += syn_interval;
	bpf_spin_unlock(&b->lock);
	return taken;
}

/* is_tag tells whether another tag follows, instead of a packet. */
static __always_inline int is_tag(__be16 protocol)
{
	return protocol == bpf_htons(ETH_P_8021Q) || protocol == bpf_htons(ETH_P_8021AD);
}

SEC("tc")
int capture(struct __sk_buff *skb)
{
	struct packet p = {};
	int tcp, syn, ok;

	/* Frames for others are seen here too. */
	if (skb->pkt_type != PACKET_HOST)
		return TC_ACT_UNSPEC;
	/* And those of VLANs, before they get to the interface of their own. A priority
	 * tag names no VLAN. The kernel has taken the outermost tag out of the frame. */
	if (skb->vlan_present && (skb->vlan_tci & VLAN_ID || is_tag(skb->protocol)))
		return pass(TAGGED);
	if (skb->protocol == bpf_htons(ETH_P_IP))
		ok = parse_ipv4(skb, &p);
	else if (skb->protocol == bpf_htons(ETH_P_IPV6))
		ok = parse_ipv6(skb, &p);
	else
		return TC_ACT_UNSPEC;
	if (!ok)
		return pass(NOT_SERVICE);
	if (!bpf_map_lookup_elem(&services, &p.local)) {
		/* Whoever hears answers listens at the TUN alone, as if they came from there:
		 * a packet socket costs each packet that it might hear more than all this. */
		count(NOT_SERVICE);
		return answers_probe(&p) ? bpf_redirect(tun_ifindex, BPF_F_INGRESS) : TC_ACT_UNSPEC;
	}

	tcp = p.local.protocol == IPPROTO_TCP && !p.local.fragment;
	syn = p.tcp.syn && !p.tcp.ack;
	if (tcp && socket_owns(skb, &p))
		return pass(LOCAL_SOCKET);
	if (!engine_lives(tcp && !syn))
		return pass(FAIL_OPEN);
	/* They share the TUN with the data of redirected flows. The kernel has cookies. */
	if (tcp && syn && !take_token())
		return pass(LIMITED_SYN);
	/* The TUN would write the tag into the packet. */
	if (skb->vlan_present && bpf_skb_vlan_pop(skb))
		return TC_ACT_UNSPEC;
	count(syn ? CAPTURED_SYN : CAPTURED_OTHER);
	return bpf_redirect(tun_ifindex, 0);
}
