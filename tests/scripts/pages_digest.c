/* Prints a digest of the bytes of pages, and of the reference's attention over them, for every
 * codec and many shapes. tests/scripts/pages.sh compares the output between compilers,
 * optimisation levels and machines: it must never differ. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "quire.h"

#ifdef QUIRE_DIGEST_ROWS /* a table of row kernels: its pages must be the reference's */
#include "kern/kern.h"

static quire_status encode(const quire_page_shape *shape, const float *k, const float *v,
                           int32_t skip, void *page) {
    quire_format format;
    const quire_status status =
        quire__format_init(&format, shape->pair, shape->k_dim, shape->v_dim, shape->raw);
    if (status == QUIRE_OK)
        quire__seal_page(&QUIRE_DIGEST_ROWS, &format, k, v, skip, page);
    return status;
}
#else
#define encode quire_page_encode
#endif

static uint64_t state;
static int pages_of_shape = 2; /* 4 with QUIRE_TEST_SWEEP=full */

static uint64_t next(void) {
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static float uniform(float size) { return ((float)(next() >> 40) * 0x1p-23f - 1.0f) * size; }

/* Sums of uniforms, with now and then an outlier, a zero or a constant row. */
static void fill(float *x, int rows, int dim) {
    for (int t = 0; t < rows; t++) {
        const int kind = (int)(next() % 8);
        for (int d = 0; d < dim; d++) {
            const float normal = uniform(1) + uniform(1) + uniform(1) + (float)(d % 7) * 0.3f;
            x[t * dim + d] = kind == 0             ? 0
                             : kind == 1           ? 1.5f
                             : kind == 2 && d == 5 ? normal * 500
                             : kind == 3           ? normal * 1e-5f
                                                   : normal;
        }
    }
}

static uint64_t digest(uint64_t h, const void *bytes, size_t n) /* FNV-1a */
{
    const uint8_t *b = bytes;
    for (size_t i = 0; i < n; i++)
        h = (h ^ b[i]) * 0x100000001b3u;
    return h;
}

static int fail(const char *what) {
    printf("FAILED %s: %s\n", what, quire_last_error());
    return 1;
}

static int pages(const quire_codec_info *info, int dim, quire_type raw) {
    static float k[64 * QUIRE_DIM_MAX], v[64 * QUIRE_DIM_MAX];
    static uint8_t page[64 * QUIRE_DIM_MAX * 9];
    const quire_page_shape shape = {
        {info->for_k ? info->codec : QUIRE_CODEC_RAW, info->for_v ? info->codec : QUIRE_CODEC_RAW},
        dim,
        dim,
        raw};
    size_t bytes;
    if (quire_page_bytes(&shape, &bytes) != QUIRE_OK)
        return 0; /* does not serve this size */
    uint64_t h = 0xcbf29ce484222325u, decoded = h;
    for (int i = 0; i < pages_of_shape; i++) { /* the first has sinks */
        fill(k, 64, dim);
        fill(v, 64, dim);
        if (encode(&shape, k, v, i == 0 ? 4 : 0, page) != QUIRE_OK)
            return fail(info->name);
        h = digest(h, page, bytes);
        if (quire_page_decode(&shape, page, k, v) != QUIRE_OK)
            return fail(info->name);
        decoded = digest(digest(decoded, k, sizeof(float) * 64 * (size_t)dim), v,
                         sizeof(float) * 64 * (size_t)dim);
    }
    printf("page %s D %d raw %d bytes %zu pages %016llx decoded %016llx\n", info->name, dim,
           (int)raw, bytes, (unsigned long long)h, (unsigned long long)decoded);
    return 0;
}

static int attention(const char *kv, int softcap) {
    enum { H = 4, G = 2, D = 64, N = 200 };
    static float k[N * G * D], v[N * G * D], q[N * H * D], out[N * H * D];
    quire_layer layer;
    quire_pool_options o;
    quire_pool *pool;
    quire_seq *seq;
    quire_batch *batch;
    quire_layer_default(&layer);
    quire_pool_options_default(&o);
    layer.n_heads = H, layer.n_kv_heads = G, layer.k_dim = layer.v_dim = D,
    layer.softcap = (float)softcap;
    uint16_t order[G * D];
    for (int h = 0; h < G; h++) {
        fill(k, 1, D);
        if (quire_channel_order(k, D, order + h * D) != QUIRE_OK)
            return fail(kv);
    }
    layer.k_order = order;
    o.layers = &layer, o.n_layers = 1, o.budget_bytes = (size_t)16 << 20, o.max_seqs = 1,
    o.max_workers = 1;
    if (quire_policy_parse(kv, &o.policy) != QUIRE_OK || quire_pool_create(&pool, &o) != QUIRE_OK)
        return fail(kv);
    fill(k, N * G, D);
    fill(v, N * G, D);
    fill(q, N * H, D);
    if (quire_seq_create(pool, &seq) != QUIRE_OK)
        return fail(kv);
    const quire_batch_item item = {seq, N};
    const quire_attend_args args = {.q = {q, QUIRE_F32, 0}, .out = out};
    if (quire_batch_begin(pool, &item, 1, &batch) != QUIRE_OK ||
        quire_batch_append(batch, 0, (quire_rows){k, QUIRE_F32, 0}, (quire_rows){v, QUIRE_F32, 0},
                           0, 1) != QUIRE_OK ||
        quire_batch_attend(batch, 0, &args, 0, 1) != QUIRE_OK ||
        quire_batch_commit(batch, NULL) != QUIRE_OK)
        return fail(kv);
    printf("attend %s softcap %d isa %s out %016llx\n", kv, softcap, quire_pool_isa(pool),
           (unsigned long long)digest(0xcbf29ce484222325u, out, sizeof out));
    quire_pool_free(pool);
    return 0;
}

int main(void) {
    const int dims[] = {32, 48, 64, 80, 96, 112, 128, 160, 192, 256, 576};
    const char *sweep = getenv("QUIRE_TEST_SWEEP");
    if (sweep && strcmp(sweep, "full") == 0)
        pages_of_shape = 4;
    int failures = 0;
    for (size_t i = 0; i < quire_codec_count(); i++)
        for (size_t d = 0; d < sizeof dims / sizeof *dims; d++)
            for (int raw = QUIRE_F32; raw <= QUIRE_BF16; raw++) {
                quire_codec_info info;
                quire_codec_at(i, &info);
                state = i * 1000 + d * 10 + (uint64_t)raw;
                failures += pages(&info, dims[d], (quire_type)raw);
            }
    for (size_t i = 0; i < quire_preset_count(); i++) {
        quire_preset_info preset;
        quire_preset_at(i, &preset);
        state = 5000 + i;
        failures += attention(preset.name, i % 3 ? 0 : 30);
    }
    failures += attention("tqp4:vt3", 0) + attention("km4:vt4", 0) + attention("km3:vt3", 0);
    return failures != 0;
}
