/* job.h: a job, as the scheduler and its reader share it.
 *
 * The reader (a connection thread) sees events, usage and error, under `lock`. Everything else
 * belongs to the scheduler's thread. Both hold a reference. */
#ifndef SERVER_SCHED_JOB_H
#define SERVER_SCHED_JOB_H

#include "sched/sched.h"
#include "base/monotonic.h"
#include "base/text_filter.h"

#include <pthread.h>
#include <stdatomic.h>

typedef enum srv_state {
    SRV_WAITING,   /* has no sequence */
    SRV_COMPUTING, /* tokens from the sequence's length on are to be computed */
    SRV_SWAPPED,   /* its sequence is in a file */
    SRV_FINISHED
} srv_state;

/* One text of a job. */
typedef struct srv_choice {
    srv_job *job;
    int32_t index;
    srv_state state;
    quire_seq *seq;
    int32_t *text; /* (n_text) the prompt and what was generated */
    int32_t n_text, capacity;
    int32_t n_exact; /* first tokens of the sequence that were computed in exact steps */
    quire_sampler *sampler;
    srv_filter filter;
    bool is_asked;       /* the sampler has seen the prompt */
    bool is_decoding;    /* has generated a token */
    quire_file *swapped; /* its sequence, in a file without a name; NULL: it is computed again */
} srv_choice;

struct srv_job {
    atomic_int references;
    atomic_bool cancelled;
    int64_t id;
    srv_job *next; /* in the list it is in */

    /* what was asked for */
    int32_t cache, n_prompt, n_choices, max_tokens, n_logprobs;
    bool ignore_end;
    double deadline; /* of srv_monotonic; 0: none */
    char **stops;
    int32_t n_stops;
    char *salt;

    /* progress */
    srv_choice *choices; /* (n_choices) the first computes the prompt, the others fork it */
    double submitted, started, prompted; /* when */
    bool is_prompted; /* the prompt was computed once, and the choices have forked */

    /* shared with the reader */
    pthread_mutex_t lock;
    pthread_cond_t news;
    srv_event *first, *last;
    int32_t n_open; /* choices that have not finished */
    srv_usage usage;
    char error[256];
};

/* NULL: refused; *refusal and `why`. */
srv_job *srv_job_create(const quire_model *model, const srv_work *work, srv_refusal *refusal,
                        char *why, size_t n_why);
void srv_job_drop(srv_job *job); /* gives up one reference */
/* Room for n more tokens in a choice's text. False: out of memory. */
bool srv_choice_reserve(srv_choice *choice, int32_t n);
/* Sends an event, which the job owns from now on, and closes the choice if it is its last. */
void srv_job_send(srv_job *job, srv_event *event);
/* Ends all choices that are still open. */
void srv_job_fail(srv_job *job, srv_finish finish, const char *why);

#endif
