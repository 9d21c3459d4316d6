/* peer_llama_model.c: llama.cpp on the same model, for bench/models. Flash attention on, weights repacked as it likes.
 * usage: peer_llama_model MODEL TYPE_K TYPE_V DEPTH GEN PROMPT THREADS */
#include <llama.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void require(bool good, const char *what) {
    if (good)
        return;
    fprintf(stderr, "peer_llama_model: %s\n", what);
    exit(1);
}

static enum ggml_type type_by_name(const char *name) {
    for (int i = 0; i < GGML_TYPE_COUNT; i++) {
        const char *other = ggml_type_name((enum ggml_type)i);
        if (other && strcmp(other, name) == 0)
            return (enum ggml_type)i;
    }
    require(false, "no such type");
    return GGML_TYPE_COUNT;
}

static void quiet(enum ggml_log_level level, const char *text, void *user) {
    (void)user;
    if (level == GGML_LOG_LEVEL_ERROR)
        fputs(text, stderr);
}

static void feed(struct llama_context *ctx, int32_t *tokens, int32_t n) {
    require(llama_decode(ctx, llama_batch_get_one(tokens, n)) == 0, "llama_decode failed");
}

int main(int argc, char **argv) {
    require(argc == 8, "usage: peer_llama_model MODEL TYPE_K TYPE_V DEPTH GEN PROMPT THREADS");
    const int32_t depth = atoi(argv[4]), n_gen = atoi(argv[5]), n_prompt = atoi(argv[6]), n_threads = atoi(argv[7]);
    llama_log_set(quiet, NULL);
    struct llama_model *model = llama_model_load_from_file(argv[1], llama_model_default_params());
    require(model != NULL, "cannot load the model");
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = (uint32_t)(depth + n_gen + n_prompt + 64);
    params.n_batch = params.n_ubatch = 512;
    params.n_threads = params.n_threads_batch = n_threads;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    params.type_k = type_by_name(argv[2]);
    params.type_v = type_by_name(argv[3]);
    struct llama_context *ctx = llama_init_from_model(model, params);
    require(ctx != NULL, "no context");
    const int32_t n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    const int32_t n_tokens = depth + n_gen + n_prompt;
    int32_t *tokens = malloc((size_t)n_tokens * sizeof *tokens);
    require(tokens != NULL, "out of memory");
    uint32_t state = 1;
    for (int32_t i = 0; i < n_tokens; i++) {
        state = state * 1664525u + 1013904223u;
        tokens[i] = (int32_t)((state >> 8) % (uint32_t)n_vocab);
    }
    for (int32_t at = 0; at < depth; at += 512)
        feed(ctx, tokens + at, depth - at < 512 ? depth - at : 512);
    double start = now();
    for (int32_t i = 0; i < n_gen; i++)
        feed(ctx, tokens + depth + i, 1);
    llama_synchronize(ctx);
    const double gen_seconds = now() - start;
    start = now();
    for (int32_t at = 0; at < n_prompt; at += 512)
        feed(ctx, tokens + depth + n_gen + at, n_prompt - at < 512 ? n_prompt - at : 512);
    llama_synchronize(ctx);
    const double prompt_seconds = now() - start;
    printf("{\"tg_tps\": %.2f, \"pp_tps\": %.2f}\n", n_gen ? n_gen / gen_seconds : 0.0,
           n_prompt ? n_prompt / prompt_seconds : 0.0);
    free(tokens);
    llama_free(ctx);
    llama_model_free(model);
    return 0;
}
