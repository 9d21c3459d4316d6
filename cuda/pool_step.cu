/* Steps of a pool. The host decides which pages and slots the rows go to, and tells the device in
 * `words`; the kernels of append and attend read everything else from there, so that a captured
 * graph of them serves later steps. */
#include <algorithm>

#include "pool.h"

using namespace quire_cuda;

namespace quire_cuda {

void set(quire_cuda_pool &pool, int32_t at, int32_t value) {
    if (pool.mirror[at] == value)
        return;
    pool.mirror[at] = value;
    pool.pending.push_back({at, value}); /* once for each word, so its capacity suffices */
}

/* In the mirror: what the device has is not known. No word has this value. */
constexpr int32_t UNKNOWN = INT32_MIN;

quire_status send_words(quire_cuda_pool &pool, cudaStream_t stream) {
    const quire_status status =
        check(put_words(pool.words, pool.pending.data(), pool.pending.size(), stream),
              "launching the update of page tables");
    if (status != QUIRE_OK) { /* the device may have some of them: send all again next time */
        for (const Word &word : pool.pending)
            pool.mirror[word.at] = UNKNOWN;
        std::fill(pool.shown.begin(), pool.shown.end(), 0);
    }
    pool.pending.clear();
    return status;
}

/* ------------------------------------------------------------------ begin */

static int32_t blocks_of(const Item &i) { return (i.before % T + i.n_tokens + T - 1) / T; }
static int32_t new_pages(const Item &i) {
    return pages_of(i.before + i.n_tokens) - pages_of(i.before);
}
/* Where the one row of a decode step goes. */
static int32_t decode_slot(const Item &i) { return 2 * i.seq->slot + pages_of(i.before) % 2; }

/* Fills in pool.items and the counts of the step. */
static quire_status plan_items(quire_cuda_pool &pool, const quire_cuda_step_item *items,
                               int32_t n_items) {
    int64_t rows = 0, blocks = 0, pages = 0;
    bool is_decode = true;
    for (int32_t i = 0; i < n_items; i++) {
        const quire_cuda_seq *seq = items[i].seq;
        const int32_t n = items[i].n_tokens;
        if (n < 0 || (seq && (seq->pool != &pool || !seq->used)))
            return fail(QUIRE_E_INVALID,
                        "item %d: %d tokens, or the sequence is freed or of another pool", (int)i,
                        (int)n);
        for (int32_t j = 0; seq && j < i; j++)
            if (items[j].seq == seq)
                return fail(QUIRE_E_BUSY, "items %d and %d are the same sequence", (int)j, (int)i);
        const int32_t before = seq ? seq->length : 0;
        if (seq && n > pool.options.max_tokens - before)
            return fail(QUIRE_E_TOO_BIG,
                        "item %d: %d tokens after %d; a sequence of this pool holds at most %d "
                        "(max_tokens)",
                        (int)i, (int)n, (int)before, (int)pool.options.max_tokens);
        pool.items[i] = {items[i].seq, n, before};
        is_decode = is_decode && n == 1;
        rows += n;
        blocks += seq ? blocks_of(pool.items[i]) : 0;
        pages += seq ? new_pages(pool.items[i]) : 0;
    }
    if (!is_decode)
        for (int32_t i = 0; i < n_items; i++)
            if (!items[i].seq && items[i].n_tokens > 0)
                return fail(QUIRE_E_INVALID, "item %d has tokens, but no sequence", (int)i);
    if (rows > std::max(pool.options.max_batch_tokens, pool.options.max_seqs))
        return fail(QUIRE_E_TOO_BIG, "a step of %lld rows: at most %d (max_batch_tokens)",
                    (long long)rows, (int)pool.options.max_batch_tokens);
    if (pages > (int64_t)pool.free_pages.size())
        return fail(QUIRE_E_NO_PAGES, "the step fills %lld pages: %zu of %d are free",
                    (long long)pages, pool.free_pages.size(), (int)pool.n_pages);
    pool.is_decode = is_decode;
    pool.n_items = n_items;
    pool.n_rows = (int32_t)rows;
    pool.n_blocks = (int32_t)blocks; /* within max_blocks: each item adds less than two */
    return QUIRE_OK;
}

/* A page to be packed: from a block of the scratch, or from a slot. */
static void add_seal(quire_cuda_pool &pool, int32_t from, const quire_cuda_seq &seq, int32_t page) {
    set(pool, pool.seal_slots_at + pool.n_seal, from);
    set(pool, pool.seal_ids_at + pool.n_seal, seq.table[page]);
    set(pool, pool.seal_skip_at + pool.n_seal, page == 0 ? pool.options.sinks : 0);
    set(pool, pool.seal_numbers_at + pool.n_seal, page);
    pool.n_seal++;
}

static void place_item(quire_cuda_pool &pool, int32_t i, int32_t *start, int32_t *block) {
    const Item &item = pool.items[i];
    set(pool, pool.starts_at + i, *start);
    *start += item.n_tokens;
    if (!item.seq) {
        set(pool, pool.lengths_at + i, 0);
        return;
    }
    quire_cuda_seq &seq = *item.seq;
    const int32_t length = item.before + item.n_tokens;
    for (int32_t page = pages_of(item.before); page < pages_of(length); page++)
        seq.table[page] = page_take(pool);
    if (new_pages(item) > 0)
        seq.version = ++pool.version;
    set(pool, pool.lengths_at + i, length);
    set(pool, pool.first_slots_at + i, 2 * seq.slot);
    if (pool.shown[i] != seq.version) {
        for (int32_t page = 0; page < pages_of(length); page++)
            set(pool, pool.table_at + i * pool.max_pages + page, seq.table[page]);
        pool.shown[i] = seq.version;
    }
    if (pool.is_decode) {
        set(pool, pool.slots_at + i, decode_slot(item));
        if (new_pages(item) > 0)
            add_seal(pool, decode_slot(item), seq, pages_of(item.before));
        return;
    }
    set(pool, pool.slots_at + i, *block); /* attention finds own rows and sinks in the scratch */
    set(pool, pool.blocks_at + i, *block);
    for (int32_t j = 0; j < blocks_of(item); j++)
        set(pool, pool.block_items_at + *block + j, i);
    for (int32_t j = 0; j < new_pages(item); j++)
        add_seal(pool, *block + j, seq, pages_of(item.before) + j);
    *block += blocks_of(item);
}

static void undo(quire_cuda_pool &pool) {
    for (int32_t i = 0; i < pool.n_items; i++) {
        Item &item = pool.items[i];
        if (!item.seq)
            continue;
        for (int32_t page = pages_of(item.before); page < pages_of(item.before + item.n_tokens);
             page++)
            page_drop(pool, item.seq->table[page]);
        item.seq->version = ++pool.version;
    }
}

static quire_status begin(quire_cuda_pool &pool, const quire_cuda_step_item *items, int32_t n_items,
                          cudaStream_t stream) {
    if (pool.in_step)
        return fail(QUIRE_E_BUSY, "a step is under way: end it first");
    if (n_items < 0 || n_items > pool.options.max_seqs)
        return fail(QUIRE_E_INVALID, "%d items: the pool has room for %d (max_seqs)", (int)n_items,
                    (int)pool.options.max_seqs);
    QUIRE_CUDA_TRY(plan_items(pool, items, n_items));
    pool.n_seal = pool.most_rows = 0;
    int32_t start = 0, block = 0;
    for (int32_t i = 0; i < n_items; i++) {
        place_item(pool, i, &start, &block);
        pool.most_rows = std::max(pool.most_rows, pool.items[i].n_tokens);
    }
    set(pool, pool.starts_at + n_items, start);
    const quire_status status = send_words(pool, stream);
    if (status != QUIRE_OK) {
        undo(pool);
        return status;
    }
    for (int32_t i = 0; i < n_items; i++)
        if (pool.items[i].seq)
            pool.items[i].seq->in_step = true;
    pool.in_step = true;
    pool.has_appended = false;
    return QUIRE_OK;
}

/* ------------------------------------------------------------------ append, seal */

quire_cuda_rows scratch_rows(const uint8_t *k, const uint8_t *v, const quire_layer &c,
                             int64_t tokens) {
    const int64_t k_token = (int64_t)c.n_kv_heads * c.k_dim,
                  v_token = (int64_t)c.n_kv_heads * c.v_dim;
    return {k, v, k_token * tokens, c.k_dim, k_token, v_token * tokens, c.v_dim, v_token};
}

quire_status seal_pages(quire_cuda_pool &pool, int32_t first, int32_t n,
                        const quire_cuda_rows &rows, quire_type type, cudaStream_t stream) {
    const Layer &l = pool.layers[first];
    const quire_layer &c = l.config;
    quire_cuda_seal_args a = {};
    a.shape = {{c.k, c.v}, c.k_dim, c.v_dim, type};
    a.n_kv_heads = n * c.n_kv_heads;
    a.n_pages = pool.n_seal;
    a.rows = rows;
    a.slots = pool.words + pool.seal_slots_at;
    a.records = {pool.records + l.records_at, pool.page_bytes, l.record_bytes};
    a.ids = pool.words + pool.seal_ids_at;
    a.skip = pool.words + pool.seal_skip_at;
    a.k_order = l.order;
    a.n_bad = pool.n_bad;
    QUIRE_CUDA_TRY(quire_cuda_seal(&a, stream));
    return pool.runs[l.run].has_feedback ? round_with_feedback(a, feedback_of(pool, first), stream)
                                         : QUIRE_OK;
}

static quire_status check_step(const quire_cuda_pool *pool, int32_t layer) {
    if (!pool)
        return fail(QUIRE_E_INVALID, "pool is NULL");
    if (layer < 0 || layer >= pool->options.n_layers)
        return fail(QUIRE_E_INVALID, "layer %d: the pool has %d", (int)layer,
                    (int)pool->options.n_layers);
    if (!pool->in_step)
        return fail(QUIRE_E_STATE, "no step is under way: quire_cuda_step_begin starts one");
    return QUIRE_OK;
}

static quire_status append(quire_cuda_pool &pool, int32_t layer, const void *k, const void *v,
                           cudaStream_t stream) {
    const Layer &l = pool.layers[layer];
    if (l.source != layer)
        return fail(QUIRE_E_INVALID, "layer %d shares the cache of layer %d: it has no rows",
                    (int)layer, (int)l.source);
    if (!k || !v || ((uintptr_t)k | (uintptr_t)v) % 16)
        return fail(QUIRE_E_INVALID, "k or v is NULL, or not aligned to 16 bytes");
    if (pool.n_rows == 0)
        return QUIRE_OK;
    const quire_layer &c = l.config;
    AppendParams p = {};
    p.k = (const uint8_t *)k, p.v = (const uint8_t *)v;
    p.own = raw_rows_of(pool, l), p.sink = sink_rows_of(pool, l);
    p.scratch = scratch_rows(pool.scratch_k, pool.scratch_v, c, T);
    p.scratch_sink = scratch_rows(pool.scratch_sink_k, pool.scratch_sink_v, c, pool.options.sinks);
    p.lengths = pool.words + pool.lengths_at, p.slots = pool.words + pool.slots_at;
    p.starts = pool.words + pool.starts_at, p.blocks = pool.words + pool.blocks_at;
    p.first_slots = pool.words + pool.first_slots_at;
    p.block_items = pool.words + pool.block_items_at;
    p.n_items = pool.n_items, p.n_blocks = pool.n_blocks, p.n_heads = c.n_kv_heads;
    p.k_dim = c.k_dim, p.v_dim = c.v_dim, p.sinks = pool.options.sinks;
    pool.has_appended = true;
    if (pool.is_decode)
        return check(append_row(p, stream), "launching the append of rows");
    QUIRE_CUDA_TRY(check(append_rows(p, stream), "launching the append of rows"));
    return seal_pages(pool, layer, 1, p.scratch, pool.options.raw, stream);
}

/* ------------------------------------------------------------------ attend */

static quire_status attend(quire_cuda_pool &pool, int32_t layer, const void *q, void *out,
                           float *lse, cudaStream_t stream) {
    const Layer &l = pool.layers[layer];
    const Plans &plans = pool.plans[l.plan];
    if (pool.n_rows == 0)
        return QUIRE_OK;
    const quire_cuda_records records = {pool.records + l.records_at, pool.page_bytes,
                                        l.record_bytes};
    if (pool.is_decode) {
        quire_cuda_decode_args a = {};
        a.n_seqs = pool.n_items, a.q = q, a.out = out, a.lse = lse;
        a.lengths = pool.words + pool.lengths_at;
        a.pages = pool.words + pool.table_at, a.pages_stride = pool.max_pages;
        a.records = records;
        a.own = raw_rows_of(pool, l), a.sink = sink_rows_of(pool, l);
        a.slots = pool.words + pool.slots_at;
        a.k_order = l.order, a.alibi = l.alibi, a.sink_logits = l.sink_logits;
        a.workspace = pool.memory + plans.decode_workspace;
        return quire_cuda_decode(plans.decode, &a, stream);
    }
    const quire_cuda_prefill_plan *plan = pool.most_rows <= FEW_ROWS ? plans.few : plans.many;
    if (!plan)
        return fail(QUIRE_E_UNSUPPORTED,
                    "layer %d: no prefill kernel for its codecs and head sizes (docs/CUDA.md lists "
                    "them): give every item of the step one token",
                    (int)layer);
    quire_cuda_prefill_args a = {};
    a.n_seqs = pool.n_items, a.q = q, a.out = out, a.lse = lse;
    a.starts = pool.words + pool.starts_at, a.lengths = pool.words + pool.lengths_at;
    a.pages = pool.words + pool.table_at, a.pages_stride = pool.max_pages;
    a.records = records;
    a.own = scratch_rows(pool.scratch_k, pool.scratch_v, l.config, T);
    a.sink = scratch_rows(pool.scratch_sink_k, pool.scratch_sink_v, l.config, pool.options.sinks);
    a.slots = pool.words + pool.slots_at;
    a.k_order = l.order, a.alibi = l.alibi, a.sink_logits = l.sink_logits;
    a.workspace = pool.prefill_workspace;
    return quire_cuda_prefill(plan, &a, stream);
}

/* ------------------------------------------------------------------ end */

/* The first page of item i whose raw rows are there when the step ends, before anything is cut. */
static int32_t raw_page_after(const quire_cuda_pool &pool, int32_t i, const int32_t *n_accept) {
    const Item &item = pool.items[i];
    const int32_t raw_page = item.seq->raw_page;
    /* Rows of a decode step may have come from a graph. */
    const bool undone = n_accept && n_accept[i] == 0 && !pool.has_appended && !pool.is_decode;
    if (item.n_tokens == 0 || undone)
        return raw_page;
    return std::max(raw_page, (item.before + item.n_tokens - 1) / T - 1);
}

static quire_status check_accepted(const quire_cuda_pool &pool, const int32_t *n_accept) {
    for (int32_t i = 0; n_accept && i < pool.n_items; i++) {
        const Item &item = pool.items[i];
        if (!item.seq)
            continue;
        quire_cuda_seq grown = {};
        grown.pool = item.seq->pool;
        grown.live_from = item.seq->live_from;
        grown.length = item.before + item.n_tokens;
        grown.raw_page = raw_page_after(pool, i, n_accept);
        if (n_accept[i] < 0 || n_accept[i] > item.n_tokens)
            return fail(QUIRE_E_INVALID, "item %d: cannot keep %d of %d tokens", (int)i,
                        (int)n_accept[i], (int)item.n_tokens);
        if (check_cut(grown, item.before + n_accept[i]) != QUIRE_OK)
            return fail(QUIRE_E_INVALID,
                        "item %d: cannot keep %d of %d tokens: the cut must lie in the last two "
                        "pages, or between pages; keep all, then trim to a multiple of %d",
                        (int)i, (int)n_accept[i], (int)item.n_tokens, T);
    }
    return QUIRE_OK;
}

/* A decode step has its full pages in slots. Those whose token is not kept must not be packed: bad
 * values in them would be counted. begin has sent the list of all, which is right as a rule. */
static quire_status seal_decoded(quire_cuda_pool &pool, const int32_t *n_accept,
                                 cudaStream_t stream) {
    pool.n_seal = 0;
    for (int32_t i = 0; i < pool.n_items; i++) {
        const Item &item = pool.items[i];
        if (item.seq && new_pages(item) > 0 && !(n_accept && n_accept[i] == 0))
            add_seal(pool, decode_slot(item), *item.seq, pages_of(item.before));
    }
    QUIRE_CUDA_TRY(send_words(pool, stream));
    if (pool.n_seal == 0)
        return QUIRE_OK;
    for (const Run &run : pool.runs)
        QUIRE_CUDA_TRY(seal_pages(pool, run.first, run.n_layers,
                                  raw_rows_of(pool, pool.layers[run.first]), pool.options.raw,
                                  stream));
    return QUIRE_OK;
}

static quire_status end(quire_cuda_pool &pool, const int32_t *n_accept, cudaStream_t stream) {
    QUIRE_CUDA_TRY(check_accepted(pool, n_accept));
    if (pool.is_decode)
        QUIRE_CUDA_TRY(seal_decoded(pool, n_accept, stream));
    for (int32_t i = 0; i < pool.n_items; i++) {
        const Item &item = pool.items[i];
        if (!item.seq)
            continue;
        item.seq->raw_page = raw_page_after(pool, i, n_accept);
        item.seq->length = item.before + item.n_tokens;
        if (n_accept)
            cut(*item.seq, item.before + n_accept[i]);
        give_back_pages(*item.seq);
        item.seq->in_step = false;
    }
    pool.in_step = false;
    return QUIRE_OK;
}

} // namespace quire_cuda

extern "C" {

quire_status quire_cuda_step_begin(quire_cuda_pool *pool, const quire_cuda_step_item *items,
                                   int32_t n_items, struct CUstream_st *stream) {
    if (!pool || !items)
        return fail(QUIRE_E_INVALID, "pool or items is NULL");
    return begin(*pool, items, n_items, stream);
}

quire_status quire_cuda_step_append(quire_cuda_pool *pool, int32_t layer, const void *k,
                                    const void *v, struct CUstream_st *stream) {
    QUIRE_CUDA_TRY(check_step(pool, layer));
    return append(*pool, layer, k, v, stream);
}

quire_status quire_cuda_step_attend(quire_cuda_pool *pool, int32_t layer, const void *q, void *out,
                                    float *lse, struct CUstream_st *stream) {
    QUIRE_CUDA_TRY(check_step(pool, layer));
    return attend(*pool, layer, q, out, lse, stream);
}

quire_status quire_cuda_step_end(quire_cuda_pool *pool, const int32_t *n_accept,
                                 struct CUstream_st *stream) {
    if (!pool)
        return fail(QUIRE_E_INVALID, "pool is NULL");
    if (!pool->in_step)
        return fail(QUIRE_E_STATE, "no step is under way");
    return end(*pool, n_accept, stream);
}
}
