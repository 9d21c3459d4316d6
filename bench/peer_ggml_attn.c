/* Times ggml's FLASH_ATTN_EXT on the CPU, best of several runs. Built by bench/peers against ggml.
 * usage: peer_ggml_attn HEADS KV_HEADS SIZE CONTEXT ROWS TYPE_K TYPE_V THREADS LAYERS
 * prints milliseconds per layer; a run goes through LAYERS of them, each with K and V of its own */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ggml-cpu.h"
#include "ggml.h"

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static enum ggml_type type_of(const char *name) {
    for (int i = 0; i < GGML_TYPE_COUNT; i++)
        if (ggml_type_name(i) && strcmp(ggml_type_name(i), name) == 0)
            return i;
    fprintf(stderr, "peer_ggml_attn: no ggml type '%s'\n", name);
    exit(2);
}

static void fill(struct ggml_tensor *t) {
    const int64_t row = t->ne[0], n_rows = ggml_nelements(t) / row;
    float *x = malloc(sizeof *x * (size_t)row);
    uint32_t state = 12345;
    for (int64_t r = 0; r < n_rows; r++) {
        char *to = (char *)t->data + (size_t)r * ggml_row_size(t->type, row);
        for (int64_t i = 0; i < row; i++) {
            state = state * 1664525u + 1013904223u;
            x[i] = (float)((int32_t)(state >> 9) - (1 << 22)) / (1 << 22);
        }
        if (t->type == GGML_TYPE_F32)
            memcpy(to, x, sizeof *x * (size_t)row);
        else
            ggml_get_type_traits_cpu(t->type)->from_float(x, to, row);
    }
    free(x);
}

static struct ggml_tensor *new_kv(struct ggml_context *c, const char *type, int size, int context,
                                  int kv_heads) {
    struct ggml_tensor *t = ggml_new_tensor_4d(c, type_of(type), size, context, kv_heads, 1);
    fill(t);
    return t;
}

int main(int argc, char **argv) {
    if (argc != 10) {
        fprintf(stderr, "usage: %s HEADS KV_HEADS SIZE CONTEXT ROWS TYPE_K TYPE_V THREADS LAYERS\n",
                argv[0]);
        return 2;
    }
    const int heads = atoi(argv[1]), kv_heads = atoi(argv[2]), size = atoi(argv[3]),
              context = atoi(argv[4]);
    const int rows = atoi(argv[5]), threads = atoi(argv[8]), layers = atoi(argv[9]);
    ggml_cpu_init();
    struct ggml_context *c = ggml_init((struct ggml_init_params){(size_t)8 << 30, NULL, false});
    struct ggml_tensor *q = ggml_new_tensor_4d(c, GGML_TYPE_F32, size, rows, heads, 1);
    struct ggml_tensor *mask =
        ggml_new_tensor_4d(c, GGML_TYPE_F16, context, (rows + 63) / 64 * 64, 1, 1);
    fill(q);
    memset(mask->data, 0, ggml_nbytes(mask));
    struct ggml_cgraph *graph = ggml_new_graph(c);
    for (int i = 0; i < layers; i++) {
        struct ggml_tensor *k = new_kv(c, argv[6], size, context, kv_heads),
                           *v = new_kv(c, argv[7], size, context, kv_heads);
        ggml_build_forward_expand(
            graph, ggml_flash_attn_ext(c, q, k, v, mask, 1 / sqrtf((float)size), 0, 0));
    }
    /* Threads that live on between calls, as llama.cpp has them. */
    struct ggml_threadpool_params workers = ggml_threadpool_params_default(threads);
    struct ggml_cplan plan = ggml_graph_plan(graph, threads, ggml_threadpool_new(&workers));
    plan.work_data = malloc(plan.work_size + 64);
    const double first = now();
    double best = 1e9;
    const double enough = 0.5, steady = 3; /* seconds; a run of three seconds needs no second one */
    for (int i = 0; (i < 2 && now() - first < steady) || (now() - first < enough && i < 2000);
         i++) {
        const double start = now();
        ggml_graph_compute(graph, &plan);
        const double taken = now() - start;
        if (taken < best)
            best = taken;
    }
    printf("%.4f\n", best * 1e3 / layers);
    return 0;
}
