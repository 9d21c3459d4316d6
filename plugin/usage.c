/* usage.c: the report at the end of the process (QUIRE_STATS=1). */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "settings.h"
#include "usage.h"

struct usage usage;

static void report(void) {
    fprintf(stderr,
            "quire: kv %s, %" PRIu64 " graphs, cache tensors read %" PRIu64 ", written %" PRIu64
            ", copied %" PRIu64 " times\n",
            settings.kv, atomic_load(&usage.graphs), atomic_load(&usage.gets),
            atomic_load(&usage.sets), atomic_load(&usage.copies));
}

void usage_report_at_exit(void) { atexit(report); }
