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

static bool head_valid(const quire_layer_state *l, quire_type raw, quire_part_kind kind,
                       int32_t n_raw, int32_t head, const uint8_t *leaf) {
    const size_t h = (size_t)head;
    switch (kind) {
    case QUIRE_PART_SEALED:
        return quire__record_valid(l, leaf + l->sealed_offset + h * l->format.bytes);
    case QUIRE_PART_SINKS:
        return quire__raw_rows_valid(l, raw, leaf + l->sink_offset + h * l->sink_record_bytes,
                                     l->sinks, l->sink_v_offset);
    default:
        return quire__raw_rows_valid(l, raw, leaf + l->raw_offset + h * l->raw_record_bytes, n_raw,
                                     l->raw_v_offset);
    }
}

bool quire__leaf_valid(quire_leaf_layers of, int32_t class, quire_part_kind kind, int32_t n_raw,
                       const uint8_t *leaf, int32_t *layer, int32_t *head) {
    for (int32_t i = 0; i < of.n_layers; i++) {
        const quire_layer_state *l = &of.layer[i];
        for (int32_t h = 0; l->class == class && l->source == i && h < l->config.n_kv_heads; h++)
            if (!head_valid(l, of.raw, kind, n_raw, h, leaf)) {
                *layer = i;
                *head = h;
                return false;
            }
    }
    return true;
}

bool quire__restored_check(const quire_pool *pool, int32_t leaf, quire_part_kind kind,
                           int32_t n_raw, int32_t *layer, int32_t *head) {
    return quire__leaf_valid((quire_leaf_layers){pool->layer, pool->n_layers, pool->raw},
                             pool->leaf[leaf].class, kind, n_raw, quire__leaf_memory(pool, leaf),
                             layer, head);
}
