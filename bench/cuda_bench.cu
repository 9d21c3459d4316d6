/* Times libquire_cuda on the current GPU; bench/cuda runs it, and peers beside it.
 *
 *   quire_cuda_bench [--quick] [--decode] [--prefill] [--seal] [HEADS]
 *   One JSON object for each measurement, a line each, on stdout. HEADS: only this shape, e.g.
 *   32x8x64, and no sealing; --decode, --prefill, --seal: only that.
 *
 * Decode: one launch in a CUDA graph between two events, median of 30. Pages lie in random order,
 * and launches take turns over 300 to 400 MB of pages, so that L2 is cold. "us_many" is the time
 * of a launch among 32 in one graph.
 */
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "quire_cuda.h"

#define CHECK(call)                                                                                \
    do {                                                                                           \
        const cudaError_t error_ = (call);                                                         \
        if (error_ != cudaSuccess) {                                                               \
            fprintf(stderr, "quire_cuda_bench: %s: %s\n", #call, cudaGetErrorString(error_));      \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
#define TRY(call)                                                                                  \
    do {                                                                                           \
        if ((call) != QUIRE_OK) {                                                                  \
            fprintf(stderr, "quire_cuda_bench: %s\n", quire_cuda_last_error());                    \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

constexpr int T = QUIRE_PAGE_TOKENS;

struct Heads {
    int q, kv, dim;
};
struct Pair {
    const char *name;
    quire_pair pair;
    int k_bits, v_bits;
};
static const Pair PAIRS[] = {{"km4:vt4", {QUIRE_CODEC_KM4, QUIRE_CODEC_VT4}, 4, 4},
                             {"kc8:vt4", {QUIRE_CODEC_KC8, QUIRE_CODEC_VT4}, 8, 4},
                             {"kc8:vt8", {QUIRE_CODEC_KC8, QUIRE_CODEC_VT8}, 8, 8}};
/* One of the pairs that share a kernel. */
static const Pair OTHER_PAIR = {"kc3:vt3", {QUIRE_CODEC_KC3, QUIRE_CODEC_VT3}, 3, 3};

static size_t record_bytes(const Pair &p, int dim) {
    const size_t bytes = (size_t)(T * dim * (p.k_bits + p.v_bits) / 8 + 4 * dim + 2 * T);
    return (bytes + 127) / 128 * 128;
}

/* ------------------------------------------------------------------ device memory and time */

template <class X> static X *device(size_t n) {
    X *memory;
    CHECK(cudaMalloc(&memory, n * sizeof *memory));
    return memory;
}
template <class X> static X *upload(const std::vector<X> &from) {
    X *memory = device<X>(from.size());
    CHECK(cudaMemcpy(memory, from.data(), from.size() * sizeof(X), cudaMemcpyHostToDevice));
    return memory;
}

__global__ void fill_normal(__nv_bfloat16 *to, size_t n, uint64_t seed) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        uint64_t z = (i + seed) * 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        z ^= z >> 31;
        float sum = 0;
        for (int j = 0; j < 4; j++)
            sum += (float)(z >> (16 * j) & 0xffff) / 65536 - 0.5f;
        to[i] = __float2bfloat16(sum * 1.7320508f);
    }
}
static __nv_bfloat16 *normal(size_t n, uint64_t seed) {
    __nv_bfloat16 *x = device<__nv_bfloat16>(n);
    fill_normal<<<1024, 256>>>(x, n, seed);
    CHECK(cudaGetLastError());
    return x;
}

static double median(std::vector<float> &x) {
    std::sort(x.begin(), x.end());
    return x[x.size() / 2];
}

/* Microseconds of work(i), each captured in a graph of its own. */
struct Times {
    double one, many;
};
template <class Work> static Times time_launches(int n_sets, Work work) {
    cudaStream_t stream;
    cudaEvent_t start, stop;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaEventCreate(&start));
    CHECK(cudaEventCreate(&stop));
    const auto capture = [&](int first, int n) {
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
        for (int i = 0; i < n; i++)
            work((first + i) % n_sets, stream);
        CHECK(cudaStreamEndCapture(stream, &graph));
        CHECK(cudaGraphInstantiate(&exec, graph, 0));
        CHECK(cudaGraphDestroy(graph));
        return exec;
    };
    const auto time = [&](cudaGraphExec_t exec) {
        float ms;
        CHECK(cudaStreamSynchronize(stream));
        CHECK(cudaEventRecord(start, stream));
        CHECK(cudaGraphLaunch(exec, stream));
        CHECK(cudaEventRecord(stop, stream));
        CHECK(cudaEventSynchronize(stop));
        CHECK(cudaEventElapsedTime(&ms, start, stop));
        return ms * 1e3f;
    };
    std::vector<cudaGraphExec_t> one;
    for (int i = 0; i < n_sets; i++)
        one.push_back(capture(i, 1));
    cudaGraphExec_t many = capture(0, 32);
    for (cudaGraphExec_t exec : one) /* a graph's first launch takes 2 us more */
        time(exec);
    std::vector<float> a, b;
    for (int i = 0; i < 35; i++) {
        const float us = time(one[i % n_sets]);
        if (i >= 5)
            a.push_back(us);
    }
    for (int i = 0; i < 6; i++) {
        const float us = time(many) / 32;
        if (i >= 1)
            b.push_back(us);
    }
    for (cudaGraphExec_t exec : one)
        CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphExecDestroy(many));
    CHECK(cudaEventDestroy(start));
    CHECK(cudaEventDestroy(stop));
    CHECK(cudaStreamDestroy(stream));
    return {median(a), median(b)};
}

/* ------------------------------------------------------------------ read bandwidth */

__global__ void read_all(const uint4 *from, size_t n, unsigned *to) {
    unsigned sum = 0;
    const size_t step = (size_t)gridDim.x * blockDim.x;
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    for (; i + 7 * step < n; i += 8 * step) {
        uint4 x[8];
#pragma unroll
        for (int j = 0; j < 8; j++)
            x[j] = __ldcs(from + i + j * step);
#pragma unroll
        for (int j = 0; j < 8; j++)
            sum += x[j].x ^ x[j].y ^ x[j].z ^ x[j].w;
    }
    if (sum == 12345u)
        *to = sum;
}

static double measure_read(int sms) {
    const size_t bytes = (size_t)4 << 30;
    uint4 *memory = (uint4 *)normal(bytes / 2, 1);
    unsigned *to = device<unsigned>(1);
    const Times t = time_launches(1, [&](int, cudaStream_t stream) {
        read_all<<<8 * sms, 256, 0, stream>>>(memory, bytes / 16, to);
        CHECK(cudaGetLastError());
    });
    CHECK(cudaFree(memory));
    CHECK(cudaFree(to));
    const double rate = (double)bytes / t.one / 1e6;
    printf("{\"what\": \"read\", \"bytes\": %zu, \"us\": %.1f, \"tb_per_s\": %.3f}\n", bytes, t.one,
           rate);
    fflush(stdout);
    return rate;
}

/* ------------------------------------------------------------------ a pool of sealed pages */

struct Pool {
    uint8_t *records;
    size_t page_bytes;
    int n_pages;
    uint16_t *order;
};

static quire_cuda_rows dense_rows(const void *k, const void *v, Heads h, int tokens) {
    const int64_t token = (int64_t)h.kv * h.dim;
    return {k, v, tokens * token, h.dim, token, tokens * token, h.dim, token};
}

static uint16_t *make_order(Heads h) {
    std::vector<uint16_t> order((size_t)h.kv * h.dim);
    std::mt19937 random(7);
    for (int g = 0; g < h.kv; g++) {
        for (int d = 0; d < h.dim; d++)
            order[g * h.dim + d] = (uint16_t)d;
        std::shuffle(order.begin() + g * h.dim, order.begin() + (g + 1) * h.dim, random);
    }
    return upload(order);
}

static Pool make_pool(const Pair &pair, Heads h, size_t bytes) {
    Pool pool;
    const size_t record = record_bytes(pair, h.dim);
    pool.page_bytes = record * h.kv;
    pool.n_pages = (int)(bytes / pool.page_bytes);
    pool.records = device<uint8_t>((size_t)pool.n_pages * pool.page_bytes);
    pool.order = make_order(h);
    const int together = 512;
    const size_t n = (size_t)together * T * h.kv * h.dim;
    __nv_bfloat16 *k = normal(n, 11), *v = normal(n, 22);
    for (int first = 0; first < pool.n_pages; first += together) {
        quire_cuda_seal_args a = {};
        a.shape = {pair.pair, h.dim, h.dim, QUIRE_BF16};
        a.n_kv_heads = h.kv;
        a.n_pages = std::min(together, pool.n_pages - first);
        a.rows = dense_rows(k, v, h, T);
        a.records = {pool.records + (size_t)first * pool.page_bytes, pool.page_bytes, record};
        a.k_order = pool.order;
        TRY(quire_cuda_seal(&a, nullptr));
    }
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaFree(k));
    CHECK(cudaFree(v));
    return pool;
}

static void measure_seal(const Pair &pair, Heads h, int n_pages) {
    const size_t record = record_bytes(pair, h.dim), n = (size_t)n_pages * T * h.kv * h.dim;
    __nv_bfloat16 *k = normal(n, 1), *v = normal(n, 2);
    quire_cuda_seal_args a = {};
    a.shape = {pair.pair, h.dim, h.dim, QUIRE_BF16};
    a.n_kv_heads = h.kv;
    a.n_pages = n_pages;
    a.rows = dense_rows(k, v, h, T);
    a.records = {device<uint8_t>((size_t)n_pages * h.kv * record), record * h.kv, record};
    uint16_t *order = make_order(h);
    a.k_order = order;
    const Times t =
        time_launches(1, [&](int, cudaStream_t stream) { TRY(quire_cuda_seal(&a, stream)); });
    printf("{\"what\": \"seal\", \"kv\": \"%s\", \"kv_heads\": %d, \"dim\": %d, \"tokens\": %d, "
           "\"us\": %.2f, "
           "\"gb_per_s_in\": %.0f}\n",
           pair.name, h.kv, h.dim, n_pages * T, t.one, (double)n * 4 / t.one / 1e3);
    fflush(stdout);
    CHECK(cudaFree(k));
    CHECK(cudaFree(v));
    CHECK(cudaFree(a.records.base));
    CHECK(cudaFree(order));
}

/* ------------------------------------------------------------------ decode */

static void measure_decode(const Pair &pair, const Pool &pool, Heads h, int n_seqs, int context,
                           int exact = 0) {
    const int sealed = (context - 1) / T, sinks = 4;
    const size_t pages_read = (size_t)n_seqs * sealed,
                 raw_rows = (size_t)n_seqs * (context - sealed * T + sinks);
    const double bytes = (double)pages_read * pool.page_bytes + (double)raw_rows * h.kv * h.dim * 4;
    const int n_sets = (int)std::min<size_t>(32, std::max<size_t>(1, (size_t)(400e6 / bytes)));
    std::vector<int32_t> ids((size_t)pool.n_pages);
    for (int i = 0; i < pool.n_pages; i++)
        ids[i] = i;
    std::mt19937 random(3);
    std::shuffle(ids.begin(), ids.end(), random);
    std::vector<int32_t> tables(n_sets * pages_read);
    for (size_t i = 0; i < tables.size(); i++)
        tables[i] = ids[i % ids.size()];
    int32_t *pages = upload(tables), *lengths = upload(std::vector<int32_t>(n_seqs, context));
    const size_t row = (size_t)h.kv * h.dim;
    __nv_bfloat16 *q = normal((size_t)n_seqs * h.q * h.dim, 5),
                  *raw = normal((size_t)n_seqs * T * row * 2, 6);
    __nv_bfloat16 *out = device<__nv_bfloat16>((size_t)n_seqs * h.q * h.dim);

    quire_cuda_decode_options o;
    quire_cuda_decode_options_default(&o);
    o.n_heads = h.q, o.n_kv_heads = h.kv, o.k_dim = o.v_dim = h.dim;
    o.pair = pair.pair, o.raw = o.out = QUIRE_BF16, o.sinks = sinks, o.max_seqs = n_seqs;
    o.exact = exact;
    quire_cuda_decode_plan *plan;
    TRY(quire_cuda_decode_create(&plan, &o));
    uint8_t *workspace = device<uint8_t>(quire_cuda_decode_workspace(plan));
    CHECK(cudaMemset(workspace, 0, quire_cuda_decode_workspace(plan)));
    quire_cuda_decode_args a = {};
    a.n_seqs = n_seqs;
    a.q = q, a.out = out, a.lengths = lengths;
    a.pages_stride = sealed;
    a.records = {pool.records, pool.page_bytes, pool.page_bytes / h.kv};
    a.own = dense_rows(raw, raw + (size_t)n_seqs * T * row, h, T);
    a.sink = a.own;
    a.k_order = pool.order;
    a.workspace = workspace;
    const Times t = time_launches(n_sets, [&](int set, cudaStream_t stream) {
        quire_cuda_decode_args with_pages = a;
        with_pages.pages = pages + set * pages_read;
        TRY(quire_cuda_decode(plan, &with_pages, stream));
    });
    const std::string name = pair.name + (exact ? " exact " + std::to_string(exact) : "");
    printf("{\"what\": \"decode\", \"kv\": \"%s\", \"heads\": \"%dx%dx%d\", \"batch\": %d, "
           "\"context\": %d, \"us\": %.2f, "
           "\"us_many\": %.2f, \"bytes\": %.0f, \"tb_per_s\": %.3f, \"kernel\": \"%s\"}\n",
           name.c_str(), h.q, h.kv, h.dim, n_seqs, context, t.one, t.many, bytes,
           bytes / t.one / 1e6, quire_cuda_decode_kernel(plan));
    fflush(stdout);
    quire_cuda_decode_free(plan);
    for (void *memory :
         {(void *)pages, (void *)lengths, (void *)q, (void *)raw, (void *)out, (void *)workspace})
        CHECK(cudaFree(memory));
}

/* ------------------------------------------------------------------ prefill, and verification of
 * several rows */

static void measure_prefill(const Pair &pair, const Pool &pool, Heads h, int n_seqs, int before,
                            int rows) {
    const int length = before + rows, sealed = (length - 1) / T, sinks = 4,
              own = length - before / T * T;
    const size_t n_rows = (size_t)n_seqs * rows, row = (size_t)h.kv * h.dim;
    std::vector<int32_t> tables((size_t)n_seqs * sealed), starts, lengths(n_seqs, length);
    std::mt19937 random(3);
    for (int32_t &id : tables)
        id = (int32_t)(random() % (unsigned)pool.n_pages);
    for (int i = 0; i <= n_seqs; i++)
        starts.push_back(i * rows);
    tables.push_back(0);
    int32_t *pages = upload(tables), *device_starts = upload(starts),
            *device_lengths = upload(lengths);
    __nv_bfloat16 *q = normal(n_rows * h.q * h.dim, 5),
                  *raw = normal((size_t)n_seqs * own * row * 2, 6);
    __nv_bfloat16 *out = device<__nv_bfloat16>(n_rows * h.q * h.dim);

    quire_cuda_prefill_options o;
    quire_cuda_prefill_options_default(&o);
    o.n_heads = h.q, o.n_kv_heads = h.kv, o.k_dim = o.v_dim = h.dim;
    o.pair = pair.pair, o.raw = o.out = QUIRE_BF16, o.sinks = sinks, o.rows_hint = rows;
    quire_cuda_prefill_plan *plan;
    TRY(quire_cuda_prefill_create(&plan, &o));
    uint8_t *workspace = device<uint8_t>(quire_cuda_prefill_workspace(plan));
    quire_cuda_prefill_args a = {};
    a.n_seqs = n_seqs;
    a.q = q, a.out = out, a.starts = device_starts, a.lengths = device_lengths;
    a.pages = pages, a.pages_stride = sealed;
    a.records = {pool.records, pool.page_bytes, pool.page_bytes / h.kv};
    a.own = dense_rows(raw, raw + (size_t)n_seqs * own * row, h, own);
    a.sink = a.own;
    a.k_order = pool.order;
    a.workspace = workspace;
    const Times t = time_launches(
        1, [&](int, cudaStream_t stream) { TRY(quire_cuda_prefill(plan, &a, stream)); });
    const double flop =
        4.0 * h.dim * h.q * n_seqs * ((double)rows * before + (double)rows * (rows + 1) / 2);
    printf("{\"what\": \"prefill\", \"kv\": \"%s\", \"heads\": \"%dx%dx%d\", \"batch\": %d, "
           "\"before\": %d, "
           "\"rows\": %d, \"us\": %.1f, \"us_many\": %.1f, \"tflop_per_s\": %.0f, \"kernel\": "
           "\"%s\"}\n",
           pair.name, h.q, h.kv, h.dim, n_seqs, before, rows, t.one, t.many, flop / t.one / 1e6,
           quire_cuda_prefill_kernel(plan));
    fflush(stdout);
    quire_cuda_prefill_free(plan);
    for (void *memory : {(void *)pages, (void *)device_starts, (void *)device_lengths, (void *)q,
                         (void *)raw, (void *)out, (void *)workspace})
        CHECK(cudaFree(memory));
}

/* Sequences, tokens before the rows, rows. bench/peer_cuda.py has the same. */
static const int PREFILLS[][3] = {{1, 16384, 4096}, {1, 65536, 2048}, {1, 16384, 512}, {1, 0, 4096},
                                  {1, 32768, 16},   {32, 32768, 4},   {32, 32768, 8}};

/* The first is the one that is measured in full. */
static const Heads SHAPES[] = {{32, 8, 128}, {9, 3, 64},    {32, 8, 64}, {8, 8, 128},
                               {64, 8, 128}, {128, 8, 128}, {4, 1, 128}, {32, 32, 80},
                               {32, 32, 96}, {16, 4, 256},  {4, 1, 256}};

static bool is_shape(const char *text, Heads h) {
    char name[32];
    snprintf(name, sizeof name, "%dx%dx%d", h.q, h.kv, h.dim);
    return !text || !strcmp(text, name);
}

static int usage(const char *argument) {
    fprintf(stderr, "quire_cuda_bench: no option, and no shape that is measured: %s\n", argument);
    fprintf(stderr,
            "usage: quire_cuda_bench [--quick] [--decode] [--prefill] [--seal] [HEADS]\nHEADS:");
    for (const Heads &h : SHAPES)
        fprintf(stderr, " %dx%dx%d", h.q, h.kv, h.dim);
    fprintf(stderr, "\n");
    return 2;
}

int main(int argc, char **argv) {
    bool quick = false, only_decode = false, only_prefill = false, only_seal = false;
    const char *only = nullptr;
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--quick"))
            quick = true;
        else if (!strcmp(argv[i], "--decode"))
            only_decode = true;
        else if (!strcmp(argv[i], "--prefill"))
            only_prefill = true;
        else if (!strcmp(argv[i], "--seal"))
            only_seal = true;
        else if (std::any_of(std::begin(SHAPES), std::end(SHAPES),
                             [&](const Heads &h) { return is_shape(argv[i], h); }))
            only = argv[i];
        else
            return usage(argv[i]);
    if (quire_cuda_available() != QUIRE_OK) {
        fprintf(stderr, "quire_cuda_bench: %s\n", quire_cuda_last_error());
        return 77;
    }
    cudaDeviceProp device_properties;
    CHECK(cudaGetDeviceProperties(&device_properties, 0));
    printf("{\"what\": \"device\", \"name\": \"%s\", \"sms\": %d}\n", device_properties.name,
           device_properties.multiProcessorCount);
    measure_read(device_properties.multiProcessorCount);
    static const int cases[][2] = {{32, 32768}, {8, 32768}, {32, 8192},
                                   {1, 131072}, {1, 32768}, {1, 8192}};
    for (const Heads &h : SHAPES)
        for (const Pair &pair : PAIRS) {
            const bool main_shape = h.q == 32 && h.kv == 8 && h.dim == 128;
            if (only_seal || !is_shape(only, h) || (!main_shape && (quick || &pair != PAIRS)))
                continue;
            const Pool pool = make_pool(pair, h, (size_t)2300 << 20);
            for (int i = 0; i < 6; i++)
                if (!only_prefill &&
                    (quick ? cases[i][1] < 32768 : main_shape || i == 0 || i == 3 || i == 5))
                    measure_decode(pair, pool, h, cases[i][0], cases[i][1]);
            for (int exact : {16, 4})
                for (int i = 0; i < 6; i++)
                    if (!only_prefill && !quick && main_shape && &pair == PAIRS)
                        measure_decode(pair, pool, h, cases[i][0], cases[i][1], exact);
            for (const int(&c)[3] : PREFILLS)
                if (!only_decode && (quick ? c[2] == 512 : main_shape || c[2] == 4096))
                    measure_prefill(pair, pool, h, c[0], c[1], c[2]);
            CHECK(cudaFree(pool.records));
            CHECK(cudaFree(pool.order));
        }
    if (!only_prefill && !only_seal && !quick && is_shape(only, SHAPES[0])) {
        const Pool pool = make_pool(OTHER_PAIR, SHAPES[0], (size_t)2300 << 20);
        measure_decode(OTHER_PAIR, pool, SHAPES[0], 32, 8192);
        measure_decode(OTHER_PAIR, pool, SHAPES[0], 1, 8192);
        CHECK(cudaFree(pool.records));
        CHECK(cudaFree(pool.order));
    }
    for (const Pair &pair : PAIRS)
        for (int n : {1, 64, 1024})
            if (!only && !only_decode && !only_prefill && (!quick || n < 1024))
                measure_seal(pair, SHAPES[0], n);
    return 0;
}
