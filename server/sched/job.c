/* job.c: making a job, its events, and its end. */
#include "sched/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ------------------------------------------------------------------ life */

static void free_choice(srv_choice *choice) {
    free(choice->text);
    quire_sampler_free(choice->sampler);
    srv_filter_free(&choice->filter);
    quire_file_close(choice->swapped);
}

static void free_job(srv_job *job) {
    for (int32_t i = 0; job->choices && i < job->n_choices; i++)
        free_choice(&job->choices[i]);
    free(job->choices);
    for (int32_t i = 0; job->stops && i < job->n_stops; i++)
        free(job->stops[i]);
    free(job->stops);
    free(job->salt);
    while (job->first) {
        srv_event *event = job->first;
        job->first = event->next;
        srv_event_free(event);
    }
    pthread_cond_destroy(&job->news);
    pthread_mutex_destroy(&job->lock);
    free(job);
}

void srv_job_drop(srv_job *job) {
    if (job && atomic_fetch_sub(&job->references, 1) == 1)
        free_job(job);
}

static bool copy_texts(srv_job *job, const srv_work *work) {
    job->salt = strdup(work->salt ? work->salt : "");
    job->stops = calloc((size_t)work->n_stops + 1, sizeof *job->stops);
    if (!job->stops || !job->salt)
        return false;
    job->n_stops = work->n_stops;
    for (int32_t i = 0; i < work->n_stops; i++) {
        job->stops[i] = strdup(work->stops[i]);
        if (!job->stops[i])
            return false;
    }
    return true;
}

bool srv_choice_reserve(srv_choice *choice, int32_t n) {
    if (choice->n_text + n <= choice->capacity)
        return true;
    const int32_t capacity = choice->n_text + n + 256;
    int32_t *larger = realloc(choice->text, (size_t)capacity * sizeof *larger);
    if (!larger)
        return false;
    choice->text = larger;
    choice->capacity = capacity;
    return true;
}

static bool init_choice(srv_job *job, int32_t i, const srv_work *work) {
    srv_choice *choice = &job->choices[i];
    choice->job = job;
    choice->index = i;
    srv_filter_init(&choice->filter, (const char *const *)job->stops, job->n_stops);
    if (!srv_choice_reserve(choice, work->n_tokens))
        return false;
    memcpy(choice->text, work->tokens, (size_t)work->n_tokens * sizeof *work->tokens);
    choice->n_text = work->n_tokens;
    return true;
}

static srv_refusal fill_job(srv_job *job, const quire_model *model, const srv_work *work, char *why,
                            size_t n_why) {
    job->choices = calloc((size_t)work->n_choices, sizeof *job->choices);
    if (!job->choices || !copy_texts(job, work))
        return SRV_NO_MEMORY;
    job->n_choices = job->n_open = work->n_choices;
    for (int32_t i = 0; i < work->n_choices; i++) {
        if (!init_choice(job, i, work))
            return SRV_NO_MEMORY;
        quire_sampler_options sampling = work->sampling;
        sampling.seed += (uint32_t)i;
        const quire_status status =
            quire_sampler_create(&job->choices[i].sampler, model, &sampling);
        if (status != QUIRE_OK) {
            snprintf(why, n_why, "%s", quire_last_error());
            return status == QUIRE_E_NOMEM ? SRV_NO_MEMORY : SRV_INVALID;
        }
    }
    return SRV_ACCEPTED;
}

srv_job *srv_job_create(const quire_model *model, const srv_work *work, srv_refusal *refusal,
                        char *why, size_t n_why) {
    snprintf(why, n_why, "out of memory");
    *refusal = SRV_NO_MEMORY;
    srv_job *job = calloc(1, sizeof *job);
    if (!job)
        return NULL;
    pthread_mutex_init(&job->lock, NULL);
    srv_cond_init(&job->news);
    atomic_init(&job->references, 1);
    atomic_init(&job->cancelled, false);
    job->cache = work->cache;
    job->n_prompt = job->usage.prompt_tokens = work->n_tokens;
    job->max_tokens = work->max_tokens;
    job->n_logprobs = work->n_logprobs;
    job->ignore_end = work->ignore_end;
    job->submitted = srv_monotonic();
    job->deadline = work->seconds > 0 ? job->submitted + work->seconds : 0;
    *refusal = fill_job(job, model, work, why, n_why);
    if (*refusal == SRV_ACCEPTED)
        return job;
    srv_job_drop(job);
    return NULL;
}

/* ------------------------------------------------------------------ events */

void srv_event_free(srv_event *event) {
    if (!event)
        return;
    for (int32_t i = 0; i < event->n_tokens; i++)
        free(event->tokens[i].top);
    free(event->tokens);
    free(event->text);
    free(event);
}

void srv_job_send(srv_job *job, srv_event *event) {
    pthread_mutex_lock(&job->lock);
    event->next = NULL;
    if (job->last)
        job->last->next = event;
    else
        job->first = event;
    job->last = event;
    if (event->finish != SRV_RUNNING)
        job->n_open--;
    pthread_cond_signal(&job->news);
    pthread_mutex_unlock(&job->lock);
}

void srv_job_fail(srv_job *job, srv_finish finish, const char *why) {
    pthread_mutex_lock(&job->lock);
    snprintf(job->error, sizeof job->error, "%s", why);
    pthread_mutex_unlock(&job->lock);
    for (int32_t i = 0; i < job->n_choices; i++) {
        srv_choice *choice = &job->choices[i];
        if (choice->state == SRV_FINISHED)
            continue;
        choice->state = SRV_FINISHED;
        srv_event *event = calloc(1, sizeof *event);
        if (event) {
            event->choice = i;
            event->finish = finish;
            srv_job_send(job, event);
            continue;
        }
        pthread_mutex_lock(&job->lock); /* without an event the reader still sees the end */
        job->n_open--;
        pthread_cond_signal(&job->news);
        pthread_mutex_unlock(&job->lock);
    }
}

srv_wait srv_job_next(srv_job *job, int32_t milliseconds, srv_event **event) {
    const struct timespec until = srv_deadline(milliseconds);
    *event = NULL;
    pthread_mutex_lock(&job->lock);
    while (!job->first && job->n_open > 0 &&
           pthread_cond_timedwait(&job->news, &job->lock, &until) == 0)
        ;
    srv_wait result = SRV_EVENT;
    if (job->first) {
        *event = job->first;
        job->first = job->first->next;
        if (!job->first)
            job->last = NULL;
    } else
        result = job->n_open > 0 ? SRV_NOTHING_YET : SRV_DONE;
    pthread_mutex_unlock(&job->lock);
    return result;
}

srv_usage srv_job_usage(srv_job *job) {
    pthread_mutex_lock(&job->lock);
    const srv_usage usage = job->usage;
    pthread_mutex_unlock(&job->lock);
    return usage;
}

const char *srv_job_error(srv_job *job) { return job->error; }

void srv_job_release(srv_job *job) {
    if (!job)
        return;
    atomic_store(&job->cancelled, true);
    srv_job_drop(job);
}
