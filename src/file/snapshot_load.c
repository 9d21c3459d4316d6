/* Loads a file into a new sequence: pages are reserved, filled and checked before anything else
 * refers to them. */
#include <stdlib.h>
#include <string.h>

#include "base/read_ahead.h"
#include "base/element.h"
#include "file/snapshot.h"

void quire_load_options_default(quire_load_options *options) {
    if (options)
        *options = (quire_load_options){.struct_size = sizeof *options};
}

/* ------------------------------------------------------------------ does it belong here? */

static quire_status check_identity(const quire_file *file, const quire_load_options *o) {
    const quire_file_info *info = &file->info;
    if (o->any_identity ||
        (info->identity_bytes == o->identity_bytes &&
         (o->identity_bytes == 0 || memcmp(info->identity, o->identity, o->identity_bytes) == 0)))
        return QUIRE_OK;
    return quire__fail(QUIRE_E_IDENTITY,
                       "the cache was computed by another model or setup: the identities differ");
}

static quire_status share_differs(int32_t layer, int32_t in_file, int32_t in_pool) {
    if (in_file >= 0 && in_pool >= 0)
        return quire__fail(QUIRE_E_IDENTITY,
                           "layer %d: it shares the cache of layer %d in the file, of layer %d in "
                           "the pool",
                           (int)layer, (int)in_file, (int)in_pool);
    return quire__fail(QUIRE_E_IDENTITY,
                       "layer %d: the %s has its own cache for it, the %s that of layer %d",
                       (int)layer, in_file < 0 ? "file" : "pool", in_file < 0 ? "pool" : "file",
                       (int)(in_file < 0 ? in_pool : in_file));
}

static quire_status check_layers(const quire_pool *pool, const quire_file *file) {
    if (pool->n_layers != file->info.n_layers)
        return quire__fail(QUIRE_E_IDENTITY, "the file has %d layers, the pool has %d",
                           (int)file->info.n_layers, (int)pool->n_layers);
    for (int32_t i = 0; i < pool->n_layers; i++) {
        const quire_layer *a = &file->form.config[i], *b = &pool->layer[i].config;
        if (a->n_kv_heads != b->n_kv_heads || a->k_dim != b->k_dim || a->v_dim != b->v_dim)
            return quire__fail(QUIRE_E_IDENTITY,
                               "layer %d: the file has %d KV heads of sizes %d and %d, the pool "
                               "has %d of %d and %d",
                               (int)i, (int)a->n_kv_heads, (int)a->k_dim, (int)a->v_dim,
                               (int)b->n_kv_heads, (int)b->k_dim, (int)b->v_dim);
        if (a->share != b->share)
            return share_differs(i, a->share, b->share);
        if (a->window != b->window || a->keep != b->keep)
            return quire__fail(
                QUIRE_E_IDENTITY,
                "layer %d: the file has window %d and keep %d, the pool has %d and %d", (int)i,
                (int)a->window, (int)a->keep, (int)b->window, (int)b->keep);
        if (file->form.attention[i] != 0 &&
            file->form.attention[i] != quire__attention_digest(&pool->layer[i]))
            return quire__fail(QUIRE_E_IDENTITY,
                               "layer %d: query heads, scale, soft-cap, ALiBi or learned sinks "
                               "differ from the file",
                               (int)i);
    }
    return QUIRE_OK;
}

/* E_CODEC: pages cannot be used as they are; the message says why. */
static quire_status check_codecs(const quire_pool *pool, const quire_file *file) {
    if (pool->raw != file->info.raw)
        return quire__fail(QUIRE_E_CODEC, "the raw type of the file is not that of the pool");
    for (int32_t i = 0; i < pool->n_layers; i++) {
        const quire_layer *a = &file->form.config[i], *b = &pool->layer[i].config;
        if (a->k != b->k || a->v != b->v)
            return quire__fail(QUIRE_E_CODEC, "layer %d is %s:%s in the file, %s:%s in the pool",
                               (int)i, quire_codec_name(a->k), quire_codec_name(a->v),
                               quire_codec_name(b->k), quire_codec_name(b->v));
        if (quire__file_has_order(a) &&
            memcmp(a->k_order, b->k_order,
                   (size_t)a->n_kv_heads * (size_t)a->k_dim * sizeof *a->k_order) != 0)
            return quire__fail(QUIRE_E_CODEC, "layer %d: the file has another channel order for %s",
                               (int)i, quire_codec_name(a->k));
    }
    for (int32_t g = 0; g < pool->n_classes; g++) {
        const quire_class *a = &file->form.class[g], *b = &pool->class[g];
        if (a->sinks != b->sinks || a->raw != b->raw || a->sealed_bytes != b->sealed_bytes ||
            a->raw_bytes != b->raw_bytes || a->sink_bytes != b->sink_bytes)
            return quire__fail(QUIRE_E_CODEC, "the file has %d raw sinks, the pool has %d",
                               (int)a->sinks, (int)b->sinks);
    }
    return QUIRE_OK;
}

/* ------------------------------------------------------------------ leaves */

/* If pages are resealed, last_raw is filled only if the file has those raw rows for every layer. */
static bool raw_rows_known(const quire_file *file) {
    for (int32_t g = 0; g < file->form.n_classes && file->n_pages > 0; g++)
        if (file->form.class[g].raw ? file->part[g].rank[file->n_pages - 1] < 0
                                    : !(file->part[g].flags & QUIRE_HELD_LAST_RAW))
            return false;
    return file->n_pages > 0;
}

/* Marks the leaves that the file has. Its classes are those of the pool: check_layers has compared
 * window and keep. */
static void plan_same(const quire_file *file, int32_t g, quire_seq_class *s) {
    const quire_file_class *part = &file->part[g];
    s->live_from = part->live_from;
    for (int32_t p = 0; p < file->n_pages; p++)
        s->table[p] = quire__reserve_if(part->rank[p] >= 0);
    s->open = quire__reserve_if(part->flags & QUIRE_HELD_OPEN);
    s->last_raw = quire__reserve_if(part->flags & QUIRE_HELD_LAST_RAW);
    s->sinks = quire__reserve_if(part->flags & QUIRE_HELD_SINKS);
}

/* Marks the leaves that later queries may see, and as many more as the file has. */
static void plan_other(const quire_pool *pool, const quire_file *file, int32_t g, bool keep_raw,
                       quire_seq_class *s) {
    const quire_class *class = &pool->class[g];
    const quire_file_class *part = &file->part[g];
    s->live_from = 0;
    for (int32_t p = 0; p < file->n_pages; p++)
        if (p < part->live_from || part->rank[p] < 0)
            s->live_from = p + 1;
    for (int32_t p = 0; p < file->n_pages; p++)
        s->table[p] = quire__reserve_if(p >= s->live_from || quire__pinned(class, p));
    s->open = quire__reserve_if(file->info.length % QUIRE_T);
    s->last_raw = quire__reserve_if(keep_raw && !class->raw);
    s->sinks =
        quire__reserve_if(file->n_pages > 0 && class->sinks > 0 && quire__sinks_needed(class, s));
}

static void mark_lost(quire_pool *pool, int32_t leaf, uint64_t held) {
    if (leaf != QUIRE_NO_LEAF)
        pool->leaf[leaf].lost = ~held;
}

/* Marks the rows that the file does not have. */
static void note_lost(quire_seq *seq, const quire_file *file, int32_t g) {
    quire_pool *pool = seq->pool;
    const quire_seq_class *s = &seq->class[g];
    for (int32_t p = 0; p < file->n_pages; p++)
        mark_lost(pool, s->table[p], quire__file_rows_held(file, g, p));
    mark_lost(pool, s->open, quire__file_rows_held(file, g, file->n_pages));
    if (seq->last_page >= 0)
        mark_lost(pool, s->last_raw, quire__file_rows_held(file, g, seq->last_page));
    if (file->n_pages > 0)
        mark_lost(pool, s->sinks, quire__file_rows_held(file, g, 0));
}

/* If only an open page of the same raw type was loaded, nothing was sealed again. */
static void note_history(quire_seq *seq, const quire_file *file, bool as_they_are) {
    const quire_file_info *info = &file->info;
    if (info->history != 0) {
        seq->history = info->history;
        seq->exact = info->exact_tokens;
    }
    if (!as_they_are && info->length > 0 && (file->n_pages > 0 || info->raw != seq->pool->raw))
        quire__history_note(seq, QUIRE_HISTORY_RESEALED, 0);
}

/* The caller holds the lock: RESERVE_LEAF marks are not leaves yet. */
static quire_status reserve(quire_seq *seq, const quire_file *file, bool as_they_are) {
    const bool keep_raw = raw_rows_known(file);
    for (int32_t g = 0; g < seq->pool->n_classes; g++)
        if (as_they_are)
            plan_same(file, g, &seq->class[g]);
        else
            plan_other(seq->pool, file, g, keep_raw, &seq->class[g]);
    QUIRE_TRY(quire__restore_reserve(seq, file->info.length,
                                     as_they_are ? file->last_page
                                     : keep_raw  ? file->n_pages - 1
                                                 : -1));
    for (int32_t g = 0; g < seq->pool->n_classes; g++)
        note_lost(seq, file, g);
    note_history(seq, file, as_they_are);
    return QUIRE_OK;
}

/* ------------------------------------------------------------------ pages as they are */

/* What to check when the last buffer of a leaf is filled. */
typedef struct arrival {
    int32_t leaf; /* NO_LEAF: more of it follows */
    int32_t n_rows;
    quire_part_kind kind;
} arrival;

/* The section of a layer class, in file order. */
typedef struct reader {
    const quire_seq *seq;
    int32_t class;
    quire_read_buffer *buffer;
    arrival *arrival;
    size_t n_buffers;
    uint8_t padding[QUIRE_FILE_ALIGN];
    int32_t bad_layer, bad_head; /* the first with invalid values; -1: none */
} reader;

static void expect(reader *r, void *to, size_t n_bytes, arrival then) {
    r->buffer[r->n_buffers] = (quire_read_buffer){to, n_bytes};
    r->arrival[r->n_buffers++] = then;
}

static void expect_leaf(reader *r, int32_t leaf, quire_part_kind kind, int32_t n_rows) {
    const quire_pool *pool = r->seq->pool;
    if (leaf != QUIRE_NO_LEAF)
        expect(r, quire__leaf_memory(pool, leaf), pool->leaf[leaf].bytes,
               (arrival){leaf, n_rows, kind});
}

/* The file has only the rows in use; the leaf has room for all. */
static void expect_open(reader *r) {
    const quire_pool *pool = r->seq->pool;
    const int32_t leaf = r->seq->class[r->class].open, n_rows = r->seq->length % QUIRE_T;
    const size_t n = (size_t)n_rows * quire__type_bytes(pool->raw);
    const arrival more = {.leaf = QUIRE_NO_LEAF};
    if (leaf == QUIRE_NO_LEAF)
        return;
    for (int32_t i = 0; i < pool->n_layers; i++) {
        const quire_layer_state *l = &pool->layer[i];
        for (int32_t head = 0;
             l->class == r->class && l->source == i && head < l->config.n_kv_heads; head++) {
            uint8_t *record = quire__raw_record(pool, l, leaf, head);
            expect(r, record, n * (size_t)l->config.k_dim, more);
            expect(r, record + l->raw_v_offset, n * (size_t)l->config.v_dim, more);
        }
    }
    r->arrival[r->n_buffers - 1] = (arrival){leaf, n_rows, QUIRE_PART_RAW_ROWS};
}

/* Checked while the leaf is still in the CPU cache, but reported after the checksum. */
static void check_leaf(reader *r, const arrival *a) {
    if (r->bad_layer < 0)
        quire__restored_check(r->seq->pool, a->leaf, a->kind, a->n_rows, &r->bad_layer,
                              &r->bad_head);
}

static quire_status take_all(reader *r, quire_read_ahead *ahead, quire_hash *hash) {
    for (size_t i = 0; i < r->n_buffers; i++) {
        QUIRE_TRY(quire__read_ahead_next(ahead));
        quire__hash_add(hash, r->buffer[i].to, r->buffer[i].n_bytes);
        if (r->arrival[i].leaf != QUIRE_NO_LEAF)
            check_leaf(r, &r->arrival[i]);
    }
    return QUIRE_OK;
}

static quire_status read_group(reader *r, const quire_file *file) {
    const quire_file_section *section = &file->section[QUIRE_SECTION_PAGES + r->class];
    const quire_seq_class *s = &r->seq->class[r->class];
    expect_leaf(r, s->sinks, QUIRE_PART_SINKS, 0);
    expect_leaf(r, s->last_raw, QUIRE_PART_RAW_ROWS, QUIRE_T);
    expect_open(r);
    for (int32_t p = 0; p < file->n_pages; p++)
        expect_leaf(r, s->table[p], QUIRE_PART_SEALED, QUIRE_T);
    const size_t padding = (size_t)(quire__file_align(section->bytes) - section->bytes);
    expect(r, r->padding, padding, (arrival){.leaf = QUIRE_NO_LEAF});
    quire_read_ahead ahead;
    quire_hash hash;
    quire__hash_start(&hash);
    quire__read_ahead_start(&ahead, file->fd, section->offset, r->buffer, r->n_buffers);
    const quire_status status = take_all(r, &ahead, &hash);
    quire__read_ahead_end(&ahead);
    QUIRE_TRY(status);
    QUIRE_TRY(quire__file_checksum(file, QUIRE_SECTION_PAGES + r->class, &hash));
    return r->bad_layer < 0 ? quire__file_padding(r->padding, padding)
                            : quire__page_invalid(r->bad_layer, r->bad_head);
}

static quire_status fill_class(quire_seq *seq, const quire_file *file, int32_t g) {
    const quire_pool *pool = seq->pool;
    size_t n =
        3 +
        (size_t)
            file->n_pages; /* sinks, last_raw, padding; and the open page: K and V of every head */
    for (int32_t i = 0; i < pool->n_layers; i++)
        n += pool->layer[i].class == g ? 2 * (size_t)pool->layer[i].config.n_kv_heads : 0;
    reader r = {.seq = seq, .class = g, .bad_layer = -1};
    r.buffer = malloc(n * sizeof *r.buffer);
    r.arrival = malloc(n * sizeof *r.arrival);
    const quire_status status = r.buffer && r.arrival
                                    ? read_group(&r, file)
                                    : quire__fail(QUIRE_E_NOMEM, "no memory to read pages");
    free(r.buffer);
    free(r.arrival);
    return status;
}

/* ------------------------------------------------------------------ pages in other codecs */

/* Rounds rows to the raw type, and back for packed pages: sealing must see what an open page would
 * have held. */
static void round_to_raw(const quire_pool *pool, const quire_layer_state *l, float *k, float *v,
                         uint8_t *raw) {
    const size_t n_k = QUIRE_T * (size_t)l->config.k_dim, n_v = QUIRE_T * (size_t)l->config.v_dim;
    const quire_row_kernels *rows = pool->kernels.rows;
    quire__clamp_rows(k, n_k, quire__largest_value(pool->raw, &l->format.k));
    quire__clamp_rows(v, n_v, quire__largest_value(pool->raw, &l->format.v));
    rows->to_raw(pool->raw, raw, n_k, k);
    rows->to_raw(pool->raw, raw + l->raw_v_offset, n_v, v);
    rows->from_raw(pool->raw, raw, n_k, k);
    rows->from_raw(pool->raw, raw + l->raw_v_offset, n_v, v);
}

static quire_status reseal_page(quire_seq *seq, quire_file *file, int32_t layer, int32_t head,
                                int32_t page, uint8_t *raw) {
    quire_pool *pool = seq->pool;
    const quire_layer_state *l = &pool->layer[layer];
    const quire_class *class = &pool->class[l->class];
    const quire_seq_class *s = &seq->class[l->class];
    const bool open = page == file->n_pages,
               has_sinks = page == 0 && !open && s->sinks != QUIRE_NO_LEAF;
    const bool is_last = page == seq->last_page && s->last_raw != QUIRE_NO_LEAF;
    const int32_t leaf = open ? s->open : s->table[page];
    if (leaf == QUIRE_NO_LEAF && !has_sinks && !is_last)
        return QUIRE_OK;
    int32_t n_rows;
    memset(file->k, 0, QUIRE_T * (size_t)l->config.k_dim * sizeof *file->k);
    memset(file->v, 0, QUIRE_T * (size_t)l->config.v_dim * sizeof *file->v);
    QUIRE_TRY(quire_file_rows(file, layer, head, page, file->k, file->v, &n_rows));
    round_to_raw(pool, l, file->k, file->v, raw);
    if (has_sinks)
        quire__sink_rows(pool, layer, head, file->k, file->v, s->sinks);
    if (is_last)
        memcpy(quire__raw_record(pool, l, s->last_raw, head), raw, l->raw_record_bytes);
    if (leaf != QUIRE_NO_LEAF && (open || class->raw))
        memcpy(quire__raw_record(pool, l, leaf, head), raw, l->raw_record_bytes);
    else if (leaf != QUIRE_NO_LEAF)
        quire__seal_rows(pool->kernels.rows, l, head, page, file->k, file->v,
                         page == 0 ? l->sinks : 0, quire__sealed_record(pool, l, leaf, head));
    return QUIRE_OK;
}

static quire_status reseal(quire_seq *seq, quire_file *file) {
    quire_pool *pool = seq->pool;
    uint64_t n_resealed = 0;
    const int32_t n_parts = file->n_pages + (file->info.length % QUIRE_T != 0);
    for (int32_t i = 0; i < pool->n_layers; i++) {
        const quire_layer_state *l = &pool->layer[i];
        for (int32_t head = 0; l->source == i && head < l->config.n_kv_heads; head++)
            for (int32_t p = 0; p < n_parts; p++) {
                QUIRE_TRY(reseal_page(seq, file, i, head, p, file->raw));
                n_resealed += p < file->n_pages && !quire__form_is_raw(l, pool->raw) &&
                              seq->class[l->class].table[p] != QUIRE_NO_LEAF;
            }
    }
    atomic_fetch_add(&pool->sealed_pages, n_resealed);
    pthread_mutex_lock(&pool->lock);
    pool->resealed_pages += n_resealed;
    pthread_mutex_unlock(&pool->lock);
    return QUIRE_OK;
}

/* ------------------------------------------------------------------ load */

static quire_status check_load(const quire_pool *pool, const quire_file *file,
                               const quire_load_options *o) {
    if (o->struct_size != sizeof *o)
        return quire__fail(QUIRE_E_INVALID,
                           "options were not set up by quire_load_options_default");
    if (!o->identity && o->identity_bytes > 0)
        return quire__fail(QUIRE_E_INVALID, "identity is NULL, but identity_bytes is %zu",
                           o->identity_bytes);
    QUIRE_TRY(check_identity(file, o));
    QUIRE_TRY(check_layers(pool, file));
    if (file->info.length > pool->max_tokens)
        return quire__fail(
            QUIRE_E_TOO_BIG,
            "the file has %d tokens; a sequence of this pool holds at most %d (max_tokens)",
            (int)file->info.length, (int)pool->max_tokens);
    return QUIRE_OK;
}

static quire_status fill(quire_seq *seq, quire_file *file, bool as_they_are) {
    if (!as_they_are)
        return reseal(seq, file);
    for (int32_t g = 0; g < file->form.n_classes; g++)
        QUIRE_TRY(fill_class(seq, file, g));
    return QUIRE_OK;
}

/* Loads into a new sequence that nothing else refers to. */
static quire_status load_into(quire_seq *seq, quire_file *file, const quire_load_options *options) {
    quire_pool *pool = seq->pool;
    QUIRE_TRY(check_load(pool, file, options));
    const quire_status codecs = check_codecs(pool, file);
    const bool as_they_are = codecs == QUIRE_OK;
    if (!as_they_are && !options->reseal)
        return codecs;
    if (!as_they_are) /* before the first page is decoded */
        QUIRE_TRY(quire_file_check(file));
    pthread_mutex_lock(&pool->lock);
    const quire_status status = reserve(seq, file, as_they_are);
    pthread_mutex_unlock(&pool->lock);
    QUIRE_TRY(status);
    return fill(seq, file, as_they_are);
}

quire_status quire_seq_load(quire_pool *pool, quire_file *file, const quire_load_options *options,
                            quire_seq **result) {
    if (!pool || !file || !result)
        return quire__fail(QUIRE_E_INVALID, "pool, file or result is NULL");
    *result = NULL;
    quire_load_options defaults;
    quire_load_options_default(&defaults);
    quire_seq *seq;
    QUIRE_TRY(quire_seq_create(pool, &seq));
    quire__seq_in_file(seq, true); /* from here the pool's form cannot change */
    const quire_status status = load_into(seq, file, options ? options : &defaults);
    quire__seq_in_file(seq, false);
    if (status != QUIRE_OK)
        quire_seq_free(seq);
    else
        *result = seq;
    return status;
}
