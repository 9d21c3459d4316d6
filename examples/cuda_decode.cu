/* cuda_decode.cu: a decode loop on an NVIDIA GPU, the attention layers of a model for a batch of
 * sequences.
 *   nvcc -std=c++17 cuda_decode.cu $(pkg-config --cflags --libs quire-cuda quire) -o cuda_decode
 *
 * A prompt is appended in one step of many rows. Then each step appends one token to every sequence
 * and attends over everything so far. These steps are captured in a CUDA graph once, because page
 * tables and lengths are read on the device. Pages that are full are packed into 4 bits. */
#include <quire_cuda.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

constexpr int LAYERS = 4, BATCH = 8, HEADS = 32, KV_HEADS = 8, DIM = 128;
constexpr int PROMPT = 200, STEPS = 1000;

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

/* Stands for the model: queries, and rows of K and V. One block for each row of the step. */
__global__ void model(int layer, const int *step, __nv_bfloat16 *q, __nv_bfloat16 *k,
                      __nv_bfloat16 *v) {
    const int row = blockIdx.x, token = row + *step * (int)gridDim.x;
    for (int i = threadIdx.x; i < HEADS * DIM; i += blockDim.x)
        q[row * HEADS * DIM + i] = __float2bfloat16(__sinf(.1f * (float)(i + token + 7 * layer)));
    for (int i = threadIdx.x; i < KV_HEADS * DIM; i += blockDim.x) {
        k[row * KV_HEADS * DIM + i] = __float2bfloat16(__cosf(.3f * (float)(i * token + layer)));
        v[row * KV_HEADS * DIM + i] = __float2bfloat16(__sinf(.7f * (float)(i + token % 97)));
    }
}
__global__ void count(int *step) { ++*step; }

/* Device memory of a step: `rows` rows of q, k, v and results, and the number of the step. */
struct Step {
    int rows, *number;
    __nv_bfloat16 *q, *k, *v, *out;

    explicit Step(int rows_)
        : rows(rows_), number(device<int>(1)),
          q(device<__nv_bfloat16>((size_t)rows_ * HEADS * DIM)),
          k(device<__nv_bfloat16>((size_t)rows_ * KV_HEADS * DIM)),
          v(device<__nv_bfloat16>((size_t)rows_ * KV_HEADS * DIM)),
          out(device<__nv_bfloat16>((size_t)rows_ * HEADS * DIM)) {}

    /* All layers of the model. */
    void run(quire_cuda_pool *pool, cudaStream_t stream) const {
        for (int layer = 0; layer < LAYERS; layer++) {
            model<<<rows, 256, 0, stream>>>(layer, number, q, k, v);
            check(cudaGetLastError());
            check(quire_cuda_step_append(pool, layer, k, v, stream));
            check(quire_cuda_step_attend(pool, layer, q, out, nullptr, stream));
        }
        count<<<1, 1, 0, stream>>>(number);
        check(cudaGetLastError());
    }
};

int main() {
    if (quire_cuda_available() != QUIRE_OK) {
        printf("left out: %s\n", quire_cuda_last_error());
        return 77;
    }

    /* km4 gives the first places of its order more bits. Here: channels as they are. */
    std::vector<uint16_t> order(KV_HEADS * DIM);
    for (size_t i = 0; i < order.size(); i++)
        order[i] = (uint16_t)(i % DIM);
    std::vector<quire_layer> layers(LAYERS);
    for (quire_layer &layer : layers) {
        quire_layer_default(&layer);
        layer.n_heads = HEADS, layer.n_kv_heads = KV_HEADS;
        layer.k_dim = layer.v_dim = DIM;
        layer.k_order = order.data();
    }
    quire_cuda_pool_options options;
    quire_cuda_pool_options_default(&options); /* km4:vt4, 4 sinks */
    options.layers = layers.data(), options.n_layers = LAYERS;
    options.raw = options.out = QUIRE_BF16;
    options.max_seqs = BATCH, options.max_tokens = PROMPT + STEPS;
    options.max_batch_tokens = BATCH * PROMPT;
    quire_cuda_pool *pool;
    check(quire_cuda_pool_create(&pool, &options));
    std::vector<quire_cuda_step_item> items(BATCH);
    for (quire_cuda_step_item &item : items)
        check(quire_cuda_seq_create(pool, &item.seq));
    cudaStream_t stream;
    check(cudaStreamCreate(&stream));

    /* The prompts of all sequences, in one step. */
    const Step prompts(BATCH * PROMPT), tokens(BATCH);
    for (quire_cuda_step_item &item : items)
        item.n_tokens = PROMPT;
    check(quire_cuda_step_begin(pool, items.data(), BATCH, stream));
    prompts.run(pool, stream);
    check(quire_cuda_step_end(pool, nullptr, stream));

    /* One token for each sequence, again and again. */
    cudaGraph_t graph;
    cudaGraphExec_t exec = nullptr;
    cudaEvent_t begin, end;
    check(cudaEventCreate(&begin));
    check(cudaEventCreate(&end));
    for (quire_cuda_step_item &item : items)
        item.n_tokens = 1;
    for (int i = 0; i < STEPS; i++) {
        check(quire_cuda_step_begin(pool, items.data(), BATCH, stream));
        if (!exec) {
            check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
            tokens.run(pool, stream);
            check(cudaStreamEndCapture(stream, &graph));
            check(cudaGraphInstantiate(&exec, graph, 0));
            check(cudaEventRecord(begin, stream));
        }
        check(cudaGraphLaunch(exec, stream));
        check(quire_cuda_step_end(pool, nullptr, stream));
    }
    check(cudaEventRecord(end, stream));

    quire_cuda_pool_info info;
    check(quire_cuda_pool_get_info(pool, &info, stream)); /* waits for the stream */
    float ms;
    check(cudaEventElapsedTime(&ms, begin, end));
    std::vector<__nv_bfloat16> last(BATCH * HEADS * DIM);
    check(cudaMemcpy(last.data(), tokens.out, last.size() * 2, cudaMemcpyDeviceToHost));
    double sum = 0;
    for (const __nv_bfloat16 x : last)
        sum += fabs((double)__bfloat162float(x));
    printf("%d layers, %d sequences of %d tokens; %d steps of %.1f us, %.0f bytes per packed token "
           "and layer (bf16: %d), mean |out| %.3f\n",
           LAYERS, BATCH, (int)quire_cuda_seq_length(items[0].seq), STEPS, ms * 1e3 / STEPS,
           (double)info.page_bytes / QUIRE_PAGE_TOKENS / LAYERS, KV_HEADS * DIM * 4,
           sum / (double)last.size());
    quire_cuda_pool_free(pool);
    return info.n_bad == 0 && std::isfinite(sum) && sum > 0 ? 0 : 1;
}
