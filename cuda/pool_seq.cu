/* Sequences of a pool: page tables that share packed pages. */
#include <algorithm>

#include "pool.h"

using namespace quire_cuda;

namespace quire_cuda {

int32_t page_take(quire_cuda_pool &pool) {
    const int32_t id = pool.free_pages.back();
    pool.free_pages.pop_back();
    pool.refs[id] = 1;
    return id;
}

void page_drop(quire_cuda_pool &pool, int32_t id) {
    if (--pool.refs[id] == 0)
        pool.free_pages.push_back(id); /* within its capacity: it once held all pages */
}

quire_status check_seq(const quire_cuda_seq *seq) {
    if (!seq)
        return fail(QUIRE_E_INVALID, "seq is NULL");
    return seq->used ? QUIRE_OK : fail(QUIRE_E_INVALID, "the sequence has been freed");
}

quire_status check_cut(const quire_cuda_seq &seq, int32_t n_tokens) {
    if (n_tokens < 0 || n_tokens > seq.length)
        return fail(QUIRE_E_INVALID, "cannot trim a sequence of %d tokens to %d", (int)seq.length,
                    (int)n_tokens);
    if (n_tokens % T && n_tokens / T < seq.raw_page)
        return fail(QUIRE_E_GONE,
                    "cannot trim to %d tokens: the raw rows of page %d are gone; trim to a "
                    "multiple of %d, or to %d tokens or more",
                    (int)n_tokens, (int)(n_tokens / T), T, (int)seq.raw_page * T);
    const int32_t first = std::max(window_page(*seq.pool, n_tokens), seq.pool->kept_pages);
    if (first < std::min(seq.live_from, pages_of(n_tokens)))
        return fail(QUIRE_E_GONE,
                    "cannot trim to %d tokens: the window of %d tokens has moved past page %d",
                    (int)n_tokens, (int)seq.pool->window, (int)first);
    return QUIRE_OK;
}

void cut(quire_cuda_seq &seq, int32_t n_tokens) {
    for (int32_t i = pages_of(n_tokens); i < pages_of(seq.length); i++)
        if (is_held(seq, i))
            page_drop(*seq.pool, seq.table[i]);
    if (pages_of(n_tokens) < pages_of(seq.length))
        seq.version = ++seq.pool->version;
    seq.length = n_tokens;
    seq.raw_page = std::min(seq.raw_page, pages_of(n_tokens));
    seq.live_from = std::min(seq.live_from, pages_of(n_tokens));
}

void give_back_pages(quire_cuda_seq &seq) {
    quire_cuda_pool &pool = *seq.pool;
    const int32_t past =
        std::min({window_page(pool, seq.length), seq.raw_page, pages_of(seq.length)});
    for (int32_t i = std::max(seq.live_from, pool.kept_pages); i < past; i++)
        page_drop(pool, seq.table[i]);
    seq.live_from = std::max(seq.live_from, past);
}

static quire_cuda_seq *take_seq(quire_cuda_pool &pool) {
    for (quire_cuda_seq &seq : pool.seqs)
        if (!seq.used) {
            seq.used = true;
            seq.in_step = false;
            seq.length = seq.raw_page = seq.live_from = 0;
            seq.version = ++pool.version;
            return &seq;
        }
    fail(QUIRE_E_NO_SLOT, "all %d sequences of the pool are in use; free one, or raise max_seqs",
         (int)pool.options.max_seqs);
    return nullptr;
}

} // namespace quire_cuda

extern "C" {

quire_status quire_cuda_seq_create(quire_cuda_pool *pool, quire_cuda_seq **seq) {
    if (!pool || !seq)
        return fail(QUIRE_E_INVALID, "pool or seq is NULL");
    *seq = take_seq(*pool);
    return *seq ? QUIRE_OK : QUIRE_E_NO_SLOT;
}

quire_status quire_cuda_seq_fork(quire_cuda_seq *seq, quire_cuda_seq **child,
                                 struct CUstream_st *stream) {
    if (!child)
        return fail(QUIRE_E_INVALID, "child is NULL");
    *child = nullptr;
    QUIRE_CUDA_TRY(check_seq(seq));
    if (seq->in_step)
        return fail(QUIRE_E_BUSY, "cannot fork a sequence that is in a step");
    quire_cuda_pool &pool = *seq->pool;
    quire_cuda_seq *made = take_seq(pool);
    if (!made)
        return QUIRE_E_NO_SLOT;
    const auto copy_slots = [&](uint8_t *base, size_t bytes) {
        return check(cudaMemcpyAsync(base + 2 * made->slot * bytes, base + 2 * seq->slot * bytes,
                                     2 * bytes, cudaMemcpyDeviceToDevice, stream),
                     "copying raw rows");
    };
    quire_status status = copy_slots(pool.raw, pool.raw_bytes);
    if (status == QUIRE_OK)
        status = copy_slots(pool.sinks, pool.sink_bytes);
    if (status != QUIRE_OK) {
        made->used = false;
        return status;
    }
    made->length = seq->length;
    made->raw_page = seq->raw_page;
    made->live_from = seq->live_from;
    for (int32_t i = 0; i < pages_of(seq->length); i++) {
        made->table[i] = seq->table[i];
        if (is_held(*seq, i))
            pool.refs[seq->table[i]]++;
    }
    *child = made;
    return QUIRE_OK;
}

quire_status quire_cuda_seq_trim(quire_cuda_seq *seq, int32_t n_tokens) {
    QUIRE_CUDA_TRY(check_seq(seq));
    if (seq->in_step)
        return fail(QUIRE_E_BUSY, "cannot trim a sequence that is in a step");
    QUIRE_CUDA_TRY(check_cut(*seq, n_tokens));
    cut(*seq, n_tokens);
    return QUIRE_OK;
}

quire_status quire_cuda_seq_free(quire_cuda_seq *seq) {
    if (!seq)
        return QUIRE_OK;
    QUIRE_CUDA_TRY(check_seq(seq));
    if (seq->in_step)
        return fail(QUIRE_E_BUSY, "cannot free a sequence that is in a step");
    cut(*seq, 0);
    seq->used = false;
    return QUIRE_OK;
}

int32_t quire_cuda_seq_length(const quire_cuda_seq *seq) { return seq ? seq->length : 0; }
}
