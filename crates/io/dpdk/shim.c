/* See shim.h. Compiled by build.rs into a shared object of its own, which dpdk.rs loads when the first DPDK port is opened. */
#define _GNU_SOURCE
#include "shim.h"
#include "../shim_signals.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_log.h>
#include <rte_mbuf.h>
#include <rte_pause.h>

/* Descriptors that a device is asked for: at 15 million frames a second the first is lost 136 µs after the manager fell asleep. */
#define RECEIVE_DESCRIPTORS 2048
#define TRANSMIT_DESCRIPTORS 512
/* Buffers per port: both queues full, 1023 frames under way inside a virtual device, and bursts. */
#define BUFFERS 4095
#define BUFFER_CACHE 128
/* Without huge pages DPDK's memory is given to it once, in MiB. A port takes about 13; pages that are not used are not there. */
#define MEMORY_MIB "256"
/* How often a full device is asked again before frames are dropped. */
#define PATIENCE 64

struct hf_port {
	uint16_t id;
	uint32_t room;
	struct rte_mempool *pool;
	struct rte_device *device;
};

/* DPDK's errors: while a device is opened they are kept for whoever asked for it, otherwise they go to standard error. */
static struct {
	pthread_mutex_t lock;
	int is_kept;
	size_t len;
	char text[512];
} errors = { .lock = PTHREAD_MUTEX_INITIALIZER };

static ssize_t note_error(void *cookie, const char *text, size_t len)
{
	size_t take;

	(void)cookie;
	pthread_mutex_lock(&errors.lock);
	if (errors.is_kept) {
		/* The first errors say most: those after them follow from them. */
		take = RTE_MIN(len, sizeof(errors.text) - errors.len);
		memcpy(errors.text + errors.len, text, take);
		errors.len += take;
	} else if (write(STDERR_FILENO, text, len) < 0) {
		/* Nobody listens there. */
	}
	pthread_mutex_unlock(&errors.lock);
	return (ssize_t)len;
}

static void keep_errors(void)
{
	pthread_mutex_lock(&errors.lock);
	errors.is_kept = 1;
	errors.len = 0;
	pthread_mutex_unlock(&errors.lock);
}

/* What was kept, cut to `why_len` with its final zero byte. */
static void give_errors(char *why, size_t why_len)
{
	size_t take;

	pthread_mutex_lock(&errors.lock);
	errors.is_kept = 0;
	take = RTE_MIN(errors.len, why_len - 1);
	memcpy(why, errors.text, take);
	why[take] = 0;
	pthread_mutex_unlock(&errors.lock);
}

uint32_t hf_abi(void)
{
	return HF_ABI;
}

/* DPDK makes an empty directory for the files that it was told not to write. */
static void remove_runtime_directory(int had_parent)
{
	char path[512];
	char *slash;

	snprintf(path, sizeof(path), "%s", rte_eal_get_runtime_dir());
	if (path[0] != '/' || rmdir(path) < 0 || had_parent)
		return;
	slash = strrchr(path, '/');
	*slash = 0;
	rmdir(path);
}

int hf_start(int use_huge_pages, char *why, size_t why_len)
{
	char lcore[32], prefix[32];
	char *argv[24];
	int argc = 0, at, result, had_parent;
	cpu_set_t cpus;
	sigset_t mask;
	FILE *stream;
	/* With a null cookie: the text is all that note_error needs. */
	cookie_io_functions_t functions = { .write = note_error };

	stream = fopencookie(NULL, "w", functions);
	if (stream == NULL)
		return -errno;
	setvbuf(stream, NULL, _IOLBF, 0);
	rte_openlog_stream(stream);
	keep_errors();

	if (sched_getaffinity(0, sizeof(cpus), &cpus) < 0)
		return -errno;
	for (at = 0; at < CPU_SETSIZE - 1 && !CPU_ISSET(at, &cpus); at++)
		;
	snprintf(lcore, sizeof(lcore), "0@%d", at);
	snprintf(prefix, sizeof(prefix), "holdfast-%d", (int)getpid());

	argv[argc++] = "holdfast";
	argv[argc++] = "--no-telemetry";
	argv[argc++] = "--log-level=error";
	argv[argc++] = "--file-prefix";
	argv[argc++] = prefix;
	argv[argc++] = "--lcores";
	argv[argc++] = lcore;
	/* No PCI device but those that hf_open names: the list of allowed ones has one entry, and nothing can be there. `--no-pci` would
	 * hold for the life of the process, and keep a PCI port from being opened after a virtual one. */
	argv[argc++] = "--allow";
	argv[argc++] = "ffff:ff:1f.7";
	/* Either way without a file; DPDK takes the first for huge pages only. */
	if (use_huge_pages) {
		argv[argc++] = "--in-memory";
	} else {
		argv[argc++] = "--no-shconf";
		argv[argc++] = "--no-huge";
		argv[argc++] = "-m";
		argv[argc++] = MEMORY_MIB;
	}
	argv[argc] = NULL;

	had_parent = access("/var/run/dpdk", F_OK) == 0;
	block_signals(&mask);
	result = rte_eal_init(argc, argv);
	if (result < 0)
		result = rte_errno > 0 ? -rte_errno : -EINVAL;
	/* It has tied this thread to one processor, which every process that is started later would inherit. */
	sched_setaffinity(0, sizeof(cpus), &cpus);
	pthread_sigmask(SIG_SETMASK, &mask, NULL);
	remove_runtime_directory(had_parent);
	give_errors(why, why_len);
	return result < 0 ? result : 0;
}

/* The Ethernet port of a device that has just been probed. */
static int find_port(const char *device, uint16_t *id)
{
	struct rte_dev_iterator iterator;

	if (rte_eth_iterator_init(&iterator, device) != 0)
		return -ENODEV;
	*id = rte_eth_iterator_next(&iterator);
	if (*id == RTE_MAX_ETHPORTS)
		return -ENODEV;
	rte_eth_iterator_cleanup(&iterator);
	return 0;
}

static int set_up(struct hf_port *port, struct hf_info *info)
{
	static unsigned int pools;
	const struct rte_eth_conf conf = { 0 };
	struct rte_ether_addr mac;
	uint16_t received = RECEIVE_DESCRIPTORS, sent = TRANSMIT_DESCRIPTORS;
	int socket = rte_eth_dev_socket_id(port->id);
	char name[32];
	int result;

	snprintf(name, sizeof(name), "holdfast-%u", pools++);
	port->pool = rte_pktmbuf_pool_create(name, BUFFERS, BUFFER_CACHE, 0, (uint16_t)(RTE_PKTMBUF_HEADROOM + port->room), socket);
	if (port->pool == NULL)
		return -rte_errno;
	if ((result = rte_eth_dev_configure(port->id, 1, 1, &conf)) < 0)
		return result;
	if ((result = rte_eth_dev_adjust_nb_rx_tx_desc(port->id, &received, &sent)) < 0)
		return result;
	if ((result = rte_eth_rx_queue_setup(port->id, 0, received, (unsigned int)socket, NULL, port->pool)) < 0)
		return result;
	if ((result = rte_eth_tx_queue_setup(port->id, 0, sent, (unsigned int)socket, NULL)) < 0)
		return result;
	if ((result = rte_eth_dev_start(port->id)) < 0)
		return result;
	/* Neighbour discovery comes to multicast addresses. A device that can do neither is one that filters nothing. */
	if (rte_eth_promiscuous_enable(port->id) < 0)
		rte_eth_allmulticast_enable(port->id);
	if ((result = rte_eth_macaddr_get(port->id, &mac)) < 0)
		return result;
	memcpy(info->mac, mac.addr_bytes, sizeof(info->mac));
	return rte_eth_dev_get_mtu(port->id, &info->mtu);
}

static void release(struct hf_port *port)
{
	rte_eth_dev_stop(port->id);
	rte_eth_dev_close(port->id);
	rte_dev_remove(port->device);
	/* A buffer that a driver has kept may be written to once more: rather no memory than memory of somebody else's. */
	if (port->pool != NULL && rte_mempool_full(port->pool))
		rte_mempool_free(port->pool);
}

struct hf_port *hf_open(const char *device, uint32_t room, struct hf_info *info, int *error, char *why, size_t why_len)
{
	struct rte_eth_dev_info about;
	struct hf_port *port;
	sigset_t mask;
	int result;

	*error = ENOMEM;
	if (room > UINT16_MAX - RTE_PKTMBUF_HEADROOM || (port = calloc(1, sizeof(*port))) == NULL)
		return NULL;
	port->room = room;
	keep_errors();
	block_signals(&mask);
	/* To probe a device a second time is no error for DPDK, and would give its one port to two owners. */
	if (find_port(device, &port->id) == 0)
		result = -EEXIST;
	else if ((result = rte_dev_probe(device)) == 0 && (result = find_port(device, &port->id)) == 0 &&
		 (result = rte_eth_dev_info_get(port->id, &about)) == 0) {
		port->device = about.device;
		result = set_up(port, info);
		if (result < 0)
			release(port);
	}
	if (result != 0) {
		free(port);
		port = NULL;
	}
	pthread_sigmask(SIG_SETMASK, &mask, NULL);
	give_errors(why, why_len);
	*error = result < 0 ? -result : result;
	return port;
}

void hf_close(struct hf_port *port)
{
	struct rte_mbuf *received[HF_BURST];
	uint32_t got, done = 0;

	/* What is still under way inside a virtual device that leads back to itself would be found there by the next one of its name. */
	do {
		got = rte_eth_rx_burst(port->id, 0, received, HF_BURST);
		if (got > 0)
			rte_pktmbuf_free_bulk(received, got);
		done += got;
	} while (got > 0 && done < BUFFERS);
	release(port);
	free(port);
}

int hf_link(const struct hf_port *port)
{
	struct rte_eth_link link;

	return rte_eth_link_get_nowait(port->id, &link) == 0 && link.link_status == RTE_ETH_LINK_UP;
}

uint32_t hf_receive(struct hf_port *port, struct hf_frame *frames, uint32_t count)
{
	struct rte_mbuf *received[HF_BURST];
	const struct rte_mbuf *segment;
	uint32_t got, at, done, take;

	got = rte_eth_rx_burst(port->id, 0, received, (uint16_t)RTE_MIN(count, HF_BURST));
	for (at = 0; at < got; at++) {
		if (at + 1 < got)
			rte_prefetch0(rte_pktmbuf_mtod(received[at + 1], void *));
		done = 0;
		for (segment = received[at]; segment != NULL && done < frames[at].room; segment = segment->next) {
			take = RTE_MIN((uint32_t)segment->data_len, frames[at].room - done);
			memcpy(frames[at].data + done, rte_pktmbuf_mtod(segment, const void *), take);
			done += take;
		}
		frames[at].len = received[at]->pkt_len;
	}
	if (got > 0)
		rte_pktmbuf_free_bulk(received, got);
	return got;
}

uint32_t hf_transmit(struct hf_port *port, const struct hf_frame *frames, uint32_t count)
{
	struct rte_mbuf *sending[HF_BURST];
	uint32_t at, sent = 0, tries;

	count = RTE_MIN(count, HF_BURST);
	if (rte_pktmbuf_alloc_bulk(port->pool, sending, count) != 0)
		return 0;
	for (at = 0; at < count; at++) {
		uint32_t len = RTE_MIN(frames[at].len, port->room);

		memcpy(rte_pktmbuf_mtod(sending[at], void *), frames[at].data, len);
		sending[at]->data_len = (uint16_t)len;
		sending[at]->pkt_len = len;
	}
	for (tries = 0; sent < count && tries < PATIENCE; tries++) {
		if (tries > 0)
			rte_pause();
		sent += rte_eth_tx_burst(port->id, 0, sending + sent, (uint16_t)(count - sent));
	}
	if (sent < count)
		rte_pktmbuf_free_bulk(sending + sent, count - sent);
	return sent;
}

int hf_stats(const struct hf_port *port, struct hf_stats *stats)
{
	struct rte_eth_stats all;
	int result = rte_eth_stats_get(port->id, &all);

	if (result == 0) {
		stats->missed = all.imissed;
		stats->no_buffer = all.rx_nombuf;
		stats->receive_errors = all.ierrors;
		stats->transmit_errors = all.oerrors;
	}
	return result;
}
