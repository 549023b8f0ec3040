/* What the driver in src/words/libfabric.rs calls: an ABI of our own, so that nothing of libfabric's (inline functions, structures, versions)
 * reaches Rust. Whoever changes it changes HF_WORDS_ABI here and in libfabric.rs.
 *
 * All functions of one provider and its ends are called by one thread at a time. */
#ifndef HOLDFAST_LIBFABRIC_SHIM_H
#define HOLDFAST_LIBFABRIC_SHIM_H

#include <stddef.h>
#include <stdint.h>

#define HF_WORDS_ABI 1u
/* Most bytes of an end's address. */
#define HF_WORDS_ADDRESS 160u

struct hf_words;
struct hf_end;

/* What a provider is, once it has started. */
struct hf_words_info {
	/* Bytes of the data that a remote write brings along. */
	uint32_t data_size;
	/* 1 if its ends have descriptors to wait for. */
	uint32_t has_descriptor;
	/* Its name and its device's, as libfabric says. */
	char name[128];
};

uint32_t hf_words_abi(void);

/* Opens a provider's domain. NULL, with the reason in `why`, if that is not possible. `source`: the address of this machine to use, or NULL. */
struct hf_words *hf_words_start(const char *provider, const char *source, struct hf_words_info *info, char *why, size_t why_len);

/* Closes it. Its ends have been closed. */
void hf_words_stop(struct hf_words *words);

/* An end, with its address, for one other end. NULL, with a positive errno in `*error`. `*len` is the room for the address, and then its length. */
struct hf_end *hf_end_open(struct hf_words *words, uint8_t *address, size_t *len, int *error);

/* Says where the other end is. 0, or a negative errno. */
int hf_end_connect(struct hf_end *end, const uint8_t *address, size_t len);

void hf_end_close(struct hf_end *end);

/* The descriptor to wait for, or -1. It is the end's. */
int hf_end_descriptor(const struct hf_end *end);

/* 1 if the descriptor says when something comes; 0 if something may have come already. */
int hf_end_may_wait(struct hf_end *end);

/* Sends remote writes of no bytes, one for each of these; how many were taken, from the first on, or a negative errno if no more ever will be. */
int hf_end_send(struct hf_end *end, const uint64_t *data, uint32_t count);

/* What such writes of the other end have brought along, `count` at most; how many there were, or a negative errno if something was lost. */
int hf_end_receive(struct hf_end *end, uint64_t *data, uint32_t count);

#endif
