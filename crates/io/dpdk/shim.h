/* What the driver in src/port/dpdk.rs calls: an ABI of our own, so that nothing of DPDK's (inline functions, structures, versions) reaches
 * Rust. Whoever changes it changes HF_ABI here and in dpdk.rs.
 *
 * hf_start, hf_open and hf_close are called by one thread at a time; the others by one thread at a time per port. */
#ifndef HOLDFAST_DPDK_SHIM_H
#define HOLDFAST_DPDK_SHIM_H

#include <stddef.h>
#include <stdint.h>

#define HF_ABI 2u
/* Most frames per call of hf_receive and hf_transmit. */
#define HF_BURST 64u

struct hf_port;

/* Where a received frame goes (`room` bytes; `len` is then the frame's whole length, which may be more), or one to send (`len` bytes). */
struct hf_frame {
	uint8_t *data;
	uint32_t room;
	uint32_t len;
};

/* What a device is, once it is open. */
struct hf_info {
	uint8_t mac[6];
	uint16_t mtu;
};

/* Frames lost before hf_receive saw them: because nobody took them in time, because no buffer of DPDK's was free, and damaged ones; and frames that
 * hf_transmit gave to the device, which could not send them. */
struct hf_stats {
	uint64_t missed;
	uint64_t no_buffer;
	uint64_t receive_errors;
	uint64_t transmit_errors;
};

uint32_t hf_abi(void);

/* Starts DPDK's environment, once per process. 0, or a negative errno with what DPDK said in `why`. */
int hf_start(int use_huge_pages, char *why, size_t why_len);

/* Opens a device: a PCI address or a virtual device with its arguments. `room`: bytes of the largest frame. NULL, with a positive errno in
 * `*error` and what DPDK said in `why`, if that is not possible. */
struct hf_port *hf_open(const char *device, uint32_t room, struct hf_info *info, int *error, char *why, size_t why_len);

/* Closes the device and frees everything that belonged to it. */
void hf_close(struct hf_port *port);

/* 1 if the link is up. */
int hf_link(const struct hf_port *port);

/* Copies up to `count` (HF_BURST at most) received frames out; how many there were. */
uint32_t hf_receive(struct hf_port *port, struct hf_frame *frames, uint32_t count);

/* Copies `count` (HF_BURST at most) frames and sends them; how many the device took, from the first on. */
uint32_t hf_transmit(struct hf_port *port, const struct hf_frame *frames, uint32_t count);

/* 0, or a negative errno. */
int hf_stats(const struct hf_port *port, struct hf_stats *stats);

#endif
