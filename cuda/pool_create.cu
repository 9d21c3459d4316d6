/* Makes a pool: checks the options, makes plans, and places everything in one block. */
#include <algorithm>
#include <cstring>
#include <new>

#include "args.h"
#include "pool.h"
#include "record_any.h"

namespace quire_cuda {

quire_status check_pool_options(const quire_cuda_pool_options &o) {
    if (o.struct_size != sizeof o)
        return fail(QUIRE_E_INVALID, "options were not set by quire_cuda_pool_options_default");
    if (!o.layers || o.n_layers < 1)
        return fail(QUIRE_E_INVALID, "a pool needs at least one layer");
    QUIRE_CUDA_TRY(check_types(o.raw, o.out));
    QUIRE_CUDA_TRY(check_sight(o.sinks, 0, 0));
    if (o.max_seqs < 1 || o.max_tokens < 1 || o.n_pages < 0 || o.max_batch_tokens < 1)
        return fail(QUIRE_E_INVALID,
                    "max_seqs %d, max_tokens %d, n_pages %d, max_batch_tokens %d: must be positive",
                    (int)o.max_seqs, (int)o.max_tokens, (int)o.n_pages, (int)o.max_batch_tokens);
    if (o.max_tokens > INT32_MAX / 2 || o.max_batch_tokens > 1 << 24 ||
        (int64_t)o.max_seqs * (o.max_tokens / T + 1) > 1 << 28)
        return fail(QUIRE_E_TOO_BIG,
                    "%d sequences of %d tokens, steps of %d rows: page tables would not fit",
                    (int)o.max_seqs, (int)o.max_tokens, (int)o.max_batch_tokens);
    return QUIRE_OK;
}

/* ------------------------------------------------------------------ layers */

static bool same_shape(const Layer &a, const Layer &b) {
    return a.config.n_kv_heads == b.config.n_kv_heads && a.config.k_dim == b.config.k_dim &&
           a.config.v_dim == b.config.v_dim && a.config.k == b.config.k && a.config.v == b.config.v;
}

static quire_page_shape shape_of(const quire_cuda_pool &pool, const Layer &layer) {
    return {
        {layer.config.k, layer.config.v}, layer.config.k_dim, layer.config.v_dim, pool.options.raw};
}

/* A call of seal without pages: checks codecs and head sizes. */
static quire_status check_seal(const quire_cuda_pool &pool, const Layer &layer) {
    quire_cuda_seal_args a = {};
    a.shape = shape_of(pool, layer);
    a.n_kv_heads = layer.config.n_kv_heads;
    a.records = {(void *)128, 0, layer.record_bytes}; /* no pointer is used */
    a.rows.k = a.rows.v = (const void *)16;
    a.k_order = (const uint16_t *)16;
    return quire_cuda_seal(&a, nullptr);
}

/* Continues the last run, or starts one. */
static quire_status add_to_run(quire_cuda_pool &pool, int32_t i, const Layer &layer) {
    Run run = {};
    run.first = i, run.n_layers = 1;
    QUIRE_CUDA_TRY(read_feedback(layer.config, i, &run));
    if (run.has_feedback)
        QUIRE_CUDA_TRY(check_feedback(layer.config.k_dim, pool.options.raw));
    if (!pool.runs.empty()) {
        Run &last = pool.runs.back();
        if (last.first + last.n_layers == i && same_shape(pool.layers[i - 1], layer) &&
            last.has_feedback == run.has_feedback && last.channels == run.channels &&
            last.angles == run.angles) {
            last.n_layers++;
            return QUIRE_OK;
        }
    }
    pool.runs.push_back(run);
    return QUIRE_OK;
}

static quire_status add_layer(quire_cuda_pool &pool, int32_t i) {
    const quire_cuda_pool_options &o = pool.options;
    Layer layer = {};
    layer.config = o.layers[i];
    quire_layer &c = layer.config;
    layer.source = i;
    if (c.share >= 0) {
        if (c.share >= i || pool.layers[c.share].source != c.share)
            return fail(QUIRE_E_INVALID,
                        "layer %d shares the cache of layer %d: must be an earlier layer with a "
                        "cache of its own",
                        (int)i, (int)c.share);
        layer.source = c.share;
        c.k = pool.layers[c.share].config.k, c.v = pool.layers[c.share].config.v;
    }
    if (c.k == QUIRE_CODEC_DEFAULT)
        c.k = o.pair.k;
    if (c.v == QUIRE_CODEC_DEFAULT)
        c.v = o.pair.v;
    QUIRE_CUDA_TRY(check_heads(c.n_heads, c.n_kv_heads));
    AnyRecord record;
    if (!any_record({c.k, c.v}, c.k_dim, c.v_dim, o.raw, &record))
        return fail(QUIRE_E_UNSUPPORTED, "layer %d: %s:%s cannot serve head sizes %d and %d",
                    (int)i, codec_name(c.k), codec_name(c.v), (int)c.k_dim, (int)c.v_dim);
    layer.record_bytes = (size_t)record.bytes;
    layer.raw_record_bytes = (size_t)T * (c.k_dim + c.v_dim) * 2;
    layer.sink_record_bytes = (size_t)align_up(o.sinks * (c.k_dim + c.v_dim) * 2, 128);
    if (layer.source != i) {
        const Layer &source = pool.layers[layer.source];
        if (!same_shape(layer, source))
            return fail(QUIRE_E_INVALID,
                        "layer %d has other KV heads than layer %d, whose cache "
                        "it shares",
                        (int)i, (int)layer.source);
        layer.records_at = source.records_at;
        layer.raw_at = source.raw_at, layer.sinks_at = source.sinks_at;
    } else {
        if (is_mixed(c.k) && !c.k_order)
            return fail(QUIRE_E_INVALID, "layer %d: codec %s needs k_order", (int)i,
                        codec_name(c.k));
        QUIRE_CUDA_TRY(check_seal(pool, layer));
        if (is_mixed(c.k))
            QUIRE_CUDA_TRY(check_order(c, i));
        layer.records_at = pool.page_bytes;
        layer.raw_at = pool.raw_bytes, layer.sinks_at = pool.sink_bytes;
        pool.page_bytes += c.n_kv_heads * layer.record_bytes;
        pool.raw_bytes += c.n_kv_heads * layer.raw_record_bytes;
        pool.sink_bytes += c.n_kv_heads * layer.sink_record_bytes;
        QUIRE_CUDA_TRY(add_to_run(pool, i, layer));
        layer.run = (int32_t)pool.runs.size() - 1;
    }
    pool.layers.push_back(layer);
    return QUIRE_OK;
}

/* ------------------------------------------------------------------ plans */

static quire_cuda_decode_options decode_options(const quire_cuda_pool &pool, const quire_layer &c) {
    const quire_cuda_pool_options &o = pool.options;
    quire_cuda_decode_options d;
    memset(&d, 0, sizeof d); /* gaps, too: options are compared as bytes */
    d.struct_size = sizeof d;
    d.n_heads = c.n_heads, d.n_kv_heads = c.n_kv_heads, d.k_dim = c.k_dim, d.v_dim = c.v_dim;
    d.pair = {c.k, c.v};
    d.raw = o.raw, d.out = o.out, d.scale = c.scale, d.sinks = o.sinks, d.max_seqs = o.max_seqs;
    d.window = c.window, d.keep = c.keep, d.softcap = c.softcap, d.exact = o.exact;
    return d;
}

/* NULL where there is no kernel. */
static quire_status make_prefill(const quire_cuda_decode_options &d, int rows_hint,
                                 quire_cuda_prefill_plan **plan) {
    quire_cuda_prefill_options o;
    quire_cuda_prefill_options_default(&o);
    o.n_heads = d.n_heads, o.n_kv_heads = d.n_kv_heads, o.k_dim = d.k_dim, o.v_dim = d.v_dim;
    o.pair = d.pair, o.raw = d.raw, o.out = d.out, o.scale = d.scale, o.sinks = d.sinks;
    o.window = d.window, o.keep = d.keep, o.softcap = d.softcap, o.rows_hint = rows_hint;
    const quire_status status = quire_cuda_prefill_create(plan, &o);
    return status == QUIRE_E_UNSUPPORTED ? QUIRE_OK : status;
}

static quire_status add_plans(quire_cuda_pool &pool, Layer &layer) {
    const quire_cuda_decode_options d = decode_options(pool, layer.config);
    for (size_t i = 0; i < pool.plans.size(); i++)
        if (memcmp(&pool.plans[i].options, &d, sizeof d) == 0) {
            layer.plan = (int32_t)i;
            return QUIRE_OK;
        }
    layer.plan = (int32_t)pool.plans.size();
    pool.plans.push_back({d, nullptr, nullptr, nullptr, 0});
    Plans &plans = pool.plans.back();
    QUIRE_CUDA_TRY(quire_cuda_decode_create(&plans.decode, &d));
    QUIRE_CUDA_TRY(make_prefill(d, 0, &plans.many));
    return make_prefill(d, FEW_ROWS, &plans.few);
}

/* ------------------------------------------------------------------ memory */

/* Hands out places in the block. */
struct Block {
    size_t bytes;
    size_t take(size_t n) {
        const size_t at = bytes;
        bytes += (n + 255) / 256 * 256;
        return at;
    }
};

static void place_words(quire_cuda_pool &pool) {
    const int32_t seqs = pool.options.max_seqs;
    pool.max_blocks = std::max(pool.options.max_batch_tokens, seqs) / T + 2 * seqs;
    int32_t n = 0;
    const auto take = [&](int32_t count) {
        const int32_t at = n;
        n += count;
        return at;
    };
    pool.lengths_at = take(seqs);
    pool.slots_at = take(seqs);
    pool.starts_at = take(seqs + 1);
    pool.blocks_at = take(seqs);
    pool.first_slots_at = take(seqs);
    pool.block_items_at = take(pool.max_blocks);
    pool.seal_slots_at = take(pool.max_blocks);
    pool.seal_ids_at = take(pool.max_blocks);
    pool.seal_skip_at = take(pool.max_blocks);
    pool.seal_numbers_at = take(pool.max_blocks);
    pool.table_at = take(seqs * pool.max_pages);
    pool.n_words = n;
}

/* A host array that is copied into the block. */
struct Brought {
    const void *from;
    size_t at, bytes;
};

/* Places for what layers bring along. They are offsets until the block has an address. */
struct Luggage {
    Block &block;
    std::vector<Brought> all;

    size_t take(const void *from, size_t bytes) {
        const size_t at = block.take(bytes);
        all.push_back({from, at, bytes});
        return at;
    }
    template <class X> void take(const std::vector<X> &from, const X **to) {
        *to = (const X *)take(from.data(), from.size() * sizeof(X));
    }
};

template <class X> static void move_to(const X *&offset, const uint8_t *base) {
    offset = (const X *)(base + (size_t)offset);
}

/* Arrays of a run's layers follow each other: n_bytes of each. */
template <class From>
static size_t take_run(Luggage &luggage, const quire_cuda_pool &pool, const Run &run, size_t bytes,
                       From from) {
    const size_t at = luggage.block.take(bytes * run.n_layers);
    for (int32_t i = 0; i < run.n_layers; i++)
        luggage.all.push_back({from(pool.layers[run.first + i].config), at + i * bytes, bytes});
    return at;
}

static quire_status place_memory(quire_cuda_pool &pool) {
    const quire_cuda_pool_options &o = pool.options;
    Block block = {0};
    size_t k_row = 0, v_row = 0, workspace = 0; /* the largest of all layers */
    for (const Layer &l : pool.layers) {
        k_row = std::max(k_row, (size_t)l.config.n_kv_heads * l.config.k_dim * 2);
        v_row = std::max(v_row, (size_t)l.config.n_kv_heads * l.config.v_dim * 2);
    }
    for (Plans &p : pool.plans) {
        p.decode_workspace = block.take(quire_cuda_decode_workspace(p.decode));
        workspace = std::max(
            {workspace, quire_cuda_prefill_workspace(p.many), quire_cuda_prefill_workspace(p.few)});
    }
    const size_t zeros_end = block.bytes; /* decode's workspaces must be zeros at first */
    const size_t n_slots = 2 * (size_t)o.max_seqs, n_blocks = (size_t)pool.max_blocks;
    const size_t bad = block.take(sizeof(uint32_t)),
                 words = block.take((size_t)pool.n_words * sizeof(int32_t)),
                 records = block.take((size_t)pool.n_pages * pool.page_bytes),
                 raw = block.take(n_slots * pool.raw_bytes),
                 sinks = block.take(n_slots * pool.sink_bytes),
                 scratch_k = block.take(n_blocks * T * k_row),
                 scratch_v = block.take(n_blocks * T * v_row),
                 sink_k = block.take(n_blocks * o.sinks * k_row),
                 sink_v = block.take(n_blocks * o.sinks * v_row), prefill = block.take(workspace);
    Luggage luggage = {block, {}};
    for (Layer &l : pool.layers) {
        const quire_layer &c = l.config;
        if (c.alibi)
            l.alibi = (const float *)luggage.take(c.alibi, c.n_heads * sizeof(float));
        if (c.sink_logits)
            l.sink_logits = (const float *)luggage.take(c.sink_logits, c.n_heads * sizeof(float));
    }
    for (Run &run : pool.runs) {
        const quire_layer &c = pool.layers[run.first].config;
        const size_t order_bytes = (size_t)c.n_kv_heads * c.k_dim * 2;
        if (is_mixed(c.k)) {
            const size_t at = take_run(luggage, pool, run, order_bytes,
                                       [](const quire_layer &l) { return l.k_order; });
            for (int32_t i = 0; i < run.n_layers; i++)
                pool.layers[run.first + i].order = (const uint16_t *)(at + i * order_bytes);
        }
        if (run.has_feedback) {
            place_feedback(pool, &run);
            luggage.take(run.channels, &run.feedback.channels);
            luggage.take(run.places, &run.feedback.places);
            luggage.take(run.turns, &run.feedback.turns);
            run.feedback.weights = (const float *)take_run(
                luggage, pool, run, c.n_kv_heads * feedback_count(c.k_dim) * sizeof(float),
                [](const quire_layer &l) { return l.k_feedback; });
        }
    }
    pool.device_bytes = block.bytes;
    if (cudaMalloc(&pool.memory, block.bytes) != cudaSuccess) {
        cudaGetLastError();
        pool.memory = nullptr;
        return fail(QUIRE_E_NOMEM, "the device has no %.2f GB for the pool",
                    (double)block.bytes * 1e-9);
    }
    uint8_t *m = pool.memory;
    QUIRE_CUDA_TRY(check(cudaMemset(m, 0, zeros_end), "clearing the workspace"));
    QUIRE_CUDA_TRY(check(cudaMemset(m + bad, 0, records - bad), "clearing the page tables"));
    /* Slots of sinks end with bytes that nothing writes, and that are saved. */
    QUIRE_CUDA_TRY(
        check(cudaMemset(m + sinks, 0, n_slots * pool.sink_bytes), "clearing the sinks"));
    for (const Brought &b : luggage.all)
        QUIRE_CUDA_TRY(check(cudaMemcpy(m + b.at, b.from, b.bytes, cudaMemcpyHostToDevice),
                             "copying a layer's arrays"));
    /* Steps may come on streams that do not wait for the default one. */
    QUIRE_CUDA_TRY(check(cudaDeviceSynchronize(), "clearing the pool's memory"));
    pool.n_bad = (uint32_t *)(m + bad), pool.words = (int32_t *)(m + words);
    pool.records = m + records, pool.raw = m + raw, pool.sinks = m + sinks;
    pool.scratch_k = m + scratch_k, pool.scratch_v = m + scratch_v;
    pool.scratch_sink_k = m + sink_k, pool.scratch_sink_v = m + sink_v;
    pool.prefill_workspace = m + prefill;
    for (Run &run : pool.runs)
        if (run.has_feedback) {
            move_to(run.feedback.weights, m), move_to(run.feedback.channels, m);
            move_to(run.feedback.places, m), move_to(run.feedback.turns, m);
        }
    for (Layer &l : pool.layers) {
        quire_layer &c = l.config;
        if (c.alibi)
            move_to(l.alibi, m);
        if (c.sink_logits)
            move_to(l.sink_logits, m);
        Layer &source = pool.layers[l.source]; /* an earlier layer, or this one */
        if (is_mixed(c.k) && &source == &l)
            move_to(l.order, m);
        l.order = source.order;
        c.alibi = c.sink_logits = nullptr; /* the caller's */
        c.k_order = nullptr, c.k_feedback = nullptr, c.k_rope = nullptr;
    }
    pool.options.layers = nullptr;
    return QUIRE_OK;
}

/* A page holds all layers, so it can go when the longest window has moved past it. */
static void find_window(quire_cuda_pool &pool) {
    int32_t longest = 0, keep = 0;
    for (const Layer &l : pool.layers) {
        if (l.config.window == 0)
            return;
        longest = std::max(longest, l.config.window);
        if (l.config.keep > pool.options.sinks) /* else the sinks have them */
            keep = std::max(keep, l.config.keep);
    }
    pool.window = longest;
    pool.kept_pages = (keep + T - 1) / T;
}

static void mix(uint64_t *hash, const void *bytes, size_t n) { /* FNV-1a */
    for (size_t i = 0; i < n; i++)
        *hash = (*hash ^ ((const uint8_t *)bytes)[i]) * 0x100000001b3u;
}

/* The pool's form, its windows and its heads. Channel orders are still the caller's. */
static uint64_t form_of(const quire_cuda_pool &pool) {
    const quire_cuda_pool_options &o = pool.options;
    uint64_t hash = 0xcbf29ce484222325u;
    const int32_t all[] = {(int32_t)o.raw, o.sinks, o.n_layers};
    mix(&hash, all, sizeof all);
    for (int32_t i = 0; i < o.n_layers; i++) {
        const Layer &l = pool.layers[i];
        const quire_layer &c = l.config;
        const int32_t own[] = {l.source,     c.n_kv_heads, c.k_dim,  c.v_dim,
                               (int32_t)c.k, (int32_t)c.v, c.window, c.keep};
        mix(&hash, own, sizeof own);
        if (is_mixed(c.k) && l.source == i)
            mix(&hash, c.k_order, (size_t)c.n_kv_heads * c.k_dim * sizeof *c.k_order);
    }
    return hash;
}

quire_status make_pool(quire_cuda_pool &pool, const quire_cuda_pool_options &o) {
    QUIRE_CUDA_TRY(check_pool_options(o));
    QUIRE_CUDA_TRY(quire_cuda_available());
    pool.options = o;
    for (int32_t i = 0; i < o.n_layers; i++)
        QUIRE_CUDA_TRY(add_layer(pool, i));
    pool.form = form_of(pool);
    for (Layer &l : pool.layers)
        QUIRE_CUDA_TRY(add_plans(pool, l));
    pool.max_pages = max_pages_of(o);
    find_window(pool);
    pool.n_pages = n_pages_of(o);
    place_words(pool);
    QUIRE_CUDA_TRY(place_memory(pool));
    pool.mirror.assign((size_t)pool.n_words, 0);
    pool.pending.reserve((size_t)pool.n_words);
    pool.shown.assign((size_t)o.max_seqs, 0);
    pool.items.resize((size_t)o.max_seqs);
    pool.refs.assign((size_t)pool.n_pages, 0);
    pool.free_pages.resize((size_t)pool.n_pages);
    for (int32_t i = 0; i < pool.n_pages; i++)
        pool.free_pages[i] = pool.n_pages - 1 - i;
    pool.seqs.resize((size_t)o.max_seqs);
    for (int32_t i = 0; i < o.max_seqs; i++) {
        pool.seqs[i].pool = &pool;
        pool.seqs[i].slot = i;
        pool.seqs[i].table.resize((size_t)pool.max_pages);
    }
    return QUIRE_OK;
}

quire_cuda_rows raw_rows_of(const quire_cuda_pool &pool, const Layer &l) {
    const int64_t slot = (int64_t)pool.raw_bytes / 2, head = (int64_t)l.raw_record_bytes / 2;
    const uint16_t *k = (const uint16_t *)(pool.raw + l.raw_at);
    return {
        k, k + (int64_t)T * l.config.k_dim, slot, head, l.config.k_dim, slot, head, l.config.v_dim};
}

quire_cuda_rows sink_rows_of(const quire_cuda_pool &pool, const Layer &l) {
    const int64_t slot = (int64_t)pool.sink_bytes / 2, head = (int64_t)l.sink_record_bytes / 2;
    const uint16_t *k = (const uint16_t *)(pool.sinks + l.sinks_at);
    return {k,
            k + (int64_t)pool.options.sinks * l.config.k_dim,
            slot,
            head,
            l.config.k_dim,
            slot,
            head,
            l.config.v_dim};
}

} // namespace quire_cuda

using namespace quire_cuda;

extern "C" {

void quire_cuda_pool_options_default(quire_cuda_pool_options *options) {
    if (!options)
        return;
    *options = {};
    options->struct_size = sizeof *options;
    options->pair = {QUIRE_CODEC_KM4, QUIRE_CODEC_VT4};
    options->raw = QUIRE_F16;
    options->out = QUIRE_F32;
    options->sinks = 4;
    options->max_seqs = 64;
    options->max_tokens = 32768;
    options->max_batch_tokens = 2048;
}

quire_status quire_cuda_pool_create(quire_cuda_pool **pool,
                                    const quire_cuda_pool_options *options) {
    if (!pool || !options)
        return fail(QUIRE_E_INVALID, "pool or options is NULL");
    *pool = nullptr;
    quire_cuda_pool *made = new (std::nothrow) quire_cuda_pool();
    if (!made)
        return fail(QUIRE_E_NOMEM, "out of memory");
    quire_status status;
    try {
        status = make_pool(*made, *options);
    } catch (const std::bad_alloc &) {
        status = fail(QUIRE_E_NOMEM, "out of memory");
    }
    if (status == QUIRE_OK)
        *pool = made;
    else
        quire_cuda_pool_free(made);
    return status;
}

void quire_cuda_pool_free(quire_cuda_pool *pool) {
    if (!pool)
        return;
    if (pool->memory && cudaFree(pool->memory) != cudaSuccess) /* it waits for the device */
        cudaGetLastError(); /* or another pool's next launch would report it */
    for (Plans &p : pool->plans) {
        quire_cuda_decode_free(p.decode);
        quire_cuda_prefill_free(p.many);
        quire_cuda_prefill_free(p.few);
    }
    delete pool;
}

quire_status quire_cuda_pool_get_info(quire_cuda_pool *pool, quire_cuda_pool_info *info,
                                      struct CUstream_st *stream) {
    if (!pool || !info)
        return fail(QUIRE_E_INVALID, "pool or info is NULL");
    uint32_t n_bad = 0;
    QUIRE_CUDA_TRY(
        check(cudaMemcpyAsync(&n_bad, pool->n_bad, sizeof n_bad, cudaMemcpyDeviceToHost, stream),
              "reading the counter of bad values"));
    QUIRE_CUDA_TRY(check(cudaStreamSynchronize(stream), "waiting for the stream"));
    *info = {};
    info->device_bytes = pool->device_bytes;
    info->page_bytes = pool->page_bytes;
    info->n_pages = pool->n_pages;
    info->free_pages = (int32_t)pool->free_pages.size();
    for (const quire_cuda_seq &seq : pool->seqs)
        info->n_seqs += seq.used;
    info->n_bad = n_bad;
    return QUIRE_OK;
}
}
