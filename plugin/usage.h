/* usage.h: what happened in this process, for the report at its end. */
#ifndef QUIRE_PLUGIN_USAGE_H
#define QUIRE_PLUGIN_USAGE_H

#include <stdatomic.h>
#include <stdint.h>

typedef _Atomic uint64_t usage_counter;

struct usage {
    usage_counter graphs;
    usage_counter gets, sets, copies; /* of rows of caches, by the host */
    usage_counter refused;            /* graphs and sides whose rows or queries pages refused */
};

extern struct usage usage;

static inline void usage_count(usage_counter *counter, uint64_t n) {
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

/* Bytes as people read them. */
static inline double mib(uint64_t bytes) { return (double)bytes / 1048576; }

struct kv_buffer;

/* Caches that are alive; a cache that is freed leaves its part of the report behind. */
void usage_add_cache(struct kv_buffer *cache);
void usage_forget_cache(struct kv_buffer *cache);

/* Prints the report when the process ends. */
void usage_report_at_exit(void);

#endif
