/* scheduler.c: the thread that owns the sessions, and what other threads may ask of it. */
#include "sched/lane.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RATE_SECONDS = 5 };

/* Tokens of the last seconds, one bucket per second. */
typedef struct rate {
    int64_t second[RATE_SECONDS + 1];
    int64_t count[RATE_SECONDS + 1];
} rate;

struct srv_sched {
    srv_lane *lanes; /* (n_lanes) the thread's own */
    int32_t n_lanes, max_queue, max_running;
    const quire_model *model;
    int32_t *longest; /* (n_lanes) prompts that fit */
    int32_t *context; /* (n_lanes) */
    pthread_t thread;
    bool has_thread;

    pthread_mutex_t lock; /* for everything below */
    pthread_cond_t work;
    srv_job *inbox, *inbox_last; /* submitted, not yet seen by the thread */
    int32_t n_inbox;
    int64_t n_submitted, n_refused;
    bool draining, stop_now, is_over;
    srv_counts counts; /* as the thread left them after its last step */
    rate prefill, decode;
    srv_seq_view *views; /* (n_views) likewise */
    int32_t n_views, views_capacity;
};

/* ------------------------------------------------------------------ counters */

static void rate_add(rate *r, double now, int64_t n) {
    const int64_t second = (int64_t)now;
    const int64_t slot = second % (RATE_SECONDS + 1);
    if (r->second[slot] != second) {
        r->second[slot] = second;
        r->count[slot] = 0;
    }
    r->count[slot] += n;
}

/* Over the whole seconds before this one. */
static double rate_of(const rate *r, double now) {
    int64_t sum = 0;
    for (int i = 0; i <= RATE_SECONDS; i++)
        if (r->second[i] < (int64_t)now && r->second[i] >= (int64_t)now - RATE_SECONDS)
            sum += r->count[i];
    return (double)sum / RATE_SECONDS;
}

static void add_counts(srv_counts *sum, const srv_lane *lane) {
    const srv_counts *c = &lane->counts;
    sum->running += lane->n_running;
    sum->texts += lane->n_seqs;
    sum->waiting += c->waiting;
    sum->finished += c->finished;
    sum->failed += c->failed;
    sum->cancelled += c->cancelled;
    sum->prompt_tokens += c->prompt_tokens;
    sum->generated_tokens += c->generated_tokens;
    sum->cached_ram_tokens += c->cached_ram_tokens;
    sum->cached_store_tokens += c->cached_store_tokens;
    sum->computed_tokens += c->computed_tokens;
    sum->steps += c->steps;
    sum->rows += c->rows;
    sum->swaps_out += c->swaps_out;
    sum->swaps_in += c->swaps_in;
    sum->store_errors += c->store_errors;
    sum->step_seconds += c->step_seconds;
}

static char state_of(const srv_choice *choice) {
    if (choice->state == SRV_SWAPPED)
        return 's';
    if (choice->state == SRV_WAITING)
        return 'w';
    return choice->is_decoding ? 'd' : 'p';
}

static void view_add(srv_sched *s, const srv_seq_view *view) {
    if (s->n_views == s->views_capacity) {
        const int32_t capacity = 2 * s->views_capacity + 64;
        srv_seq_view *larger = realloc(s->views, (size_t)capacity * sizeof *larger);
        if (!larger)
            return; /* the dashboard shows fewer */
        s->views = larger;
        s->views_capacity = capacity;
    }
    s->views[s->n_views++] = *view;
}

static void view_job(srv_sched *s, const srv_lane *lane, const srv_job *job) {
    for (int32_t c = 0; c < job->n_choices; c++) {
        const srv_choice *choice = &job->choices[c];
        if (choice->state == SRV_FINISHED)
            continue;
        view_add(s, &(srv_seq_view){.job = job->id,
                                    .cache = lane->index,
                                    .choice = c,
                                    .state = state_of(choice),
                                    .prompt_tokens = job->n_prompt,
                                    .cached_tokens = job->usage.cached_tokens,
                                    .length = choice->seq ? quire_seq_length(choice->seq) : 0,
                                    .max_tokens = job->max_tokens});
    }
}

static void view_lane(srv_sched *s, const srv_lane *lane) {
    for (int32_t j = 0; j < lane->n_running; j++)
        view_job(s, lane, lane->running[j]);
    for (const srv_job *job = lane->waiting; job; job = job->next)
        view_job(s, lane, job);
    for (int32_t i = 0; i < lane->n_prefixes; i++)
        view_add(s, &(srv_seq_view){.cache = lane->index,
                                    .state = 'c',
                                    .prompt_tokens = lane->prefixes[i].n_text,
                                    .cached_tokens = lane->prefixes[i].n_shared,
                                    .length = lane->prefixes[i].n_text});
}

/* Shows the state after a step to other threads. */
static void publish(srv_sched *s) {
    const double now = srv_monotonic();
    srv_counts sum = {0};
    for (int32_t i = 0; i < s->n_lanes; i++)
        add_counts(&sum, &s->lanes[i]);
    pthread_mutex_lock(&s->lock);
    rate_add(&s->prefill, now, sum.computed_tokens - s->counts.computed_tokens);
    rate_add(&s->decode, now, sum.generated_tokens - s->counts.generated_tokens);
    s->n_views = 0;
    for (int32_t i = 0; i < s->n_lanes; i++)
        view_lane(s, &s->lanes[i]);
    for (int32_t i = 0; i < s->n_views; i++)
        sum.swapped += s->views[i].state == 's';
    s->counts = sum;
    pthread_mutex_unlock(&s->lock);
}

void srv_sched_counts(srv_sched *s, srv_counts *counts) {
    const double now = srv_monotonic();
    pthread_mutex_lock(&s->lock);
    *counts = s->counts;
    counts->waiting += s->n_inbox;
    counts->submitted = s->n_submitted;
    counts->refused = s->n_refused;
    counts->prefill_per_second = rate_of(&s->prefill, now);
    counts->decode_per_second = rate_of(&s->decode, now);
    pthread_mutex_unlock(&s->lock);
}

int32_t srv_sched_view(srv_sched *s, srv_seq_view *views, int32_t capacity) {
    pthread_mutex_lock(&s->lock);
    const int32_t n = s->n_views;
    if (capacity > 0 && n > 0)
        memcpy(views, s->views, (size_t)(n < capacity ? n : capacity) * sizeof *views);
    pthread_mutex_unlock(&s->lock);
    return n;
}

/* ------------------------------------------------------------------ submitting */

static srv_refusal refuse(srv_sched *s, srv_refusal refusal) {
    pthread_mutex_lock(&s->lock);
    s->n_refused++;
    pthread_mutex_unlock(&s->lock);
    return refusal;
}

static srv_refusal check_work(const srv_sched *s, const srv_work *work, char *why, size_t n_why) {
    if (work->n_choices > s->max_running) {
        snprintf(why, n_why, "n is %d, but this server computes at most %d texts at once",
                 (int)work->n_choices, (int)s->max_running);
        return SRV_INVALID;
    }
    if (work->n_tokens >= s->context[work->cache]) {
        snprintf(why, n_why,
                 "the prompt has %d tokens, but the context only %d, and one is needed "
                 "for the answer",
                 (int)work->n_tokens, (int)s->context[work->cache]);
        return SRV_TOO_LONG;
    }
    if (work->n_tokens >= s->longest[work->cache]) {
        snprintf(why, n_why,
                 "the prompt has %d tokens, but the cache of this server holds only %d, and one is "
                 "needed for the answer",
                 (int)work->n_tokens, (int)s->longest[work->cache]);
        return SRV_TOO_LONG;
    }
    return SRV_ACCEPTED;
}

/* Under the lock. */
static srv_refusal take(srv_sched *s, srv_job *job, char *why, size_t n_why) {
    if (s->draining) {
        snprintf(why, n_why, "the server is shutting down");
        return SRV_SHUTTING_DOWN;
    }
    /* Those that take the free places after this step do not count: they wait for nothing else. */
    const int64_t places = s->max_running - s->counts.texts;
    if (s->counts.waiting + s->n_inbox >= s->max_queue + (places > 0 ? places : 0)) {
        snprintf(why, n_why, "%d requests are waiting already; try again later",
                 (int)(s->counts.waiting + s->n_inbox));
        return SRV_QUEUE_FULL;
    }
    job->id = ++s->n_submitted;
    atomic_fetch_add(&job->references, 1);
    if (s->inbox_last)
        s->inbox_last->next = job;
    else
        s->inbox = job;
    s->inbox_last = job;
    s->n_inbox++;
    pthread_cond_signal(&s->work);
    return SRV_ACCEPTED;
}

srv_refusal srv_sched_submit(srv_sched *s, const srv_work *work, srv_job **result, char *why,
                             size_t n_why) {
    *result = NULL;
    srv_refusal refusal = check_work(s, work, why, n_why);
    if (refusal != SRV_ACCEPTED)
        return refuse(s, refusal);
    srv_job *job = srv_job_create(s->model, work, &refusal, why, n_why);
    if (!job)
        return refuse(s, refusal);
    pthread_mutex_lock(&s->lock);
    refusal = take(s, job, why, n_why);
    pthread_mutex_unlock(&s->lock);
    if (refusal != SRV_ACCEPTED) {
        srv_job_drop(job);
        return refuse(s, refusal);
    }
    *result = job;
    return SRV_ACCEPTED;
}

/* ------------------------------------------------------------------ the thread */

static bool is_idle(const srv_sched *s) {
    for (int32_t i = 0; i < s->n_lanes; i++)
        if (!srv_lane_is_idle(&s->lanes[i]))
            return false;
    return true;
}

/* New jobs go to their lanes. Waits if there is nothing to do at all. False: the end. */
static bool receive(srv_sched *s) {
    pthread_mutex_lock(&s->lock);
    const bool idle = is_idle(s);
    while (idle && !s->inbox && !s->draining)
        pthread_cond_wait(&s->work, &s->lock);
    while (s->inbox) {
        srv_job *job = s->inbox;
        s->inbox = job->next;
        srv_lane_enqueue(&s->lanes[job->cache], job);
    }
    s->inbox_last = NULL;
    s->n_inbox = 0;
    for (int32_t i = s->counts.waiting = 0; i < s->n_lanes; i++)
        s->counts.waiting += s->lanes[i].counts.waiting;
    const bool ends = s->draining && (s->stop_now || is_idle(s));
    pthread_mutex_unlock(&s->lock);
    return !ends;
}

static void *run(void *user) {
    srv_sched *s = user;
    while (receive(s)) {
        for (int32_t i = 0; i < s->n_lanes; i++) {
            srv_lane_sweep(&s->lanes[i], srv_monotonic());
            srv_lane_admit(&s->lanes[i]);
        }
        publish(s); /* a step may take long, and who has left the queue makes room in it now */
        for (int32_t i = 0; i < s->n_lanes; i++) {
            srv_lane_step(&s->lanes[i]);
            srv_lane_sweep(&s->lanes[i], srv_monotonic());
        }
        publish(s);
    }
    for (int32_t i = 0; i < s->n_lanes; i++)
        srv_lane_fail_all(&s->lanes[i], "the server is shutting down");
    publish(s);
    pthread_mutex_lock(&s->lock);
    s->is_over = true;
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

bool srv_sched_start(srv_sched **result, const srv_options *options, char *why, size_t n_why) {
    snprintf(why, n_why, "out of memory");
    *result = NULL;
    srv_sched *s = calloc(1, sizeof *s);
    if (!s)
        return false;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->work, NULL);
    s->model = options->model;
    s->max_queue = options->max_queue;
    s->max_running = options->max_running;
    const size_t n = (size_t)options->n_caches;
    s->lanes = calloc(n, sizeof *s->lanes);
    s->longest = calloc(n, sizeof *s->longest);
    s->context = calloc(n, sizeof *s->context);
    bool is_whole = s->lanes && s->longest && s->context;
    for (int32_t i = 0; i < options->n_caches && is_whole; i++) {
        is_whole = srv_lane_open(&s->lanes[i], options, i);
        s->n_lanes = i + 1;
        s->longest[i] = srv_lane_longest(&s->lanes[i]);
        s->context[i] = s->lanes[i].context;
    }
    if (is_whole && pthread_create(&s->thread, NULL, run, s) == 0)
        s->has_thread = true;
    if (!s->has_thread) {
        srv_sched_free(s);
        return false;
    }
    *result = s;
    return true;
}

void srv_sched_drain(srv_sched *s, bool now) {
    pthread_mutex_lock(&s->lock);
    s->draining = true;
    s->stop_now = s->stop_now || now;
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
}

bool srv_sched_is_over(srv_sched *s) {
    pthread_mutex_lock(&s->lock);
    const bool is_over = s->is_over;
    pthread_mutex_unlock(&s->lock);
    return is_over;
}

void srv_sched_free(srv_sched *s) {
    if (!s)
        return;
    if (s->has_thread) {
        srv_sched_drain(s, true);
        pthread_join(s->thread, NULL);
    }
    for (int32_t i = 0; i < s->n_lanes; i++)
        srv_lane_close(&s->lanes[i]);
    free(s->lanes);
    free(s->longest);
    free(s->context);
    free(s->views);
    pthread_cond_destroy(&s->work);
    pthread_mutex_destroy(&s->lock);
    free(s);
}
