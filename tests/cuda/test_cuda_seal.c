/* Pages sealed on the GPU are the CPU library's, byte for byte. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cuda_kit.h"

enum { N_PAGES = 3, N_HEADS = 2, T = QUIRE_PAGE_TOKENS };

static const quire_codec K_CODECS[] = {QUIRE_CODEC_KC8, QUIRE_CODEC_KC4, QUIRE_CODEC_KC3,
                                       QUIRE_CODEC_KC2, QUIRE_CODEC_KM4, QUIRE_CODEC_KM3};
static const quire_codec V_CODECS[] = {QUIRE_CODEC_VT8, QUIRE_CODEC_VT4, QUIRE_CODEC_VT3,
                                       QUIRE_CODEC_VT2};
enum { N_K = sizeof K_CODECS / sizeof *K_CODECS, N_V = sizeof V_CODECS / sizeof *V_CODECS };

enum kind { NORMAL, BIASED, ZERO, CONSTANT, SPIKES, TINY, LARGEST, TIES, SIGNED_ZEROS, N_KINDS };

static float draw(rng *r, enum kind kind, int channel) {
    switch (kind) {
    case NORMAL:
        return rng_normal(r);
    case BIASED:
        return rng_normal(r) + (float)(channel % 7) * 3 - 9;
    case ZERO:
        return 0;
    case CONSTANT:
        return 1.25f;
    case SPIKES:
        return rng_below(r, 50) ? 0.01f * rng_normal(r) : 500 * rng_normal(r);
    case TINY:
        return 1e-6f * rng_normal(r);
    case LARGEST:
        return rng_below(r, 2) ? 65280.0f : -65280.0f; /* a bf16 number, too */
    case TIES:
        return (float)rng_below(r, 16) * 0.5f;
    default:
        return rng_below(r, 2) ? 0.0f : -0.0f;
    }
}

/* (pages, 64, heads, dim), as a prompt's K or V. */
static float *make_rows(rng *r, enum kind kind, quire_type type, int dim) {
    const size_t n = (size_t)(N_PAGES * T * N_HEADS * dim);
    float *rows = malloc(n * sizeof *rows);
    for (size_t i = 0; i < n; i++) {
        const float x = draw(r, kind, (int)(i % (size_t)dim));
        rows[i] = type == QUIRE_F32 ? x : rounded(type, x);
    }
    return rows;
}

static void take_rows(const float *rows, int page, int head, int dim, float *to /* (64, dim) */) {
    for (int t = 0; t < T; t++)
        memcpy(to + t * dim, rows + ((size_t)(page * T + t) * N_HEADS + (size_t)head) * (size_t)dim,
               (size_t)dim * sizeof *to);
}

/* The rows on the device, in their type. */
static void *gpu_rows(quire_type type, const float *rows, size_t n) {
    if (type == QUIRE_F32)
        return gpu_copy(rows, n * sizeof *rows);
    uint16_t *narrow = narrowed(type, rows, n);
    void *memory = gpu_copy(narrow, n * sizeof *narrow);
    free(narrow);
    return memory;
}

static const char *type_name(quire_type type) {
    return type == QUIRE_F32 ? "f32" : type == QUIRE_F16 ? "f16" : "bf16";
}

static void check_pages(quire_pair pair, int k_dim, int v_dim, quire_type type, enum kind kind,
                        const int32_t *skip) {
    rng r = {(uint64_t)(k_dim * 1000 + v_dim + 7 * (int)kind) + (uint64_t)pair.k * 77};
    const quire_page_shape shape = {pair, k_dim, v_dim, type};
    size_t bytes;
    assert_ok(quire_page_bytes(&shape, &bytes));
    const size_t head_stride = bytes + 128, page_stride = N_HEADS * head_stride + 256;
    const int32_t ids[N_PAGES] = {4, 0, 2};
    const size_t pool = 5 * page_stride;
    float *k = make_rows(&r, kind, type, k_dim), *v = make_rows(&r, kind, type, v_dim);
    const uint16_t *order = random_order(N_HEADS, k_dim);
    uint32_t n_bad = 0;

    quire_cuda_seal_args a = {.shape = shape, .n_kv_heads = N_HEADS, .n_pages = N_PAGES};
    void *dk = gpu_rows(type, k, (size_t)(N_PAGES * T * N_HEADS * k_dim));
    void *dv = gpu_rows(type, v, (size_t)(N_PAGES * T * N_HEADS * v_dim));
    a.rows = (quire_cuda_rows){dk,
                               dv,
                               (int64_t)T * N_HEADS * k_dim,
                               k_dim,
                               (int64_t)N_HEADS * k_dim,
                               (int64_t)T * N_HEADS * v_dim,
                               v_dim,
                               (int64_t)N_HEADS * v_dim};
    a.records = (quire_cuda_records){gpu_new(pool, 0xee), page_stride, head_stride};
    void *dids = gpu_copy(ids, sizeof ids), *dskip = gpu_copy(skip, N_PAGES * sizeof *skip),
         *dorder = gpu_copy(order, (size_t)(N_HEADS * k_dim) * 2);
    a.ids = dids;
    a.skip = dskip;
    a.k_order = dorder;
    a.n_bad = gpu_copy(&n_bad, sizeof n_bad);
    assert_gpu(quire_cuda_seal(&a, NULL));

    uint8_t *got = malloc(pool), *wanted = malloc(pool);
    gpu_read(got, a.records.base, pool);
    gpu_read(&n_bad, a.n_bad, sizeof n_bad);
    assert_int_equal(n_bad, 0);
    memset(wanted, 0xee, pool);
    float *rows = malloc((size_t)(T * k_dim) * sizeof *rows),
          *placed = malloc((size_t)(T * k_dim) * sizeof *placed);
    float *v_rows = malloc((size_t)(T * v_dim) * sizeof *v_rows);
    for (int page = 0; page < N_PAGES; page++)
        for (int head = 0; head < N_HEADS; head++) {
            uint8_t *record = wanted + (size_t)ids[page] * page_stride + (size_t)head * head_stride;
            take_rows(k, page, head, k_dim, rows);
            rows_into_order(pair.k, order + head * k_dim, k_dim, rows, placed);
            take_rows(v, page, head, v_dim, v_rows);
            assert_ok(quire_page_encode(&shape, placed, v_rows, skip[page], record));
        }
    size_t n_differ = 0, first = 0;
    for (size_t i = pool; i-- > 0;)
        if (got[i] != wanted[i]) {
            n_differ++;
            first = i;
        }
    if (n_differ)
        fail_msg("%s:%s, K %d, V %d, %s, rows of kind %d: %zu bytes differ, first byte %zu of "
                 "record at %zu (%02x, not "
                 "%02x)",
                 quire_codec_name(pair.k), quire_codec_name(pair.v), k_dim, v_dim, type_name(type),
                 (int)kind, n_differ, first % page_stride % head_stride, first, got[first],
                 wanted[first]);
    cudaFree(dk), cudaFree(dv), cudaFree(a.records.base), cudaFree(dids), cudaFree(dskip),
        cudaFree(dorder), cudaFree(a.n_bad);
    free(k), free(v), free(got), free(wanted), free(rows), free(placed), free(v_rows);
}

static void every_codec_and_size(void **state) {
    (void)state;
    static const int dims[] = {64, 80, 96, 128, 256};
    const int32_t skip[N_PAGES] = {4, 0, 17};
    for (int d = 0; d < 5; d++)
        for (int i = 0; i < N_K * N_V; i++)
            for (int type = QUIRE_F32; type <= QUIRE_BF16; type++)
                check_pages((quire_pair){K_CODECS[i % N_K], V_CODECS[i / N_K]}, dims[d],
                            dims[(d + i) % 5], (quire_type)type, NORMAL, skip);
}

static void other_k_sizes(void **state) {
    (void)state;
    const int32_t skip[N_PAGES] = {0, 1, 0};
    for (int dim = 32; dim <= 256; dim += 16)
        for (int i = 0; i < N_K; i++)
            check_pages((quire_pair){K_CODECS[i], V_CODECS[i % N_V]}, dim, 64, QUIRE_BF16, BIASED,
                        skip);
}

static void every_kind_of_rows(void **state) {
    (void)state;
    static const int32_t skips[3][N_PAGES] = {{0, 0, 0}, {4, 63, 64}, {64, 1, 33}};
    for (int kind = 0; kind < N_KINDS; kind++)
        for (int i = 0; i < N_K; i++)
            for (int s = 0; s < 3; s++)
                check_pages((quire_pair){K_CODECS[i], V_CODECS[(i + s) % N_V]}, i % 2 ? 128 : 96,
                            i % 2 ? 64 : 128, kind % 2 ? QUIRE_F16 : QUIRE_BF16, (enum kind)kind,
                            skips[s]);
}

static void values_that_cannot_be_stored(void **state) {
    (void)state;
    static const float bad[] = {INFINITY, -INFINITY, NAN, 1e5f, -7e4f};
    const quire_page_shape shape = {{QUIRE_CODEC_KM4, QUIRE_CODEC_VT4}, 64, 64, QUIRE_BF16};
    size_t bytes;
    assert_ok(quire_page_bytes(&shape, &bytes));
    for (int i = 0; i < 5; i++)
        for (int side = 0; side < 2; side++)
            for (int skip = 0; skip < 5;
                 skip += 4) { /* the row at fault is one of those that are left out */
                float rows[2][T * 64];
                rng r = {9};
                for (int s = 0; s < 2; s++)
                    rng_fill(&r, rows[s], T * 64, 1);
                rows[side][3 * 64 + 17] = bad[i];
                uint16_t *k = narrowed(QUIRE_BF16, rows[0], T * 64),
                         *v = narrowed(QUIRE_BF16, rows[1], T * 64);
                uint32_t n_bad = 0;
                quire_cuda_seal_args a = {.shape = shape, .n_kv_heads = 1, .n_pages = 1};
                void *dk = gpu_copy(k, T * 64 * 2), *dv = gpu_copy(v, T * 64 * 2);
                void *order = gpu_copy(random_order(1, 64), 64 * 2),
                     *dskip = gpu_copy(&skip, sizeof skip);
                a.rows = (quire_cuda_rows){dk, dv, 0, 0, 64, 0, 0, 64};
                a.records = (quire_cuda_records){gpu_new(bytes, 0), bytes, bytes};
                a.k_order = order;
                a.skip = dskip;
                a.n_bad = gpu_copy(&n_bad, sizeof n_bad);
                assert_gpu(quire_cuda_seal(&a, NULL));
                gpu_read(&n_bad, a.n_bad, sizeof n_bad);
                assert_int_equal(n_bad, skip ? 0 : 1);
                cudaFree(dk), cudaFree(dv), cudaFree(order), cudaFree(dskip),
                    cudaFree(a.records.base), cudaFree(a.n_bad);
                free(k), free(v);
            }
}

static void refusals(void **state) {
    (void)state;
    void *memory = gpu_new(1 << 16, 0);
    const quire_cuda_seal_args good = {
        .shape = {{QUIRE_CODEC_KC4, QUIRE_CODEC_VT4}, 64, 64, QUIRE_F16},
        .n_kv_heads = 1,
        .n_pages = 1,
        .rows = {memory, memory, 0, 0, 64, 0, 0, 64},
        .records = {memory, 4480, 4480}};
    assert_gpu(quire_cuda_seal(&good, NULL));
    quire_cuda_seal_args a = good;
    assert_status(quire_cuda_seal(NULL, NULL), QUIRE_E_INVALID);
    a.shape.pair.k = QUIRE_CODEC_TQ4;
    assert_status(quire_cuda_seal(&a, NULL), QUIRE_E_UNSUPPORTED);
    a = good, a.shape.pair.v = QUIRE_CODEC_Q8_0;
    assert_status(quire_cuda_seal(&a, NULL), QUIRE_E_UNSUPPORTED);
    a = good, a.shape.pair.k = QUIRE_CODEC_KM4;
    assert_status(quire_cuda_seal(&a, NULL), QUIRE_E_INVALID); /* no order */
    a = good, a.shape.raw = (quire_type)99;
    assert_status(quire_cuda_seal(&a, NULL), QUIRE_E_UNSUPPORTED);
    a = good, a.shape.v_dim = 112;
    assert_status(quire_cuda_seal(&a, NULL), QUIRE_E_UNSUPPORTED);
    a = good, a.shape.k_dim = 272;
    assert_status(quire_cuda_seal(&a, NULL), QUIRE_E_UNSUPPORTED);
    a = good, a.rows.k_token = 65;
    assert_status(quire_cuda_seal(&a, NULL), QUIRE_E_INVALID);
    a = good, a.records.head_stride = 64;
    assert_status(quire_cuda_seal(&a, NULL), QUIRE_E_INVALID);
    a = good, a.n_kv_heads = 2, a.records.head_stride = 4480 - 128; /* they would overlap */
    assert_status(quire_cuda_seal(&a, NULL), QUIRE_E_INVALID);
    a = good, a.n_pages = 2, a.records.page_stride = 0;
    assert_status(quire_cuda_seal(&a, NULL), QUIRE_E_INVALID);
    a = good, a.records.base = NULL;
    assert_status(quire_cuda_seal(&a, NULL), QUIRE_E_INVALID);
    a = good, a.rows.v = NULL;
    assert_status(quire_cuda_seal(&a, NULL), QUIRE_E_INVALID);
    assert_true(strlen(quire_cuda_last_error()) > 0);
    assert_cuda(cudaDeviceSynchronize());
    cudaFree(memory);
}

int main(int argc, char **argv) {
    if (gpu_is_missing())
        return LEFT_OUT;
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            other_k_sizes), /* first: a size must not rely on what larger ones have set up */
        cmocka_unit_test(every_codec_and_size),
        cmocka_unit_test(every_kind_of_rows),
        cmocka_unit_test(values_that_cannot_be_stored),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
