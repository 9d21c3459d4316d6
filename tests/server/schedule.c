/* schedule.c: many jobs at once through the scheduler, against the same prompts one at a time.
 * usage: schedule MODEL KV THREADS JOBS KV_BYTES PREFIXES SEED [STORE]
 *
 * Client threads submit random prompts, some of which begin alike, with 1 to 3 texts each, and
 * cancel some on the way. Steps are exact, so every text that is not cancelled must be what
 * quire_generate writes, bit for bit: whatever was computed beside it, shared with others, or
 * swapped out because KV_BYTES (0: enough) is small. At the end no page may be in use if PREFIXES
 * is 0. Prints counters for the caller to check. */
#include "sched/sched.h"
#include "base/text_filter.h"
#if QUIRE_STORE
#include "quire_store.h"
#endif

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_RUNNING = 6, CHUNK = 64, CHOICES = 3, STEMS = 4, STEM_TOKENS = 300, TAIL_TOKENS = 200 };

static void require(bool condition, const char *what) {
    if (condition)
        return;
    fprintf(stderr, "schedule: %s: %s\n", what, quire_last_error());
    exit(1);
}

static uint32_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

/* ------------------------------------------------------------------ what a job asks for */

typedef struct task {
    int32_t tokens[STEM_TOKENS + TAIL_TOKENS], n_tokens, n_choices, max_tokens;
    float temp;
    uint32_t seed;
    int32_t cancel_after; /* events; -1: never */
    srv_text texts[CHOICES];
    srv_finish finish[CHOICES];
    bool is_whole;
} task;

static void make_task(task *t, int32_t n_vocab, uint64_t *random) {
    uint64_t stem = next_random(random) % STEMS;
    const int32_t n_stem = (int32_t)(next_random(random) % STEM_TOKENS);
    const int32_t n_tail = 1 + (int32_t)(next_random(random) % TAIL_TOKENS);
    for (int32_t i = 0; i < n_stem; i++)
        t->tokens[t->n_tokens++] = (int32_t)(next_random(&stem) % (uint32_t)n_vocab);
    for (int32_t i = 0; i < n_tail; i++)
        t->tokens[t->n_tokens++] = (int32_t)(next_random(random) % (uint32_t)n_vocab);
    t->n_choices = 1 + (int32_t)(next_random(random) % CHOICES);
    t->max_tokens = 1 + (int32_t)(next_random(random) % 100);
    t->temp = next_random(random) % 2 ? 0.0f : 0.9f;
    t->seed = next_random(random);
    t->cancel_after = next_random(random) % 5 == 0 ? (int32_t)(next_random(random) % 20) : -1;
}

static quire_sampler_options sampling_of(const task *t) {
    quire_sampler_options sampling;
    quire_sampler_options_default(&sampling);
    sampling.temp = t->temp;
    sampling.seed = t->seed;
    return sampling;
}

/* ------------------------------------------------------------------ clients */

typedef struct world {
    srv_sched *sched;
    task *tasks;
    int32_t n_tasks;
    atomic_int next;
} world;

static void run_task(srv_sched *sched, task *t) {
    const srv_work work = {.tokens = t->tokens,
                           .n_tokens = t->n_tokens,
                           .n_choices = t->n_choices,
                           .max_tokens = t->max_tokens,
                           .sampling = sampling_of(t),
                           .n_logprobs = t->seed % 3 == 0 ? 2 : -1,
                           .ignore_end = true};
    srv_job *job;
    char why[256] = "";
    const srv_refusal refusal = srv_sched_submit(sched, &work, &job, why, sizeof why);
    if (refusal != SRV_ACCEPTED)
        fprintf(stderr, "schedule: refused: %s\n", why);
    require(refusal == SRV_ACCEPTED, "a job was refused");
    srv_event *event;
    srv_wait got = SRV_EVENT;
    for (int32_t n = 0; n != t->cancel_after;) {
        got = srv_job_next(job, 1000, &event);
        if (got == SRV_DONE)
            break;
        if (got == SRV_NOTHING_YET)
            continue;
        n++;
        if (event->finish == SRV_FAILED)
            fprintf(stderr, "schedule: %s\n", srv_job_error(job));
        require(event->finish != SRV_FAILED, "a job failed");
        srv_text_add(&t->texts[event->choice], event->text, event->n_text);
        require((event->n_tokens > 0) == (work.n_logprobs >= 0), "logprobs");
        t->finish[event->choice] = event->finish;
        srv_event_free(event);
    }
    t->is_whole = got == SRV_DONE;
    if (t->is_whole)
        require(srv_job_usage(job).completion_tokens == t->n_choices * t->max_tokens, "usage");
    srv_job_release(job);
}

static void *client(void *user) {
    world *w = user;
    for (int32_t i; (i = atomic_fetch_add(&w->next, 1)) < w->n_tasks;)
        run_task(w->sched, &w->tasks[i]);
    return NULL;
}

/* ------------------------------------------------------------------ one at a time */

typedef struct reference {
    srv_filter filter;
    srv_text text;
} reference;

static bool on_token(void *user, int32_t token, const char *bytes, size_t n_bytes) {
    reference *r = user;
    (void)token;
    srv_filter_add(&r->filter, bytes, n_bytes, &r->text);
    return !r->text.failed;
}

static int check_task(quire_session *session, const task *t) {
    int wrong = 0;
    for (int32_t c = 0; c < t->n_choices; c++) {
        reference r = {0};
        srv_filter_init(&r.filter, NULL, 0);
        quire_sampler_options sampling = sampling_of(t);
        sampling.seed += (uint32_t)c;
        quire_sampler *sampler;
        quire_seq *seq;
        quire_generate_result result;
        quire_generate_options options;
        quire_generate_options_default(&options);
        options.max_tokens = t->max_tokens;
        options.exact = options.ignore_end = true;
        options.on_token = on_token;
        options.user = &r;
        require(quire_sampler_create(&sampler, quire_session_model(session), &sampling) == QUIRE_OK,
                "sampler");
        require(quire_seq_create(quire_session_pool(session), &seq) == QUIRE_OK, "sequence");
        require(quire_generate(session, seq, sampler, t->tokens, t->n_tokens, &options, &result) ==
                    QUIRE_OK,
                "generate");
        srv_filter_end(&r.filter, &r.text);
        require(!r.text.failed && !t->texts[c].failed, "memory");
        if (r.text.n != t->texts[c].n || memcmp(r.text.bytes, t->texts[c].bytes, r.text.n) != 0 ||
            t->finish[c] != SRV_LENGTH) {
            fprintf(stderr, "schedule: a prompt of %d tokens, choice %d, differs:\n%.60s\n%.60s\n",
                    (int)t->n_tokens, (int)c, r.text.bytes, t->texts[c].bytes);
            wrong++;
        }
        quire_seq_free(seq);
        quire_sampler_free(sampler);
        srv_filter_free(&r.filter);
        srv_text_free(&r.text);
    }
    return wrong;
}

/* ------------------------------------------------------------------ all of it */

static void open_session(quire_session **session, const quire_model *model, const char *kv,
                         const quire_calibration *calibration, int32_t n_seqs, size_t bytes) {
    quire_session_options options;
    quire_session_options_default(&options);
    require(quire_policy_parse(kv, &options.policy) == QUIRE_OK, "codec");
    options.max_seqs = n_seqs;
    options.max_rows = 2 * CHUNK;
    options.context = 1024;
    options.n_threads = 1;
    options.kv_bytes = bytes;
    options.calibration = calibration;
    require(quire_session_create(session, model, &options) == QUIRE_OK, "session");
}

int main(int argc, char **argv) {
    require(argc >= 8, "usage: schedule MODEL KV THREADS JOBS KV_BYTES PREFIXES SEED [STORE]");
    const int32_t n_clients = atoi(argv[3]), n_tasks = atoi(argv[4]), n_prefixes = atoi(argv[6]);
    uint64_t random = strtoull(argv[7], NULL, 10);
    quire_model *model;
    require(quire_model_load(&model, argv[1], NULL) == QUIRE_OK, "model");
    quire_model_info info;
    quire_model_get_info(model, &info);
    quire_calibration *calibration = NULL;
    quire_calibration_options measure;
    quire_calibration_options_default(&measure);
    if (strstr(argv[2], "k4"))
        require(quire_model_calibrate(model, &measure, &calibration) == QUIRE_OK, "calibrate");
    quire_session *session, *single;
    open_session(&session, model, argv[2], calibration, MAX_RUNNING + n_prefixes + 2,
                 (size_t)strtoull(argv[5], NULL, 10));
    open_session(&single, model, argv[2], calibration, 1, 0);

    struct quire_store *store = NULL;
#if QUIRE_STORE
    if (argc > 8)
        require(quire_store_open(&store, argv[8], NULL) == QUIRE_OK, "store");
#endif
    const srv_cache cache = {argv[2], session};
    const srv_options options = {.model = model,
                                 .caches = &cache,
                                 .n_caches = 1,
                                 .store = store,
                                 .exact = true,
                                 .max_running = MAX_RUNNING,
                                 .max_prefixes = n_prefixes,
                                 .max_queue = 1000,
                                 .chunk = CHUNK,
                                 .swap_dir = "."};
    world w = {.n_tasks = n_tasks};
    w.tasks = calloc((size_t)n_tasks, sizeof *w.tasks);
    for (int32_t i = 0; i < n_tasks; i++)
        make_task(&w.tasks[i], info.n_vocab, &random);
    char why[256];
    require(srv_sched_start(&w.sched, &options, why, sizeof why), why);
    pthread_t threads[64];
    for (int32_t i = 0; i < n_clients; i++)
        require(pthread_create(&threads[i], NULL, client, &w) == 0, "thread");
    for (int32_t i = 0; i < n_clients; i++)
        pthread_join(threads[i], NULL);
    srv_sched_drain(w.sched, false);
    while (!srv_sched_is_over(w.sched))
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    srv_counts counts;
    srv_sched_counts(w.sched, &counts);
    quire_pool_stats stats;
    quire_pool_get_stats(quire_session_pool(session), &stats);
    printf("submitted %lld finished %lld cancelled %lld failed %lld\n", (long long)counts.submitted,
           (long long)counts.finished, (long long)counts.cancelled, (long long)counts.failed);
    printf("prompt %lld computed %lld ram %lld store %lld generated %lld steps %lld rows %lld\n",
           (long long)counts.prompt_tokens, (long long)counts.computed_tokens,
           (long long)counts.cached_ram_tokens, (long long)counts.cached_store_tokens,
           (long long)counts.generated_tokens, (long long)counts.steps, (long long)counts.rows);
    printf("swaps_out %lld swaps_in %lld store_errors %lld seqs %d used %zu\n",
           (long long)counts.swaps_out, (long long)counts.swaps_in, (long long)counts.store_errors,
           (int)stats.n_seqs,
           stats.sealed_bytes + stats.open_bytes + stats.last_raw_bytes + stats.sink_bytes);
    srv_sched_free(w.sched);
    int wrong = 0, compared = 0;
    for (int32_t i = 0; i < n_tasks; i++) {
        if (w.tasks[i].is_whole)
            wrong += check_task(single, &w.tasks[i]);
        compared += w.tasks[i].is_whole;
        for (int32_t c = 0; c < CHOICES; c++)
            srv_text_free(&w.tasks[i].texts[c]);
    }
    printf("compared %d wrong %d\n", compared, wrong);
    free(w.tasks);
    quire_session_free(session);
    quire_session_free(single);
    quire_calibration_free(calibration);
    quire_model_free(model);
#if QUIRE_STORE
    quire_store_close(store);
#endif
    return wrong > 0;
}
