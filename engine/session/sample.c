/* sample.c: logits -> token, through libllama's samplers. */
#include "model/ggml_log.h"
#include "model/model.h"

#include <llama.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Logits divided by much less than this become infinite, and infinite ones cannot be told apart.
 * Far above it already, other tokens than the likeliest are never drawn. */
static const float TEMP_LEAST = 1e-30f;
enum { LAST_N_MAX = 1 << 24, BREAKER_BYTES = 40 /* libllama would cut longer ones */ };

struct quire_sampler {
    int32_t n_vocab;
    int32_t n_offered;             /* of them: a grammar knows only those that have a text */
    int32_t n_seen;                /* tokens of a prompt that `history` looks back at, at most */
    struct llama_sampler *bias;    /* NULL: none */
    struct llama_sampler *grammar; /* NULL: none */
    struct llama_sampler *history; /* NULL: neither penalties nor DRY */
    struct llama_sampler *chain;   /* NULL: the likeliest token, and no candidates */
    llama_token_data *candidates;  /* (n_vocab) */
};

/* ------------------------------------------------------------------ options */

static const char *const BREAKERS[] = {"\n", ":", "\"", "*"};

void quire_sampler_options_default(quire_sampler_options *options) {
    if (options)
        *options = (quire_sampler_options){.struct_size = sizeof *options,
                                           .temp = 0.8f,
                                           .top_k = 40,
                                           .top_p = 0.95f,
                                           .min_p = 0.05f,
                                           .seed = 1,
                                           .penalty_last_n = 64,
                                           .repeat_penalty = 1,
                                           .dry_base = 1.75f,
                                           .dry_allowed_length = 2,
                                           .dry_last_n = 64,
                                           .dry_breakers = BREAKERS,
                                           .n_dry_breakers = sizeof BREAKERS / sizeof BREAKERS[0]};
}

static bool is_greedy(const quire_sampler_options *o) { return o->temp < TEMP_LEAST; }

static bool has_penalties(const quire_sampler_options *o) {
    return o->penalty_last_n > 0 &&
           (o->repeat_penalty != 1 || o->frequency_penalty != 0 || o->presence_penalty != 0);
}

static bool has_dry(const quire_sampler_options *o) {
    return o->dry_multiplier > 0 && o->dry_last_n > 0;
}

static quire_status check_breakers(const quire_sampler_options *o) {
    if (o->n_dry_breakers > 0 && !o->dry_breakers)
        return quire__fail(QUIRE_E_INVALID, "dry_breakers is NULL");
    for (size_t i = 0; i < o->n_dry_breakers; i++) {
        const char *text = o->dry_breakers[i];
        const size_t n = text ? strlen(text) : 0;
        if (n == 0 || n > BREAKER_BYTES)
            return quire__fail(QUIRE_E_INVALID,
                               "DRY sequence breaker %zu has %zu bytes, not 1 to %d", i, n,
                               (int)BREAKER_BYTES);
        if (quire__text_beyond_unicode(text, n))
            return quire__fail(QUIRE_E_INVALID, "DRY sequence breaker %zu is not UTF-8", i);
    }
    return QUIRE_OK;
}

static quire_status check_bias(const quire_sampler_options *o, int32_t n_vocab) {
    if (o->n_bias > 0 && !o->bias)
        return quire__fail(QUIRE_E_INVALID, "bias is NULL");
    if (o->n_bias > INT32_MAX)
        return quire__fail(QUIRE_E_INVALID, "n_bias is %zu, more than %d", o->n_bias, INT32_MAX);
    for (size_t i = 0; i < o->n_bias; i++) {
        if (o->bias[i].token < 0 || o->bias[i].token >= n_vocab)
            return quire__fail(QUIRE_E_INVALID, "bias %zu is for token %d, outside of 0 to %d", i,
                               (int)o->bias[i].token, (int)n_vocab - 1);
        if (!(o->bias[i].bias < INFINITY)) /* nor NaN */
            return quire__fail(QUIRE_E_INVALID, "bias %zu is %g; it must be finite or -infinity", i,
                               o->bias[i].bias);
    }
    return QUIRE_OK;
}

static quire_status check(const quire_sampler_options *o, int32_t n_vocab) {
    const struct {
        const char *name;
        double value, min, max;
    } limits[] = {
        {"temp", o->temp, 0, INFINITY},
        {"top_k", o->top_k, 0, INFINITY},
        {"top_p", o->top_p, 0, 1},
        {"min_p", o->min_p, 0, 1},
        {"penalty_last_n", o->penalty_last_n, 0, LAST_N_MAX},
        {"repeat_penalty", o->repeat_penalty, 0, INFINITY},
        {"frequency_penalty", o->frequency_penalty, -INFINITY, INFINITY},
        {"presence_penalty", o->presence_penalty, -INFINITY, INFINITY},
        {"dry_multiplier", o->dry_multiplier, 0, INFINITY},
        {"dry_base", o->dry_base, 1, INFINITY},
        {"dry_allowed_length", o->dry_allowed_length, 0, INFINITY},
        {"dry_last_n", o->dry_last_n, 0, LAST_N_MAX},
    };
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++)
        if (!isfinite(limits[i].value) || limits[i].value < limits[i].min ||
            limits[i].value > limits[i].max)
            return quire__fail(QUIRE_E_INVALID, "%s is %g, outside of %g to %g", limits[i].name,
                               limits[i].value, limits[i].min, limits[i].max);
    if (o->repeat_penalty == 0)
        return quire__fail(QUIRE_E_INVALID, "repeat_penalty is 0; it must be larger (1: off)");
    QUIRE_TRY(check_bias(o, n_vocab));
    return check_breakers(o);
}

/* ------------------------------------------------------------------ samplers */

static quire_status no_memory(void) { return quire__fail(QUIRE_E_NOMEM, "out of memory"); }

static quire_status add(struct llama_sampler *chain, struct llama_sampler *link) {
    if (!link)
        return no_memory();
    llama_sampler_chain_add(chain, link);
    return QUIRE_OK;
}

static quire_status add_bias(quire_sampler *sampler, const quire_sampler_options *o) {
    llama_logit_bias *list = malloc(o->n_bias * sizeof *list);
    if (!list)
        return no_memory();
    for (size_t i = 0; i < o->n_bias; i++)
        list[i] = (llama_logit_bias){.token = o->bias[i].token, .bias = o->bias[i].bias};
    sampler->bias = llama_sampler_init_logit_bias(sampler->n_vocab, (int32_t)o->n_bias, list);
    free(list);
    return sampler->bias ? QUIRE_OK : no_memory();
}

static quire_status add_grammar(quire_sampler *sampler, const quire_model *model,
                                const char *grammar) {
    const struct llama_vocab *vocab = llama_model_get_vocab(model->vocab);
    if (!*grammar) /* libllama would take it for none */
        return quire__fail(QUIRE_E_INVALID, "the grammar is empty");
    const int32_t n_known = llama_vocab_n_tokens(vocab);
    sampler->n_offered = n_known < sampler->n_offered ? n_known : sampler->n_offered;
    quire__ggml_log_clear();
    sampler->grammar = llama_sampler_init_grammar(vocab, grammar, "root");
    return sampler->grammar ? QUIRE_OK
                            : quire__fail(QUIRE_E_INVALID, "the grammar cannot be read: %s",
                                          quire__ggml_log_last());
}

/* What looks back at the text so far. Of its own, since a grammar must not see the prompt. */
static quire_status add_history(quire_sampler *sampler, const quire_model *model,
                                const quire_sampler_options *o) {
    sampler->history = llama_sampler_chain_init(llama_sampler_chain_default_params());
    if (!sampler->history)
        return no_memory();
    if (has_penalties(o)) {
        sampler->n_seen = o->penalty_last_n;
        QUIRE_TRY(add(sampler->history, llama_sampler_init_penalties(
                                            sampler->n_vocab, o->penalty_last_n, o->repeat_penalty,
                                            o->frequency_penalty, o->presence_penalty)));
    }
    if (!has_dry(o))
        return QUIRE_OK;
    sampler->n_seen = o->dry_last_n > sampler->n_seen ? o->dry_last_n : sampler->n_seen;
    const char *none[1] = {NULL}, **breakers = none;
    if (o->n_dry_breakers > 0) {
        breakers = malloc(o->n_dry_breakers * sizeof *breakers);
        if (!breakers)
            return no_memory();
        memcpy(breakers, o->dry_breakers, o->n_dry_breakers * sizeof *breakers);
    }
    struct llama_sampler *dry =
        llama_sampler_init_dry(llama_model_get_vocab(model->vocab), o->dry_multiplier, o->dry_base,
                               o->dry_allowed_length, o->dry_last_n, breakers, o->n_dry_breakers);
    if (breakers != none)
        free(breakers);
    return add(sampler->history, dry);
}

/* Fewer candidates, then how sharply they differ, then the draw. */
static quire_status add_draw(struct llama_sampler *chain, const quire_sampler_options *o) {
    if (is_greedy(o))
        return add(chain, llama_sampler_init_greedy());
    if (o->top_k > 0)
        QUIRE_TRY(add(chain, llama_sampler_init_top_k(o->top_k)));
    if (o->top_p < 1)
        QUIRE_TRY(add(chain, llama_sampler_init_top_p(o->top_p, 1)));
    if (o->min_p > 0)
        QUIRE_TRY(add(chain, llama_sampler_init_min_p(o->min_p, 1)));
    QUIRE_TRY(add(chain, llama_sampler_init_temp(o->temp)));
    return add(chain, llama_sampler_init_dist(o->seed));
}

static quire_status build(quire_sampler *sampler, const quire_model *model,
                          const quire_sampler_options *o) {
    const bool looks_back = has_penalties(o) || has_dry(o);
    if (is_greedy(o) && !o->grammar && !looks_back && o->n_bias == 0)
        return QUIRE_OK;
    sampler->chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
    sampler->candidates = malloc((size_t)sampler->n_vocab * sizeof *sampler->candidates);
    if (!sampler->chain || !sampler->candidates)
        return no_memory();
    if (o->n_bias > 0)
        QUIRE_TRY(add_bias(sampler, o));
    if (o->grammar)
        QUIRE_TRY(add_grammar(sampler, model, o->grammar));
    if (looks_back)
        QUIRE_TRY(add_history(sampler, model, o));
    return add_draw(sampler->chain, o);
}

quire_status quire_sampler_create(quire_sampler **result, const quire_model *model,
                                  const quire_sampler_options *options) {
    if (!result || !model || !options || options->struct_size != sizeof *options)
        return quire__fail(QUIRE_E_INVALID,
                           "sampler, model or options is NULL or not set by its default function");
    *result = NULL;
    QUIRE_TRY(check(options, model->n_vocab));
    quire_sampler *sampler = calloc(1, sizeof *sampler);
    if (!sampler)
        return no_memory();
    sampler->n_vocab = sampler->n_offered = model->n_vocab;
    const quire_status status = build(sampler, model, options);
    if (status != QUIRE_OK) {
        quire_sampler_free(sampler);
        return status;
    }
    *result = sampler;
    return QUIRE_OK;
}

void quire_sampler_free(quire_sampler *sampler) {
    if (!sampler)
        return;
    struct llama_sampler *parts[] = {sampler->bias, sampler->grammar, sampler->history,
                                     sampler->chain};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (parts[i])
            llama_sampler_free(parts[i]);
    free(sampler->candidates);
    free(sampler);
}

/* ------------------------------------------------------------------ choosing */

void quire_sampler_begin(quire_sampler *sampler, const int32_t *tokens, int32_t n_tokens) {
    if (!sampler->history)
        return;
    llama_sampler_reset(sampler->history);
    for (int32_t i = n_tokens > sampler->n_seen ? n_tokens - sampler->n_seen : 0; i < n_tokens; i++)
        llama_sampler_accept(sampler->history, tokens[i]);
}

/* -1: none of them is a number above -infinity. */
static int32_t likeliest(const float *logits, int32_t n) {
    int32_t best = -1;
    float most = -INFINITY;
    for (int32_t i = 0; i < n; i++)
        if (logits[i] > most) {
            best = i;
            most = logits[i];
        }
    return best;
}

static quire_status no_choice(void) {
    return quire__fail(QUIRE_E_VALUE, "no token could be chosen: none has a logit that is a number "
                                      "and is allowed by the grammar, if there is one");
}

quire_status quire_sampler_next(quire_sampler *sampler, const float *logits, int32_t *token) {
    if (!logits || !token)
        return quire__fail(QUIRE_E_INVALID, "logits or token is NULL");
    if (!sampler->chain) {
        const int32_t best = likeliest(logits, sampler->n_vocab);
        if (best < 0)
            return no_choice();
        *token = best;
        return QUIRE_OK;
    }
    for (int32_t i = 0; i < sampler->n_offered; i++)
        sampler->candidates[i] = (llama_token_data){.id = i, .logit = logits[i]};
    llama_token_data_array array = {.data = sampler->candidates,
                                    .size = (size_t)sampler->n_offered,
                                    .selected = -1,
                                    .sorted = false};
    if (sampler->bias)
        llama_sampler_apply(sampler->bias, &array);
    if (sampler->grammar)
        llama_sampler_apply(sampler->grammar, &array);
    if (sampler->history)
        llama_sampler_apply(sampler->history, &array);
    llama_sampler_apply(sampler->chain, &array);
    /* What a grammar forbids has a logit of -infinity; accepting it all the same would end the
     * process. */
    if (array.selected < 0 || (size_t)array.selected >= array.size ||
        !(array.data[array.selected].logit > -INFINITY))
        return no_choice();
    *token = array.data[array.selected].id;
    if (sampler->grammar)
        llama_sampler_accept(sampler->grammar, *token);
    if (sampler->history)
        llama_sampler_accept(sampler->history, *token);
    llama_sampler_accept(sampler->chain, *token);
    return QUIRE_OK;
}
