/* admission.c: who computes, who waits, and who leaves. */
#include "sched/lane.h"

#include <string.h>

enum { PAGE = QUIRE_PAGE_TOKENS };

/* ------------------------------------------------------------------ room */

size_t srv_lane_bytes(const srv_lane *lane, int32_t n_tokens) {
    const size_t pages = (size_t)n_tokens / PAGE + 1;
    const size_t seen = (size_t)lane->window / PAGE + 2;
    return pages * lane->page_bytes + (pages < seen ? pages : seen) * lane->window_page_bytes +
           2 * lane->raw_page_bytes; /* the open page, and the one that was sealed last */
}

int32_t srv_lane_longest(const srv_lane *lane) {
    quire_pool_stats stats;
    quire_pool_get_stats(quire_session_pool(lane->session), &stats);
    int32_t low = 0, high = lane->context;
    while (low < high) {
        const int32_t middle = low + (high - low + 1) / 2;
        if (srv_lane_bytes(lane, middle) <= stats.arena_bytes)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

static size_t free_bytes(const srv_lane *lane) {
    quire_pool_stats stats;
    quire_pool_get_stats(quire_session_pool(lane->session), &stats);
    return stats.free_bytes;
}

/* What the texts that run will take soon: the rest of their prompts, and one more page each. */
static size_t promised_bytes(const srv_lane *lane) {
    const size_t page = lane->page_bytes + lane->window_page_bytes;
    size_t bytes = 0;
    srv_walk walk = {0};
    for (srv_choice *choice; (choice = srv_lane_next(lane, &walk));) {
        if (choice->state != SRV_COMPUTING && choice->state != SRV_WAITING)
            continue;
        const int32_t left = choice->seq ? choice->n_text - quire_seq_length(choice->seq) : 1;
        bytes += ((size_t)left / PAGE + 1) * page + lane->raw_page_bytes;
    }
    return bytes;
}

bool srv_lane_make_room(srv_lane *lane, int32_t n_tokens, int32_t n_shared) {
    const size_t need = srv_lane_bytes(lane, n_tokens - n_shared) + promised_bytes(lane);
    while (free_bytes(lane) < need)
        if (!srv_prefix_evict(lane))
            return srv_lane_present(lane) == 0; /* alone it fits, or nothing ever will */
    return true;
}

/* ------------------------------------------------------------------ sequences of choices */

quire_prompt_options srv_prompt_options(const srv_lane *lane, const srv_choice *choice) {
    quire_prompt_options options;
    quire_prompt_options_default(&options);
    options.store = lane->store;
    options.store_salt = choice->job->salt;
    options.store_salt_bytes = strlen(choice->job->salt);
    return options;
}

static int32_t n_held(const srv_choice *choice) {
    return choice->seq ? quire_seq_length(choice->seq) : 0;
}

bool srv_choice_begin(srv_lane *lane, srv_choice *choice) {
    quire_prompt_options options = srv_prompt_options(lane, choice);
    quire_prompt_result result;
    int32_t n_exact;
    srv_prefix_fork(lane, choice, &choice->seq, &n_exact);
    if (!srv_lane_make_room(lane, choice->n_text, n_held(choice))) {
        quire_seq_free(choice->seq);
        choice->seq = NULL;
        return false;
    }
    quire_status status;
    do {
        options.held = choice->text;
        options.n_held = n_held(choice);
        status = quire_session_reuse(lane->session, &choice->seq, choice->text, choice->n_text,
                                     &options, &result);
    } while ((status == QUIRE_E_NO_SLOT || status == QUIRE_E_NO_PAGES) && srv_prefix_evict(lane));
    const bool full = status == QUIRE_E_NO_SLOT || status == QUIRE_E_NO_PAGES;
    if (full) {
        quire_seq_free(choice->seq);
        choice->seq = NULL;
    } else if (status != QUIRE_OK && lane->store) { /* it is in trouble: go on without it */
        lane->counts.store_errors++;
        quire_seq_free(choice->seq);
        choice->seq = NULL;
        result = (quire_prompt_result){0};
        status = quire_seq_create(quire_session_pool(lane->session), &choice->seq);
    }
    if (status != QUIRE_OK)
        return false;
    choice->n_exact = result.n_from_store > 0    ? result.n_from_store
                      : n_exact < n_held(choice) ? n_exact
                                                 : n_held(choice); /* the store fell short */
    choice->state = SRV_COMPUTING;
    if (!choice->is_decoding && choice->index == 0) {
        srv_job *job = choice->job;
        lane->counts.cached_store_tokens += result.n_from_store;
        lane->counts.cached_ram_tokens += result.n_reused - result.n_from_store;
        pthread_mutex_lock(&job->lock);
        job->usage.cached_tokens = result.n_reused;
        pthread_mutex_unlock(&job->lock);
    }
    return true;
}

void srv_choice_end(srv_lane *lane, srv_choice *choice, bool retain) {
    choice->state = SRV_FINISHED;
    lane->is_full = false;
    srv_swap_forget(choice);
    if (choice->seq && retain)
        srv_prefix_add(lane, choice->seq, choice);
    else
        quire_seq_free(choice->seq);
    choice->seq = NULL;
}

/* ------------------------------------------------------------------ lists */

void srv_lane_enqueue(srv_lane *lane, srv_job *job) {
    job->next = NULL;
    if (lane->waiting_last)
        lane->waiting_last->next = job;
    else
        lane->waiting = job;
    lane->waiting_last = job;
    lane->counts.waiting++;
}

/* Takes the job after `before` (NULL: the first) out of the queue. */
static srv_job *unlink_waiting(srv_lane *lane, srv_job *before) {
    srv_job *job = before ? before->next : lane->waiting;
    if (before)
        before->next = job->next;
    else
        lane->waiting = job->next;
    if (lane->waiting_last == job)
        lane->waiting_last = before;
    job->next = NULL;
    lane->counts.waiting--;
    return job;
}

static void start(srv_lane *lane, srv_job *job) {
    lane->running[lane->n_running++] = job;
    lane->n_seqs += job->n_choices;
    job->started = srv_monotonic();
    lane->counts.prompt_tokens += job->n_prompt;
    pthread_mutex_lock(&job->lock);
    job->usage.queue_seconds = job->started - job->submitted;
    pthread_mutex_unlock(&job->lock);
}

/* False: some must stay where they are for now. */
static bool bring_back(srv_lane *lane) {
    srv_walk walk = {0};
    for (srv_choice *choice; (choice = srv_lane_next(lane, &walk));) {
        if (choice->state != SRV_SWAPPED || srv_swap_in(lane, choice))
            continue;
        if (srv_lane_present(lane) > 0)
            return false; /* when those have finished, there is room */
        srv_job_fail(choice->job, SRV_FAILED, quire_last_error());
    }
    return true;
}

void srv_lane_admit(srv_lane *lane) {
    if (lane->is_full && srv_lane_present(lane) > 0)
        return; /* who comes back now would only be swapped again */
    if (!bring_back(lane))
        return; /* what is swapped goes before what has not begun */
    srv_job *before = NULL;
    for (srv_job *job = lane->waiting; job; job = before ? before->next : lane->waiting) {
        srv_choice *first = &job->choices[0];
        if (srv_prefix_is_coming(lane, first)) {
            before = job; /* it would compute what another is computing already */
            continue;
        }
        if (lane->n_seqs + job->n_choices > lane->max_running)
            return;
        if (!srv_choice_begin(lane, first)) {
            if (lane->n_running > 0)
                return;
            srv_job_fail(job, SRV_FAILED, quire_last_error()); /* waiting would not help */
            srv_lane_sweep(lane, srv_monotonic());
            continue;
        }
        start(lane, unlink_waiting(lane, before));
    }
}

static int32_t n_unfinished(const srv_job *job) {
    int32_t n = 0;
    for (int32_t c = 0; c < job->n_choices; c++)
        n += job->choices[c].state != SRV_FINISHED;
    return n;
}

typedef enum verdict { STAYS, FINISHED, CANCELLED, LATE } verdict;

static verdict judge(const srv_job *job, double now) {
    if (n_unfinished(job) == 0)
        return FINISHED;
    if (atomic_load(&job->cancelled))
        return CANCELLED;
    return job->deadline > 0 && now > job->deadline ? LATE : STAYS;
}

/* The scheduler is done with a job. */
static void leave(srv_lane *lane, srv_job *job, verdict why) {
    if (why == LATE)
        srv_job_fail(job, SRV_TIMED_OUT, "the request took longer than its time limit");
    for (int32_t c = 0; c < job->n_choices; c++)
        srv_choice_end(lane, &job->choices[c], false);
    if (why == FINISHED)
        *(job->error[0] ? &lane->counts.failed : &lane->counts.finished) += 1;
    else
        *(why == LATE ? &lane->counts.failed : &lane->counts.cancelled) += 1;
    srv_job_drop(job);
}

void srv_lane_sweep(srv_lane *lane, double now) {
    int32_t n = 0;
    lane->n_seqs = 0;
    for (int32_t j = 0; j < lane->n_running; j++) {
        srv_job *job = lane->running[j];
        const verdict why = judge(job, now);
        if (why != STAYS) {
            leave(lane, job, why);
            continue;
        }
        lane->running[n++] = job;
        lane->n_seqs += n_unfinished(job);
    }
    lane->n_running = n;
    srv_job *before = NULL;
    for (srv_job *job = lane->waiting; job; job = before ? before->next : lane->waiting) {
        const verdict why = judge(job, now);
        if (why == STAYS)
            before = job;
        else
            leave(lane, unlink_waiting(lane, before), why);
    }
}

void srv_lane_fail_all(srv_lane *lane, const char *why) {
    for (int32_t j = 0; j < lane->n_running; j++)
        srv_job_fail(lane->running[j], SRV_FAILED, why);
    for (srv_job *job = lane->waiting; job; job = job->next)
        srv_job_fail(job, SRV_FAILED, why);
    srv_lane_sweep(lane, srv_monotonic());
}
