// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only

// Counts the established server-side TCP sockets of each service in one network
// namespace. A socket that is counted carries a mark, the number of the counter,
// in socket storage of this program's own: so a socket is counted once, leaves
// the counter that it entered, and callback flags that other programs set on
// sockets mean nothing here.

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#define MAX_SLOTS 256
#define SOL_TCP 6
// Since Linux 6.12; older headers lack it.
#define CB_FLAGS_SOCKOPT 1008

char __license[] SEC("license") = "Dual BSD/GPL";

// The namespace whose sockets count: one cgroup holds sockets of several.
volatile const __u64 netns_cookie;

// A counter fills a cache line, so that services do not slow each other down.
struct counter {
	__s32 live;
	__u32 events;
	__u32 opened; // connections accepted since the program was attached
	__u8 pad[52];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, MAX_SLOTS);
	__type(key, __u32);
	__type(value, struct counter);
} counters SEC(".maps");

// Local port to number of counter; 0 is no service.
struct port_table {
	__u16 slot[65536];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct port_table);
} ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, __u32);
} marks SEC(".maps");

static __always_inline __u32 slot_of(__u16 port)
{
	__u32 zero = 0;
	struct port_table *t = bpf_map_lookup_elem(&ports, &zero);
	return t ? t->slot[port] : 0;
}

// The reader loads live first and events after it, so a change that it sees is
// always among the events that it sees.
static __always_inline void count(__u32 slot, int n)
{
	struct counter *c = bpf_map_lookup_elem(&counters, &slot);
	if (!c)
		return;
	__sync_fetch_and_add(&c->events, 1);
	__sync_fetch_and_add(&c->live, n);
}

static __always_inline void opened(struct bpf_sock_ops *ctx)
{
	__u32 slot = slot_of(ctx->local_port), *mark;
	struct bpf_sock *sk = ctx->sk;
	struct counter *c;

	if (!slot || !sk || bpf_get_netns_cookie(ctx) != netns_cookie)
		return;
	if (bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_STATE_CB_FLAG))
		return;
	mark = bpf_sk_storage_get(&marks, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!mark || *mark)
		return;
	*mark = slot;
	count(slot, 1);
	c = bpf_map_lookup_elem(&counters, &slot);
	if (c)
		__sync_fetch_and_add(&c->opened, 1);
}

static __always_inline void left(struct bpf_sock_ops *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	__u32 *mark;

	if (!sk || !(mark = bpf_sk_storage_get(&marks, sk, 0, 0)))
		return;
	count(*mark, -1);
	bpf_sk_storage_delete(&marks, sk);
}

SEC("sockops")
int sock_event(struct bpf_sock_ops *ctx)
{
	switch (ctx->op) {
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		opened(ctx);
		break;
	case BPF_SOCK_OPS_STATE_CB:
		// A socket that Fast Open made is announced while it still is in
		// SYN_RECV, hence: to any state but ESTABLISHED.
		if (ctx->args[1] != BPF_TCP_ESTABLISHED)
			left(ctx);
		break;
	}
	return 1;
}

// What the iterator needs to know of the kernel's types; the loader finds the
// offsets in the running kernel.
struct sock_common {
	unsigned char skc_state;
	__u16 skc_num;
} __attribute__((preserve_access_index));

struct tcp_sock;

struct bpf_iter__tcp {
	struct sock_common *sk_common;
} __attribute__((preserve_access_index));

// Asks for the callback when the socket changes state.
static __always_inline int watch(struct tcp_sock *sk)
{
	int flags = 0;

	if (bpf_getsockopt(sk, SOL_TCP, CB_FLAGS_SOCKOPT, &flags, sizeof(flags)))
		return -1;
	flags |= BPF_SOCK_OPS_STATE_CB_FLAG;
	return bpf_setsockopt(sk, SOL_TCP, CB_FLAGS_SOCKOPT, &flags, sizeof(flags));
}

// Moves an established socket from the counter of its mark to that of slot;
// either may be 0, none.
static __always_inline void move(struct tcp_sock *sk, __u32 slot)
{
	__u32 *mark = bpf_sk_storage_get(&marks, sk, 0, slot ? BPF_SK_STORAGE_GET_F_CREATE : 0);

	if (!mark || *mark == slot)
		return;
	if (*mark)
		count(*mark, -1);
	// Before Linux 6.12 a socket cannot be watched from here: leave it out.
	if (slot && watch(sk))
		slot = 0;
	if (slot)
		count(slot, 1);
	*mark = slot;
	if (!slot)
		bpf_sk_storage_delete(&marks, sk);
}

// Visits the sockets of the reader's namespace and brings their marks in line
// with the port table: for those that were established before the program was
// attached, and after a change of services. The kernel holds the socket's lock
// meanwhile, so no event of this socket runs beside it.
SEC("iter/tcp")
int adopt(struct bpf_iter__tcp *ctx)
{
	struct sock_common *skc = ctx->sk_common;
	struct tcp_sock *sk;
	__u32 slot;

	if (!skc || skc->skc_state != BPF_TCP_ESTABLISHED)
		return 0;
	slot = slot_of(skc->skc_num);
	sk = bpf_skc_to_tcp_sock(skc);
	if (sk)
		move(sk, slot);
	return 0;
}
