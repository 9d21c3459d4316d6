/* Pages and sequences of a pool, to host memory and back. */
#include <algorithm>
#include <cstring>

#include "pool.h"

using namespace quire_cuda;

namespace quire_cuda {

static size_t page_bytes(const quire_cuda_pool &pool, int32_t page) {
    return pool.page_bytes + (page == 0 ? pool.sink_bytes : 0);
}

/* What precedes the bytes of a whole sequence. */
struct Head {
    char mark[4];
    int32_t length, raw_page, live_from;
    uint64_t form; /* of the pool */
};
constexpr size_t HEAD_BYTES = 128;
static_assert(sizeof(Head) <= HEAD_BYTES, "a head has room for all of it");

/* Pages that a sequence holds. */
static int32_t held_pages(const quire_cuda_pool &pool, int32_t length, int32_t live_from) {
    return pages_of(length) - std::max(live_from - pool.kept_pages, 0);
}

static size_t seq_bytes(const quire_cuda_pool &pool, int32_t length, int32_t live_from) {
    return HEAD_BYTES + (size_t)held_pages(pool, length, live_from) * pool.page_bytes +
           pool.sink_bytes + 2 * pool.raw_bytes;
}

/* Copies on one stream; the first failure counts. */
struct Copies {
    cudaStream_t stream;
    quire_status status;

    void out(uint8_t **to, const uint8_t *from, size_t bytes) {
        copy(*to, from, bytes, cudaMemcpyDeviceToHost);
        *to += bytes;
    }
    void in(uint8_t *to, const uint8_t **from, size_t bytes) {
        copy(to, *from, bytes, cudaMemcpyHostToDevice);
        *from += bytes;
    }
    void copy(uint8_t *to, const uint8_t *from, size_t bytes, cudaMemcpyKind kind) {
        if (status == QUIRE_OK && bytes > 0)
            status = check(cudaMemcpyAsync(to, from, bytes, kind, stream), "copying pages");
    }
};

static uint8_t *record_of_page(const quire_cuda_pool &pool, int32_t id) {
    return pool.records + (size_t)id * pool.page_bytes;
}
static uint8_t *sinks_of(const quire_cuda_seq &seq, int i) {
    return seq.pool->sinks + (size_t)(2 * seq.slot + i) * seq.pool->sink_bytes;
}
static uint8_t *raw_of(const quire_cuda_seq &seq) {
    return seq.pool->raw + (size_t)(2 * seq.slot) * seq.pool->raw_bytes;
}

static void save_page(const quire_cuda_seq &seq, int32_t page, uint8_t **to, Copies *copies) {
    const quire_cuda_pool &pool = *seq.pool;
    copies->out(to, record_of_page(pool, seq.table[page]), pool.page_bytes);
    if (page == 0)
        copies->out(to, sinks_of(seq, 0), pool.sink_bytes);
}

/* Appends a page; there must be room for it. */
static void load_page(quire_cuda_seq &seq, const uint8_t **from, Copies *copies) {
    quire_cuda_pool &pool = *seq.pool;
    const int32_t page = pages_of(seq.length), id = page_take(pool);
    copies->in(record_of_page(pool, id), from, pool.page_bytes);
    if (page == 0) {
        const uint8_t *again = *from;
        copies->in(sinks_of(seq, 0), from, pool.sink_bytes);
        copies->in(sinks_of(seq, 1), &again, pool.sink_bytes);
    }
    seq.table[page] = id;
    seq.length += T;
    seq.raw_page = page + 1;
    seq.version = ++pool.version;
}

static quire_status check_room(const quire_cuda_pool &pool, int32_t tokens, int32_t pages) {
    if (tokens > pool.options.max_tokens)
        return fail(QUIRE_E_TOO_BIG, "a sequence of this pool holds at most %d tokens (max_tokens)",
                    (int)pool.options.max_tokens);
    if ((size_t)pages > pool.free_pages.size())
        return fail(QUIRE_E_NO_PAGES, "the pool is out of pages: %zu of %d are free",
                    pool.free_pages.size(), (int)pool.n_pages);
    return QUIRE_OK;
}

} // namespace quire_cuda

extern "C" {

size_t quire_cuda_seq_page_bytes(const quire_cuda_pool *pool, int32_t page) {
    return pool ? page_bytes(*pool, page) : 0;
}

quire_status quire_cuda_seq_page_save(const quire_cuda_seq *seq, int32_t page, void *bytes,
                                      size_t n_bytes, struct CUstream_st *stream) {
    QUIRE_CUDA_TRY(check_seq(seq));
    if (!bytes)
        return fail(QUIRE_E_INVALID, "bytes is NULL");
    if (seq->in_step)
        return fail(QUIRE_E_BUSY, "cannot save a page of a sequence that is in a step");
    if (page < 0 || page >= pages_of(seq->length))
        return fail(QUIRE_E_INVALID, "page %d is not full: the sequence has %d tokens", (int)page,
                    (int)seq->length);
    if (n_bytes != page_bytes(*seq->pool, page))
        return fail(QUIRE_E_INVALID, "page %d has %zu bytes in this pool, not %zu", (int)page,
                    page_bytes(*seq->pool, page), n_bytes);
    if (!is_held(*seq, page))
        return fail(QUIRE_E_GONE, "page %d has left the window of %d tokens", (int)page,
                    (int)seq->pool->window);
    Copies copies = {stream, QUIRE_OK};
    uint8_t *to = (uint8_t *)bytes;
    save_page(*seq, page, &to, &copies);
    return copies.status;
}

quire_status quire_cuda_seq_page_load(quire_cuda_seq *seq, const void *bytes, size_t n_bytes,
                                      struct CUstream_st *stream) {
    QUIRE_CUDA_TRY(check_seq(seq));
    if (!bytes)
        return fail(QUIRE_E_INVALID, "bytes is NULL");
    const int32_t page = pages_of(seq->length);
    if (seq->in_step)
        return fail(QUIRE_E_BUSY, "cannot load into a sequence that is in a step");
    if (seq->length % T)
        return fail(QUIRE_E_STATE,
                    "the sequence has %d tokens: a page can be loaded only after a multiple of %d",
                    (int)seq->length, T);
    if (n_bytes != page_bytes(*seq->pool, page))
        return fail(QUIRE_E_INVALID, "page %d has %zu bytes in this pool, not %zu", (int)page,
                    page_bytes(*seq->pool, page), n_bytes);
    QUIRE_CUDA_TRY(check_room(*seq->pool, seq->length + T, 1));
    const int32_t raw_page = seq->raw_page;
    Copies copies = {stream, QUIRE_OK};
    const uint8_t *from = (const uint8_t *)bytes;
    load_page(*seq, &from, &copies);
    if (copies.status != QUIRE_OK) {
        cut(*seq, seq->length - T);
        seq->raw_page = raw_page; /* nothing has touched the raw rows */
    }
    return copies.status;
}

/* A head, pages in order, the sinks, raw rows of the last two pages. */
size_t quire_cuda_seq_bytes(const quire_cuda_seq *seq) {
    return seq ? seq_bytes(*seq->pool, seq->length, seq->live_from) : 0;
}

quire_status quire_cuda_seq_save(const quire_cuda_seq *seq, void *bytes, size_t n_bytes,
                                 struct CUstream_st *stream) {
    QUIRE_CUDA_TRY(check_seq(seq));
    if (!bytes)
        return fail(QUIRE_E_INVALID, "bytes is NULL");
    const quire_cuda_pool &pool = *seq->pool;
    if (seq->in_step)
        return fail(QUIRE_E_BUSY, "cannot save a sequence that is in a step");
    if (n_bytes != quire_cuda_seq_bytes(seq))
        return fail(QUIRE_E_INVALID, "this sequence of %d tokens has %zu bytes, not %zu",
                    (int)seq->length, quire_cuda_seq_bytes(seq), n_bytes);
    const Head head = {{'q', 's', 'e', 'q'}, seq->length, seq->raw_page, seq->live_from, pool.form};
    memset(bytes, 0, HEAD_BYTES);
    memcpy(bytes, &head, sizeof head);
    Copies copies = {stream, QUIRE_OK};
    uint8_t *to = (uint8_t *)bytes + HEAD_BYTES;
    for (int32_t i = 0; i < pages_of(seq->length); i++)
        if (is_held(*seq, i))
            copies.out(&to, record_of_page(pool, seq->table[i]), pool.page_bytes);
    copies.out(&to, sinks_of(*seq, 0), pool.sink_bytes);
    copies.out(&to, raw_of(*seq), 2 * pool.raw_bytes);
    return copies.status;
}

quire_status quire_cuda_seq_load(quire_cuda_pool *pool, const void *bytes, size_t n_bytes,
                                 quire_cuda_seq **seq, struct CUstream_st *stream) {
    if (!pool || !bytes || !seq)
        return fail(QUIRE_E_INVALID, "pool, bytes or seq is NULL");
    *seq = nullptr;
    Head head = {};
    if (n_bytes >= HEAD_BYTES)
        memcpy(&head, bytes, sizeof head);
    if (memcmp(head.mark, "qseq", 4) || head.length < 0 || head.raw_page < 0 ||
        head.raw_page > pages_of(head.length) || head.live_from < 0 ||
        head.live_from > pages_of(head.length))
        return fail(QUIRE_E_FORMAT, "not the bytes of quire_cuda_seq_save");
    if (head.form != pool->form)
        return fail(QUIRE_E_FORMAT, "the bytes are of another pool: its layers, codecs, channel "
                                    "orders, windows, sinks or raw type differ");
    const size_t wanted = seq_bytes(*pool, head.length, head.live_from);
    if (n_bytes != wanted)
        return fail(QUIRE_E_FORMAT, "a sequence of %d tokens has %zu bytes in this pool, not %zu",
                    (int)head.length, wanted, n_bytes);
    QUIRE_CUDA_TRY(check_room(*pool, head.length, held_pages(*pool, head.length, head.live_from)));
    quire_cuda_seq *made;
    QUIRE_CUDA_TRY(quire_cuda_seq_create(pool, &made));
    Copies copies = {stream, QUIRE_OK};
    const uint8_t *from = (const uint8_t *)bytes + HEAD_BYTES;
    made->live_from = head.live_from;
    for (int32_t i = 0; i < pages_of(head.length); i++) {
        if (!is_held(*made, i))
            continue;
        made->table[i] = page_take(*pool);
        copies.in(record_of_page(*pool, made->table[i]), &from, pool->page_bytes);
    }
    const uint8_t *again = from;
    copies.in(sinks_of(*made, 0), &from, pool->sink_bytes);
    copies.in(sinks_of(*made, 1), &again, pool->sink_bytes);
    copies.in(raw_of(*made), &from, 2 * pool->raw_bytes);
    made->length = head.length;
    made->raw_page = head.raw_page;
    if (copies.status != QUIRE_OK) {
        quire_cuda_seq_free(made);
        return copies.status;
    }
    *seq = made;
    return QUIRE_OK;
}
}
