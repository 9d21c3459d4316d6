/* workers.c: a thread pool for short jobs in quick succession.
 *
 * Between jobs a worker spins on the job counter for a moment before it sleeps: waking a thread
 * may take longer than a decode step, and a benchmark should not measure that. While it spins it
 * yields, which costs nothing on an idle machine and leaves the processor to the worker that has
 * work if both share one. pthread_barrier_t is not an option: macOS does not have it. */
#include "options/workers.h"

#include "options/processors.h"
#include "output/report.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { SPINS_BEFORE_SLEEP = 20000, SPINS_PER_YIELD = 64 };

typedef struct worker {
    struct cli_workers *workers;
    int32_t ith;
    pthread_t thread;
} worker;

struct cli_workers {
    int32_t n_workers, n_started; /* n_started: threads, so without worker 0 */
    cli_job *job;                 /* published by job_number */
    void *user;
    atomic_uint job_number;
    atomic_int n_running;
    atomic_bool stopping;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    worker members[];
};

int32_t cli_workers_default(void) {
    const int32_t n = cli_processors();
    return n > CLI_WORKERS_MAX ? CLI_WORKERS_MAX : n;
}

cli_part cli_part_of(int32_t n, int32_t ith, int32_t nth) {
    return (cli_part){(int32_t)((int64_t)n * ith / nth), (int32_t)((int64_t)n * (ith + 1) / nth)};
}

static unsigned wait_for_job(struct cli_workers *workers, unsigned last_job) {
    for (int spin = 1; spin <= SPINS_BEFORE_SLEEP; spin++) {
        unsigned job = atomic_load(&workers->job_number);
        if (job != last_job)
            return job;
        if (spin % SPINS_PER_YIELD == 0)
            sched_yield();
    }
    pthread_mutex_lock(&workers->lock);
    while (atomic_load(&workers->job_number) == last_job)
        pthread_cond_wait(&workers->wake, &workers->lock);
    pthread_mutex_unlock(&workers->lock);
    return atomic_load(&workers->job_number);
}

static void *worker_main(void *argument) {
    worker *self = argument;
    struct cli_workers *workers = self->workers;
    unsigned job = 0;
    for (;;) {
        job = wait_for_job(workers, job);
        if (atomic_load(&workers->stopping))
            return NULL;
        workers->job(workers->user, self->ith, workers->n_workers);
        atomic_fetch_sub(&workers->n_running, 1);
    }
}

/* The counter changes under the lock, so that no worker misses it between its last look and its
 * sleep. */
static void publish_job(cli_workers *workers) {
    pthread_mutex_lock(&workers->lock);
    atomic_fetch_add(&workers->job_number, 1);
    pthread_cond_broadcast(&workers->wake);
    pthread_mutex_unlock(&workers->lock);
}

cli_workers *cli_workers_start(int32_t n_workers) {
    cli_workers *workers =
        calloc(1, sizeof *workers + (size_t)n_workers * sizeof workers->members[0]);
    if (!workers) {
        cli_error("out of memory for %d threads; give a smaller -t", (int)n_workers);
        return NULL;
    }
    workers->n_workers = n_workers;
    pthread_mutex_init(&workers->lock, NULL);
    pthread_cond_init(&workers->wake, NULL);
    for (int32_t i = 1; i < n_workers; i++) {
        worker *member = &workers->members[i];
        *member = (worker){.workers = workers, .ith = i};
        int error = pthread_create(&member->thread, NULL, worker_main, member);
        if (error) {
            cli_error("cannot start thread %d of %d: %s; give a smaller -t", (int)i + 1,
                      (int)n_workers, strerror(error));
            cli_workers_stop(workers);
            return NULL;
        }
        workers->n_started++;
    }
    return workers;
}

void cli_workers_run(cli_workers *workers, cli_job *job, void *user) {
    if (workers->n_workers == 1) {
        job(user, 0, 1);
        return;
    }
    workers->job = job;
    workers->user = user;
    atomic_store(&workers->n_running, workers->n_workers - 1);
    publish_job(workers);
    job(user, 0, workers->n_workers);
    for (unsigned spin = 1; atomic_load(&workers->n_running) > 0; spin++) {
        if (spin % SPINS_PER_YIELD == 0)
            sched_yield();
    }
}

void cli_workers_stop(cli_workers *workers) {
    if (!workers)
        return;
    atomic_store(&workers->stopping, true);
    publish_job(workers);
    for (int32_t i = 1; i <= workers->n_started; i++)
        pthread_join(workers->members[i].thread, NULL);
    pthread_cond_destroy(&workers->wake);
    pthread_mutex_destroy(&workers->lock);
    free(workers);
}
