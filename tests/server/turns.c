/* turns.c: when each prompt gets its first token, counted in steps of a lane instead of seconds.
 * usage: turns MODEL CHUNK ARRIVAL:TOKENS...
 *
 * The lane is driven by hand: no thread, no clock. Before step s (from 0) the prompts that arrive
 * at s are submitted. Each answer is one token. Prints for every prompt, in the order of the
 * arguments, how many steps were computed from its arrival until its first token. */
#include "sched/lane.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PROMPTS = 64, MAX_RUNNING = 32, CONTEXT = 8192, MAX_STEPS = 10000 };

static void require(bool condition, const char *what) {
    if (condition)
        return;
    fprintf(stderr, "turns: %s: %s\n", what, quire_last_error());
    exit(1);
}

/* Prompts differ in every token, so that none shares pages with another. */
static srv_job *make_job(const quire_model *model, int32_t number, int32_t n_tokens) {
    quire_model_info info;
    quire_model_get_info(model, &info);
    int32_t *tokens = malloc((size_t)n_tokens * sizeof *tokens);
    require(tokens != NULL, "memory");
    for (int32_t i = 0; i < n_tokens; i++)
        tokens[i] = (i + number) % info.n_vocab;
    srv_work work = {.tokens = tokens,
                     .n_tokens = n_tokens,
                     .n_choices = 1,
                     .max_tokens = 1,
                     .n_logprobs = -1,
                     .ignore_end = true};
    quire_sampler_options_default(&work.sampling);
    srv_refusal refusal;
    char why[256] = "";
    srv_job *job = srv_job_create(model, &work, &refusal, why, sizeof why);
    require(job != NULL, why);
    job->id = number;
    free(tokens);
    return job;
}

int main(int argc, char **argv) {
    require(argc >= 4 && argc - 3 <= MAX_PROMPTS, "usage: turns MODEL CHUNK ARRIVAL:TOKENS...");
    const int32_t n = argc - 3;
    quire_model *model;
    require(quire_model_load(&model, argv[1], NULL) == QUIRE_OK, "model");
    srv_cache cache = {.kv = "k8v4"};
    srv_options options;
    srv_options_default(&options);
    options.model = model;
    options.caches = &cache;
    options.n_caches = 1;
    options.max_running = MAX_RUNNING;
    options.max_prefixes = 0;
    options.chunk = atoi(argv[2]);
    quire_session_options how;
    quire_session_options_default(&how);
    require(quire_policy_parse(cache.kv, &how.policy) == QUIRE_OK, "codec");
    how.max_seqs = MAX_RUNNING + 2;
    how.max_rows = options.chunk + 2 * QUIRE_PAGE_TOKENS;
    how.max_logits = MAX_RUNNING;
    how.context = CONTEXT;
    how.n_threads = 1;
    require(quire_session_create(&cache.session, model, &how) == QUIRE_OK, "session");
    srv_lane lane;
    require(srv_lane_open(&lane, &options, 0), "lane");

    int32_t arrival[MAX_PROMPTS], n_tokens[MAX_PROMPTS], taken[MAX_PROMPTS] = {0};
    srv_job *jobs[MAX_PROMPTS] = {0};
    for (int32_t i = 0; i < n; i++)
        require(sscanf(argv[i + 3], "%d:%d", &arrival[i], &n_tokens[i]) == 2, argv[i + 3]);
    int32_t n_open = n;
    for (int32_t step = 0; n_open > 0 && step < MAX_STEPS; step++) {
        for (int32_t i = 0; i < n; i++)
            if (arrival[i] == step) {
                jobs[i] = make_job(model, i, n_tokens[i]);
                atomic_fetch_add(&jobs[i]->references, 1); /* the lane drops its own */
                srv_lane_enqueue(&lane, jobs[i]);
            }
        srv_lane_admit(&lane);
        srv_lane_step(&lane);
        srv_lane_sweep(&lane, srv_monotonic());
        for (int32_t i = 0; i < n; i++)
            if (jobs[i] && taken[i] == 0 && srv_job_usage(jobs[i]).completion_tokens > 0) {
                taken[i] = step + 1 - arrival[i];
                n_open--;
            }
    }
    require(n_open == 0 && lane.counts.failed == 0, "a prompt was not answered");
    for (int32_t i = 0; i < n; i++) {
        printf("%d%c", (int)taken[i], i + 1 < n ? ' ' : '\n');
        srv_job_release(jobs[i]);
    }
    srv_lane_close(&lane);
    quire_session_free(cache.session);
    quire_model_free(model);
    return 0;
}
