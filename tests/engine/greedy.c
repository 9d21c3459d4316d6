/* greedy.c: the likeliest continuation of prompts, by the engine with a raw f32 cache and by
 * libllama with an f32 cache. Prints both; the exit status tells whether they are the same.
 * usage: greedy MODEL TOKENS PROMPT... */
#include "quire_engine.h"

#include <llama.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROMPT_MAX = 1024 };

static void require(bool good, const char *what) {
    if (good)
        return;
    fprintf(stderr, "greedy: %s: %s\n", what, quire_last_error());
    exit(1);
}

static int32_t likeliest(const float *logits, int32_t n) {
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        best = logits[i] > logits[best] ? i : best;
    return best;
}

static void ours(const quire_model *model, int32_t *prompt, int32_t n_prompt, int32_t *out,
                 int32_t n_out) {
    quire_session_options o;
    quire_session_options_default(&o);
    o.raw = QUIRE_F32;
    o.context = n_prompt + n_out;
    o.max_logits = 1;
    quire_session *session;
    require(quire_session_create(&session, model, &o) == QUIRE_OK, "session");
    quire_seq *seq;
    require(quire_seq_create(quire_session_pool(session), &seq) == QUIRE_OK, "sequence");
    quire_model_info info;
    quire_model_get_info(model, &info);
    require(quire_session_prefill(session, seq, prompt, n_prompt, NULL, NULL) == QUIRE_OK,
            "prefill");
    for (int32_t i = 0; i < n_out; i++) {
        out[i] = likeliest(quire_session_logits(session, 0), info.n_vocab);
        const quire_step_item item = {.seq = seq, .tokens = &out[i], .n_tokens = 1, .n_logits = 1};
        require(quire_session_decode(session, &item, 1, false) == QUIRE_OK, "decode");
    }
    quire_session_free(session);
}

static void theirs(struct llama_model *model, int32_t *prompt, int32_t n_prompt, int32_t *out,
                   int32_t n_out) {
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = (uint32_t)(n_prompt + n_out + 1);
    params.n_batch = params.n_ubatch = PROMPT_MAX;
    params.n_threads = params.n_threads_batch = 1;
    params.type_k = params.type_v = GGML_TYPE_F32;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    struct llama_context *ctx = llama_init_from_model(model, params);
    require(ctx != NULL, "context");
    const int32_t n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    require(llama_decode(ctx, llama_batch_get_one(prompt, n_prompt)) == 0, "llama_decode");
    for (int32_t i = 0; i < n_out; i++) {
        out[i] = likeliest(llama_get_logits_ith(ctx, -1), n_vocab);
        require(llama_decode(ctx, llama_batch_get_one(&out[i], 1)) == 0, "llama_decode");
    }
    llama_free(ctx);
}

static void print_text(const quire_model *model, const char *name, const int32_t *tokens,
                       int32_t n) {
    printf("%s: ", name);
    for (int32_t i = 0; i < n; i++) {
        char piece[512];
        size_t n_bytes;
        if (quire_model_piece(model, tokens[i], piece, sizeof piece, &n_bytes) == QUIRE_OK)
            fwrite(piece, 1, n_bytes, stdout);
    }
    putchar('\n');
}

int main(int argc, char **argv) {
    if (argc < 4)
        return 2;
    quire_model *model;
    require(quire_model_load(&model, argv[1], NULL) == QUIRE_OK, "load");
    struct llama_model *peer = llama_model_load_from_file(argv[1], llama_model_default_params());
    require(peer != NULL, "libllama cannot load the model");
    const int32_t n_out = atoi(argv[2]);
    int32_t *a = malloc((size_t)n_out * sizeof *a), *b = malloc((size_t)n_out * sizeof *b),
            prompt[PROMPT_MAX], n_prompt;
    int n_different = 0;
    for (int i = 3; i < argc; i++) {
        require(quire_model_tokenize(model, argv[i], strlen(argv[i]), QUIRE_TOKENIZE_START, prompt,
                                     PROMPT_MAX, &n_prompt) == QUIRE_OK,
                "tokenize");
        ours(model, prompt, n_prompt, a, n_out);
        theirs(peer, prompt, n_prompt, b, n_out);
        print_text(model, "quire", a, n_out);
        print_text(model, "llama", b, n_out);
        n_different += memcmp(a, b, (size_t)n_out * sizeof *a) != 0;
    }
    free(a);
    free(b);
    llama_model_free(peer);
    quire_model_free(model);
    return n_different > 0;
}
