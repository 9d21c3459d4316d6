/* emit.c: from logits to a token, its text, and an event for the reader. */
#include "base/piece.h"
#include "sched/lane.h"

#include <stdlib.h>

static void fill_logprob(const quire_model *model, int32_t token, float logprob,
                         srv_token_logprob *out) {
    out->token = token;
    out->logprob = logprob;
    if (quire_model_piece(model, token, out->bytes, sizeof out->bytes, &out->n_bytes) != QUIRE_OK)
        out->n_bytes = 0; /* too long a text is left out: n_bytes is what it would need */
}

/* The likeliest tokens, by insertion: n_top is at most 20. */
static void find_top(const float *logits, int32_t n_vocab, int32_t *top, int32_t n_top) {
    int32_t n = 0;
    for (int32_t t = 0; t < n_vocab; t++) {
        if (n == n_top && logits[t] <= logits[top[n - 1]])
            continue;
        int32_t at = n < n_top ? n++ : n - 1;
        for (; at > 0 && logits[top[at - 1]] < logits[t]; at--)
            top[at] = top[at - 1];
        top[at] = t;
    }
}

static srv_token *make_token(const srv_lane *lane, int32_t token, const float *logits,
                             int32_t n_top) {
    srv_token *made = calloc(1, sizeof *made);
    srv_token_logprob *list = calloc((size_t)n_top + 1, sizeof *list);
    if (!made || !list) {
        free(made);
        free(list);
        return NULL;
    }
    made->top = list;
    const double sum = logits[token] + quire_logits_nll(logits, lane->n_vocab, token);
    fill_logprob(lane->model, token, (float)(logits[token] - sum), &made->chosen);
    int32_t top[SRV_TOP_LOGPROBS];
    n_top = n_top < lane->n_vocab ? n_top : lane->n_vocab;
    if (n_top > 0)
        find_top(logits, lane->n_vocab, top, n_top);
    for (int32_t i = 0; i < n_top; i++)
        fill_logprob(lane->model, top[i], (float)(logits[top[i]] - sum), &list[i]);
    made->n_top = n_top;
    return made;
}

/* Takes in a token: its text, its logprobs, and whether it is the last one. False: out of memory.
 */
static bool take_token(srv_lane *lane, srv_choice *choice, int32_t token, const float *logits,
                       srv_event *event, srv_text *text) {
    srv_job *job = choice->job;
    if (job->n_logprobs >= 0) {
        event->tokens = make_token(lane, token, logits, job->n_logprobs);
        if (!event->tokens)
            return false;
        event->n_tokens = 1;
    }
    if (!job->ignore_end && quire_model_ends_text(lane->model, token)) {
        event->finish = SRV_STOP;
        srv_filter_end(&choice->filter, text);
        return true;
    }
    srv_text piece = {0};
    const bool room = srv_piece_add(lane->model, token, &piece) && srv_choice_reserve(choice, 1);
    if (room)
        srv_filter_add(&choice->filter, piece.bytes ? piece.bytes : "", piece.n, text);
    srv_text_free(&piece);
    if (!room)
        return false;
    choice->text[choice->n_text++] = token;
    const int32_t n_generated = choice->n_text - job->n_prompt;
    if (choice->filter.stopped)
        event->finish = SRV_STOP;
    else if ((job->max_tokens > 0 && n_generated >= job->max_tokens) ||
             choice->n_text >= lane->context) {
        event->finish = SRV_LENGTH;
        srv_filter_end(&choice->filter, text);
    }
    return true;
}

static void count_token(srv_lane *lane, srv_job *job) {
    lane->counts.generated_tokens++;
    pthread_mutex_lock(&job->lock);
    job->usage.completion_tokens++;
    job->usage.decode_seconds = srv_monotonic() - job->prompted;
    pthread_mutex_unlock(&job->lock);
}

void srv_choice_send(srv_lane *lane, srv_choice *choice, srv_event *event, srv_text *text,
                     bool retain) {
    const size_t n_text = text->n;
    char *bytes = srv_text_take(text);
    if (!event || !bytes) {
        free(bytes);
        srv_event_free(event);
        srv_job_fail(choice->job, SRV_FAILED, "out of memory");
        return;
    }
    event->choice = choice->index;
    event->text = bytes;
    event->n_text = n_text;
    const srv_finish how = event->finish;
    if (how != SRV_RUNNING)
        srv_choice_end(lane, choice, retain);
    if (how == SRV_RUNNING && event->n_text == 0 && event->n_tokens == 0)
        srv_event_free(event);
    else
        srv_job_send(choice->job, event);
}

void srv_choice_emit(srv_lane *lane, srv_choice *choice, const float *logits) {
    srv_job *job = choice->job;
    int32_t token;
    if (!choice->is_asked) {
        quire_sampler_begin(choice->sampler, choice->text, choice->n_text);
        choice->is_asked = true;
    }
    if (quire_sampler_next(choice->sampler, logits, &token) != QUIRE_OK) {
        srv_job_fail(job, SRV_FAILED, quire_last_error());
        return;
    }
    choice->is_decoding = true;
    count_token(lane, job);
    srv_text text = {0};
    srv_event *event = calloc(1, sizeof *event);
    if (event && !take_token(lane, choice, token, logits, event, &text)) {
        srv_event_free(event);
        event = NULL;
    }
    srv_choice_send(lane, choice, event, &text, true);
}
