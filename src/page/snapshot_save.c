/* A sequence into a file: sections first, their checksums on the way, the header last. */
#include <string.h>

#include "base/element.h"
#include "page/snapshot.h"

typedef struct saver {
    quire_writer writer;
    quire_hash hash;
    uint64_t start; /* of the section being written */
    const quire_seq *seq;
    const quire_save_options *options;
} saver;

void quire_save_options_default(quire_save_options *options) {
    if (options)
        *options = (quire_save_options){.struct_size = sizeof *options};
}

uint64_t quire__attention_digest(const quire_layer_state *layer) {
    const quire_layer *l = &layer->config;
    const float scalars[2] = {layer->q_scale, l->softcap};
    const size_t n = (size_t)l->n_heads;
    const uint8_t has[2] = {l->alibi != NULL, l->sink_logits != NULL};
    quire_hash hash;
    quire__hash_start(&hash);
    quire__hash_add(&hash, &l->n_heads, sizeof l->n_heads);
    quire__hash_add(&hash, scalars, sizeof scalars);
    quire__hash_add(&hash, has, sizeof has);
    if (l->alibi)
        quire__hash_add(&hash, l->alibi, n * sizeof *l->alibi);
    if (l->sink_logits)
        quire__hash_add(&hash, l->sink_logits, n * sizeof *l->sink_logits);
    const quire_digest digest = quire__hash_end(&hash);
    const uint64_t word = quire__get64(digest.byte);
    return word ? word : 1;
}

/* ------------------------------------------------------------------ sections */

static quire_status add(saver *s, const void *bytes, size_t n_bytes) {
    if (n_bytes == 0)
        return QUIRE_OK;
    quire__hash_add(&s->hash, bytes, n_bytes);
    return quire__writer_add(&s->writer, bytes, n_bytes);
}

static void begin_section(saver *s) {
    s->start = s->writer.bytes;
    quire__hash_start(&s->hash);
}

/* Pads it, and writes its line of the table. */
static quire_status end_section(saver *s, int32_t index) {
    static const uint8_t zeros[QUIRE_FILE_ALIGN] = {0};
    const uint64_t bytes = s->writer.bytes - s->start;
    QUIRE_TRY(add(s, zeros, (size_t)(quire__file_align(bytes) - bytes)));
    const quire_digest digest = quire__hash_end(&s->hash);
    uint8_t entry[QUIRE_FILE_ENTRY] = {0};
    quire__put32(entry, (uint32_t)(index < QUIRE_SECTION_PAGES ? index : QUIRE_SECTION_PAGES));
    quire__put32(entry + 4, (uint32_t)(index < QUIRE_SECTION_PAGES ? 0 : index - QUIRE_SECTION_PAGES));
    quire__put64(entry + 8, s->start);
    quire__put64(entry + 16, bytes);
    memcpy(entry + 24, digest.byte, sizeof digest.byte);
    return quire__writer_patch(&s->writer, QUIRE_FILE_HEADER + (uint64_t)index * QUIRE_FILE_ENTRY, entry, sizeof entry);
}

/* Without it nobody could tell the channels of packed rows apart. */
static quire_status add_order(saver *s, const quire_layer *l) {
    uint8_t order[2 * QUIRE_DIM_MAX];
    for (int32_t h = 0; quire__file_has_order(l) && h < l->n_kv_heads; h++) {
        for (int32_t p = 0; p < l->k_dim; p++)
            quire__put16(order + 2 * p, l->k_order[h * l->k_dim + p]);
        QUIRE_TRY(add(s, order, 2 * (size_t)l->k_dim));
    }
    return QUIRE_OK;
}

static quire_status add_layers(saver *s) {
    const quire_pool *pool = s->seq->pool;
    uint8_t head[QUIRE_FILE_LAYERS_HEAD] = {0};
    int32_t sinks = 0;
    for (int32_t g = 0; g < pool->n_groups; g++)
        sinks = pool->group[g].raw ? sinks : pool->group[g].sinks;
    quire__put32(head, QUIRE_PAGE_FORMAT);
    quire__put32(head + 4, QUIRE_ROTATION);
    quire__put32(head + 8, QUIRE_PAGE_TOKENS);
    quire__put32(head + 12, (uint32_t)pool->raw);
    quire__put32(head + 16, (uint32_t)sinks);
    quire__put32(head + 20, (uint32_t)pool->n_layers);
    quire__put32(head + 24, (uint32_t)pool->n_groups);
    QUIRE_TRY(add(s, head, sizeof head));
    for (int32_t i = 0; i < pool->n_layers; i++) {
        const quire_layer_state *layer = &pool->layer[i];
        const quire_layer *l = &layer->config;
        const int32_t fields[10] = {l->n_heads, l->n_kv_heads, l->k_dim,      l->v_dim, l->window,
                                    l->keep,    (int32_t)l->k, (int32_t)l->v, l->share, layer->group};
        uint8_t entry[QUIRE_FILE_LAYER];
        for (int f = 0; f < 10; f++)
            quire__put32(entry + 4 * f, (uint32_t)fields[f]);
        quire__put64(entry + 40, s->options->any_attention ? 0 : quire__attention_digest(layer));
        QUIRE_TRY(add(s, entry, sizeof entry));
    }
    for (int32_t i = 0; i < pool->n_layers; i++)
        QUIRE_TRY(add_order(s, &pool->layer[i].config));
    return QUIRE_OK;
}

static quire_status add_state(saver *s) {
    const quire_seq *seq = s->seq;
    uint8_t head[QUIRE_FILE_STATE_HEAD];
    quire__put32(head, (uint32_t)seq->length);
    quire__put32(head + 4, (uint32_t)seq->kept_page);
    QUIRE_TRY(add(s, head, sizeof head));
    for (int32_t g = 0; g < seq->pool->n_groups; g++) {
        const quire_seq_group *group = &seq->group[g];
        uint8_t entry[QUIRE_FILE_GROUP];
        quire__put32(entry, (uint32_t)group->live_from);
        quire__put32(entry + 4, (group->sinks != QUIRE_NO_LEAF ? (uint32_t)QUIRE_HELD_SINKS : 0) |
                                    (group->open != QUIRE_NO_LEAF ? (uint32_t)QUIRE_HELD_OPEN : 0) |
                                    (group->kept != QUIRE_NO_LEAF ? (uint32_t)QUIRE_HELD_KEPT : 0));
        QUIRE_TRY(add(s, entry, sizeof entry));
        for (int32_t p = 0; p < seq->length / QUIRE_T; p++) {
            const uint8_t held = group->table[p] != QUIRE_NO_LEAF;
            QUIRE_TRY(add(s, &held, 1));
        }
    }
    return QUIRE_OK;
}

static quire_status add_leaf(saver *s, int32_t leaf) {
    const quire_pool *pool = s->seq->pool;
    return leaf == QUIRE_NO_LEAF ? QUIRE_OK : add(s, quire__leaf_memory(pool, leaf), pool->leaf[leaf].bytes);
}

/* The rows in use: what lies after them is whatever the page held before. */
static quire_status add_open(saver *s, int32_t g) {
    const quire_pool *pool = s->seq->pool;
    const int32_t leaf = s->seq->group[g].open;
    const size_t n = (size_t)(s->seq->length % QUIRE_T) * quire__type_bytes(pool->raw);
    for (int32_t i = 0; leaf != QUIRE_NO_LEAF && i < pool->n_layers; i++) {
        const quire_layer_state *layer = &pool->layer[i];
        for (int32_t head = 0; layer->group == g && layer->source == i && head < layer->config.n_kv_heads; head++) {
            const uint8_t *record = quire__raw_record(pool, layer, leaf, head);
            QUIRE_TRY(add(s, record, n * (size_t)layer->config.k_dim));
            QUIRE_TRY(add(s, record + layer->raw_v_offset, n * (size_t)layer->config.v_dim));
        }
    }
    return QUIRE_OK;
}

static quire_status add_pages(saver *s, int32_t g) {
    const quire_seq_group *group = &s->seq->group[g];
    QUIRE_TRY(add_leaf(s, group->sinks));
    QUIRE_TRY(add_leaf(s, group->kept));
    QUIRE_TRY(add_open(s, g));
    for (int32_t p = 0; p < s->seq->length / QUIRE_T; p++)
        QUIRE_TRY(add_leaf(s, group->table[p]));
    return QUIRE_OK;
}

/* ------------------------------------------------------------------ the file */

static quire_status add_section(saver *s, int32_t index) {
    switch (index) {
    case QUIRE_SECTION_IDENTITY:
        return add(s, s->options->identity, s->options->identity_bytes);
    case QUIRE_SECTION_LAYERS:
        return add_layers(s);
    case QUIRE_SECTION_TOKENS:
        return add(s, s->options->tokens, (size_t)s->options->n_tokens * sizeof *s->options->tokens);
    case QUIRE_SECTION_STATE:
        return add_state(s);
    default:
        return add_pages(s, index - QUIRE_SECTION_PAGES);
    }
}

static quire_status add_zeros(quire_writer *writer, size_t n_bytes) {
    static const uint8_t zeros[QUIRE_FILE_ALIGN] = {0};
    for (size_t n; n_bytes > 0; n_bytes -= n) {
        n = n_bytes < sizeof zeros ? n_bytes : sizeof zeros;
        QUIRE_TRY(quire__writer_add(writer, zeros, n));
    }
    return QUIRE_OK;
}

/* The header's checksum covers the header without it, and the table, which is read back from the file. */
static quire_status write_header(saver *s, int32_t n_sections, size_t head_bytes) {
    uint8_t header[QUIRE_FILE_HEADER] = {0}, entry[QUIRE_FILE_ALIGN];
    memcpy(header, QUIRE_FILE_MAGIC, 8);
    quire__put32(header + 8, QUIRE_FILE_VERSION);
    quire__put32(header + 12, (uint32_t)n_sections);
    quire__put64(header + 16, s->writer.bytes);
    quire__hash_start(&s->hash);
    quire__hash_add(&s->hash, header, sizeof header);
    for (size_t at = sizeof header; at < head_bytes; at += sizeof entry) {
        QUIRE_TRY(quire__read_at(s->writer.fd, at, entry, sizeof entry));
        quire__hash_add(&s->hash, entry, sizeof entry);
    }
    const quire_digest digest = quire__hash_end(&s->hash);
    memcpy(header + 48, digest.byte, sizeof digest.byte);
    return quire__writer_patch(&s->writer, 0, header, sizeof header);
}

static quire_status write_file(saver *s) {
    const int32_t n_sections = QUIRE_FILE_SECTIONS + s->seq->pool->n_groups;
    const size_t head_bytes = (size_t)quire__file_align(QUIRE_FILE_HEADER + (uint64_t)n_sections * QUIRE_FILE_ENTRY);
    QUIRE_TRY(add_zeros(&s->writer, head_bytes));
    for (int32_t i = 0; i < n_sections; i++) {
        begin_section(s);
        QUIRE_TRY(add_section(s, i));
        QUIRE_TRY(end_section(s, i));
    }
    return write_header(s, n_sections, head_bytes);
}

static quire_status check_options(const quire_seq *seq, const quire_save_options *o) {
    if (o->struct_size != sizeof *o)
        return quire__fail(QUIRE_E_INVALID, "options were not set up by quire_save_options_default");
    if (o->identity_bytes > QUIRE_IDENTITY_MAX || (o->identity_bytes > 0 && !o->identity))
        return quire__fail(QUIRE_E_INVALID, "identity is NULL or longer than %d bytes", QUIRE_IDENTITY_MAX);
    if (o->n_tokens < 0 || (o->n_tokens > 0 && !o->tokens))
        return quire__fail(QUIRE_E_INVALID, "tokens is NULL, or their number negative");
    if (o->n_tokens > 0 && o->n_tokens < seq->length)
        return quire__fail(QUIRE_E_INVALID, "%d token ids for a sequence of %d tokens", (int)o->n_tokens,
                           (int)seq->length);
    return QUIRE_OK;
}

/* A file has one form of pages. The caller holds the lock. */
static quire_status check_form(const quire_seq *seq) {
    const quire_pool *pool = seq->pool;
    for (int32_t g = 0; pool->changing && g < pool->n_groups; g++) {
        const quire_seq_group *s = &seq->group[g];
        bool stale = s->sinks != QUIRE_NO_LEAF && quire__leaf_stale(pool, s->sinks);
        for (int32_t p = 0; p < seq->length / QUIRE_T && !stale; p++)
            stale = s->table[p] != QUIRE_NO_LEAF && quire__leaf_stale(pool, s->table[p]);
        if (stale)
            return quire__fail(QUIRE_E_STATE, "some pages still have the codecs of before: finish requantizing first");
    }
    return QUIRE_OK;
}

/* From here on, until quire__seq_in_file(seq, false), the pages and their form stay as they are. */
static quire_status begin(const quire_seq *seq) {
    pthread_mutex_lock(&seq->pool->lock);
    quire_status status = !seq->used   ? quire__fail(QUIRE_E_INVALID, "sequence was freed before")
                          : seq->batch ? quire__fail(QUIRE_E_BUSY, "cannot save a sequence that is in a batch")
                                       : check_form(seq);
    if (status == QUIRE_OK)
        ((quire_seq *)(uintptr_t)seq)->in_file = true; /* nothing that a caller could see */
    pthread_mutex_unlock(&seq->pool->lock);
    return status;
}

/* Without the lock: leaves with a reference do not move, and only their own sequence changes them. */
static quire_status save(const quire_seq *seq, const char *path, const quire_save_options *options) {
    saver s = {.seq = seq, .options = options};
    QUIRE_TRY(check_options(seq, options));
    QUIRE_TRY(quire__writer_open(&s.writer, path));
    const quire_status status = write_file(&s);
    if (status == QUIRE_OK)
        return quire__writer_commit(&s.writer);
    quire__writer_abort(&s.writer);
    return status;
}

quire_status quire_seq_save(const quire_seq *seq, const char *path, const quire_save_options *options) {
    if (!seq || !path)
        return quire__fail(QUIRE_E_INVALID, "sequence or path is NULL");
    quire_save_options defaults;
    quire_save_options_default(&defaults);
    QUIRE_TRY(begin(seq));
    const quire_status status = save(seq, path, options ? options : &defaults);
    quire__seq_in_file(seq, false);
    return status;
}
