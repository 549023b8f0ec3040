/* What src/lib.rs calls: an ABI of our own, so that nothing of nDPI's (structures, sizes,
 * versions) reaches Rust. Whoever changes it changes HF_ABI here and there.
 *
 * What tables share, a lock in shim.c guards; a table is its owner's. All memory is the system's
 * allocator's: in a worker with a local standby it is the process's own, and a standby that
 * takes over has tables as they were when it was forked. A flow whose object is missing, or
 * has seen other packets, is told as HF_MISSING. */
#ifndef HOLDFAST_NDPI_SHIM_H
#define HOLDFAST_NDPI_SHIM_H

#include <stdint.h>

#define HF_ABI 1u

/* A packet was inspected; the flow's object is not there. */
#define HF_SEEN 0
#define HF_MISSING 1

/* What is known of a flow. `app` is 0 while nothing is; `master` is 0 if there is no
 * protocol below `app`. With `is_final` the object has been freed. */
struct hf_verdict {
	uint16_t app;
	uint16_t master;
	uint16_t category;
	uint16_t is_final;
};

/* A packet of a flow: `step` packets of it have been inspected before. `ip` is a whole IP
 * packet of `len` bytes, not a fragment. */
struct hf_packet {
	const uint8_t *ip;
	/* For a new object a packet ahead of this one, of `ahead_len` bytes, or none. */
	const uint8_t *ahead;
	uint64_t flow;
	uint64_t ms;
	uint32_t step;
	uint16_t len;
	uint16_t ahead_len;
	/* The object gives its last answer with this packet. */
	uint16_t is_last;
};

/* Objects of one function's flows. */
struct hf_table;

uint32_t hf_abi(void);
/* Makes the process's detection module; once, before anything else. 0, or -1. */
int hf_start(void);
/* The name of a protocol or a category, or NULL behind the last one. */
const char *hf_protocol(uint16_t id);
const char *hf_category(uint16_t id);
/* A table for `flows` objects, that have `bytes` together. NULL without memory. */
struct hf_table *hf_new(uint32_t flows, uint64_t bytes);
void hf_delete(struct hf_table *table);
int hf_inspect(struct hf_table *table, const struct hf_packet *packet, struct hf_verdict *verdict);
/* Frees a flow's object, if there is one. */
void hf_forget(struct hf_table *table, uint64_t flow);
/* The number of objects, and of those that were freed to make room. */
void hf_count(const struct hf_table *table, uint32_t *objects, uint64_t *evicted);

#endif
