/* usage.h: what happened in this process, for the report at its end. */
#ifndef QUIRE_PLUGIN_USAGE_H
#define QUIRE_PLUGIN_USAGE_H

#include <stdatomic.h>
#include <stdint.h>

typedef _Atomic uint64_t usage_counter;

struct usage {
    usage_counter graphs;
    usage_counter gets, sets, copies; /* of cache tensors, by the host */
};

extern struct usage usage;

static inline void usage_count(usage_counter *counter, uint64_t n) {
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

/* Prints the report when the process ends. */
void usage_report_at_exit(void);

#endif
