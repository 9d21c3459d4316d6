/* lane.h: one cache of the server, its session and the jobs that use it. A step computes rows of
 * one lane; lanes take turns. Only the scheduler's thread touches a lane. */
#ifndef SERVER_SCHED_LANE_H
#define SERVER_SCHED_LANE_H

#include "sched/job.h"

/* A sequence that no job computes: the text of a finished choice, or a prompt, kept for prompts
 * that begin alike. */
typedef struct srv_prefix {
    quire_seq *seq;
    int32_t *text;
    int32_t n_text; /* tokens of the sequence */
    int32_t n_exact;
    int32_t n_shared; /* tokens that came from another sequence or the store */
    char *salt;
    int64_t used; /* srv_lane.clock at the last use */
} srv_prefix;

typedef struct srv_lane {
    int32_t index;
    quire_session *session;
    const quire_model *model;
    struct quire_store *store; /* NULL: none */
    const char *swap_dir;
    bool exact;
    int32_t max_running, chunk, context, n_vocab;
    int32_t prefill_rows; /* of a step: `chunk`, or a page while the pool has no room for that */
    int32_t window;       /* the longest; 0: no layer has one */
    size_t page_bytes;    /* packed page of 64 tokens, all layers without a window ... */
    size_t window_page_bytes; /* ... and all with one */
    size_t raw_page_bytes;    /* the same of all layers, in 16 bits */

    srv_job *waiting, *waiting_last; /* in order of arrival */
    srv_job **running;               /* (n_running) jobs with at least one sequence, oldest first */
    int32_t n_running;
    bool is_full;         /* a text was swapped, and none has finished since */
    int32_t n_seqs;       /* choices of running jobs that have not finished */
    srv_prefix *prefixes; /* (max_prefixes) of which n_prefixes are in use */
    int32_t n_prefixes, max_prefixes;
    int64_t clock;

    quire_step_item *items; /* (max_running) the step being built ... */
    srv_choice **rows;      /* ... and whose rows they are */
    int32_t n_items;

    srv_counts counts; /* of this lane */
} srv_lane;

bool srv_lane_open(srv_lane *lane, const srv_options *options, int32_t index);
void srv_lane_close(srv_lane *lane);
bool srv_lane_is_idle(const srv_lane *lane);
int32_t srv_lane_present(const srv_lane *lane); /* choices that have a sequence */

/* Walks over the choices of all running jobs, in order of arrival; NULL after the last:
 *   srv_walk walk = {0};
 *   for (srv_choice *choice; (choice = srv_lane_next(lane, &walk));) */
typedef struct srv_walk {
    int32_t job, choice; /* the next one */
} srv_walk;
srv_choice *srv_lane_next(const srv_lane *lane, srv_walk *walk);

/* ---- admission.c */
/* Bytes of the pool that a sequence of so many tokens takes. */
size_t srv_lane_bytes(const srv_lane *lane, int32_t n_tokens);
/* The longest text that fits into the empty pool; at most the context. */
int32_t srv_lane_longest(const srv_lane *lane);
/* Whether a text of so many tokens, of which some are computed already, fits beside what runs.
 * Retained prefixes make room, the least recently used first. */
bool srv_lane_make_room(srv_lane *lane, int32_t n_tokens, int32_t n_shared);
void srv_lane_enqueue(srv_lane *lane, srv_job *job);
/* Swapped jobs come back and waiting ones begin, as far as there is room. */
void srv_lane_admit(srv_lane *lane);
/* Drops jobs that nobody reads any more, and those whose time is over. */
void srv_lane_sweep(srv_lane *lane, double now);
void srv_lane_fail_all(srv_lane *lane, const char *why);
/* Where the pages of a choice's text are looked for and put. */
quire_prompt_options srv_prompt_options(const srv_lane *lane, const srv_choice *choice);
/* Gives a choice that has none a sequence with the longest prefix of its text that is already
 * computed, in RAM or in the store. False: there is no room now. */
bool srv_choice_begin(srv_lane *lane, srv_choice *choice);
/* A choice that has finished gives back its sequence, for later prompts if `retain`. */
void srv_choice_end(srv_lane *lane, srv_choice *choice, bool retain);

/* ---- prefix_cache.c */
/* Forks the longest common prefix of the choice's text and all sequences of the lane with its salt.
 * *seq NULL: there is none. */
void srv_prefix_fork(srv_lane *lane, const srv_choice *choice, quire_seq **seq, int32_t *n_exact);
/* Takes over a sequence, which holds the first tokens of the choice's text, or frees it. */
void srv_prefix_add(srv_lane *lane, quire_seq *seq, const srv_choice *choice);
bool srv_prefix_evict(srv_lane *lane); /* the least recently used; false: there is none */
/* Whether a job that is being prefilled will soon hold more of this text than any sequence does. */
bool srv_prefix_is_coming(const srv_lane *lane, const srv_choice *choice);

/* ---- swap.c */
/* Frees the pages of the choice that came last, which goes on later. False: there is only one. */
bool srv_swap_out(srv_lane *lane);
bool srv_swap_in(srv_lane *lane, srv_choice *choice); /* false: not now */
void srv_swap_forget(srv_choice *choice);             /* gives up its file */

/* ---- step.c */
void srv_lane_step(srv_lane *lane);

/* ---- emit.c */
/* Chooses the next token of a choice from the logits of its last row, and tells the reader. */
void srv_choice_emit(srv_lane *lane, srv_choice *choice, const float *logits);
/* Sends an event with this text, and takes both; the last event of a choice ends it, and its pages
 * are retained for other prompts if `retain`. Without memory for them (event: NULL) the job fails.
 */
void srv_choice_send(srv_lane *lane, srv_choice *choice, srv_event *event, srv_text *text,
                     bool retain);

#endif
