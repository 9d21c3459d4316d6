/* Saves a sequence: the contents of each section of its file. */
#include <stdlib.h>

#include "base/element.h"
#include "file/snapshot.h"

typedef struct saver {
    quire_snapshot *to;
    const quire_seq *seq;
    const quire_save_options *options;
} saver;

void quire_save_options_default(quire_save_options *options) {
    if (options)
        *options = (quire_save_options){.struct_size = sizeof *options};
}

/* ------------------------------------------------------------------ sections */

static quire_status add(saver *s, const void *bytes, size_t n_bytes) {
    return quire__snapshot_add(s->to, bytes, n_bytes);
}

static quire_status add_layers(saver *s) {
    const size_t n_bytes = quire__layers_bytes(s->seq->pool);
    uint8_t *bytes = malloc(n_bytes);
    if (!bytes)
        return quire__fail(QUIRE_E_NOMEM, "out of memory while describing the layers");
    quire__layers_describe(s->seq->pool, s->options->any_attention, bytes);
    const quire_status status = add(s, bytes, n_bytes);
    free(bytes);
    return status;
}

/* Bits of those among the first n rows that exist. */
static uint64_t rows_of(const quire_pool *pool, int32_t leaf, int32_t n) {
    return leaf == QUIRE_NO_LEAF ? 0 : ~pool->leaf[leaf].lost & quire__rows_below(n);
}

static quire_status add_state(saver *s) {
    const quire_seq *seq = s->seq;
    const quire_pool *pool = seq->pool;
    QUIRE_TRY(quire__snapshot_add_state(s->to, seq->length, seq->last_page, seq->history,
                                        quire__history_exact(seq)));
    for (int32_t g = 0; g < seq->pool->n_classes; g++) {
        const quire_seq_class *class = &seq->class[g];
        const uint32_t flags =
            (class->sinks != QUIRE_NO_LEAF ? (uint32_t)QUIRE_HELD_SINKS : 0) |
            (class->open != QUIRE_NO_LEAF ? (uint32_t)QUIRE_HELD_OPEN : 0) |
            (class->last_raw != QUIRE_NO_LEAF ? (uint32_t)QUIRE_HELD_LAST_RAW : 0);
        QUIRE_TRY(quire__snapshot_add_class(s->to, class->live_from, flags,
                                            rows_of(pool, class->sinks, pool->class[g].sinks),
                                            rows_of(pool, class->open, seq->length % QUIRE_T)));
        for (int32_t p = 0; p < seq->length / QUIRE_T; p++)
            QUIRE_TRY(quire__snapshot_add_rows(s->to, rows_of(pool, class->table[p], QUIRE_T)));
    }
    return QUIRE_OK;
}

static quire_status add_leaf(saver *s, int32_t leaf) {
    const quire_pool *pool = s->seq->pool;
    return leaf == QUIRE_NO_LEAF ? QUIRE_OK
                                 : add(s, quire__leaf_memory(pool, leaf), pool->leaf[leaf].bytes);
}

/* Only the rows in use: after them the page has stale bytes. */
static quire_status add_open(saver *s, int32_t g) {
    const quire_pool *pool = s->seq->pool;
    const int32_t leaf = s->seq->class[g].open;
    const size_t n = (size_t)(s->seq->length % QUIRE_T) * quire__type_bytes(pool->raw);
    for (int32_t i = 0; leaf != QUIRE_NO_LEAF && i < pool->n_layers; i++) {
        const quire_layer_state *layer = &pool->layer[i];
        for (int32_t head = 0;
             layer->class == g && layer->source == i && head < layer->config.n_kv_heads; head++) {
            const uint8_t *record = quire__raw_record(pool, layer, leaf, head);
            QUIRE_TRY(add(s, record, n * (size_t)layer->config.k_dim));
            QUIRE_TRY(add(s, record + layer->raw_v_offset, n * (size_t)layer->config.v_dim));
        }
    }
    return QUIRE_OK;
}

static quire_status add_pages(saver *s, int32_t g) {
    const quire_seq_class *class = &s->seq->class[g];
    QUIRE_TRY(add_leaf(s, class->sinks));
    QUIRE_TRY(add_leaf(s, class->last_raw));
    QUIRE_TRY(add_open(s, g));
    for (int32_t p = 0; p < s->seq->length / QUIRE_T; p++)
        QUIRE_TRY(add_leaf(s, class->table[p]));
    return QUIRE_OK;
}

/* ------------------------------------------------------------------ the file */

static quire_status add_section(void *user, quire_snapshot *to, int32_t index) {
    saver *s = user;
    s->to = to;
    switch (index) {
    case QUIRE_SECTION_IDENTITY:
        return add(s, s->options->identity, s->options->identity_bytes);
    case QUIRE_SECTION_LAYERS:
        return add_layers(s);
    case QUIRE_SECTION_TOKENS:
        return add(s, s->options->tokens,
                   (size_t)s->options->n_tokens * sizeof *s->options->tokens);
    case QUIRE_SECTION_STATE:
        return add_state(s);
    default:
        return add_pages(s, index - QUIRE_SECTION_PAGES);
    }
}

static quire_status check_options(const quire_seq *seq, const quire_save_options *o) {
    if (o->struct_size != sizeof *o)
        return quire__fail(QUIRE_E_INVALID,
                           "options were not set up by quire_save_options_default");
    if (o->identity_bytes > QUIRE_IDENTITY_MAX || (o->identity_bytes > 0 && !o->identity))
        return quire__fail(QUIRE_E_INVALID, "identity is NULL or longer than %d bytes",
                           QUIRE_IDENTITY_MAX);
    if (o->n_tokens < 0 || (o->n_tokens > 0 && !o->tokens))
        return quire__fail(QUIRE_E_INVALID, "tokens is NULL, or n_tokens is negative");
    if (o->n_tokens > 0 && o->n_tokens < seq->length)
        return quire__fail(QUIRE_E_INVALID, "%d token ids are too few for a sequence of %d tokens",
                           (int)o->n_tokens, (int)seq->length);
    return QUIRE_OK;
}

/* All pages of a file have the same form. The caller holds the lock. */
static quire_status check_form(const quire_seq *seq) {
    const quire_pool *pool = seq->pool;
    for (int32_t g = 0; pool->changing && g < pool->n_classes; g++) {
        const quire_seq_class *s = &seq->class[g];
        bool stale = s->sinks != QUIRE_NO_LEAF && quire__leaf_stale(pool, s->sinks);
        for (int32_t p = 0; p < seq->length / QUIRE_T && !stale; p++)
            stale = s->table[p] != QUIRE_NO_LEAF && quire__leaf_stale(pool, s->table[p]);
        if (stale)
            return quire__fail(
                QUIRE_E_STATE,
                "some pages still have the previous codecs: finish requantizing first");
    }
    return QUIRE_OK;
}

quire_status quire__seq_hold(const quire_seq *seq) {
    pthread_mutex_lock(&seq->pool->lock);
    quire_status status =
        !seq->used   ? quire__fail(QUIRE_E_INVALID, "the sequence has already been freed")
        : seq->batch ? quire__fail(QUIRE_E_BUSY, "cannot save a sequence that is in a batch")
                     : check_form(seq);
    if (status == QUIRE_OK)
        ((quire_seq *)(uintptr_t)seq)->in_file = true; /* nothing that a caller can see */
    pthread_mutex_unlock(&seq->pool->lock);
    return status;
}

/* Does not need the lock: leaves with a reference do not move, and only their own sequence changes
 * them. */
static quire_status save(const quire_seq *seq, const char *path,
                         const quire_save_options *options) {
    saver s = {.seq = seq, .options = options};
    QUIRE_TRY(check_options(seq, options));
    return quire__snapshot_write(path, seq->pool->n_classes, add_section, &s);
}

quire_status quire_seq_save(const quire_seq *seq, const char *path,
                            const quire_save_options *options) {
    if (!seq || !path)
        return quire__fail(QUIRE_E_INVALID, "sequence or path is NULL");
    quire_save_options defaults;
    quire_save_options_default(&defaults);
    QUIRE_TRY(quire__seq_hold(seq));
    const quire_status status = save(seq, path, options ? options : &defaults);
    quire__seq_in_file(seq, false);
    return status;
}
