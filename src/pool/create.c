/* Creating and freeing a pool. */
#include "pool/building.h"

static void link_free_lists(quire_pool *pool) {
    for (int32_t i = pool->max_leaves - 1; i >= 0; i--) {
        pool->leaf[i].next_free = i + 1 < pool->max_leaves ? i + 1 : QUIRE_NO_LEAF;
        pool->leaf[i].refs = 0;
    }
    for (int32_t i = 0; i <= pool->n_classes * QUIRE_LEAF_KINDS; i++)
        pool->spare_leaf[i] = QUIRE_NO_LEAF;
    for (int32_t i = pool->max_seqs - 1; i >= 0; i--) {
        pool->seq[i].pool = pool;
        pool->seq[i].next_free = pool->free_seq;
        pool->free_seq = &pool->seq[i];
    }
    for (int32_t i = 0; i < pool->max_batches; i++)
        pool->batch[i].pool = pool;
}

quire_status quire_pool_create(quire_pool **result, const quire_pool_options *o) {
    if (!result || !o)
        return quire__fail(QUIRE_E_INVALID, "pool or options is NULL");
    *result = NULL;
    QUIRE_TRY(quire__pool_check(o));
    QUIRE_TRY(quire__pool_check_budget(o));
    quire_pool *pool;
    QUIRE_TRY(quire__pool_describe(o, &pool));
    quire_status status = quire__pool_take_memory(pool, o->max_tokens, o->budget_bytes);
    if (status == QUIRE_OK && pthread_mutex_init(&pool->lock, NULL) != 0)
        status = quire__fail(QUIRE_E_NOMEM, "the system cannot give a pool its mutex");
    if (status != QUIRE_OK) {
        quire__pool_discard(pool);
        return status;
    }
    link_free_lists(pool);
    *result = pool;
    return QUIRE_OK;
}

void quire_pool_free(quire_pool *pool) {
    if (pool)
        pthread_mutex_destroy(&pool->lock);
    quire__pool_discard(pool);
}

const char *quire_pool_isa(const quire_pool *pool) { return pool->kernels.isa; }
