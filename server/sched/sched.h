/* sched.h: continuous batching. One thread owns the sessions; other threads submit jobs and read
 * their events.
 *
 * A job is a prompt and n texts that continue it. It waits in a queue until its cache has room,
 * then its prompt is prefilled in chunks beside the rows of jobs that are already decoding, then
 * each of its texts is a row of every step. All functions may be called from any thread. */
#ifndef SERVER_SCHED_SCHED_H
#define SERVER_SCHED_SCHED_H

#include "server.h"

typedef struct srv_sched srv_sched;
typedef struct srv_job srv_job;

/* ------------------------------------------------------------------ jobs */

enum { SRV_TOP_LOGPROBS = 20, SRV_STOPS = 16, SRV_PIECE = 512 };

/* What a job needs to know. Everything it points to is copied by srv_sched_submit. */
typedef struct srv_work {
    int32_t cache; /* index into srv_options.caches */
    const int32_t *tokens;
    int32_t n_tokens; /* of the prompt; at least 1 */
    int32_t n_choices;
    int32_t max_tokens;             /* of one choice; 0: until the context is full */
    quire_sampler_options sampling; /* choice i uses seed + i */
    const char *const *stops;       /* (n_stops) texts that end a choice and are not part of it */
    int32_t n_stops;
    int32_t n_logprobs; /* -1: none; 0..20: the token's own, and of so many likeliest */
    bool ignore_end;    /* go on when the model ends its text */
    double seconds;     /* time-out of the whole job; 0: none */
    /* Only prompts with the same salt share pages, so that nobody learns from the time to the first
     * token what others have asked; NULL: as "". */
    const char *salt;
} srv_work;

typedef enum srv_refusal {
    SRV_ACCEPTED,
    SRV_TOO_LONG,      /* 413: the prompt can never fit; *why gives the limit */
    SRV_QUEUE_FULL,    /* 429 */
    SRV_INVALID,       /* 400: sampling options or grammar that libllama refuses */
    SRV_SHUTTING_DOWN, /* 503 */
    SRV_NO_MEMORY      /* 500 */
} srv_refusal;

/* why: a sentence for the client if the job is refused. */
srv_refusal srv_sched_submit(srv_sched *sched, const srv_work *work, srv_job **job, char *why,
                             size_t n_why);

/* ------------------------------------------------------------------ events */

typedef enum srv_finish {
    SRV_RUNNING,
    SRV_STOP,   /* the model ended its text, or a stop text was found */
    SRV_LENGTH, /* max_tokens, or the context is full */
    SRV_FAILED, /* srv_job_error says why */
    SRV_TIMED_OUT
} srv_finish;

typedef struct srv_token_logprob {
    int32_t token;
    float logprob;
    char bytes[SRV_PIECE]; /* not terminated */
    size_t n_bytes;        /* 0 for the rare token with more bytes than that */
} srv_token_logprob;

typedef struct srv_token {
    srv_token_logprob chosen;
    int32_t n_top;
    srv_token_logprob *top; /* (n_top) likeliest first */
} srv_token;

/* Something new in one choice. Text is whole UTF-8 characters; invalid bytes are replaced by
 * U+FFFD. Free it with srv_event_free. */
typedef struct srv_event {
    struct srv_event *next; /* private */
    int32_t choice;
    char *text; /* (n_text) terminated with a 0; may be empty */
    size_t n_text;
    srv_token *tokens; /* (n_tokens) with their logprobs, if the job asked for them */
    int32_t n_tokens;
    srv_finish finish; /* not SRV_RUNNING: the last event of this choice */
} srv_event;

typedef enum srv_wait { SRV_EVENT, SRV_NOTHING_YET, SRV_DONE } srv_wait;

/* Waits up to `milliseconds` for the next event. SRV_DONE: all choices have finished, and all
 * events were read. */
srv_wait srv_job_next(srv_job *job, int32_t milliseconds, srv_event **event);
void srv_event_free(srv_event *event);

typedef struct srv_usage {
    int32_t prompt_tokens, cached_tokens, completion_tokens;
    double queue_seconds, prefill_seconds, decode_seconds;
} srv_usage;

/* Valid once the first event was read; completion_tokens grow until SRV_DONE. */
srv_usage srv_job_usage(srv_job *job);
const char *srv_job_error(srv_job *job); /* a sentence, for SRV_FAILED */
/* The reader is done with the job. If it has not finished, it is cancelled: its pages are free at
 * the next step. */
void srv_job_release(srv_job *job);

/* ------------------------------------------------------------------ the scheduler */

/* False: `why` is a sentence. */
bool srv_sched_start(srv_sched **sched, const srv_options *options, char *why, size_t n_why);
/* New jobs are refused from now on. Those that were accepted are finished; if `now`, they fail.
 * Returns at once. */
void srv_sched_drain(srv_sched *sched, bool now);
/* After srv_sched_drain(): whether every job has ended. */
bool srv_sched_is_over(srv_sched *sched);
void srv_sched_free(srv_sched *sched); /* after all jobs were released; NULL is fine */

/* ------------------------------------------------------------------ counters */

typedef struct srv_counts {
    int64_t running, waiting; /* jobs, now */
    int64_t texts;            /* of those that run */
    int64_t swapped;          /* sequences whose pages are on disk, now */
    int64_t submitted, finished, failed, cancelled, refused; /* jobs, since the start */
    int64_t prompt_tokens, generated_tokens;
    int64_t cached_ram_tokens, cached_store_tokens; /* of prompt_tokens: reused */
    int64_t computed_tokens;                        /* of prompt_tokens: prefilled */
    int64_t steps, rows;                            /* of all steps */
    int64_t swaps_out, swaps_in;
    int64_t store_errors;
    double step_seconds;                          /* in steps */
    double prefill_per_second, decode_per_second; /* tokens, over the last seconds */
} srv_counts;

void srv_sched_counts(srv_sched *sched, srv_counts *counts);

/* One sequence, for the dashboard. */
typedef struct srv_seq_view {
    int64_t job;
    int32_t cache, choice;
    char state; /* 'w' waiting, 'p' prefill, 'd' decoding, 's' swapped, 'c' cached prefix */
    int32_t prompt_tokens, cached_tokens, length, max_tokens;
} srv_seq_view;

/* Writes up to `capacity` views and returns how many sequences there are. */
int32_t srv_sched_view(srv_sched *sched, srv_seq_view *views, int32_t capacity);

#endif
