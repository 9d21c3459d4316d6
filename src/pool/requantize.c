/* Gives a pool in use another policy: converts pages one by one, and replaces each in every
 * sequence that holds it.
 *
 * The pool's layers and classes take the new form at once, so that new pages are sealed in it;
 * existing pages are stale. Attention reads both. A leaf is converted only while no batch reads it,
 * and in all its holders at the same time, so that each is converted once and never exists twice.
 */
#include <string.h>

#include "seq/seq.h"

/* Whether a sequence's pages are read or written without the lock. */
static bool in_use(const quire_seq *seq) { return seq->batch != NULL || seq->in_file; }

/* ------------------------------------------------------------------ forms */

/* Whether `layer` and `class` are the form that a policy gives the pool. */
static bool is_form_of(const quire_pool *pool, const quire_policy *policy,
                       const quire_layer_state *layer, const quire_class *class) {
    for (int32_t i = 0; i < pool->n_layers; i++) {
        if (layer[i].source != i)
            continue;
        const quire_pair pair = quire__form_pair(pool, policy, i);
        if (pair.k != layer[i].config.k || pair.v != layer[i].config.v)
            return false;
    }
    for (int32_t g = 0; g < pool->n_classes; g++)
        if (!class[g].raw && class[g].sinks != policy->sinks)
            return false;
    return true;
}

static bool same_codecs(const quire_layer_state *a, const quire_layer_state *b) {
    return a->config.k == b->config.k && a->config.v == b->config.v;
}

/* Whether the pages of a class look the same in both forms. */
static bool class_unchanged(const quire_pool *pool, int32_t g) {
    for (int32_t i = 0; i < pool->n_layers; i++)
        if (pool->layer[i].class == g && !same_codecs(&pool->layer[i], &pool->layer_before[i]))
            return false;
    return pool->class[g].sinks == pool->class_before[g].sinks;
}

static quire_status make_form(quire_pool *pool, const quire_policy *policy) {
    for (int32_t i = 0; i < pool->n_layers; i++) {
        quire_layer_state *to = &pool->layer_before[i];
        to->config = pool->layer[i].config;
        to->class = pool->layer[i].class;
        to->source = pool->layer[i].source;
        if (to->source == i)
            QUIRE_TRY(quire__form_layer(pool, policy, i, to));
    }
    for (int32_t g = 0; g < pool->n_classes; g++)
        pool->class_before[g] = pool->class[g];
    quire__form_place(pool->raw, policy->sinks, pool->layer_before, pool->n_layers,
                      pool->class_before, pool->n_classes);
    return QUIRE_OK;
}

static const quire_side_format *side_of(const quire_layer_state *layer, int v) {
    return v ? &layer->format.v : &layer->format.k;
}

/* An open page will be packed in the new form, so it must not have values that this form cannot
 * hold. */
static quire_status check_open_page(const quire_pool *pool, const quire_seq *seq, int32_t layer) {
    const quire_layer_state *now = &pool->layer[layer], *next = &pool->layer_before[layer];
    const int32_t leaf = seq->class[now->class].open, page = seq->length / QUIRE_T;
    const size_t n = (size_t)(seq->length % QUIRE_T);
    for (int32_t head = 0; head < now->config.n_kv_heads && leaf != QUIRE_NO_LEAF; head++)
        for (int v = 0; v < 2; v++) {
            const quire_side_format *side = side_of(next, v);
            const uint8_t *raw =
                quire__raw_record(pool, now, leaf, head) + (v ? now->raw_v_offset : 0);
            pool->kernels.rows->from_raw(pool->raw, raw, n * (size_t)side->dim, pool->rows[0]);
            QUIRE_TRY(quire__check_rows(side, pool->rows[0], n, page, layer, head));
        }
    return QUIRE_OK;
}

static quire_status check_open_pages(const quire_pool *pool) {
    for (int32_t s = 0; s < pool->max_seqs && pool->raw != QUIRE_F16;
         s++) /* every codec holds all f16 values */
        for (int32_t i = 0;
             i < pool->n_layers && pool->seq[s].used && pool->seq[s].length % QUIRE_T != 0; i++)
            if (pool->layer[i].source == i)
                QUIRE_TRY(check_open_page(pool, &pool->seq[s], i));
    return QUIRE_OK;
}

/* Swaps the pool's form with the previous one, and with it which leaves are stale. */
static void swap_forms(quire_pool *pool) {
    quire__leaf_settle(pool); /* spare leaves have the sizes of the current form */
    for (int32_t i = 0; i < pool->n_layers; i++) {
        const quire_layer_state saved = pool->layer[i];
        quire__form_copy(&pool->layer[i], &pool->layer_before[i]);
        quire__form_copy(&pool->layer_before[i], &saved);
    }
    for (int32_t g = 0; g < pool->n_classes; g++) {
        const quire_class saved = pool->class[g];
        pool->class[g] = pool->class_before[g];
        pool->class_before[g] = saved;
    }
    for (int32_t i = 0; i < pool->max_leaves; i++) {
        quire_leaf *leaf = &pool->leaf[i];
        if (leaf->refs > 0 && leaf->kind != QUIRE_LEAF_RAW && !class_unchanged(pool, leaf->class))
            leaf->stale = !leaf->stale;
    }
    pool->requantized = (quire_requantize_stats){0};
    pool->changing = true;
}

static int64_t count_stale(quire_pool *pool);

static quire_status change_policy(quire_pool *pool, const quire_policy *policy) {
    if (policy->sinks < 0 || policy->sinks > QUIRE_T || policy->edge_first < 0 ||
        policy->edge_last < 0 || policy->edge_first > pool->n_layers ||
        policy->edge_last > pool->n_layers)
        return quire__fail(QUIRE_E_INVALID,
                           "invalid policy: %d sinks (0 to 64), %d first and %d last layers of %d",
                           (int)policy->sinks, (int)policy->edge_first, (int)policy->edge_last,
                           (int)pool->n_layers);
    if (is_form_of(pool, policy, pool->layer, pool->class))
        return QUIRE_OK;
    bool busy = pool->form_holds > 0;
    for (int32_t i = 0; i < pool->max_seqs && !busy; i++)
        busy = pool->seq[i].used && in_use(&pool->seq[i]);
    if (busy)
        return quire__fail(QUIRE_E_BUSY, "cannot change the policy while a batch is in flight "
                                         "or a sequence is being saved or loaded");
    pool->changing = pool->changing && count_stale(pool) > 0; /* the last may have been freed */
    if (pool->changing && !is_form_of(pool, policy, pool->layer_before, pool->class_before))
        return quire__fail(
            QUIRE_E_STATE,
            "an earlier change of policy is not finished: call quire_pool_requantize_step, or "
            "take it back by passing the previous policy");
    if (!pool->changing)
        QUIRE_TRY(make_form(pool, policy));
    QUIRE_TRY(check_open_pages(pool));
    swap_forms(pool);
    for (int32_t i = 0; i < pool->max_seqs; i++) /* an open page is raw in every form */
        if (pool->seq[i].used && pool->seq[i].length >= QUIRE_T)
            quire__history_note(&pool->seq[i], QUIRE_HISTORY_REQUANTIZED, 0);
    return QUIRE_OK;
}

quire_status quire_pool_requantize(quire_pool *pool, const quire_policy *policy) {
    if (!pool || !policy)
        return quire__fail(QUIRE_E_INVALID, "pool or policy is NULL");
    pthread_mutex_lock(&pool->lock);
    const quire_status status = change_policy(pool, policy);
    pthread_mutex_unlock(&pool->lock);
    return status;
}

/* ------------------------------------------------------------------ one leaf */

typedef struct change {
    quire_pool *pool;
    int32_t class, page;
    int32_t leaf, sinks;         /* to be replaced, may be NO_LEAF ... */
    int32_t new_leaf, new_sinks; /* ... by these */
    bool wants_leaf, wants_sinks;
    quire_page_source source;
} change;

static bool holds(const change *c, const quire_seq *seq) {
    if (!seq->used || c->page >= seq->length / QUIRE_T)
        return false;
    const quire_seq_class *s = &seq->class[c->class];
    return (c->leaf != QUIRE_NO_LEAF && s->table[c->page] == c->leaf) ||
           (c->sinks != QUIRE_NO_LEAF && s->sinks == c->sinks);
}

/* Describes the conversion of a page of one sequence and class. false: it is not stale. */
static bool change_of(const quire_seq *seq, int32_t g, int32_t page, change *c) {
    const quire_seq_class *s = &seq->class[g];
    *c = (change){.pool = seq->pool,
                  .class = g,
                  .page = page,
                  .leaf = s->table[page],
                  .sinks = page == 0 ? s->sinks : QUIRE_NO_LEAF,
                  .new_leaf = QUIRE_NO_LEAF,
                  .new_sinks = QUIRE_NO_LEAF};
    return (c->leaf != QUIRE_NO_LEAF && quire__leaf_stale(seq->pool, c->leaf)) ||
           (c->sinks != QUIRE_NO_LEAF && quire__leaf_stale(seq->pool, c->sinks));
}

static bool needs_leaf(const change *c, const quire_seq *seq) {
    const quire_class *class = &c->pool->class[c->class];
    return c->page >= seq->class[c->class].live_from || quire__pinned(class, c->page);
}

/* Finds what the holders need of the page, and the most exact source of its rows. false: the page
 * is in use by a batch. */
static bool inspect_holders(change *c) {
    const quire_class *class = &c->pool->class[c->class];
    bool found = false;
    /* This sequence may have dropped the leaf, but not a fork of it. */
    for (int32_t i = 0; i < c->pool->max_seqs && c->leaf == QUIRE_NO_LEAF; i++)
        if (holds(c, &c->pool->seq[i]))
            c->leaf = c->pool->seq[i].class[c->class].table[c->page];
    for (int32_t i = 0; i < c->pool->max_seqs; i++) {
        const quire_seq *seq = &c->pool->seq[i];
        if (!holds(c, seq))
            continue;
        if (in_use(seq))
            return false;
        const quire_page_source source = quire__page_source(seq, c->class, c->page);
        if (!found || (c->source.raw == QUIRE_NO_LEAF && source.raw != QUIRE_NO_LEAF) ||
            (c->source.leaf == QUIRE_NO_LEAF && source.leaf != QUIRE_NO_LEAF))
            c->source = source;
        found = true;
        c->wants_leaf = c->wants_leaf || needs_leaf(c, seq);
        c->wants_sinks = c->wants_sinks || (c->page == 0 && class->sinks > 0 &&
                                            quire__sinks_needed(class, &seq->class[c->class]));
    }
    return true;
}

/* Values that the previous form could hold and the new one cannot are refused, as append refuses
 * them. */
static quire_status check_values(const change *c, int32_t layer) {
    quire_pool *pool = c->pool;
    const quire_layer_state *now = &pool->layer[layer], *before = &pool->layer_before[layer];
    for (int v = 0; v < 2; v++) {
        const quire_side_format *side = side_of(now, v);
        if (side_of(before, v)->max_abs <= side->max_abs && c->source.raw == QUIRE_NO_LEAF)
            continue;
        if (pool->raw == QUIRE_F16)
            continue; /* every codec holds all f16 values */
        for (int32_t head = 0; head < now->config.n_kv_heads; head++) {
            quire__page_rows(pool, &c->source, layer, head, v, pool->rows[0]);
            QUIRE_TRY(quire__check_rows(side, pool->rows[0], QUIRE_T, c->page, layer, head));
        }
    }
    return QUIRE_OK;
}

/* Fills one KV head of the new leaves. */
static void convert_head(const change *c, int32_t layer, int32_t head) {
    quire_pool *pool = c->pool;
    const quire_layer_state *now = &pool->layer[layer];
    const quire_class *class = &pool->class[c->class];
    const int32_t n_sinks = c->page == 0 ? now->sinks : 0;
    const bool from_packed = c->source.raw == QUIRE_NO_LEAF && c->source.leaf != QUIRE_NO_LEAF;
    for (int v = 0; v < 2; v++) {
        const quire_side_format *side = side_of(now, v);
        quire__page_rows(pool, &c->source, layer, head, v, pool->rows[v]);
        quire__clamp_rows(pool->rows[v], QUIRE_T * (size_t)side->dim,
                          quire__largest_value(pool->raw, side));
    }
    if (c->new_sinks != QUIRE_NO_LEAF)
        quire__sink_rows(pool, layer, head, pool->rows[0], pool->rows[1], c->new_sinks);
    if (c->new_leaf == QUIRE_NO_LEAF)
        return;
    if (class->raw) {
        for (int v = 0; v < 2; v++)
            quire__raw_rows(pool, layer, head, v, pool->rows[v], c->new_leaf);
        return;
    }
    uint8_t *record = quire__sealed_record(pool, now, c->new_leaf, head);
    const quire_layer_state *before = &pool->layer_before[layer];
    if (from_packed && same_codecs(now, before) && (c->page > 0 || n_sinks == before->sinks)) {
        memmove(record, quire__sealed_record(pool, before, c->leaf, head), now->format.bytes);
        return;
    }
    quire__seal_rows(pool->kernels.rows, now, head, c->page, pool->rows[0], pool->rows[1], n_sinks,
                     record);
    if (quire__form_is_raw(now, pool->raw))
        return;
    atomic_fetch_add(&pool->sealed_pages, 1);
    pool->resealed_pages += from_packed && !same_codecs(now, before);
}

/* Whether the new records may overwrite the old ones: each is read before it is overwritten. */
static bool fits_in_place(const change *c) {
    const quire_pool *pool = c->pool;
    if (c->leaf == QUIRE_NO_LEAF || pool->class[c->class].raw)
        return false;
    int32_t n_holders = 0; /* others may refer to it by open or last_raw */
    for (int32_t i = 0; i < pool->max_seqs; i++)
        n_holders +=
            holds(c, &pool->seq[i]) && pool->seq[i].class[c->class].table[c->page] == c->leaf;
    if (n_holders != pool->leaf[c->leaf].refs)
        return false;
    for (int32_t i = 0; i < pool->n_layers; i++) {
        const quire_layer_state *now = &pool->layer[i], *before = &pool->layer_before[i];
        if (now->class == c->class && (now->sealed_offset > before->sealed_offset ||
                                       now->format.bytes > before->format.bytes))
            return false;
    }
    return true;
}

static quire_status take_leaves(change *c) {
    quire_pool *pool = c->pool;
    if (c->wants_sinks)
        c->new_sinks = quire__leaf_take(pool, c->class, QUIRE_LEAF_SINKS);
    if (c->wants_leaf)
        c->new_leaf = quire__leaf_take(
            pool, c->class, pool->class[c->class].raw ? QUIRE_LEAF_RAW : QUIRE_LEAF_SEALED);
    if (c->wants_leaf && c->new_leaf == QUIRE_NO_LEAF && fits_in_place(c)) {
        c->new_leaf = c->leaf;
        quire__leaf_share(pool, c->new_leaf);
    }
    if ((!c->wants_sinks || c->new_sinks != QUIRE_NO_LEAF) &&
        (!c->wants_leaf || c->new_leaf != QUIRE_NO_LEAF))
        return QUIRE_OK;
    quire__leaf_drop(pool, c->new_sinks);
    quire__leaf_drop(pool, c->new_leaf);
    return quire__fail(QUIRE_E_NO_PAGES,
                       "the pool has no room to convert page %d: %zu bytes are free", (int)c->page,
                       pool->arena.free_bytes + pool->spare_bytes);
}

/* A leaf that was converted in place gives the rest of its range back. */
static void shrink(quire_pool *pool, int32_t id) {
    quire_leaf *leaf = &pool->leaf[id];
    const size_t bytes = pool->class[leaf->class].sealed_bytes;
    if (bytes < leaf->bytes)
        quire__arena_free(&pool->arena, leaf->offset + bytes, leaf->bytes - bytes);
    leaf->bytes = bytes;
    leaf->kind = QUIRE_LEAF_SEALED;
    leaf->stale = false;
}

static void replace(quire_pool *pool, int32_t *place, int32_t leaf) {
    quire__leaf_share(pool, leaf);
    quire__leaf_drop(pool, *place);
    *place = leaf;
}

static void swap_leaves(const change *c) {
    quire_pool *pool = c->pool;
    const quire_class *class = &pool->class[c->class];
    const bool was_raw = c->leaf != QUIRE_NO_LEAF && pool->leaf[c->leaf].kind == QUIRE_LEAF_RAW;
    for (int32_t i = 0; i < pool->max_seqs; i++) {
        quire_seq *seq = &pool->seq[i];
        quire_seq_class *s = &seq->class[c->class];
        if (!holds(c, seq))
            continue;
        if (seq->last_page == c->page && class->raw) /* the table has its raw rows */
            replace(pool, &s->last_raw, QUIRE_NO_LEAF);
        else if (seq->last_page == c->page && was_raw && c->new_leaf != c->leaf)
            replace(pool, &s->last_raw, c->leaf);
        replace(pool, &s->table[c->page], needs_leaf(c, seq) ? c->new_leaf : QUIRE_NO_LEAF);
        if (c->page == 0)
            replace(pool, &s->sinks, quire__sinks_needed(class, s) ? c->new_sinks : QUIRE_NO_LEAF);
    }
}

static size_t bytes_of(const quire_pool *pool, int32_t leaf, int32_t sinks) {
    return (leaf != QUIRE_NO_LEAF ? pool->leaf[leaf].bytes : 0) +
           (sinks != QUIRE_NO_LEAF ? pool->leaf[sinks].bytes : 0);
}

static quire_status convert(change *c) {
    quire_pool *pool = c->pool;
    for (int32_t i = 0; i < pool->n_layers; i++)
        if (pool->layer[i].class == c->class && pool->layer[i].source == i)
            QUIRE_TRY(check_values(c, i));
    const uint64_t lost = ~quire__source_held(pool, &c->source);
    QUIRE_TRY(take_leaves(c));
    for (int32_t i = 0; i < pool->n_layers; i++)
        for (int32_t head = 0; pool->layer[i].class == c->class && pool->layer[i].source == i &&
                               head < pool->layer[i].config.n_kv_heads;
             head++)
            convert_head(c, i, head);
    pool->requantized.bytes_before += bytes_of(pool, c->leaf, c->sinks);
    const bool in_place = c->leaf != QUIRE_NO_LEAF && c->new_leaf == c->leaf;
    if (in_place)
        shrink(pool, c->leaf);
    pool->requantized.bytes_after += bytes_of(pool, c->new_leaf, c->new_sinks);
    if (c->new_leaf != QUIRE_NO_LEAF)
        pool->leaf[c->new_leaf].lost = lost;
    if (c->new_sinks != QUIRE_NO_LEAF)
        pool->leaf[c->new_sinks].lost = lost;
    swap_leaves(c);
    quire__leaf_drop(pool, c->new_leaf);
    quire__leaf_drop(pool, c->new_sinks);
    return QUIRE_OK;
}

/* ------------------------------------------------------------------ all of them */

/* Counts stale pages, shared ones once. Sinks count with page 0, which some of their sequences may
 * have dropped. */
static int64_t count_stale(quire_pool *pool) {
    int64_t n = 0;
    for (int32_t i = 0; i < pool->max_leaves; i++)
        pool->leaf[i].marks = 0;
    for (int32_t i = 0; i < pool->max_seqs; i++) {
        const quire_seq *seq = &pool->seq[i];
        for (int32_t page = 0; seq->used && page < seq->length / QUIRE_T; page++)
            for (int32_t g = 0; g < pool->n_classes; g++) {
                change c;
                if (!change_of(seq, g, page, &c))
                    continue;
                quire_leaf *leaf = &pool->leaf[c.sinks != QUIRE_NO_LEAF ? c.sinks : c.leaf];
                n += !leaf->marks;
                leaf->marks = 1;
            }
    }
    return n;
}

/* One pass over all pages. *n: how many may still be converted. If a page finds no room, another
 * one may (page 0 also needs sinks), so the pass continues and returns E_NO_PAGES at its end. */
static quire_status pass(quire_pool *pool, int32_t *n) {
    bool no_room = false;
    for (int32_t i = 0; i < pool->max_seqs; i++) {
        const quire_seq *seq = &pool->seq[i];
        for (int32_t page = 0; seq->used && page < seq->length / QUIRE_T; page++)
            for (int32_t g = 0; g < pool->n_classes; g++) {
                change c;
                if (!change_of(seq, g, page, &c) || !inspect_holders(&c))
                    continue;
                if (*n == 0)
                    return QUIRE_OK;
                const quire_status status = convert(&c);
                no_room = no_room || status == QUIRE_E_NO_PAGES;
                if (status == QUIRE_E_NO_PAGES)
                    continue;
                QUIRE_TRY(status);
                pool->requantized.pages_done++;
                --*n;
            }
    }
    return no_room ? QUIRE_E_NO_PAGES : QUIRE_OK;
}

static quire_status step(quire_pool *pool, int32_t n) {
    for (;;) {
        const int32_t before = n;
        const quire_status status = pass(pool, &n);
        if (status != QUIRE_E_NO_PAGES || n == before)
            return status;
    }
}

quire_status quire_pool_requantize_step(quire_pool *pool, int32_t max_pages,
                                        quire_requantize_stats *stats) {
    if (!pool || max_pages < 0)
        return quire__fail(QUIRE_E_INVALID, "pool is NULL, or max_pages is %d", (int)max_pages);
    pthread_mutex_lock(&pool->lock);
    const quire_status status = pool->changing ? step(pool, max_pages) : QUIRE_OK;
    if (pool->changing)
        pool->requantized.pages_left = count_stale(pool);
    pool->changing = pool->changing && pool->requantized.pages_left > 0;
    if (stats)
        *stats = pool->requantized;
    pthread_mutex_unlock(&pool->lock);
    return status;
}
