/* metrics.c: counters of requests and histograms of their times. */
#include "http/metrics.h"

#include "http/connections.h"
#include "base/monotonic.h"

#ifdef QUIRE_STORE
#include "quire_store.h"
#endif

#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------ counting */

enum { BUCKETS = 14, SERIES = 256 };

/* Seconds: from a reply out of a warm cache on a small model to a long text on a slow machine. */
static const double upper[BUCKETS] = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                      1,     2.5,  5,     10,   30,  60,   300};

typedef struct histogram {
    int64_t count[BUCKETS + 1]; /* the last: longer than all */
    double sum;
} histogram;

typedef struct series {
    const char *route;
    int status;
    int64_t count;
} series;

struct srv_metrics {
    pthread_mutex_t lock;
    series requests[SERIES]; /* (n_requests) */
    int n_requests;
    histogram duration, first_token;
};

srv_metrics *srv_metrics_create(void) {
    srv_metrics *metrics = calloc(1, sizeof *metrics);
    if (metrics)
        pthread_mutex_init(&metrics->lock, NULL);
    return metrics;
}

void srv_metrics_free(srv_metrics *metrics) {
    if (!metrics)
        return;
    pthread_mutex_destroy(&metrics->lock);
    free(metrics);
}

static void observe(histogram *h, double seconds) {
    int i = 0;
    while (i < BUCKETS && seconds > upper[i])
        i++;
    h->count[i]++;
    h->sum += seconds;
}

static void count_request(srv_metrics *metrics, const char *route, int status) {
    for (int i = 0; i < metrics->n_requests; i++) {
        series *s = &metrics->requests[i];
        if (s->status == status && strcmp(s->route, route) == 0) {
            s->count++;
            return;
        }
    }
    if (metrics->n_requests < SERIES)
        metrics->requests[metrics->n_requests++] = (series){route, status, 1};
}

void srv_metrics_request(srv_metrics *metrics, const char *route, int status, double seconds) {
    pthread_mutex_lock(&metrics->lock);
    count_request(metrics, route, status);
    observe(&metrics->duration, seconds);
    pthread_mutex_unlock(&metrics->lock);
}

void srv_metrics_first_token(srv_metrics *metrics, double seconds) {
    pthread_mutex_lock(&metrics->lock);
    observe(&metrics->first_token, seconds);
    pthread_mutex_unlock(&metrics->lock);
}

/* ------------------------------------------------------------------ the text */

static void head(FILE *out, const char *name, const char *type, const char *help) {
    fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void one(FILE *out, const char *name, const char *type, const char *help, double value) {
    head(out, name, type, help);
    fprintf(out, "%s %.17g\n", name, value);
}

static void put_histogram(FILE *out, const char *name, const char *help, const histogram *h) {
    head(out, name, "histogram", help);
    int64_t below = 0;
    for (int i = 0; i < BUCKETS; i++) {
        below += h->count[i];
        fprintf(out, "%s_bucket{le=\"%g\"} %lld\n", name, upper[i], (long long)below);
    }
    below += h->count[BUCKETS];
    fprintf(out, "%s_bucket{le=\"+Inf\"} %lld\n", name, (long long)below);
    fprintf(out, "%s_sum %.17g\n%s_count %lld\n", name, h->sum, name, (long long)below);
}

static void put_requests(FILE *out, srv_metrics *metrics) {
    pthread_mutex_lock(&metrics->lock);
    head(out, "quire_http_requests_total", "counter",
         "HTTP requests by route and status; 499: the client left before its reply");
    for (int i = 0; i < metrics->n_requests; i++) {
        const series *s = &metrics->requests[i];
        fprintf(out, "quire_http_requests_total{route=\"%s\",status=\"%d\"} %lld\n", s->route,
                s->status, (long long)s->count);
    }
    put_histogram(out, "quire_http_request_duration_seconds",
                  "Time from the headers of a request to the last byte of its reply",
                  &metrics->duration);
    put_histogram(out, "quire_time_to_first_token_seconds",
                  "Time from a whole request to the first token of its reply",
                  &metrics->first_token);
    pthread_mutex_unlock(&metrics->lock);
}

static void put_connections(FILE *out, srv_http *server) {
    const srv_connection_counts counts = srv_connections_count(server->connections);
    one(out, "quire_http_body_bytes", "gauge", "Memory of request bodies that are being read",
        (double)atomic_load(&server->bodies.used));
    one(out, "quire_http_connections", "gauge", "Open connections", (double)counts.open);
    one(out, "quire_http_connections_accepted_total", "counter", "Connections accepted",
        (double)counts.accepted);
    one(out, "quire_http_connections_cut_total", "counter",
        "Connections cut because a request took too long to arrive or none came",
        (double)counts.cut);
}

static void put_counts(FILE *out, const srv_counts *c) {
    const struct {
        const char *name, *type, *help;
        double value;
    } all[] = {
        {"quire_jobs_running", "gauge", "Jobs being computed", (double)c->running},
        {"quire_jobs_waiting", "gauge", "Jobs in the queue", (double)c->waiting},
        {"quire_jobs_swapped", "gauge", "Sequences whose pages are on disk", (double)c->swapped},
        {"quire_jobs_submitted_total", "counter", "Jobs accepted", (double)c->submitted},
        {"quire_jobs_finished_total", "counter", "Jobs that finished", (double)c->finished},
        {"quire_jobs_failed_total", "counter", "Jobs that failed", (double)c->failed},
        {"quire_jobs_cancelled_total", "counter", "Jobs whose client left", (double)c->cancelled},
        {"quire_jobs_refused_total", "counter", "Jobs refused: too long, or the queue was full",
         (double)c->refused},
        {"quire_prompt_tokens_total", "counter", "Tokens of prompts", (double)c->prompt_tokens},
        {"quire_prompt_tokens_computed_total", "counter", "Tokens of prompts that were prefilled",
         (double)c->computed_tokens},
        {"quire_generated_tokens_total", "counter", "Tokens generated",
         (double)c->generated_tokens},
        {"quire_prefill_tokens_per_second", "gauge", "Prefill over the last seconds",
         c->prefill_per_second},
        {"quire_decode_tokens_per_second", "gauge", "Decoding over the last seconds",
         c->decode_per_second},
        {"quire_steps_total", "counter", "Steps", (double)c->steps},
        {"quire_step_rows_total", "counter", "Rows of all steps", (double)c->rows},
        {"quire_step_seconds_total", "counter", "Time in steps", c->step_seconds},
        {"quire_swaps_out_total", "counter", "Sequences written to disk", (double)c->swaps_out},
        {"quire_swaps_in_total", "counter", "Sequences read back", (double)c->swaps_in},
        {"quire_store_errors_total", "counter", "Failed accesses to the store",
         (double)c->store_errors},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        one(out, all[i].name, all[i].type, all[i].help, all[i].value);
    head(out, "quire_prompt_tokens_cached_total", "counter",
         "Tokens of prompts that were found in RAM or in the store");
    fprintf(out, "quire_prompt_tokens_cached_total{from=\"ram\"} %lld\n",
            (long long)c->cached_ram_tokens);
    fprintf(out, "quire_prompt_tokens_cached_total{from=\"store\"} %lld\n",
            (long long)c->cached_store_tokens);
}

static void put_pools(FILE *out, const srv_options *options) {
    head(out, "quire_pool_bytes", "gauge", "Memory of a cache by kind");
    for (int32_t i = 0; i < options->n_caches; i++) {
        quire_pool_stats s;
        quire_pool_get_stats(quire_session_pool(options->caches[i].session), &s);
        const struct {
            const char *kind;
            size_t bytes;
        } kinds[] = {{"sealed", s.sealed_bytes},     {"open", s.open_bytes},
                     {"last_raw", s.last_raw_bytes}, {"sinks", s.sink_bytes},
                     {"free", s.free_bytes},         {"total", s.total_bytes}};
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
            fprintf(out, "quire_pool_bytes{cache=\"%s\",kind=\"%s\"} %zu\n", options->caches[i].kv,
                    kinds[k].kind, kinds[k].bytes);
    }
    head(out, "quire_pool_tokens", "gauge", "Tokens in all sequences of a cache");
    for (int32_t i = 0; i < options->n_caches; i++) {
        quire_pool_stats s;
        quire_pool_get_stats(quire_session_pool(options->caches[i].session), &s);
        fprintf(out, "quire_pool_tokens{cache=\"%s\"} %lld\n", options->caches[i].kv,
                (long long)s.tokens);
    }
}

#ifdef QUIRE_STORE
/* One line per tier. Its place is a path or an address: quotes and backslashes are escaped. */
static void put_tiers(FILE *out, struct quire_store *store) {
    static const struct {
        const char *name, *type, *help;
        size_t offset;
    } all[] = {{"quire_store_tier_hit_records_total", "counter", "Records read from a tier",
                offsetof(quire_store_tier, hit_records)},
               {"quire_store_tier_written_records_total", "counter", "Records written to a tier",
                offsetof(quire_store_tier, written_records)},
               {"quire_store_tier_dropped_records_total", "counter",
                "Records not written: the queue was full, or the tier failed",
                offsetof(quire_store_tier, dropped_records)},
               {"quire_store_tier_queued_bytes", "gauge", "Bytes that wait to be written to a tier",
                offsetof(quire_store_tier, queued_bytes)},
               {"quire_store_tier_errors_total", "counter", "Calls to a tier that failed",
                offsetof(quire_store_tier, errors)}};
    quire_store_tier tier;
    for (size_t k = 0; k < sizeof all / sizeof *all; k++)
        for (size_t i = 0; quire_store_get_tier(store, i, &tier) == QUIRE_OK; i++) {
            uint64_t value;
            memcpy(&value, (const char *)&tier + all[k].offset, sizeof value);
            if (i == 0)
                head(out, all[k].name, all[k].type, all[k].help);
            fprintf(out, "%s{place=\"", all[k].name);
            for (const char *c = tier.place; *c; c++)
                fprintf(out, *c == '"' || *c == '\\' ? "\\%c" : "%c", *c == '\n' ? ' ' : *c);
            fprintf(out, "\"} %llu\n", (unsigned long long)value);
        }
}

static void put_room(FILE *out, const quire_store_stats *s) {
    one(out, "quire_store_pages", "gauge", "Pages in the store", (double)s->pages);
    one(out, "quire_store_bytes", "gauge", "Bytes of these pages", (double)s->bytes);
    one(out, "quire_store_file_bytes", "gauge", "Size of the store on disk", (double)s->file_bytes);
    one(out, "quire_store_max_bytes", "gauge", "Limit of that size", (double)s->max_bytes);
    one(out, "quire_store_evicted_pages_total", "counter", "Pages removed to make room",
        (double)s->evicted_pages);
}
#endif

static void put_store(FILE *out, struct quire_store *store) {
#ifdef QUIRE_STORE
    if (store)
        put_tiers(out, store);
    quire_store_stats s;
    if (!store || quire_store_get_stats(store, &s) != QUIRE_OK)
        return;
    if (s.max_bytes > 0)
        put_room(out, &s);
    one(out, "quire_store_hit_pages_total", "counter", "Pages looked up and found",
        (double)s.hit_pages);
    one(out, "quire_store_missed_pages_total", "counter", "Pages looked up and not found",
        (double)s.missed_pages);
    one(out, "quire_store_added_pages_total", "counter", "Pages added", (double)s.added_pages);
#else
    (void)out;
    (void)store;
#endif
}

char *srv_metrics_text(srv_http *server, size_t *n_text) {
    char *text = NULL;
    FILE *out = open_memstream(&text, n_text);
    if (!out)
        return NULL;
    head(out, "quire_info", "gauge", "The program and its model; always 1");
    fprintf(out, "quire_info{version=\"%s\",exact=\"%s\"} 1\n", quire_version(),
            server->options->exact ? "true" : "false");
    one(out, "quire_uptime_seconds", "gauge", "Seconds since the start",
        srv_monotonic() - server->started_monotonic);
    srv_counts counts = {0};
    srv_sched_counts(server->sched, &counts);
    put_counts(out, &counts);
    put_requests(out, server->metrics);
    put_connections(out, server);
    put_pools(out, server->options);
    put_store(out, server->options->store);
    if (fclose(out) == 0)
        return text;
    free(text);
    return NULL;
}
