/* sampling.c: the sampler beside a chain of libllama's samplers, fed with the same logits and the
 * same prompt. usage: sampling MODEL */
#include "quire_engine.h"

#include <llama.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 300, PROMPT = 90 };

static void require(bool good, const char *what, const char *name) {
    if (good)
        return;
    fprintf(stderr, "sampling: %s: %s (%s)\n", name, what, quire_last_error());
    exit(1);
}

/* A few tokens that are much likelier than the others, so that texts repeat themselves. */
static void fill_logits(float *logits, int32_t n, uint32_t *state) {
    for (int32_t i = 0; i < n; i++) {
        *state = *state * 1664525u + 1013904223u;
        logits[i] = (float)(*state >> 8) / (float)(1 << 24) * 4 - 2 + (i % 40 == 7 ? 5.0f : 0.0f);
    }
}

typedef struct sampling_case {
    const char *name;
    float temp, repeat, frequency, presence, dry, base;
    int32_t last_n, allowed, dry_last_n;
    const char *breakers[2];
    size_t n_breakers;
    bool changes; /* the text is not that without penalties, DRY and bias */
    quire_logit_bias bias[3];
    size_t n_bias;
} sampling_case;

static struct llama_sampler *reference(const struct llama_vocab *vocab, int32_t n_vocab,
                                       const sampling_case *c, bool plain) {
    struct llama_sampler *chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
    if (!plain && c->n_bias > 0) {
        llama_logit_bias bias[3];
        for (size_t i = 0; i < c->n_bias; i++)
            bias[i] = (llama_logit_bias){.token = c->bias[i].token, .bias = c->bias[i].bias};
        llama_sampler_chain_add(chain,
                                llama_sampler_init_logit_bias(n_vocab, (int32_t)c->n_bias, bias));
    }
    if (!plain) {
        const char *breakers[2] = {c->breakers[0], c->breakers[1]};
        llama_sampler_chain_add(chain, llama_sampler_init_penalties(n_vocab, c->last_n, c->repeat,
                                                                    c->frequency, c->presence));
        llama_sampler_chain_add(chain,
                                llama_sampler_init_dry(vocab, c->dry, c->base, c->allowed,
                                                       c->dry_last_n, breakers, c->n_breakers));
    }
    if (c->temp <= 0) {
        llama_sampler_chain_add(chain, llama_sampler_init_greedy());
        return chain;
    }
    llama_sampler_chain_add(chain, llama_sampler_init_top_k(40));
    llama_sampler_chain_add(chain, llama_sampler_init_top_p(0.95f, 1));
    llama_sampler_chain_add(chain, llama_sampler_init_min_p(0.05f, 1));
    llama_sampler_chain_add(chain, llama_sampler_init_temp(c->temp));
    llama_sampler_chain_add(chain, llama_sampler_init_dist(1));
    return chain;
}

static void run_reference(const struct llama_vocab *vocab, int32_t n_vocab, const sampling_case *c,
                          bool plain, const int32_t *prompt, int32_t *text) {
    struct llama_sampler *chain = reference(vocab, n_vocab, c, plain);
    float *logits = malloc((size_t)n_vocab * sizeof *logits);
    llama_token_data *data = malloc((size_t)n_vocab * sizeof *data);
    require(logits && data, "no memory", c->name);
    for (int i = 0; i < PROMPT; i++)
        llama_sampler_accept(chain, prompt[i]);
    uint32_t state = 9;
    for (int i = 0; i < STEPS; i++) {
        fill_logits(logits, n_vocab, &state);
        for (int32_t k = 0; k < n_vocab; k++)
            data[k] = (llama_token_data){.id = k, .logit = logits[k]};
        llama_token_data_array array = {.data = data, .size = (size_t)n_vocab, .selected = -1};
        llama_sampler_apply(chain, &array);
        text[i] = array.data[array.selected].id;
        llama_sampler_accept(chain, text[i]);
    }
    free(logits);
    free(data);
    llama_sampler_free(chain);
}

static void run_ours(const quire_model *model, int32_t n_vocab, const sampling_case *c,
                     const int32_t *prompt, int32_t *text) {
    quire_sampler_options options;
    quire_sampler_options_default(&options);
    options.temp = c->temp;
    options.penalty_last_n = c->last_n;
    options.repeat_penalty = c->repeat;
    options.frequency_penalty = c->frequency;
    options.presence_penalty = c->presence;
    options.dry_multiplier = c->dry;
    options.dry_base = c->base;
    options.dry_allowed_length = c->allowed;
    options.dry_last_n = c->dry_last_n;
    options.dry_breakers = c->breakers;
    options.n_dry_breakers = c->n_breakers;
    options.bias = c->bias;
    options.n_bias = c->n_bias;
    quire_sampler *sampler;
    require(quire_sampler_create(&sampler, model, &options) == QUIRE_OK, "create", c->name);
    float *logits = malloc((size_t)n_vocab * sizeof *logits);
    require(logits, "no memory", c->name);
    quire_sampler_begin(sampler, prompt + 1, PROMPT - 1); /* forgotten by the next */
    quire_sampler_begin(sampler, prompt, PROMPT);
    uint32_t state = 9;
    for (int i = 0; i < STEPS; i++) {
        fill_logits(logits, n_vocab, &state);
        require(quire_sampler_next(sampler, logits, &text[i]) == QUIRE_OK, "next", c->name);
    }
    free(logits);
    quire_sampler_free(sampler);
}

/* Every value that is out of range is refused, by its name. */
static void check_refusals(const quire_model *model) {
    static const char *const empty[] = {""}, *const beyond[] = {"\xF7\xBF\xBF\xBF"};
    static const char *const longer[] = {"12345678901234567890123456789012345678901"};
    static const quire_logit_bias no_token[] = {{-1, 1}}, beyond_all[] = {{1 << 30, 1}},
                                  no_number[] = {{0, NAN}}, too_large[] = {{0, INFINITY}};
    quire_sampler_options good;
    quire_sampler_options_default(&good);
#define BAD(field, value, word)                                                                    \
    do {                                                                                           \
        quire_sampler_options options = good;                                                      \
        quire_sampler *sampler;                                                                    \
        options.field = (value);                                                                   \
        options.n_dry_breakers = 1;                                                                \
        require(quire_sampler_create(&sampler, model, &options) == QUIRE_E_INVALID && !sampler,    \
                "not refused", word);                                                              \
        require(strstr(quire_last_error(), word) != NULL, "not named", word);                      \
    } while (0)
    BAD(temp, -1.0f, "temp");
    BAD(temp, NAN, "temp");
    BAD(top_k, -1, "top_k");
    BAD(top_p, 1.5f, "top_p");
    BAD(min_p, -0.1f, "min_p");
    BAD(penalty_last_n, -1, "penalty_last_n");
    BAD(penalty_last_n, INT32_MAX, "penalty_last_n");
    BAD(repeat_penalty, 0.0f, "repeat_penalty");
    BAD(repeat_penalty, INFINITY, "repeat_penalty");
    BAD(frequency_penalty, NAN, "frequency_penalty");
    BAD(presence_penalty, -INFINITY, "presence_penalty");
    BAD(dry_multiplier, -1.0f, "dry_multiplier");
    BAD(dry_base, 0.5f, "dry_base");
    BAD(dry_allowed_length, -1, "dry_allowed_length");
    BAD(dry_last_n, -1, "dry_last_n");
    good.n_bias = 1;
    BAD(bias, NULL, "bias is NULL");
    BAD(bias, no_token, "bias 0");
    BAD(bias, beyond_all, "bias 0");
    BAD(bias, no_number, "bias 0");
    BAD(bias, too_large, "bias 0");
    good.n_bias = 0;
    BAD(dry_breakers, NULL, "dry_breakers");
    BAD(dry_breakers, empty, "breaker 0");
    BAD(dry_breakers, beyond, "breaker 0");
    BAD(dry_breakers, longer, "breaker 0");
#undef BAD
}

static const sampling_case CASES[] = {
    {"defaults", 0.8f, 1, 0, 0, 0, 1.75f, 64, 2, 64, {"\n", ":"}, 2, false, {{0, 0}}, 0},
    {"last n of 0", 0.8f, 2, 1, 1, 0, 1.75f, 0, 2, 64, {"\n", ":"}, 2, false, {{0, 0}}, 0},
    {"repeat, greedy", 0, 1.3f, 0, 0, 0, 1.75f, 64, 2, 64, {"\n", ":"}, 2, true, {{0, 0}}, 0},
    {"repeat", 0.8f, 1.3f, 0, 0, 0, 1.75f, 64, 2, 64, {"\n", ":"}, 2, true, {{0, 0}}, 0},
    {"frequency", 0.8f, 1, 0.7f, 0, 0, 1.75f, 30, 2, 64, {"\n", ":"}, 2, true, {{0, 0}}, 0},
    {"presence", 0.8f, 1, 0, 1.5f, 0, 1.75f, 1000, 2, 64, {"\n", ":"}, 2, true, {{0, 0}}, 0},
    {"a reward", 0.8f, 0.9f, -0.1f, -0.1f, 0, 1.75f, 64, 2, 64, {"\n", ":"}, 2, true, {{0, 0}}, 0},
    {"DRY, greedy", 0, 1, 0, 0, 4, 1.75f, 64, 1, 64, {NULL, NULL}, 0, true, {{0, 0}}, 0},
    {"DRY", 0.3f, 1, 0, 0, 4, 1.5f, 64, 1, 200, {"w4", "w1 w2"}, 2, true, {{0, 0}}, 0},
    {"all", 0.5f, 1.1f, 0.2f, 0.2f, 2, 1.75f, 64, 1, 100, {"\n", "w1 w2"}, 2, true, {{0, 0}}, 0},
    {"bias", 0.8f, 1, 0, 0, 0, 1.75f, 64, 2, 64, {"\n", ":"}, 2, true, {{7, -100}, {50, 3}}, 2},
    {"bias, greedy",
     0,
     1,
     0,
     0,
     0,
     1.75f,
     64,
     2,
     64,
     {NULL},
     0,
     true,
     {{47, -INFINITY}, {8, 9}},
     2},
    {"bias and penalties", 0.5f, 1.2f, 0, 0, 0, 1.75f, 64, 2, 64, {NULL}, 0, true, {{5, 4}}, 1},
};

/* Logits that are no numbers are refused, with and without a chain of samplers, and passed over
 * beside one that is. */
static void check_logits(const quire_model *model, int32_t n_vocab) {
    float *logits = malloc((size_t)n_vocab * sizeof *logits);
    for (int warm = 0; warm < 2; warm++) {
        quire_sampler_options options;
        quire_sampler *sampler;
        int32_t token;
        quire_sampler_options_default(&options);
        options.temp = warm ? 0.5f : 0;
        require(quire_sampler_create(&sampler, model, &options) == QUIRE_OK, "no sampler", "");
        for (int32_t i = 0; i < n_vocab; i++)
            logits[i] = NAN;
        require(quire_sampler_next(sampler, logits, &token) == QUIRE_E_VALUE, "NaN", "chosen");
        for (int32_t i = 0; i < n_vocab; i++)
            logits[i] = -INFINITY;
        require(quire_sampler_next(sampler, logits, &token) == QUIRE_E_VALUE, "-inf", "chosen");
        logits[5] = 1;
        logits[0] = warm ? -INFINITY : NAN;
        require(quire_sampler_next(sampler, logits, &token) == QUIRE_OK && token == 5, "not chosen",
                "5");
        quire_sampler_free(sampler);
    }
    free(logits);
}

/* Temperatures that logits cannot be divided by choose as 0 does, also behind a penalty. */
static void check_small_temperatures(const quire_model *model, int32_t n_vocab) {
    static const float TEMPS[] = {1e-45f, 1e-39f, 1e-38f, 1e-37f, 1e-30f, 1e-20f};
    float *logits = malloc((size_t)n_vocab * sizeof *logits);
    require(logits != NULL, "no memory", "small temperatures");
    for (int32_t i = 0; i < n_vocab; i++)
        logits[i] = (float)(i % 50) - 1000;
    for (int sign = -1; sign <= 1; sign += 2) {
        logits[77] = (float)sign * 900;
        for (size_t i = 0; i < 2 * sizeof TEMPS / sizeof TEMPS[0]; i++) {
            quire_sampler_options options;
            quire_sampler *sampler;
            int32_t token;
            quire_sampler_options_default(&options);
            options.temp = TEMPS[i / 2];
            options.top_k = 0;
            options.top_p = 1;
            options.min_p = 0;
            options.presence_penalty = i % 2 ? 0.5f : 0;
            require(quire_sampler_create(&sampler, model, &options) == QUIRE_OK, "no sampler", "");
            require(quire_sampler_next(sampler, logits, &token) == QUIRE_OK && token == 77,
                    "a small temperature does not choose the likeliest", "77");
            quire_sampler_free(sampler);
        }
    }
    free(logits);
}

int main(int argc, char **argv) {
    quire_model *model;
    if (argc != 2)
        return 2;
    require(quire_model_load(&model, argv[1], NULL) == QUIRE_OK, "load", argv[1]);
    struct llama_model_params params = llama_model_default_params();
    params.vocab_only = true;
    struct llama_model *other = llama_model_load_from_file(argv[1], params);
    const struct llama_vocab *vocab = llama_model_get_vocab(other);
    quire_model_info info;
    quire_model_get_info(model, &info);
    check_refusals(model);
    check_logits(model, info.n_vocab);
    check_small_temperatures(model, info.n_vocab);
    int32_t prompt[PROMPT], ours[STEPS], theirs[STEPS], plain[STEPS];
    for (int i = 0; i < PROMPT; i++)
        prompt[i] = (7 + 40 * (i % 5)) % info.n_vocab;
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        const sampling_case *c = &CASES[i];
        run_ours(model, info.n_vocab, c, prompt, ours);
        run_reference(vocab, info.n_vocab, c, false, prompt, theirs);
        run_reference(vocab, info.n_vocab, c, true, prompt, plain);
        require(memcmp(ours, theirs, sizeof ours) == 0, "not libllama's tokens", c->name);
        require((memcmp(ours, plain, sizeof ours) != 0) == c->changes,
                "its effect is not as expected", c->name);
    }
    printf("%zu cases\n", sizeof CASES / sizeof CASES[0]);
    llama_model_free(other);
    quire_model_free(model);
    return 0;
}
