/* fake_sched.c: see fake_parts.h. There is no thread: a job's events are made when its reader asks
 * for them. */
#include "fake_parts.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct srv_sched {
    pthread_mutex_t lock;
    srv_counts counts;
    bool is_closed;          /* drains */
    atomic_bool is_stopping; /* jobs fail */
};

struct srv_job {
    srv_sched *sched;
    char *script;
    int32_t n_tokens, n_done;
    int64_t next;     /* milliseconds: when the next event is due */
    int64_t deadline; /* when the job's time is over */
    bool is_over;
};

static int64_t milliseconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void sleep_a_little(void) { nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL); }

int32_t fake_script_number(const char *script, const char *name, int32_t missing) {
    const size_t n = strlen(name);
    for (const char *p = strstr(script, name); p; p = strstr(p + 1, name))
        if ((p == script || p[-1] == ' ') && p[n] == '=')
            return (int32_t)strtol(p + n + 1, NULL, 10);
    return missing;
}

/* ------------------------------------------------------------------ jobs */

static srv_refusal refusal_of(const char *script) {
    static const char *const names[] = {[SRV_TOO_LONG] = "refuse=too_long",
                                        [SRV_QUEUE_FULL] = "refuse=queue_full",
                                        [SRV_INVALID] = "refuse=invalid",
                                        [SRV_SHUTTING_DOWN] = "refuse=shutting_down",
                                        [SRV_NO_MEMORY] = "refuse=no_memory"};
    for (size_t i = 1; i < sizeof names / sizeof *names; i++)
        if (strstr(script, names[i]))
            return (srv_refusal)i;
    return SRV_ACCEPTED;
}

srv_refusal srv_sched_submit(srv_sched *sched, const srv_work *work, srv_job **job, char *why,
                             size_t n_why) {
    const char *script = work->n_stops ? work->stops[0] : "";
    pthread_mutex_lock(&sched->lock);
    const srv_refusal refusal = sched->is_closed ? SRV_SHUTTING_DOWN : refusal_of(script);
    if (refusal != SRV_ACCEPTED) {
        sched->counts.refused++;
        snprintf(why, n_why, "Refused by the fake scheduler.");
    } else {
        sched->counts.submitted++;
        sched->counts.running++;
    }
    pthread_mutex_unlock(&sched->lock);
    if (refusal != SRV_ACCEPTED)
        return refusal;
    *job = calloc(1, sizeof **job);
    (*job)->sched = sched;
    (*job)->script = strdup(script);
    (*job)->n_tokens = fake_script_number(script, "tokens", 3);
    (*job)->next = milliseconds() + fake_script_number(script, "delay", 0);
    (*job)->deadline =
        work->seconds > 0 ? milliseconds() + (int64_t)(1e3 * work->seconds) : INT64_MAX;
    return SRV_ACCEPTED;
}

static srv_event *make_event(srv_job *job) {
    srv_event *event = calloc(1, sizeof *event);
    const int32_t number = job->n_done++;
    event->finish = SRV_RUNNING;
    if (atomic_load(&job->sched->is_stopping) ||
        number == fake_script_number(job->script, "fail", -1))
        event->finish = SRV_FAILED;
    else if (number == fake_script_number(job->script, "late", -1) ||
             milliseconds() >= job->deadline)
        event->finish = SRV_TIMED_OUT;
    else if (job->n_done == job->n_tokens)
        event->finish = SRV_STOP;
    const int32_t n_words =
        event->finish >= SRV_FAILED ? 0 : fake_script_number(job->script, "words", 1);
    event->n_text = 5 * (size_t)n_words;
    event->text = calloc(event->n_text + 1, 1);
    for (int32_t i = 0; i < n_words; i++)
        memcpy(event->text + 5 * i, "word ", 5);
    job->is_over = event->finish != SRV_RUNNING;
    job->next = milliseconds() + fake_script_number(job->script, "delay", 0);
    if (job->is_over) {
        pthread_mutex_lock(&job->sched->lock);
        *(event->finish == SRV_STOP ? &job->sched->counts.finished : &job->sched->counts.failed) +=
            1;
        job->sched->counts.running--;
        pthread_mutex_unlock(&job->sched->lock);
    }
    return event;
}

srv_wait srv_job_next(srv_job *job, int32_t wait, srv_event **event) {
    if (job->is_over)
        return SRV_DONE;
    for (const int64_t until = milliseconds() + wait;;) {
        if (milliseconds() >= job->next || milliseconds() >= job->deadline ||
            atomic_load(&job->sched->is_stopping)) {
            *event = make_event(job);
            return SRV_EVENT;
        }
        if (milliseconds() >= until)
            return SRV_NOTHING_YET;
        sleep_a_little();
    }
}

void srv_event_free(srv_event *event) {
    if (event)
        free(event->text);
    free(event);
}

srv_usage srv_job_usage(srv_job *job) {
    return (srv_usage){.prompt_tokens = 7, .cached_tokens = 5, .completion_tokens = job->n_done};
}

const char *srv_job_error(srv_job *job) {
    (void)job;
    return "The fake job failed.";
}

void srv_job_release(srv_job *job) {
    if (!job->is_over) {
        pthread_mutex_lock(&job->sched->lock);
        job->sched->counts.cancelled++;
        job->sched->counts.running--;
        pthread_mutex_unlock(&job->sched->lock);
    }
    free(job->script);
    free(job);
}

/* ------------------------------------------------------------------ the scheduler */

bool srv_sched_start(srv_sched **sched, const srv_options *options, char *why, size_t n_why) {
    (void)options;
    (void)why;
    (void)n_why;
    *sched = calloc(1, sizeof **sched);
    pthread_mutex_init(&(*sched)->lock, NULL);
    return true;
}

void srv_sched_drain(srv_sched *sched, bool now) {
    pthread_mutex_lock(&sched->lock);
    sched->is_closed = true;
    if (now)
        atomic_store(&sched->is_stopping, true);
    pthread_mutex_unlock(&sched->lock);
}

bool srv_sched_is_over(srv_sched *sched) {
    pthread_mutex_lock(&sched->lock);
    const bool is_over = atomic_load(&sched->is_stopping) || sched->counts.running == 0;
    pthread_mutex_unlock(&sched->lock);
    return is_over;
}

void srv_sched_free(srv_sched *sched) {
    if (sched)
        pthread_mutex_destroy(&sched->lock);
    free(sched);
}

void srv_sched_counts(srv_sched *sched, srv_counts *counts) {
    pthread_mutex_lock(&sched->lock);
    *counts = sched->counts;
    pthread_mutex_unlock(&sched->lock);
}

int32_t srv_sched_view(srv_sched *sched, srv_seq_view *views, int32_t capacity) {
    (void)sched;
    static const srv_seq_view all[] = {{1, 0, 0, 'd', 10, 4, 12, 20}, {2, 0, 1, 'w', 9, 0, 0, 5}};
    for (int32_t i = 0; i < 2 && i < capacity; i++)
        views[i] = all[i];
    return 2;
}
