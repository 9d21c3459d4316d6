/* cuda_decode.cu: a decode loop on an NVIDIA GPU, one attention layer for a batch of sequences.
 *   nvcc -std=c++17 cuda_decode.cu $(pkg-config --cflags --libs quire-cuda quire) -o cuda_decode
 *
 * A step appends a row of K and V to each sequence's own page and attends over everything so far.
 * It is captured in a CUDA graph once: lengths and page tables are read on the device. Every 64
 * steps the own pages are full, and are packed into page records of 4 bits. */
#include <quire_cuda.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

constexpr int BATCH = 8, HEADS = 32, KV_HEADS = 8, DIM = 128, SINKS = 4, STEPS = 1000;
constexpr int PAGE = QUIRE_PAGE_TOKENS, MAX_PAGES = (STEPS + PAGE - 1) / PAGE;

static void check(cudaError_t error) {
    if (error != cudaSuccess) {
        fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
        exit(1);
    }
}
static void check(quire_status status) {
    if (status != QUIRE_OK) {
        fprintf(stderr, "Quire: %s\n", quire_cuda_last_error());
        exit(1);
    }
}
template <class X> static X *device(size_t n) {
    X *memory;
    check(cudaMalloc(&memory, n * sizeof(X)));
    check(cudaMemset(memory, 0, n * sizeof(X)));
    return memory;
}
template <class X> static X *upload(const std::vector<X> &from) {
    X *memory = device<X>(from.size());
    check(cudaMemcpy(memory, from.data(), from.size() * sizeof(X), cudaMemcpyHostToDevice));
    return memory;
}

/* Stands for the model: the new token's query, and its rows of K and V. The rows go to the own page
 * of the sequence, (BATCH, KV_HEADS, PAGE, DIM), and those of the first tokens to the sinks, too.
 * One block for each sequence. */
__global__ void append(__nv_bfloat16 *q, __nv_bfloat16 *own_k, __nv_bfloat16 *own_v,
                       __nv_bfloat16 *sink_k, __nv_bfloat16 *sink_v, int32_t *lengths) {
    const int seq = blockIdx.x, token = lengths[seq];
    __syncthreads(); /* all have read the length */
    for (int i = threadIdx.x; i < HEADS * DIM; i += blockDim.x)
        q[seq * HEADS * DIM + i] = __float2bfloat16(__sinf(.1f * (float)(i + token + 7 * seq)));
    for (int i = threadIdx.x; i < KV_HEADS * DIM; i += blockDim.x) {
        const int head = seq * KV_HEADS + i / DIM, channel = i % DIM;
        const __nv_bfloat16 k = __float2bfloat16(__cosf(.3f * (float)(i * token + seq)));
        const __nv_bfloat16 v = __float2bfloat16(__sinf(.7f * (float)(i + token * token % 97)));
        own_k[(head * PAGE + token % PAGE) * DIM + channel] = k;
        own_v[(head * PAGE + token % PAGE) * DIM + channel] = v;
        if (token < SINKS) {
            sink_k[(head * SINKS + token) * DIM + channel] = k;
            sink_v[(head * SINKS + token) * DIM + channel] = v;
        }
    }
    if (threadIdx.x == 0)
        lengths[seq] = token + 1;
}

static quire_cuda_rows rows(const void *k, const void *v, int64_t tokens) {
    const int64_t head = tokens * DIM, slot = KV_HEADS * head;
    return {k, v, slot, head, DIM, slot, head, DIM};
}

int main() {
    if (quire_cuda_available() != QUIRE_OK) {
        printf("left out: %s\n", quire_cuda_last_error());
        return 77;
    }

    /* The plan of the layer: shape, codecs, kernel, size of the workspace. */
    quire_cuda_decode_options options;
    quire_cuda_decode_options_default(&options); /* km4:vt4, 4 sinks */
    options.n_heads = HEADS, options.n_kv_heads = KV_HEADS, options.k_dim = options.v_dim = DIM;
    options.raw = options.out = QUIRE_BF16, options.sinks = SINKS, options.max_seqs = BATCH;
    quire_cuda_decode_plan *plan;
    check(quire_cuda_decode_create(&plan, &options));

    /* Memory: page records for all that will be packed, and raw rows for one page and the sinks. */
    const quire_page_shape shape = {options.pair, DIM, DIM, QUIRE_BF16};
    size_t record;
    check(quire_page_bytes(&shape, &record));
    const size_t own_n = (size_t)BATCH * KV_HEADS * PAGE * DIM, sink_n = own_n / PAGE * SINKS;
    uint8_t *records = device<uint8_t>((size_t)BATCH * MAX_PAGES * KV_HEADS * record);
    auto *q = device<__nv_bfloat16>((size_t)BATCH * HEADS * DIM);
    auto *out = device<__nv_bfloat16>((size_t)BATCH * HEADS * DIM);
    auto *own_k = device<__nv_bfloat16>(own_n), *own_v = device<__nv_bfloat16>(own_n);
    auto *sink_k = device<__nv_bfloat16>(sink_n), *sink_v = device<__nv_bfloat16>(sink_n);
    auto *lengths = device<int32_t>(BATCH);
    auto *bad = device<uint32_t>(1);
    auto *workspace = device<uint8_t>(quire_cuda_decode_workspace(plan)); /* zeros, once */

    /* Page i of sequence b becomes record i * BATCH + b. A real pool would hand out free ones. */
    std::vector<int32_t> table(BATCH * MAX_PAGES), ids(BATCH * MAX_PAGES);
    for (int b = 0; b < BATCH; b++)
        for (int i = 0; i < MAX_PAGES; i++)
            table[b * MAX_PAGES + i] = ids[i * BATCH + b] = i * BATCH + b;
    int32_t *page_table = upload(table), *page_ids = upload(ids);
    int32_t *skip = upload(std::vector<int32_t>(BATCH, SINKS));
    /* km4 gives the first places of its order more bits. Here: channels as they are. */
    std::vector<uint16_t> channels(KV_HEADS * DIM);
    for (size_t i = 0; i < channels.size(); i++)
        channels[i] = (uint16_t)(i % DIM);
    uint16_t *order = upload(channels);

    quire_cuda_decode_args step = {};
    step.n_seqs = BATCH, step.q = q, step.out = out, step.lengths = lengths;
    step.pages = page_table, step.pages_stride = MAX_PAGES;
    step.records = {records, KV_HEADS * record, record};
    step.own = rows(own_k, own_v, PAGE), step.sink = rows(sink_k, sink_v, SINKS);
    step.k_order = order, step.workspace = workspace;

    quire_cuda_seal_args seal = {};
    seal.shape = shape, seal.n_kv_heads = KV_HEADS, seal.n_pages = BATCH;
    seal.rows = step.own, seal.records = step.records, seal.k_order = order, seal.n_bad = bad;

    /* The step, captured once. */
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    check(cudaStreamCreate(&stream));
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    append<<<BATCH, 256, 0, stream>>>(q, own_k, own_v, sink_k, sink_v, lengths);
    check(cudaGetLastError());
    check(quire_cuda_decode(plan, &step, stream));
    check(cudaStreamEndCapture(stream, &graph));
    check(cudaGraphInstantiate(&exec, graph, 0));

    cudaEvent_t begin, end;
    check(cudaEventCreate(&begin));
    check(cudaEventCreate(&end));
    check(cudaEventRecord(begin, stream));
    for (int token = 0; token < STEPS; token++) {
        check(cudaGraphLaunch(exec, stream));
        if ((token + 1) % PAGE == 0) { /* the own pages are full: pack them, then start new ones */
            const int page = token / PAGE;
            seal.ids = page_ids + page * BATCH;
            seal.skip = page == 0 ? skip : nullptr; /* the sinks stay raw */
            check(quire_cuda_seal(&seal, stream));
        }
    }
    check(cudaEventRecord(end, stream));
    check(cudaStreamSynchronize(stream));

    float ms;
    uint32_t n_bad;
    std::vector<__nv_bfloat16> last(BATCH * HEADS * DIM);
    check(cudaEventElapsedTime(&ms, begin, end));
    check(cudaMemcpy(&n_bad, bad, sizeof n_bad, cudaMemcpyDeviceToHost));
    check(cudaMemcpy(last.data(), out, last.size() * 2, cudaMemcpyDeviceToHost));
    double sum = 0;
    for (const __nv_bfloat16 x : last)
        sum += fabs((double)__bfloat162float(x));
    const double token_bytes = (double)KV_HEADS * (double)record / PAGE;
    printf("%s: %d sequences, %d steps of %.1f us, %.0f bytes per packed token (bf16: %d), "
           "mean |out| %.3f\n",
           quire_cuda_decode_kernel(plan), BATCH, STEPS, ms * 1e3 / STEPS, token_bytes,
           KV_HEADS * DIM * 4, sum / (double)last.size());
    quire_cuda_decode_free(plan);
    return n_bad == 0 && std::isfinite(sum) && sum > 0 ? 0 : 1;
}
