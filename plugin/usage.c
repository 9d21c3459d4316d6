/* usage.c: the report at the end of the process (QUIRE_STATS=1). */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "kv_buffer.h"
#include "kv_group.h"
#include "settings.h"
#include "usage.h"

struct usage usage;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct kv_buffer *caches;
static FILE *past; /* of caches that are gone */
static char *past_text;
static size_t past_bytes;

static void print_packed(FILE *out, const struct kv_side *k) {
    quire_cells_stats s;
    if (quire_cells_get_stats(k->group->cells, k->index, &s) != QUIRE_OK)
        return;
    fprintf(out,
            "quire:   %s %s:%s %s, resident %.2f MiB packed %.2f open, read %.1f MiB packed "
            "%.1f raw, %" PRIu64 " rows, pages %" PRIu64 " packed %" PRIu64 " reopened %" PRIu64
            " masked, %" PRIu64 " fallbacks, %" PRIu64 " values clamped\n",
            k->name, s.k_codec, s.v_codec, s.kernel, mib(s.packed_bytes), mib(s.open_bytes),
            mib(s.packed_read), mib(s.raw_read), s.attended_rows, s.sealed_pages, s.reopened_pages,
            s.masked_pages, s.fallbacks, s.clamped_values);
}

static void print_cache(FILE *out, const struct kv_buffer *cache) {
    int packed = 0, plain = 0, sets = 0;
    bool windowed = false;
    size_t most = 0;
    for (int i = 0; i < cache->n_sides; i++) {
        packed += cache->sides[i].state == SIDE_PACKED;
        plain += cache->sides[i].state == SIDE_PLAIN;
    }
    for (const struct kv_group *group = cache->groups; group; group = group->next) {
        sets++;
        windowed |= group->windowed;
        most += group->bytes;
    }
    const struct kv_side *first = &cache->sides[0];
    fprintf(out,
            "quire: cache of %d tensors, %" PRId64 " x %" PRId64
            " cells of %s%s, page sets %d, up to %.1f MiB: %d packed, %d plain\n",
            cache->n_sides, first->n_streams, first->n_cells, host.ggml_type_name(first->type),
            windowed ? ", windowed" : "", sets, mib(most), packed, plain);
    for (int i = 0; i < cache->n_sides; i++) {
        const struct kv_side *side = &cache->sides[i];
        if (side->state == SIDE_PACKED && side->which == QUIRE_SIDE_K)
            print_packed(out, side);
        else if (side->state == SIDE_PLAIN)
            fprintf(out, "quire:   %s plain: %s\n", side->name, side->why);
    }
}

void usage_add_cache(struct kv_buffer *cache) {
    pthread_mutex_lock(&lock);
    cache->next = caches;
    cache->previous = NULL;
    if (caches)
        caches->previous = cache;
    caches = cache;
    pthread_mutex_unlock(&lock);
}

void usage_forget_cache(struct kv_buffer *cache) {
    pthread_mutex_lock(&lock);
    if (cache->next)
        cache->next->previous = cache->previous;
    if (cache->previous)
        cache->previous->next = cache->next;
    else
        caches = cache->next;
    if (past)
        print_cache(past, cache);
    pthread_mutex_unlock(&lock);
}

static void report(void) {
    pthread_mutex_lock(&lock);
    fprintf(stderr,
            "quire: kv %s, %" PRIu64 " graphs; rows of caches were read %" PRIu64
            ", written %" PRIu64 ", copied %" PRIu64 " times by the program, refused %" PRIu64
            " times\n",
            settings.kv, atomic_load(&usage.graphs), atomic_load(&usage.gets),
            atomic_load(&usage.sets), atomic_load(&usage.copies), atomic_load(&usage.refused));
    fflush(past);
    fwrite(past_text, 1, past_bytes, stderr);
    for (const struct kv_buffer *cache = caches; cache; cache = cache->next)
        print_cache(stderr, cache);
    pthread_mutex_unlock(&lock);
}

void usage_report_at_exit(void) {
    past = open_memstream(&past_text, &past_bytes);
    if (past)
        atexit(report);
}
