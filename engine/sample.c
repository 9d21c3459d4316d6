/* sample.c: logits -> token, through libllama's samplers. */
#include "model.h"
#include "quiet.h"

#include <llama.h>
#include <math.h>
#include <stdlib.h>

struct quire_sampler {
    int32_t n_vocab;
    int32_t n_offered;            /* of them: a grammar knows only those that have a text */
    struct llama_sampler *chain;  /* NULL: the likeliest token */
    llama_token_data *candidates; /* (n_vocab), with a chain alone */
};

void quire_sampler_options_default(quire_sampler_options *options) {
    if (options)
        *options = (quire_sampler_options){
            .struct_size = sizeof *options, .temp = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f, .seed = 1};
}

static quire_status add(quire_sampler *sampler, struct llama_sampler *link) {
    if (!link)
        return quire__fail(QUIRE_E_NOMEM, "out of memory");
    llama_sampler_chain_add(sampler->chain, link);
    return QUIRE_OK;
}

static quire_status add_grammar(quire_sampler *sampler, const quire_model *model, const char *grammar) {
    const struct llama_vocab *vocab = llama_model_get_vocab(model->vocab);
    if (!*grammar) /* libllama would take it for none */
        return quire__fail(QUIRE_E_INVALID, "the grammar is empty");
    const int32_t n_known = llama_vocab_n_tokens(vocab);
    sampler->n_offered = n_known < sampler->n_offered ? n_known : sampler->n_offered;
    quire__quiet_clear();
    struct llama_sampler *link = llama_sampler_init_grammar(vocab, grammar, "root");
    if (!link)
        return quire__fail(QUIRE_E_INVALID, "the grammar cannot be read: %s", quire__quiet_last());
    llama_sampler_chain_add(sampler->chain, link);
    return QUIRE_OK;
}

/* The usual order: what may come at all, then fewer, then how sharply, then the draw. */
static quire_status build_chain(quire_sampler *sampler, const quire_model *model, const quire_sampler_options *o) {
    sampler->chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
    sampler->candidates = malloc((size_t)sampler->n_vocab * sizeof *sampler->candidates);
    if (!sampler->chain || !sampler->candidates)
        return quire__fail(QUIRE_E_NOMEM, "out of memory");
    if (o->grammar)
        QUIRE_TRY(add_grammar(sampler, model, o->grammar));
    if (o->temp <= 0)
        return add(sampler, llama_sampler_init_greedy());
    if (o->top_k > 0)
        QUIRE_TRY(add(sampler, llama_sampler_init_top_k(o->top_k)));
    if (o->top_p < 1)
        QUIRE_TRY(add(sampler, llama_sampler_init_top_p(o->top_p, 1)));
    if (o->min_p > 0)
        QUIRE_TRY(add(sampler, llama_sampler_init_min_p(o->min_p, 1)));
    QUIRE_TRY(add(sampler, llama_sampler_init_temp(o->temp)));
    return add(sampler, llama_sampler_init_dist(o->seed));
}

quire_status quire_sampler_create(quire_sampler **result, const quire_model *model,
                                  const quire_sampler_options *options) {
    if (!result || !model || !options || options->struct_size != sizeof *options)
        return quire__fail(QUIRE_E_INVALID, "sampler, model or options is NULL or not set by its default function");
    *result = NULL;
    quire_sampler *sampler = calloc(1, sizeof *sampler);
    if (!sampler)
        return quire__fail(QUIRE_E_NOMEM, "out of memory");
    sampler->n_vocab = sampler->n_offered = model->n_vocab;
    quire_status status = QUIRE_OK;
    if (options->temp > 0 || options->grammar)
        status = build_chain(sampler, model, options);
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
    if (sampler->chain)
        llama_sampler_free(sampler->chain);
    free(sampler->candidates);
    free(sampler);
}

static int32_t likeliest(const float *logits, int32_t n) {
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        best = logits[i] > logits[best] ? i : best;
    return best;
}

quire_status quire_sampler_next(quire_sampler *sampler, const float *logits, int32_t *token) {
    if (!logits || !token)
        return quire__fail(QUIRE_E_INVALID, "logits or token is NULL");
    if (!sampler->chain) {
        *token = likeliest(logits, sampler->n_vocab);
        return QUIRE_OK;
    }
    for (int32_t i = 0; i < sampler->n_offered; i++)
        sampler->candidates[i] = (llama_token_data){.id = i, .logit = logits[i]};
    llama_token_data_array array = {
        .data = sampler->candidates, .size = (size_t)sampler->n_offered, .selected = -1, .sorted = false};
    llama_sampler_apply(sampler->chain, &array);
    /* What a grammar forbids has a logit of -infinity; accepting it all the same would end the process. */
    if (array.selected < 0 || (size_t)array.selected >= array.size || !(array.data[array.selected].logit > -INFINITY))
        return quire__fail(QUIRE_E_VALUE, "no token could be chosen: none is allowed by the grammar, if there is one");
    *token = array.data[array.selected].id;
    llama_sampler_accept(sampler->chain, *token);
    return QUIRE_OK;
}
