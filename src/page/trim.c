/* Cutting a sequence short, also inside a sealed page.
 *
 * The cut falls into page p. If p is open, or the cut lies between pages, only references go. If p is the page sealed
 * last, its kept raw rows become the open page again: exact. Otherwise p is reopened from its packed values, which is
 * the best that is left of it; that is counted.
 */
#include "page/pool.h"

#include <string.h>

#include "base/element.h"

/* Every page that the shorter sequence's next query would see must still be there. */
static quire_status check_window(const quire_seq *seq, int32_t n_tokens) {
    const quire_pool *pool = seq->pool;
    if (n_tokens == 0)
        return QUIRE_OK;
    for (int32_t g = 0; g < pool->n_groups; g++) {
        const int32_t first = quire__window_start(&pool->group[g], n_tokens) / QUIRE_T, last = (n_tokens - 1) / QUIRE_T;
        for (int32_t p = first; p <= last && p < seq->length / QUIRE_T; p++)
            if (seq->group[g].table[p] == QUIRE_NO_LEAF)
                return quire__fail(QUIRE_E_GONE, "cannot trim to %d tokens: the window of %d has moved past page %d",
                                   (int)n_tokens, (int)pool->group[g].window, (int)p);
    }
    return QUIRE_OK;
}

/* Raw rows of page p from its packed record; sinks from where they are raw. */
static void decode_page(const quire_seq *seq, int32_t g, int32_t page, int32_t raw_leaf) {
    const quire_pool *pool = seq->pool;
    const size_t size = quire__type_bytes(pool->raw);
    const int32_t n_sinks = page == 0 ? pool->group[g].sinks : 0;
    for (int32_t i = 0; i < pool->n_layers; i++) {
        const quire_layer_state *layer = &pool->layer[i];
        if (layer->group != g || layer->source != i)
            continue;
        const quire_side_format *sides[2] = {&layer->format.k, &layer->format.v};
        for (int32_t head = 0; head < layer->config.n_kv_heads; head++) {
            const uint8_t *record = quire__sealed_record(pool, layer, seq->group[g].table[page], head);
            uint8_t *raw = quire__raw_record(pool, layer, raw_leaf, head);
            for (int v = 0; v < 2; v++) {
                float *rows = pool->rows;
                const size_t n = QUIRE_T * (size_t)sides[v]->dim;
                quire__side_decode(sides[v], record, rows);
                for (size_t j = 0; j < n; j++) { /* a decoded value may pass the raw type's largest by a rounding */
                    const float limit = pool->raw == QUIRE_F16 ? QUIRE_F16_MAX : QUIRE_BF16_MAX;
                    rows[j] = rows[j] > limit ? limit : rows[j] < -limit ? -limit : rows[j];
                }
                quire__store_row(pool->raw, raw + (v ? layer->raw_v_offset : 0), n, rows);
            }
            if (n_sinks == 0)
                continue;
            const uint8_t *sinks = quire__sink_record(pool, layer, seq->group[g].sinks, head);
            memcpy(raw, sinks, (size_t)(n_sinks * layer->config.k_dim) * size);
            memcpy(raw + layer->raw_v_offset, sinks + layer->sink_v_offset,
                   (size_t)(n_sinks * layer->config.v_dim) * size);
        }
    }
}

/* New raw leaves for the quantized groups, all or none; in the sequences' `open`, which is free for it. */
static quire_status reserve_reopened(quire_seq *seq, int32_t page) {
    quire_pool *pool = seq->pool;
    int32_t *taken = pool->reserved;
    for (int32_t g = 0; g < pool->n_groups; g++) {
        taken[g] = pool->group[g].raw ? QUIRE_NO_LEAF : quire__leaf_take(pool, g, QUIRE_LEAF_RAW);
        if (taken[g] != QUIRE_NO_LEAF || pool->group[g].raw)
            continue;
        while (g-- > 0)
            quire__leaf_drop(pool, taken[g]);
        return quire__fail(QUIRE_E_NO_PAGES, "no page to reopen page %d into", (int)page);
    }
    for (int32_t g = 0; g < pool->n_groups; g++) {
        if (pool->group[g].raw)
            continue;
        decode_page(seq, g, page, taken[g]);
        quire__leaf_drop(pool, seq->group[g].open);
        seq->group[g].open = taken[g];
    }
    pool->reopened_pages++;
    return QUIRE_OK;
}

quire_status quire__seq_trim(quire_seq *seq, int32_t n_tokens) {
    quire_pool *pool = seq->pool;
    const int32_t page = n_tokens / QUIRE_T, n_pages = seq->length / QUIRE_T;
    QUIRE_TRY(check_window(seq, n_tokens));
    if (page == n_pages) { /* inside the open page, or nothing to do */
        if (n_tokens % QUIRE_T == 0)
            for (int32_t g = 0; g < pool->n_groups; g++) {
                quire__leaf_drop(pool, seq->group[g].open);
                seq->group[g].open = QUIRE_NO_LEAF;
            }
        seq->length = n_tokens;
        return QUIRE_OK;
    }
    const bool reopen = n_tokens % QUIRE_T != 0, from_kept = reopen && seq->kept_page == page;
    bool all_raw = true;
    for (int32_t g = 0; g < pool->n_groups; g++)
        all_raw = all_raw && pool->group[g].raw;
    if (reopen && !from_kept && !all_raw)
        QUIRE_TRY(reserve_reopened(seq, page));
    for (int32_t g = 0; g < pool->n_groups; g++) {
        const bool raw_group = pool->group[g].raw;
        quire_seq_group *s = &seq->group[g];
        if (raw_group || from_kept || !reopen) { /* reserve_reopened has set the others */
            quire__leaf_drop(pool, s->open);
            s->open = QUIRE_NO_LEAF;
        }
        if (reopen && raw_group) {
            s->open = s->table[page];
            s->table[page] = QUIRE_NO_LEAF;
        } else if (from_kept) {
            s->open = s->kept;
            s->kept = QUIRE_NO_LEAF;
        }
        for (int32_t p = page; p < n_pages; p++)
            quire__leaf_drop(pool, s->table[p]);
        if (s->live_from > page)
            s->live_from = page;
        if (seq->kept_page >= page) {
            quire__leaf_drop(pool, s->kept);
            s->kept = QUIRE_NO_LEAF;
        }
        if (page == 0) { /* page 0 is open again, or gone: its sinks are in it */
            quire__leaf_drop(pool, s->sinks);
            s->sinks = QUIRE_NO_LEAF;
        }
    }
    if (seq->kept_page >= page)
        seq->kept_page = -1;
    seq->length = n_tokens;
    return QUIRE_OK;
}

quire_status quire_seq_trim(quire_seq *seq, int32_t n_tokens) {
    if (!seq)
        return quire__fail(QUIRE_E_INVALID, "sequence is NULL");
    quire_pool *pool = seq->pool;
    pthread_mutex_lock(&pool->lock);
    quire_status status;
    if (seq->batch)
        status = quire__fail(QUIRE_E_BUSY, "cannot trim a sequence that is in a batch");
    else if (n_tokens < 0 || n_tokens > seq->length)
        status = quire__fail(QUIRE_E_INVALID, "cannot trim %d tokens to %d", (int)seq->length, (int)n_tokens);
    else
        status = quire__seq_trim(seq, n_tokens);
    pthread_mutex_unlock(&pool->lock);
    return status;
}
