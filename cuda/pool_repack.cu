/* Pages of a pool that are taken apart and packed again: other codecs, and context shift. Rows are
 * decoded into the scratch as f32 and sealed from there, so that pages have the bytes that the CPU
 * library makes of the same ones (src/pool/requantize.c, src/seq/shift.c). All of it happens on the
 * device, in the order of the stream. */
#include <algorithm>
#include <cmath>
#include <new>

#include "args.h"
#include "pool.h"
#include "repack.h"
#include "rope.h"

using namespace quire_cuda;

namespace quire_cuda {

/* What becomes of a sequence's tokens, and from which pool they come. */
struct Repack {
    const quire_cuda_pool &old;
    quire_cuda_pool &pool; /* where pages are sealed; its words and scratch are used */
    const quire_cuda_seq &seq;
    int32_t from, by, length; /* as in UnpackParams */
    /* (layers * MOST_PAIRS) or NULL: nothing turns. */
    const std::vector<double> *angles;
    const std::vector<uint16_t> *channels; /* twice as many */
    cudaStream_t stream;

    int32_t origin(int32_t token) const { return token < from ? token : token + by; }
};

/* The scratch holds f32 rows of so many pages. */
static int32_t pages_at_once(const quire_cuda_pool &pool) { return pool.max_blocks / 2; }

/* The raw rows that the CPU library has, too: those of the open page, and of the one before it. */
static int32_t raw_from(const quire_cuda_seq &seq) {
    return std::max(seq.raw_page, pages_of(seq.length) - 1);
}

static UnpackParams unpack_params(const Repack &r, int32_t layer, int32_t n_pages) {
    const quire_cuda_pool &old = r.old;
    const Layer &l = old.layers[layer];
    const quire_layer &c = l.config;
    UnpackParams p = {};
    p.table = r.pool.words + r.pool.table_at;
    p.records = old.records + l.records_at;
    p.page_stride = old.page_bytes, p.head_stride = l.record_bytes;
    any_record({c.k, c.v}, c.k_dim, c.v_dim, old.options.raw, &p.record); /* add_layer did it */
    p.order = is_mixed(c.k) ? l.order : nullptr;
    p.raw = raw_rows_of(old, l), p.sink = sink_rows_of(old, l);
    p.slot = 2 * r.seq.slot, p.raw_from = raw_from(r.seq), p.sinks = old.options.sinks;
    p.bf16 = old.options.raw == QUIRE_BF16;
    p.numbers = r.pool.words + r.pool.seal_numbers_at;
    p.n_pages = n_pages, p.n_heads = c.n_kv_heads;
    p.length = r.length, p.from = r.from, p.by = r.by;
    p.k = (float *)r.pool.scratch_k, p.v = (float *)r.pool.scratch_v;
    for (int j = 0; j < c.k_dim / 2; j++) {
        const size_t at = (size_t)layer * MOST_PAIRS + j;
        p.first[j] = (uint16_t)(r.channels ? (*r.channels)[2 * at] : 2 * j);
        p.second[j] = (uint16_t)(r.channels ? (*r.channels)[2 * at + 1] : 2 * j + 1);
        const double angle = r.angles ? -(double)r.by * (*r.angles)[at] : 0;
        p.cosine[j] = cos(angle), p.sine[j] = sin(angle);
    }
    return p;
}

/* Pages that are made at once. ids may be one shorter than numbers: the last page is open then.
 * from_ids: pages whose bytes, or some of them, are copied. */
struct NewPages {
    std::vector<int32_t> numbers, ids, from_ids;

    void reserve(int32_t n) {
        for (std::vector<int32_t> *list : {&numbers, &ids, &from_ids})
            list->reserve((size_t)n);
    }
    void clear() { numbers.clear(), ids.clear(), from_ids.clear(); }
};

/* Tells the device about the sequence's table and the pages to make. */
static quire_status send_pages(const Repack &r, const NewPages &made) {
    const std::vector<int32_t> &numbers = made.numbers, &ids = made.ids;
    quire_cuda_pool &pool = r.pool;
    for (int32_t page = 0; page < pages_of(r.seq.length); page++)
        set(pool, pool.table_at + page, r.seq.table[page]);
    pool.shown[0] = 0; /* that row of the tables was the first item's */
    for (int32_t i = 0; i < (int32_t)numbers.size(); i++)
        set(pool, pool.seal_numbers_at + i, numbers[i]);
    for (int32_t i = 0; i < (int32_t)ids.size(); i++) {
        set(pool, pool.seal_slots_at + i, i);
        set(pool, pool.seal_ids_at + i, ids[i]);
        set(pool, pool.seal_skip_at + i, numbers[i] == 0 ? pool.options.sinks : 0);
        set(pool, pool.block_items_at + i, made.from_ids[i]);
    }
    pool.n_seal = (int32_t)ids.size();
    return send_words(pool, r.stream);
}

/* Records of one layer, or their part from `first` on, from where block_items says. */
static quire_status copy_layer(const Repack &r, int32_t layer, int first, int past) {
    const Layer &from = r.old.layers[layer], &to = r.pool.layers[layer];
    CopyParams p = {};
    p.from = r.old.records + from.records_at, p.to = r.pool.records + to.records_at;
    p.from_page = r.old.page_bytes, p.from_head = from.record_bytes;
    p.to_page = r.pool.page_bytes, p.to_head = to.record_bytes;
    p.from_ids = r.pool.words + r.pool.block_items_at;
    p.to_ids = r.pool.words + r.pool.seal_ids_at;
    p.n_pages = r.pool.n_seal, p.n_heads = to.config.n_kv_heads;
    p.first = first, p.past = past;
    return p.n_pages == 0 ? QUIRE_OK : check(copy_records(p, r.stream), "copying records");
}

/* Unpacks `n` pages of a layer and packs the first n_seal of them. */
static quire_status repack_layer(const Repack &r, int32_t layer, int32_t n) {
    QUIRE_CUDA_TRY(check(unpack_rows(unpack_params(r, layer, n), r.stream), "unpacking pages"));
    if (r.pool.n_seal == 0)
        return QUIRE_OK;
    return seal_pages(
        r.pool, layer, 1,
        scratch_rows(r.pool.scratch_k, r.pool.scratch_v, r.pool.layers[layer].config, T), QUIRE_F32,
        r.stream);
}

/* ------------------------------------------------------------------ other codecs */

static quire_status check_same_model(const quire_cuda_pool &old, const quire_cuda_pool_options &b) {
    const quire_cuda_pool_options &a = old.options;
    if (a.n_layers != b.n_layers || a.raw != b.raw || a.sinks != b.sinks ||
        a.max_seqs != b.max_seqs || a.max_tokens != b.max_tokens)
        return fail(QUIRE_E_INVALID, "the new options differ in n_layers, raw, sinks, max_seqs or "
                                     "max_tokens: these must stay");
    for (int32_t i = 0; i < a.n_layers; i++) {
        const quire_layer &x = old.layers[i].config, &y = b.layers[i];
        if (x.n_kv_heads != y.n_kv_heads || x.k_dim != y.k_dim || x.v_dim != y.v_dim ||
            x.window != y.window || x.keep != y.keep ||
            old.layers[i].source != (y.share < 0 ? i : y.share))
            return fail(QUIRE_E_INVALID,
                        "layer %d has other KV heads or another window, or shares another cache",
                        (int)i);
    }
    return QUIRE_OK;
}

/* All that can be said before memory is allocated. */
static quire_status check_requantize(const quire_cuda_pool &pool,
                                     const quire_cuda_pool_options &options) {
    if (pool.in_step)
        return fail(QUIRE_E_BUSY, "a step is under way: end it first");
    QUIRE_CUDA_TRY(check_pool_options(options));
    QUIRE_CUDA_TRY(check_same_model(pool, options));
    const int32_t used = pool.n_pages - (int32_t)pool.free_pages.size();
    if (used > n_pages_of(options))
        return fail(QUIRE_E_NO_PAGES, "%d pages are in use: the new pool would have %d", (int)used,
                    (int)n_pages_of(options));
    return QUIRE_OK;
}

static bool keeps_codecs(const quire_cuda_pool &old, const quire_cuda_pool &next, int32_t layer) {
    const quire_layer &a = old.layers[layer].config, &b = next.layers[layer].config;
    return a.k == b.k && a.v == b.v;
}

/* The pages of a sequence that have no new number yet, `from` and above. */
static quire_status convert_pages(const quire_cuda_pool &old, quire_cuda_pool &next,
                                  const quire_cuda_seq &seq, int32_t from,
                                  std::vector<int32_t> &new_ids, cudaStream_t stream) {
    const Repack r = {old, next, seq, seq.length, 0, seq.length, nullptr, nullptr, stream};
    NewPages made;
    for (int32_t page = from; page < pages_of(seq.length); page++) {
        const int32_t id = seq.table[page];
        if (is_held(seq, page) && new_ids[id] < 0) {
            new_ids[id] = page_take(next);
            made.numbers.push_back(page);
            made.ids.push_back(new_ids[id]);
            made.from_ids.push_back(id);
        }
        const bool last = page + 1 == pages_of(seq.length);
        const int32_t n = (int32_t)made.numbers.size();
        if (n == 0 || (n < pages_at_once(next) && !last))
            continue;
        QUIRE_CUDA_TRY(send_pages(r, made));
        for (int32_t i = 0; i < old.options.n_layers; i++) {
            if (old.layers[i].source != i)
                continue;
            QUIRE_CUDA_TRY(keeps_codecs(old, next, i)
                               ? copy_layer(r, i, 0, (int)next.layers[i].record_bytes)
                               : repack_layer(r, i, n));
        }
        made.clear();
    }
    return QUIRE_OK;
}

static quire_status requantize(quire_cuda_pool &pool, const quire_cuda_pool_options &options,
                               cudaStream_t stream) {
    QUIRE_CUDA_TRY(check_requantize(pool, options));
    struct Freed { /* what is not swapped in goes; its destructor also frees the old memory */
        quire_cuda_pool *pool;
        ~Freed() { quire_cuda_pool_free(pool); }
    } next = {new quire_cuda_pool()};
    quire_cuda_pool &made = *next.pool;
    QUIRE_CUDA_TRY(make_pool(made, options));
    std::vector<int32_t> new_ids((size_t)pool.n_pages, -1);
    for (int pass = 0; pass < 2; pass++) /* from raw rows, wherever a sequence has them */
        for (const quire_cuda_seq &seq : pool.seqs)
            if (seq.used)
                QUIRE_CUDA_TRY(
                    convert_pages(pool, made, seq, pass == 0 ? raw_from(seq) : 0, new_ids, stream));
    const size_t slots = 2 * (size_t)pool.options.max_seqs;
    QUIRE_CUDA_TRY(check(cudaMemcpyAsync(made.raw, pool.raw, slots * pool.raw_bytes,
                                         cudaMemcpyDeviceToDevice, stream),
                         "copying raw rows"));
    QUIRE_CUDA_TRY(check(cudaMemcpyAsync(made.sinks, pool.sinks, slots * pool.sink_bytes,
                                         cudaMemcpyDeviceToDevice, stream),
                         "copying sinks"));
    QUIRE_CUDA_TRY(check(cudaMemcpyAsync(made.n_bad, pool.n_bad, sizeof *pool.n_bad,
                                         cudaMemcpyDeviceToDevice, stream),
                         "copying the counter of bad values"));
    QUIRE_CUDA_TRY(check(cudaStreamSynchronize(stream), "waiting for the stream"));
    for (quire_cuda_seq &seq : pool.seqs) {
        for (int32_t page = 0; seq.used && page < pages_of(seq.length); page++)
            if (is_held(seq, page))
                seq.table[page] = new_ids[seq.table[page]];
        seq.version = ++pool.version;
    }
    for (size_t id = 0; id < new_ids.size(); id++)
        if (new_ids[id] >= 0)
            made.refs[new_ids[id]] = pool.refs[id];
    made.version = pool.version;
    std::swap(pool, made);
    std::swap(pool.seqs, made.seqs); /* handles stay */
    return QUIRE_OK;
}

/* ------------------------------------------------------------------ context shift */

static quire_status check_shift(const quire_cuda_seq &seq, int32_t from, int32_t to,
                                int32_t n_rope) {
    const quire_cuda_pool &pool = *seq.pool;
    if (pool.in_step)
        return fail(QUIRE_E_BUSY, "a step is under way: end it first");
    if (n_rope != 1 && n_rope != pool.options.n_layers)
        return fail(QUIRE_E_INVALID,
                    "rope has %d entries for %d layers: pass 1, or one for each layer", (int)n_rope,
                    (int)pool.options.n_layers);
    if (from < 0 || to < from || to > seq.length)
        return fail(QUIRE_E_INVALID, "cannot drop tokens %d to %d of a sequence of %d", (int)from,
                    (int)to, (int)seq.length);
    return QUIRE_OK;
}

/* Of layers with a cache of their own; also whether their pages can be packed again. */
static quire_status read_ropes(const quire_cuda_pool &pool, const quire_rope *rope, int32_t n_rope,
                               std::vector<double> *angles, std::vector<uint16_t> *channels) {
    angles->assign((size_t)pool.options.n_layers * MOST_PAIRS, 0);
    channels->assign(2 * angles->size(), 0);
    for (int32_t i = 0; i < pool.options.n_layers; i++) {
        const quire_layer &c = pool.layers[i].config;
        if (pool.layers[i].source != i)
            continue;
        if (k_bits_of(c.k) < 3)
            return fail(QUIRE_E_UNSUPPORTED,
                        "layer %d: K codec %s is too coarse to be turned and packed again by a "
                        "context shift",
                        (int)i, codec_name(c.k));
        if (pool.runs[pool.layers[i].run].has_feedback)
            QUIRE_CUDA_TRY(check_feedback(c.k_dim, QUIRE_F32)); /* the rows of repack_layer */
        const size_t at = (size_t)i * MOST_PAIRS;
        QUIRE_CUDA_TRY(quire_cuda__rope_pairs(&rope[n_rope == 1 ? 0 : i], c.k_dim,
                                              channels->data() + 2 * at, angles->data() + at));
    }
    return QUIRE_OK;
}

/* Raw rows of the new sequence, from the page of block `block`: its sinks, or its open page. */
static quire_status keep_rows(const Repack &r, int32_t layer, int32_t block, bool are_sinks,
                              int32_t n) {
    const Layer &l = r.pool.layers[layer];
    const quire_layer &c = l.config;
    const size_t rows = (size_t)block * T * c.n_kv_heads;
    KeepParams p = {};
    p.k = (const float *)r.pool.scratch_k + rows * c.k_dim;
    p.v = (const float *)r.pool.scratch_v + rows * c.v_dim;
    p.to = are_sinks ? sink_rows_of(r.pool, l) : raw_rows_of(r.pool, l);
    p.slot = 2 * r.seq.slot + (are_sinks ? 0 : pages_of(r.length) % 2);
    p.n_slots = are_sinks ? 2 : 1;
    p.n = n, p.n_heads = c.n_kv_heads, p.k_dim = c.k_dim, p.v_dim = c.v_dim;
    p.bf16 = r.pool.options.raw == QUIRE_BF16;
    return check(keep_unpacked(p, r.stream), "keeping raw rows");
}

/* New pages page .. page + n - 1 with made's ids, and the open page after them if has_open. */
static quire_status shift_pages(const Repack &r, int32_t page, int32_t n, bool has_open,
                                NewPages &made) {
    quire_cuda_pool &pool = r.pool;
    const bool whole_pages = r.from % T == 0 && r.by % T == 0;
    for (int32_t p = page; p < page + n + has_open; p++) {
        const int32_t old = r.origin(p * T) / T;
        made.numbers.push_back(p);
        /* V keeps its bytes if whole pages move, and were not raw before. */
        made.from_ids.push_back(whole_pages && old < raw_from(r.seq) &&
                                        (p > 0 || !pool.options.sinks)
                                    ? r.seq.table[old]
                                    : -1);
    }
    QUIRE_CUDA_TRY(send_pages(r, made));
    for (int32_t i = 0; i < pool.options.n_layers; i++) {
        const quire_layer &c = pool.layers[i].config;
        if (pool.layers[i].source != i)
            continue;
        QUIRE_CUDA_TRY(repack_layer(r, i, n + has_open));
        const Record record = record_of(k_bits_of(c.k), c.k_dim, v_bits_of(c.v), c.v_dim);
        if (whole_pages)
            QUIRE_CUDA_TRY(copy_layer(r, i, record.v_codes, record.v_params + 2 * T));
        if (page == 0)
            QUIRE_CUDA_TRY(keep_rows(r, i, 0, true, std::min(pool.options.sinks, r.length)));
        if (has_open)
            QUIRE_CUDA_TRY(keep_rows(r, i, n, false, r.length % T));
    }
    return QUIRE_OK;
}

/* After a shift that failed: the pages before the first one that it was to change are as they were,
 * the others are given up. Raw rows may have been written where those of earlier pages were. */
static void give_up_from(quire_cuda_seq &seq, int32_t first) {
    cut(seq, first * T);
    seq.raw_page = first;
    seq.version = ++seq.pool->version;
}

static quire_status shift(quire_cuda_seq &seq, int32_t from, int32_t to, const quire_rope *rope,
                          int32_t n_rope, cudaStream_t stream) {
    quire_cuda_pool &pool = *seq.pool;
    QUIRE_CUDA_TRY(check_shift(seq, from, to, n_rope));
    if (to == seq.length)
        return quire_cuda_seq_trim(&seq, from);
    if (from == to)
        return QUIRE_OK;
    if (seq.live_from > pool.kept_pages)
        return fail(QUIRE_E_GONE,
                    "cannot shift: pages of the sequence have left the window of %d "
                    "tokens",
                    (int)pool.window);
    std::vector<double> angles;
    std::vector<uint16_t> channels;
    QUIRE_CUDA_TRY(read_ropes(pool, rope, n_rope, &angles, &channels));
    const int32_t length = seq.length - (to - from), first = from / T, n_pages = pages_of(length);
    const Repack r = {pool, pool, seq, from, to - from, length, &angles, &channels, stream};
    /* A page that no other sequence has is free again once its rows have been read. */
    int32_t needed = first < n_pages ? 1 : 0;
    for (int32_t page = first; page < n_pages; page++)
        needed += pool.refs[seq.table[page]] > 1;
    needed = std::min(needed, n_pages - first);
    if (needed > (int32_t)pool.free_pages.size())
        return fail(QUIRE_E_NO_PAGES, "the shift needs %d pages: %zu of %d are free", (int)needed,
                    pool.free_pages.size(), (int)pool.n_pages);
    const int32_t room = pages_at_once(pool);
    NewPages made;
    made.reserve(room); /* from here on nothing may throw: pages would be lost */
    bool open_is_left = length % T != 0;
    for (int32_t page = first; page < n_pages || open_is_left;) {
        const int32_t n = std::min({n_pages - page, room, (int32_t)pool.free_pages.size()});
        const bool has_open = open_is_left && page + n == n_pages && n < room;
        made.clear();
        for (int32_t i = 0; i < n; i++)
            made.ids.push_back(page_take(pool));
        const quire_status status = shift_pages(r, page, n, has_open, made);
        if (status != QUIRE_OK) {
            for (const int32_t id : made.ids)
                page_drop(pool, id);
            give_up_from(seq, first);
            return status;
        }
        for (int32_t i = 0; i < n; i++) {
            page_drop(pool, seq.table[page + i]);
            seq.table[page + i] = made.ids[i];
        }
        page += n;
        open_is_left = open_is_left && !has_open;
    }
    for (int32_t page = n_pages; page < pages_of(seq.length); page++)
        page_drop(pool, seq.table[page]);
    seq.length = length;
    seq.raw_page = n_pages;
    seq.live_from = std::min(seq.live_from, n_pages);
    seq.version = ++pool.version;
    return QUIRE_OK;
}

} // namespace quire_cuda

extern "C" {

quire_status quire_cuda_pool_requantize(quire_cuda_pool *pool,
                                        const quire_cuda_pool_options *options,
                                        struct CUstream_st *stream) {
    if (!pool || !options)
        return fail(QUIRE_E_INVALID, "pool or options is NULL");
    try {
        return requantize(*pool, *options, stream);
    } catch (const std::bad_alloc &) {
        return fail(QUIRE_E_NOMEM, "out of memory");
    }
}

quire_status quire_cuda_seq_shift(quire_cuda_seq *seq, int32_t from, int32_t to,
                                  const quire_rope *rope, int32_t n_rope,
                                  struct CUstream_st *stream) {
    QUIRE_CUDA_TRY(check_seq(seq));
    if (!rope)
        return fail(QUIRE_E_INVALID, "rope is NULL");
    try {
        return shift(*seq, from, to, rope, n_rope, stream);
    } catch (const std::bad_alloc &) {
        return fail(QUIRE_E_NOMEM, "out of memory");
    }
}
}
