/* generate.c: prompt in, text out, for one sequence. */
#include "model/model.h"
#include "session/clock.h"
#include "session/lookup_draft.h"
#include "session/session.h"

#include <stdlib.h>
#include <string.h>

enum { DRAFT_MAX = QUIRE_PAGE_TOKENS - 1, PIECE_BYTES = 512 };

void quire_generate_options_default(quire_generate_options *options) {
    if (options)
        *options = (quire_generate_options){.struct_size = sizeof *options, .max_tokens = 128};
}

typedef struct generation {
    quire_session *session;
    quire_seq *seq;
    quire_sampler *sampler;
    const quire_generate_options *options;
    quire_generate_result *result;
    int32_t *text; /* the prompt and what was generated: what drafts are looked up in */
    int32_t n_text;
    bool done;
} generation;

static bool ends(const generation *gen, int32_t token) {
    return !gen->options->ignore_end &&
           quire_model_ends_text(quire_session_model(gen->session), token);
}

/* Takes note of a token and tells the caller. */
static quire_status emit(generation *gen, int32_t token) {
    const quire_model *model = quire_session_model(gen->session);
    char bytes[PIECE_BYTES];
    size_t n_bytes = 0;
    QUIRE_TRY(quire_model_piece(model, token, bytes, sizeof bytes, &n_bytes));
    gen->text[gen->n_text++] = token;
    gen->result->n_generated++;
    if (ends(gen, token))
        gen->result->ended = gen->done = true;
    if (gen->result->n_generated >= gen->options->max_tokens)
        gen->done = true;
    if (gen->options->on_token &&
        !gen->options->on_token(gen->options->user, token, bytes, n_bytes))
        gen->done = true;
    return QUIRE_OK;
}

static int32_t smaller(int32_t a, int32_t b) { return a < b ? a : b; }

/* How many tokens after the next one may be guessed: not beyond the context, nor what was asked
 * for, nor what the caller could stop before. */
static int32_t draft_room(const generation *gen) {
    int32_t room = smaller(gen->options->draft, DRAFT_MAX);
    if (gen->options->on_token)
        room = smaller(room, quire__session_exact_rows(gen->session, gen->seq) - 1);
    room = smaller(room, quire_session_context(gen->session) - quire_seq_length(gen->seq) - 1);
    return smaller(room, gen->options->max_tokens - gen->result->n_generated - 1);
}

/* Tokens for the rows of an open step, as long as they are those that were guessed. On failure
 * those before it count. */
static quire_status choose(generation *gen, const int32_t *rows, int32_t n_rows, int32_t *chosen,
                           int32_t *n_chosen) {
    *n_chosen = 0;
    for (bool right = true; right;) {
        int32_t token;
        QUIRE_TRY(quire_sampler_next(gen->sampler, quire_session_logits(gen->session, *n_chosen),
                                     &token));
        chosen[(*n_chosen)++] = token;
        right = *n_chosen < n_rows && token == rows[*n_chosen];
        gen->result->n_accepted += right;
        right = right && !ends(gen, token);
    }
    return QUIRE_OK;
}

/* The last token of the text goes in, with guesses after it; out come as many tokens as were
 * guessed right, and one. The caller hears of them once they are in the cache. If it stops before
 * the last one, the rest is taken back. */
static quire_status step(generation *gen) {
    int32_t rows[DRAFT_MAX + 1] = {gen->text[gen->n_text - 1]}, chosen[DRAFT_MAX + 1], n_chosen,
                             n_told = 0;
    const int32_t room = draft_room(gen);
    const int32_t n_rows =
        1 + (room > 0 ? quire__draft_lookup(gen->text, gen->n_text, rows + 1, room) : 0);
    const quire_step_item item = {
        .seq = gen->seq, .tokens = rows, .n_tokens = n_rows, .n_logits = n_rows};
    QUIRE_TRY(quire_session_eval(gen->session, &item, 1, gen->options->exact));
    gen->result->n_drafted += n_rows - 1;
    const quire_status choice = choose(gen, rows, n_rows, chosen, &n_chosen);
    quire_status status = n_chosen > 0 ? quire_session_commit(gen->session, &n_chosen) : choice;
    if (status != QUIRE_OK) {
        quire_session_abort(gen->session);
        return status;
    }
    while (status == QUIRE_OK && n_told < n_chosen && !gen->done)
        status = emit(gen, chosen[n_told++]);
    if (n_told < n_chosen) {
        const quire_status cut =
            quire_seq_trim(gen->seq, quire_seq_length(gen->seq) - (n_chosen - n_told));
        status = status == QUIRE_OK ? cut : status;
    }
    return status == QUIRE_OK ? choice : status;
}

static quire_status prefill(generation *gen, const int32_t *prompt, int32_t n_prompt) {
    const double start = quire__seconds();
    const quire_status status = quire_session_prefill(gen->session, gen->seq, prompt, n_prompt,
                                                      gen->options->on_prefill, gen->options->user);
    gen->result->prefill_seconds = quire__seconds() - start;
    if (status == QUIRE_OK)
        gen->result->n_prompt = n_prompt;
    return status;
}

/* What is left of the prompt, and the first token after it. */
static quire_status start_text(generation *gen, const int32_t *prompt, int32_t n_prompt) {
    if (n_prompt > 0)
        QUIRE_TRY(prefill(gen, prompt, n_prompt));
    if (gen->options->max_tokens == 0)
        return QUIRE_OK;
    int32_t first;
    QUIRE_TRY(quire_sampler_next(gen->sampler, quire_session_logits(gen->session, 0), &first));
    return emit(gen, first);
}

static quire_status generate(generation *gen, const int32_t *prompt, int32_t n_prompt) {
    const int32_t n_cached = gen->options->n_cached;
    gen->done = gen->options->max_tokens == 0;
    quire_sampler_begin(gen->sampler, prompt, n_prompt);
    quire_status status = QUIRE_OK;
    if (gen->options->resume && ends(gen, prompt[n_prompt - 1]))
        gen->result->ended = gen->done = true;
    if (!gen->options->resume)
        status = start_text(gen, prompt + n_cached, n_prompt - n_cached);
    const int32_t n_first = gen->result->n_generated;
    const double start = quire__seconds();
    while (status == QUIRE_OK && !gen->done &&
           quire_seq_length(gen->seq) < quire_session_context(gen->session))
        status = step(gen);
    gen->result->decode_seconds = quire__seconds() - start;
    gen->result->n_decoded = gen->result->n_generated - n_first;
    return status;
}

quire_status quire_generate(quire_session *session, quire_seq *seq, quire_sampler *sampler,
                            const int32_t *prompt, int32_t n_prompt,
                            const quire_generate_options *options, quire_generate_result *result) {
    if (!session || !seq || !sampler || !prompt || n_prompt < 1 || !options || !result)
        return quire__fail(QUIRE_E_INVALID, "an argument is NULL or the prompt is empty");
    if (options->struct_size != sizeof *options || options->max_tokens < 0 || options->draft < 0)
        return quire__fail(
            QUIRE_E_INVALID,
            "options were not set by quire_generate_options_default, or are negative");
    if (options->n_cached < 0 || options->n_cached > n_prompt ||
        options->n_cached > quire_seq_length(seq))
        return quire__fail(QUIRE_E_INVALID, "%d of %d prompt tokens cannot be in a sequence of %d",
                           (int)options->n_cached, (int)n_prompt, (int)quire_seq_length(seq));
    if (options->n_cached == n_prompt && !quire_session_logits(session, 0))
        return quire__fail(QUIRE_E_INVALID,
                           "all of the prompt is cached, but the last step has no logits");
    if (options->resume && n_prompt - options->n_cached != 1)
        return quire__fail(QUIRE_E_INVALID, "one token is resumed from, not %d",
                           (int)(n_prompt - options->n_cached));
    *result = (quire_generate_result){0};
    const int32_t room = smaller(options->max_tokens, quire_session_context(session));
    generation gen = {
        .session = session, .seq = seq, .sampler = sampler, .options = options, .result = result};
    gen.text = malloc(((size_t)n_prompt + (size_t)room + DRAFT_MAX + 2) * sizeof *gen.text);
    if (!gen.text)
        return quire__fail(QUIRE_E_NOMEM, "out of memory");
    memcpy(gen.text, prompt, (size_t)n_prompt * sizeof *gen.text);
    gen.n_text = n_prompt;
    const quire_status status = generate(&gen, prompt, n_prompt);
    free(gen.text);
    return status;
}
