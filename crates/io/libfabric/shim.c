/* See shim.h. Compiled by build.rs into a shared object of its own, which libfabric.rs loads when a configuration asks for it. */
#include "shim.h"
#include "../shim_signals.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

/* Completions that wait at an end. */
#define COMPLETIONS 4096
/* Read at a time. */
#define BURST 64
/* Operations that a provider makes room for: what does not fit is offered again. */
#define DEPTH 128
/* Writes that have not completed, where a provider does not take them by value. */
#define UNDER_WAY 1024
/* An address begins with the key and the place of the memory that is written to. */
#define PREFIX 16

struct hf_words {
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	uint64_t next_key;
	int has_descriptor;
};

struct hf_end {
	struct hf_words *words;
	struct fid_ep *endpoint;
	struct fid_cq *completions;
	struct fid_av *addresses;
	struct fid_mr *region;
	fi_addr_t other;
	uint64_t other_key, other_place;
	int is_connected, by_value;
	uint32_t under_way;
	/* Nothing is ever written to it. */
	uint64_t memory;
};

uint32_t hf_words_abi(void)
{
	return HF_WORDS_ABI;
}

static int open_completions(struct hf_words *words, struct fid_cq **completions, int with_descriptor)
{
	struct fi_cq_attr attributes = {
		.size = COMPLETIONS,
		.format = FI_CQ_FORMAT_DATA,
		.wait_obj = with_descriptor ? FI_WAIT_FD : FI_WAIT_NONE,
	};

	return fi_cq_open(words->domain, &attributes, completions, NULL);
}

static int start(struct hf_words *words, const char *provider, const char *source)
{
	struct fi_info *wanted = fi_allocinfo();
	struct fid_cq *probe;
	int result;

	if (wanted == NULL)
		return -FI_ENOMEM;
	wanted->caps = FI_RMA | FI_WRITE | FI_REMOTE_WRITE;
	wanted->mode = 0;
	wanted->ep_attr->type = FI_EP_RDM;
	wanted->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
	wanted->domain_attr->threading = FI_THREAD_DOMAIN;
	/* Words are in order, or this is not the provider for them. */
	wanted->tx_attr->msg_order = FI_ORDER_WAW;
	wanted->rx_attr->msg_order = FI_ORDER_WAW;
	wanted->tx_attr->size = DEPTH;
	wanted->rx_attr->size = DEPTH;
	wanted->fabric_attr->prov_name = strdup(provider);
	result = fi_getinfo(FI_VERSION(1, 17), source, NULL, source == NULL ? 0 : FI_SOURCE, wanted, &words->info);
	fi_freeinfo(wanted);
	if (result < 0)
		return result;
	if ((result = fi_fabric(words->info->fabric_attr, &words->fabric, NULL)) < 0)
		return result;
	if ((result = fi_domain(words->fabric, words->info, &words->domain, NULL)) < 0)
		return result;
	words->has_descriptor = open_completions(words, &probe, 1) == 0;
	if (words->has_descriptor)
		fi_close(&probe->fid);
	return 0;
}

void hf_words_stop(struct hf_words *words)
{
	if (words->domain != NULL)
		fi_close(&words->domain->fid);
	if (words->fabric != NULL)
		fi_close(&words->fabric->fid);
	if (words->info != NULL)
		fi_freeinfo(words->info);
	free(words);
}

struct hf_words *hf_words_start(const char *provider, const char *source, struct hf_words_info *info, char *why, size_t why_len)
{
	struct hf_words *words = calloc(1, sizeof(*words));
	sigset_t mask;
	int result;

	if (words == NULL) {
		snprintf(why, why_len, "there is no memory");
		return NULL;
	}
	block_signals(&mask);
	result = start(words, provider, source);
	pthread_sigmask(SIG_SETMASK, &mask, NULL);
	if (result < 0) {
		snprintf(why, why_len, "%s", result == -FI_ENODATA ? "there is no such provider here that can do remote writes with data in order"
									: fi_strerror(-result));
		hf_words_stop(words);
		return NULL;
	}
	/* Keys are this process's to choose where providers do not: not the same ones as an earlier process's. */
	words->next_key = (uint64_t)getpid() << 16;
	info->data_size = (uint32_t)words->info->domain_attr->cq_data_size;
	info->has_descriptor = (uint32_t)words->has_descriptor;
	snprintf(info->name, sizeof(info->name), "%s on %s", words->info->fabric_attr->prov_name, words->info->domain_attr->name);
	return words;
}

static int open_end(struct hf_end *end, uint8_t *address, size_t *len)
{
	struct hf_words *words = end->words;
	struct fi_av_attr addresses = { .type = FI_AV_UNSPEC, .count = 1 };
	uint64_t key, place;
	size_t name_len;
	int result;

	if (*len < PREFIX)
		return -FI_ETOOSMALL;
	if ((result = fi_endpoint(words->domain, words->info, &end->endpoint, NULL)) < 0)
		return result;
	if ((result = fi_av_open(words->domain, &addresses, &end->addresses, NULL)) < 0)
		return result;
	if ((result = open_completions(words, &end->completions, words->has_descriptor)) < 0)
		return result;
	if ((result = fi_ep_bind(end->endpoint, &end->addresses->fid, 0)) < 0)
		return result;
	if ((result = fi_ep_bind(end->endpoint, &end->completions->fid, FI_TRANSMIT | FI_RECV)) < 0)
		return result;
	if ((result = fi_enable(end->endpoint)) < 0)
		return result;
	result = fi_mr_reg(words->domain, &end->memory, sizeof(end->memory), FI_REMOTE_WRITE, 0, words->next_key++, 0, &end->region, NULL);
	if (result < 0)
		return result;
	if (words->info->domain_attr->mr_mode & FI_MR_ENDPOINT) {
		if ((result = fi_mr_bind(end->region, &end->endpoint->fid, 0)) < 0)
			return result;
		if ((result = fi_mr_enable(end->region)) < 0)
			return result;
	}
	key = fi_mr_key(end->region);
	place = words->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uint64_t)(uintptr_t)&end->memory : 0;
	memcpy(address, &key, sizeof(key));
	memcpy(address + sizeof(key), &place, sizeof(place));
	name_len = *len - PREFIX;
	if ((result = fi_getname(&end->endpoint->fid, address + PREFIX, &name_len)) < 0)
		return result;
	*len = PREFIX + name_len;
	return 0;
}

void hf_end_close(struct hf_end *end)
{
	/* What uses something is closed before it. */
	if (end->endpoint != NULL)
		fi_close(&end->endpoint->fid);
	if (end->region != NULL)
		fi_close(&end->region->fid);
	if (end->completions != NULL)
		fi_close(&end->completions->fid);
	if (end->addresses != NULL)
		fi_close(&end->addresses->fid);
	free(end);
}

struct hf_end *hf_end_open(struct hf_words *words, uint8_t *address, size_t *len, int *error)
{
	struct hf_end *end = calloc(1, sizeof(*end));
	sigset_t mask;
	int result;

	*error = ENOMEM;
	if (end == NULL)
		return NULL;
	end->words = words;
	end->by_value = 1;
	block_signals(&mask);
	result = open_end(end, address, len);
	if (result < 0) {
		hf_end_close(end);
		end = NULL;
	}
	pthread_sigmask(SIG_SETMASK, &mask, NULL);
	*error = -result;
	return end;
}

int hf_end_connect(struct hf_end *end, const uint8_t *address, size_t len)
{
	/* Longer than any name, and zero behind it: a provider reads as much as its names are long. */
	uint8_t name[HF_WORDS_ADDRESS * 2] = { 0 };

	if (end->is_connected || len <= PREFIX || len > HF_WORDS_ADDRESS)
		return -EINVAL;
	memcpy(&end->other_key, address, sizeof(end->other_key));
	memcpy(&end->other_place, address + sizeof(end->other_key), sizeof(end->other_place));
	memcpy(name, address + PREFIX, len - PREFIX);
	if (fi_av_insert(end->addresses, name, 1, &end->other, 0, NULL) != 1)
		return -EINVAL;
	end->is_connected = 1;
	return 0;
}

int hf_end_descriptor(const struct hf_end *end)
{
	int descriptor = -1;

	if (!end->words->has_descriptor || fi_control(&end->completions->fid, FI_GETWAIT, &descriptor) < 0)
		return -1;
	return descriptor;
}

int hf_end_may_wait(struct hf_end *end)
{
	struct fid *fids[] = { &end->completions->fid };

	return fi_trywait(end->words->fabric, fids, 1) == 0;
}

int hf_end_send(struct hf_end *end, const uint64_t *data, uint32_t count)
{
	uint32_t at;
	ssize_t result;

	if (!end->is_connected)
		return 0;
	for (at = 0; at < count; at++) {
		if (end->by_value) {
			result = fi_inject_writedata(end->endpoint, &end->memory, 0, data[at], end->other, end->other_place,
						     end->other_key);
			/* Not every provider can. */
			if (result == -FI_ENOSYS || result == -FI_EOPNOTSUPP) {
				end->by_value = 0;
				at--;
				continue;
			}
		} else {
			if (end->under_way >= UNDER_WAY)
				break;
			result = fi_writedata(end->endpoint, &end->memory, 0, NULL, data[at], end->other, end->other_place, end->other_key,
					      NULL);
			end->under_way += result == 0;
		}
		if (result == -FI_EAGAIN)
			break;
		if (result < 0)
			return (int)result;
	}
	return (int)at;
}

int hf_end_receive(struct hf_end *end, uint64_t *data, uint32_t count)
{
	struct fi_cq_data_entry entries[BURST];
	struct fi_cq_err_entry error;
	uint32_t done = 0;
	ssize_t got, at;

	while (done < count) {
		got = fi_cq_read(end->completions, entries, count - done < BURST ? count - done : BURST);
		if (got == -FI_EAGAIN || got == 0)
			break;
		if (got < 0) {
			/* Whatever it was, a word may have been lost with it. */
			memset(&error, 0, sizeof(error));
			fi_cq_readerr(end->completions, &error, 0);
			return -EIO;
		}
		for (at = 0; at < got; at++) {
			if (entries[at].flags & FI_REMOTE_CQ_DATA)
				data[done++] = entries[at].data;
			else if (end->under_way > 0)
				end->under_way--;
		}
	}
	return (int)done;
}
