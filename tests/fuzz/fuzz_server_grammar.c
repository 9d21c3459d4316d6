/* libFuzzer target: grammars of clients beside libllama. docs/TESTING.md says how to build and run
 * it. What api_gbnf_check lets through, libllama must read, and follow for a few bytes; it would
 * print or end the process otherwise. */
#include "api/gbnf_check.h"
#include "tiny_model.h"

#include <llama.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

enum { STEPS = 8, N_TOKENS = 263 };

static struct llama_model *model;

static void quiet(enum ggml_log_level level, const char *text, void *user) {
    (void)level, (void)text, (void)user;
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    char path[64];
    snprintf(path, sizeof path, "/tmp/quire-fuzz-%d.gguf", (int)getpid());
    struct llama_model_params params = llama_model_default_params();
    params.vocab_only = true;
    llama_log_set(quiet, NULL);
    if (!tiny_model_write(path, false) || !(model = llama_model_load_from_file(path, params)))
        abort();
    unlink(path);
    return 0;
}

/* Takes allowed bytes, in turn from a place that the grammar's text decides. */
static void follow(struct llama_sampler *grammar, uint32_t start) {
    static llama_token_data list[N_TOKENS];
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < N_TOKENS; i++)
            list[i] = (llama_token_data){.id = i, .logit = 1};
        llama_token_data_array array = {.data = list, .size = N_TOKENS, .selected = -1};
        llama_sampler_apply(grammar, &array);
        int chosen = -1;
        for (uint32_t i = 0; i < 256 && chosen < 0; i++) {
            const int token = TINY_BYTE_0 + (int)((start + i) % 256);
            chosen = list[token].logit > -INFINITY ? token : -1;
        }
        if (chosen < 0)
            return;
        llama_sampler_accept(grammar, chosen);
        start = start * 31 + 7;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char why[200], *text = malloc(size + 1);
    if (!text)
        abort();
    memcpy(text, data, size);
    text[size] = '\0';
    if (api_gbnf_check(text, why, sizeof why)) {
        struct llama_sampler *grammar =
            llama_sampler_init_grammar(llama_model_get_vocab(model), text, "root");
        if (!grammar)
            abort();
        follow(grammar, size > 0 ? data[size / 2] : 0);
        llama_sampler_free(grammar);
    }
    free(text);
    return 0;
}
