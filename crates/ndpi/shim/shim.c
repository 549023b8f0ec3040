/* See shim.h. Compiled by build.rs into a shared object of its own, which lib.rs loads. */
#include "shim.h"

#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <ndpi_api.h>

/* Slots of one hash. There are twice as many slots as objects, so that a set is hardly ever
 * full before the table is; the object in it that was used least recently makes room then. */
#define WAYS 16u
/* Categories are numbers with gaps, below this one. */
#define CATEGORIES NDPI_PROTOCOL_NUM_CATEGORIES

struct slot {
	uint64_t flow;
	uint64_t used;
	struct ndpi_flow_struct *object;
	uint32_t steps;
};

struct hf_table {
	uint64_t evicted;
	/* Counts calls: the time of `used`. */
	uint64_t clock;
	/* Memory taken and given back while this table was served, and its limit. Small tables
	 * that nDPI makes for all flows while it inspects one are part of it. */
	int64_t bytes;
	int64_t limit;
	/* Objects, and their limit. */
	uint32_t objects;
	uint32_t most;
	/* The number of sets less one: a power of two less one. */
	uint32_t mask;
	/* The next slot that makes room at a limit. */
	uint32_t hand;
	struct slot slots[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct ndpi_detection_module_struct *module;
/* The table whose objects the memory is for. */
static struct hf_table *charged;

static void *charge(size_t size)
{
	void *block = malloc(size);

	if (charged && block)
		charged->bytes += (int64_t)malloc_usable_size(block);
	return block;
}

static void discharge(void *block)
{
	if (charged && block)
		charged->bytes -= (int64_t)malloc_usable_size(block);
	free(block);
}

uint32_t hf_abi(void)
{
	return HF_ABI;
}

int hf_start(void)
{
	NDPI_PROTOCOL_BITMASK all;

	pthread_mutex_lock(&lock);
	if (!module) {
		set_ndpi_malloc(charge);
		set_ndpi_free(discharge);
		module = ndpi_init_detection_module(ndpi_no_prefs);
		if (module) {
			NDPI_BITMASK_SET_ALL(all);
			ndpi_set_protocol_detection_bitmask2(module, &all);
			ndpi_finalize_initialization(module);
		}
	}
	pthread_mutex_unlock(&lock);
	return module ? 0 : -1;
}

const char *hf_protocol(uint16_t id)
{
	return id < ndpi_get_num_supported_protocols(module) ? ndpi_get_proto_name(module, id) : NULL;
}

const char *hf_category(uint16_t id)
{
	return id < CATEGORIES ? ndpi_category_get_name(module, (ndpi_protocol_category_t)id) : NULL;
}

struct hf_table *hf_new(uint32_t flows, uint64_t bytes)
{
	uint32_t sets = 1;
	struct hf_table *table;

	while (sets < (1u << 24) && sets * WAYS / 2 < flows)
		sets *= 2;
	table = calloc(1, sizeof(*table) + sets * WAYS * sizeof(struct slot));
	if (table) {
		table->mask = sets - 1;
		table->most = flows;
		table->limit = bytes > INT64_MAX ? INT64_MAX : (int64_t)bytes;
	}
	return table;
}

/* Under the lock, with `charged` set. */
static void empty(struct hf_table *table, struct slot *slot)
{
	ndpi_free_flow(slot->object);
	memset(slot, 0, sizeof(*slot));
	table->objects--;
}

static struct slot *set_of(struct hf_table *table, uint64_t flow)
{
	return &table->slots[((uint32_t)(flow >> 32) & table->mask) * WAYS];
}

static struct slot *find(struct hf_table *table, uint64_t flow)
{
	struct slot *set = set_of(table, flow);

	for (uint32_t way = 0; way < WAYS; way++)
		if (set[way].object && set[way].flow == flow)
			return &set[way];
	return NULL;
}

/* A new object for the flow, in place of another one if there is no room. */
static struct slot *make(struct hf_table *table, uint64_t flow)
{
	struct slot *slot = set_of(table, flow), *set = slot;

	for (uint32_t way = 1; way < WAYS; way++)
		if (set[way].used < slot->used)
			slot = &set[way];
	if (slot->object) {
		empty(table, slot);
		table->evicted++;
	}
	while (table->objects && (table->objects >= table->most || table->bytes >= table->limit)) {
		struct slot *other = &table->slots[table->hand];

		table->hand = (table->hand + 1) % ((table->mask + 1) * WAYS);
		if (other->object) {
			empty(table, other);
			table->evicted++;
		}
	}
	slot->object = ndpi_malloc(SIZEOF_FLOW_STRUCT);
	if (!slot->object)
		return NULL;
	memset(slot->object, 0, SIZEOF_FLOW_STRUCT);
	slot->flow = flow;
	table->objects++;
	return slot;
}

static int inspect(struct hf_table *table, const struct hf_packet *packet, struct hf_verdict *verdict)
{
	struct slot *slot = find(table, packet->flow);
	ndpi_protocol found;
	u_int8_t guessed = 0;

	if (slot && slot->steps != packet->step) {
		empty(table, slot);
		slot = NULL;
	}
	if (!slot && packet->step == 0) {
		slot = make(table, packet->flow);
		if (slot && packet->ahead)
			ndpi_detection_process_packet(module, slot->object, packet->ahead, packet->ahead_len, packet->ms);
	}
	if (!slot)
		return HF_MISSING;
	slot->steps++;
	slot->used = ++table->clock;
	found = ndpi_detection_process_packet(module, slot->object, packet->ip, packet->len, packet->ms);
	/* As ndpiReader does: an object that knows the protocol may still learn more of it. */
	verdict->is_final = found.app_protocol != NDPI_PROTOCOL_UNKNOWN &&
			    !ndpi_extra_dissection_possible(module, slot->object);
	if (packet->is_last && !verdict->is_final) {
		if (found.app_protocol == NDPI_PROTOCOL_UNKNOWN)
			found = ndpi_detection_giveup(module, slot->object, 0, &guessed);
		verdict->is_final = 1;
	}
	verdict->app = found.app_protocol;
	verdict->master = found.master_protocol;
	verdict->category = (uint16_t)found.category;
	if (verdict->is_final)
		empty(table, slot);
	return HF_SEEN;
}

int hf_inspect(struct hf_table *table, const struct hf_packet *packet, struct hf_verdict *verdict)
{
	int result;

	pthread_mutex_lock(&lock);
	charged = table;
	result = inspect(table, packet, verdict);
	charged = NULL;
	pthread_mutex_unlock(&lock);
	return result;
}

void hf_forget(struct hf_table *table, uint64_t flow)
{
	struct slot *slot;

	pthread_mutex_lock(&lock);
	charged = table;
	slot = find(table, flow);
	if (slot)
		empty(table, slot);
	charged = NULL;
	pthread_mutex_unlock(&lock);
}

void hf_delete(struct hf_table *table)
{
	pthread_mutex_lock(&lock);
	charged = table;
	for (uint64_t at = 0; at < ((uint64_t)table->mask + 1) * WAYS; at++)
		if (table->slots[at].object)
			empty(table, &table->slots[at]);
	charged = NULL;
	pthread_mutex_unlock(&lock);
	free(table);
}

void hf_count(const struct hf_table *table, uint32_t *objects, uint64_t *evicted)
{
	*objects = table->objects;
	*evicted = table->evicted;
}
