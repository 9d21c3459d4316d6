/* Leaves for a sequence that is loaded from elsewhere: reserved all or none, and checked once they
 * are filled, before anything else refers to them. */
#include "file/snapshot.h"

/* Replaces RESERVE_LEAF by a leaf. */
static void reserve_leaf(quire_pool *pool, int32_t g, quire_leaf_kind kind, bool *full,
                         int32_t *leaf) {
    if (*leaf == QUIRE_NO_LEAF)
        return;
    *leaf = *full ? QUIRE_NO_LEAF : quire__leaf_take(pool, g, kind);
    *full = *full || *leaf == QUIRE_NO_LEAF;
}

/* After the first failure the remaining marks become NO_LEAF, so that the sequence can be freed. */
quire_status quire__restore_reserve(quire_seq *seq, int32_t length, int32_t last_page) {
    quire_pool *pool = seq->pool;
    bool full = false;
    for (int32_t g = 0; g < pool->n_classes; g++) {
        quire_seq_class *s = &seq->class[g];
        for (int32_t p = 0; p < length / QUIRE_T; p++)
            reserve_leaf(pool, g, pool->class[g].raw ? QUIRE_LEAF_RAW : QUIRE_LEAF_SEALED, &full,
                         &s->table[p]);
        reserve_leaf(pool, g, QUIRE_LEAF_RAW, &full, &s->open);
        reserve_leaf(pool, g, QUIRE_LEAF_RAW, &full, &s->last_raw);
        reserve_leaf(pool, g, QUIRE_LEAF_SINKS, &full, &s->sinks);
    }
    seq->length = length;
    seq->last_page = last_page;
    return full ? quire__fail(QUIRE_E_NO_PAGES, "pool is out of pages: %zu bytes free",
                              pool->arena.free_bytes + pool->spare_bytes)
                : QUIRE_OK;
}

bool quire__restored_check(const quire_pool *pool, int32_t leaf, quire_part_kind kind,
                           int32_t n_raw, int32_t *layer, int32_t *head) {
    const int32_t g = pool->leaf[leaf].class;
    for (int32_t i = 0; i < pool->n_layers; i++) {
        const quire_layer_state *l = &pool->layer[i];
        for (int32_t h = 0; l->class == g && l->source == i && h < l->config.n_kv_heads; h++) {
            const uint8_t *record =
                kind == QUIRE_PART_SEALED  ? quire__sealed_record(pool, l, leaf, h)
                : kind == QUIRE_PART_SINKS ? quire__sink_record(pool, l, leaf, h)
                                           : quire__raw_record(pool, l, leaf, h);
            const int32_t n_rows = kind == QUIRE_PART_SINKS ? l->sinks : n_raw;
            const size_t v_offset = kind == QUIRE_PART_SINKS ? l->sink_v_offset : l->raw_v_offset;
            if (kind == QUIRE_PART_SEALED
                    ? quire__record_valid(l, record)
                    : quire__raw_rows_valid(l, pool->raw, record, n_rows, v_offset))
                continue;
            *layer = i;
            *head = h;
            return false;
        }
    }
    return true;
}
