/* alternate.c: what the plug-in costs where there is nothing to win. Prefill and decoding in two
 * contexts of one process, with the plug-in and without, in turns: whatever else the machine does,
 * it does to both. With one thread, processor time is measured, which neighbours disturb less.
 * usage: alternate MODEL [THREADS [ROUNDS [PROMPT [STEPS]]]]
 * Prints the median of each and of their ratio, with the interval that holds the true median of
 * ratios with a confidence of 95 %. A measurement, not a test. */
#include "llama_host.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ROUNDS_MAX = 1000 };

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int n) {
    qsort(values, (size_t)n, sizeof *values, compare_doubles);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/* Of sorted values. How many lie below the true median is binomial with p = 1/2: the interval
 * reaches 1.96 standard deviations of sqrt(n) / 2 to both sides of the middle. */
static void print_median_interval(const double *sorted, int n) {
    int reach = (int)ceil(0.98 * sqrt(n)), low = (n - 1) / 2 - reach, high = n / 2 + reach;
    printf("[%.3f, %.3f]", sorted[low < 0 ? 0 : low], sorted[high >= n ? n - 1 : high]);
}

static int argument(int argc, char **argv, int i, int otherwise) {
    return argc > i ? atoi(argv[i]) : otherwise;
}

static double now(int threads) {
    struct timespec t;
    clock_gettime(threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int argc, char **argv) {
    require(argc > 1, "usage: alternate MODEL [THREADS [ROUNDS [PROMPT [STEPS]]]]");
    int threads = argument(argc, argv, 2, 1), rounds = argument(argc, argv, 3, 20);
    int prompt = argument(argc, argv, 4, 128), steps = argument(argc, argv, 5, 16);
    require(rounds > 0 && rounds <= ROUNDS_MAX && prompt > 0 && steps > 0, "bad numbers");
    ggml_backend_dev_t device = host_load();
    struct llama_model *models[2] = {host_model(argv[1], device, 999),
                                     host_model(argv[1], NULL, 999)};
    struct llama_context *contexts[2];
    for (int i = 0; i < 2; i++) {
        struct llama_context_params params = llama_context_default_params();
        params.n_ctx = (uint32_t)(prompt + steps + 64);
        params.n_batch = params.n_ubatch = (uint32_t)prompt;
        params.n_threads = params.n_threads_batch = threads;
        contexts[i] = llama_init_from_model(models[i], params);
        require(contexts[i] != NULL, "a context cannot be made");
        if (i == 0)
            printf("%s splits with the plug-in\n", host_graph_splits());
    }
    llama_token *tokens = malloc((size_t)prompt * sizeof *tokens);
    for (int i = 0; i < prompt; i++)
        tokens[i] = 10 + i % 200;
    static double times[2][2][ROUNDS_MAX], ratios[2][ROUNDS_MAX]; /* (prefill or decode, side) */
    for (int round = -1; round < rounds; round++)                 /* the first one warms up */
        for (int turn = 0; turn < 2; turn++) {
            int i = (round & 1) ^ turn;
            llama_memory_clear(llama_get_memory(contexts[i]), false);
            double start = now(threads);
            require(llama_decode(contexts[i], llama_batch_get_one(tokens, prompt)) == 0, "prefill");
            double middle = now(threads);
            for (int step = 0; step < steps; step++)
                require(llama_decode(contexts[i], llama_batch_get_one(tokens, 1)) == 0, "decode");
            double end = now(threads);
            if (round >= 0) {
                times[0][i][round] = middle - start;
                times[1][i][round] = (end - middle) / steps;
            }
        }
    static const char *const names[2] = {"prefill", "decode"};
    for (int what = 0; what < 2; what++) {
        for (int round = 0; round < rounds; round++)
            ratios[what][round] = times[what][0][round] / times[what][1][round];
        printf("%-8s with %.3f ms, without %.3f ms, ratio %.3f ", names[what],
               1e3 * median(times[what][0], rounds), 1e3 * median(times[what][1], rounds),
               median(ratios[what], rounds));
        print_median_interval(ratios[what], rounds);
        printf(" (medians of %d)\n", rounds);
    }
    for (int i = 0; i < 2; i++) {
        llama_free(contexts[i]);
        llama_model_free(models[i]);
    }
    free(tokens);
    return 0;
}
