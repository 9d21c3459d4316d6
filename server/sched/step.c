/* step.c: one step of a lane. Every text that is being generated is a row; the rest of the step is
 * prefill, in order of arrival, but short prompts do not wait for a long one. */
#include "sched/lane.h"

#include <stdlib.h>

enum { PAGE = QUIRE_PAGE_TOKENS };

static int32_t n_left(const srv_choice *choice) {
    return choice->n_text - quire_seq_length(choice->seq);
}

/* ------------------------------------------------------------------ which rows */

static void add_item(srv_lane *lane, srv_choice *choice, int32_t n_rows) {
    lane->rows[lane->n_items] = choice;
    lane->items[lane->n_items++] =
        (quire_step_item){.seq = choice->seq,
                          .tokens = choice->text + quire_seq_length(choice->seq),
                          .n_tokens = n_rows,
                          .n_logits = n_rows == n_left(choice)};
}

/* The next choice that is to be computed, in order of arrival. */
static srv_choice *next_computing(const srv_lane *lane, srv_walk *walk) {
    srv_choice *choice;
    while ((choice = srv_lane_next(lane, walk)))
        if (choice->state == SRV_COMPUTING && choice->seq)
            return choice;
    return NULL;
}

static void add_single_rows(srv_lane *lane) {
    srv_walk walk = {0};
    for (srv_choice *choice; (choice = next_computing(lane, &walk));)
        if (n_left(choice) == 1)
            add_item(lane, choice, 1);
}

static bool is_in_step(const srv_lane *lane, const srv_choice *choice) {
    for (int32_t i = 0; i < lane->n_items; i++)
        if (lane->rows[i] == choice)
            return true;
    return false;
}

/* The prompt that came first, or the shortest (fewest rows left) of those with at most `most` rows
 * left. NULL: none that is not in the step already. */
static srv_choice *find_prefill(const srv_lane *lane, bool shortest, int32_t most) {
    srv_choice *best = NULL;
    srv_walk walk = {0};
    for (srv_choice *choice; (choice = next_computing(lane, &walk));) {
        const int32_t left = n_left(choice);
        if (left == 1 || left > most || is_in_step(lane, choice))
            continue;
        if (!shortest)
            return choice;
        if (!best || left < n_left(best))
            best = choice;
    }
    return best;
}

/* As many rows as there is room for; a part of a prompt ends with a page if it can. */
static int32_t prefill_rows(const srv_choice *choice, int32_t room) {
    const int32_t left = n_left(choice), end = quire_seq_length(choice->seq) + room;
    if (left <= room)
        return left;
    return end % PAGE < room ? room - end % PAGE : room;
}

/* Adds prompts until `room` rows are used; returns how many were. */
static int32_t fill_rows(srv_lane *lane, int32_t room, bool shortest, int32_t most) {
    const int32_t before = room;
    for (srv_choice *next; room > 0 && (next = find_prefill(lane, shortest, most));) {
        const int32_t n_rows = prefill_rows(next, room);
        add_item(lane, next, n_rows);
        room -= n_rows;
    }
    return before - room;
}

/* Prompts are computed in the order of their arrival, one after the other: if all of them shared
 * each step, all would be late. But a prompt with at most half as many rows left as the first one
 * does not wait for it. Such prompts get up to half of the step, the shortest first, so that the
 * first one still goes on. */
static int32_t add_prefill(srv_lane *lane) {
    const srv_choice *first = find_prefill(lane, false, INT32_MAX);
    if (!first)
        return 0;
    const int32_t n_short = fill_rows(lane, lane->prefill_rows / 2, true, n_left(first) / 2);
    return n_short + fill_rows(lane, lane->prefill_rows - n_short, false, INT32_MAX);
}

/* ------------------------------------------------------------------ computing them */

/* Whether a step that added n_rows has left pages for the store. A prompt is put once, at its end,
 * but pages leave a sliding window with its tokens: then after every step. An answer is put as its
 * pages fill. */
static bool has_pages_to_put(const srv_lane *lane, const srv_choice *choice, int32_t n_rows) {
    const int32_t length = quire_seq_length(choice->seq);
    if (!choice->is_decoding)
        return length == choice->n_text || lane->window > 0;
    return length / PAGE > (length - n_rows) / PAGE;
}

/* Pages with rows of steps that were not exact stay out: a cold prompt might give others. */
static void put_pages(srv_lane *lane, srv_choice *choice) {
    if (!lane->store || choice->n_exact < quire_seq_length(choice->seq))
        return;
    const quire_prompt_options options = srv_prompt_options(lane, choice);
    quire_prompt_result result = {.is_shareable = true};
    if (quire_session_put(lane->session, choice->seq, choice->text, quire_seq_length(choice->seq),
                          &options, &result) != QUIRE_OK)
        lane->counts.store_errors++;
}

/* The prompt of a job is computed: all its choices continue it. */
static void fork_choices(srv_lane *lane, srv_job *job, const float *logits) {
    srv_choice *first = &job->choices[0];
    job->is_prompted = true;
    job->prompted = srv_monotonic();
    pthread_mutex_lock(&job->lock);
    job->usage.prefill_seconds = job->prompted - job->started;
    pthread_mutex_unlock(&job->lock);
    quire_seq *copy;
    if (lane->window > 0 && lane->max_prefixes > 0 && quire_seq_fork(first->seq, &copy) == QUIRE_OK)
        srv_prefix_add(lane, copy, first);
    for (int32_t c = 1; c < job->n_choices; c++) {
        srv_choice *choice = &job->choices[c];
        choice->n_exact = first->n_exact;
        choice->state = SRV_COMPUTING;
        if (quire_seq_fork(first->seq, &choice->seq) != QUIRE_OK &&
            (!srv_prefix_evict(lane) || quire_seq_fork(first->seq, &choice->seq) != QUIRE_OK)) {
            srv_job_fail(job, SRV_FAILED, quire_last_error());
            return;
        }
    }
    for (int32_t c = 0; c < job->n_choices; c++)
        if (job->choices[c].state != SRV_FINISHED)
            srv_choice_emit(lane, &job->choices[c], logits);
}

/* Item i was computed; its logits, if it asked for them, are in the given row. */
static void after_item(srv_lane *lane, int32_t i, bool exact, int32_t row) {
    srv_choice *choice = lane->rows[i];
    const quire_step_item *item = &lane->items[i];
    const int32_t length = quire_seq_length(choice->seq);
    if (exact && choice->n_exact == length - item->n_tokens)
        choice->n_exact = length;
    if (!choice->is_decoding)
        lane->counts.computed_tokens += item->n_tokens;
    if (has_pages_to_put(lane, choice, item->n_tokens))
        put_pages(lane, choice);
    if (!item->n_logits)
        return;
    const float *logits = quire_session_logits(lane->session, row);
    if (!choice->job->is_prompted)
        fork_choices(lane, choice->job, logits);
    else
        srv_choice_emit(lane, choice, logits);
}

/* Something is wrong with one of them: each alone, so that only that one fails. */
static void step_one_by_one(srv_lane *lane, bool exact) {
    for (int32_t i = 0; i < lane->n_items; i++) {
        if (lane->rows[i]->state != SRV_COMPUTING) /* its job has failed meanwhile */
            continue;
        const quire_status status = quire_session_decode(lane->session, &lane->items[i], 1, exact);
        if (status == QUIRE_E_NO_PAGES) /* the next step makes room */
            continue;
        if (status != QUIRE_OK) {
            srv_job_fail(lane->rows[i]->job, SRV_FAILED, quire_last_error());
            continue;
        }
        after_item(lane, i, exact, 0);
    }
}

/* The pool is full even for the one text that is left: it ends here. */
static void end_last(srv_lane *lane) {
    srv_choice *choice = lane->rows[0];
    if (!choice->is_decoding) {
        srv_job_fail(choice->job, SRV_FAILED, "the prompt does not fit into the cache");
        return;
    }
    srv_text text = {0};
    srv_filter_end(&choice->filter, &text); /* what might have become a stop text */
    srv_event *event = calloc(1, sizeof *event);
    if (event)
        event->finish = SRV_LENGTH;
    srv_choice_send(lane, choice, event, &text, false);
}

/* After a step that found the pool full. The rows of a step are raw until their pages are packed,
 * so a prompt that fits may still need steps of few rows. */
static void make_room(srv_lane *lane, int32_t n_prefill) {
    if (srv_prefix_evict(lane))
        return;
    if (n_prefill > PAGE && lane->prefill_rows > PAGE)
        lane->prefill_rows = PAGE;
    else if (!srv_swap_out(lane))
        end_last(lane);
}

void srv_lane_step(srv_lane *lane) {
    lane->n_items = 0;
    add_single_rows(lane);
    const int32_t n_single = lane->n_items, n_prefill = add_prefill(lane);
    if (lane->n_items == 0)
        return;
    /* Prefill is always exact, so that its pages may be shared with any later prompt. */
    const bool exact = lane->exact || n_prefill > 0;
    if (n_prefill == 0)
        lane->prefill_rows = lane->chunk;
    const double start = srv_monotonic();
    const quire_status status =
        quire_session_decode(lane->session, lane->items, (size_t)lane->n_items, exact);
    lane->counts.step_seconds += srv_monotonic() - start;
    if (status == QUIRE_E_NO_PAGES) {
        make_room(lane, n_prefill);
        return;
    }
    lane->counts.steps++;
    lane->counts.rows += n_single + n_prefill;
    if (status != QUIRE_OK) {
        step_one_by_one(lane, exact);
        return;
    }
    int32_t row = 0;
    for (int32_t i = 0; i < lane->n_items; i++) {
        if (lane->rows[i]->state == SRV_COMPUTING) /* its job may have failed meanwhile */
            after_item(lane, i, exact, row);
        row += lane->items[i].n_logits;
    }
}
