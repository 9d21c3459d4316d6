/* generate.c: a GGUF model answers from a quantized cache.
 *   cc generate.c $(pkg-config --cflags --libs quire-engine) -o generate && ./generate model.gguf
 */
#include <quire_engine.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROMPT_MAX = 256, ANSWER_MAX = 24 };

static void must(quire_status status) {
    if (status != QUIRE_OK) {
        fprintf(stderr, "%s\n", quire_last_error());
        exit(1);
    }
}

static void must_hold(int condition, const char *what) {
    if (!condition) {
        fprintf(stderr, "wrong: %s\n", what);
        exit(1);
    }
}

/* Called with every token, once it is in the cache. Returning false would stop. */
static bool print_token(void *user, int32_t token, const char *bytes, size_t n_bytes) {
    (void)user, (void)token;
    fwrite(bytes, 1, n_bytes, stdout);
    fflush(stdout);
    return true;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: %s MODEL.gguf [PROMPT]\n", argv[0]);
        return 2;
    }
    const char *prompt = argc > 2 ? argv[2] : "The capital of France is";

    quire_model *model;
    must(quire_model_load(&model, argv[1], NULL));

    quire_session_options options;
    quire_session_options_default(&options);
    must(quire_policy_parse("k8v4", &options.policy));
    options.context = 1024;
    options.n_threads = 2;
    quire_session *session;
    must(quire_session_create(&session, model, &options));

    quire_sampler_options sampling;
    quire_sampler_options_default(&sampling);
    sampling.temp = 0; /* the likeliest token */
    quire_sampler *sampler;
    must(quire_sampler_create(&sampler, model, &sampling));

    int32_t tokens[PROMPT_MAX], n_tokens;
    must(quire_model_tokenize(model, prompt, strlen(prompt), QUIRE_TOKENIZE_START, tokens,
                              PROMPT_MAX, &n_tokens));
    quire_seq *seq;
    must(quire_seq_create(quire_session_pool(session), &seq));

    quire_generate_options generate;
    quire_generate_options_default(&generate);
    generate.max_tokens = ANSWER_MAX;
    generate.on_token = print_token;
    quire_generate_result result;
    printf("%s", prompt);
    must(quire_generate(session, seq, sampler, tokens, n_tokens, &generate, &result));
    printf("\n\n%d tokens in, %d out; the cache holds %d\n", (int)result.n_prompt,
           (int)result.n_generated, (int)quire_seq_length(seq));

    /* The last token has been chosen, but nothing was computed from it yet. */
    must_hold(result.n_prompt == n_tokens && result.n_generated >= 1, "the prompt is continued");
    must_hold(quire_seq_length(seq) == n_tokens + result.n_generated - 1, "tokens are cached");
    quire_layer_stats stats;
    must(quire_layer_get_stats(quire_session_pool(session), 0, &stats));
    must_hold(stats.fallbacks == 0, "the fast kernel did all the work");

    quire_sampler_free(sampler);
    quire_session_free(session); /* its pool and sequences too */
    quire_model_free(model);
    return 0;
}
