/* stats_json.c: see stats_json.h. */
#include "http/stats_json.h"

#include "base/monotonic.h"

#ifdef QUIRE_STORE
#include "quire_store.h"
#endif

#include <jansson.h>
#include <stdlib.h>

static json_t *whole(uint64_t value) { return json_integer((json_int_t)value); }

static json_t *model_json(const srv_options *options) {
    quire_model_info info;
    quire_model_get_info(options->model, &info);
    return json_pack("{s:s, s:s, s:o, s:i, s:o}", "name", options->model_name, "architecture",
                     info.architecture, "parameters", whole(info.n_parameters), "context",
                     info.context, "weight_bytes", whole(info.weight_bytes));
}

/* ------------------------------------------------------------------ caches */

static json_t *bytes_json(const quire_pool_stats *s) {
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "budget", whole(s->budget_bytes),
                     "total", whole(s->total_bytes), "arena", whole(s->arena_bytes), "sealed",
                     whole(s->sealed_bytes), "open", whole(s->open_bytes), "last_raw",
                     whole(s->last_raw_bytes), "sinks", whole(s->sink_bytes), "free",
                     whole(s->free_bytes));
}

static json_t *layer_json(int32_t index, const quire_layer *layer, const quire_layer_stats *s) {
    return json_pack("{s:i, s:s, s:s, s:s, s:f, s:i, s:i, s:i, s:o, s:o, s:o}", "layer", index, "k",
                     quire_codec_name(s->pair.k), "v", quire_codec_name(s->pair.v), "kernel",
                     s->kernel ? s->kernel : "", "bits", s->bits_per_element, "window",
                     layer->window, "heads", layer->n_heads, "kv_heads", layer->n_kv_heads,
                     "packed_read", whole(s->packed_read), "raw_read", whole(s->raw_read),
                     "fallbacks", whole(s->fallbacks));
}

static json_t *cache_json(const srv_cache *cache) {
    const quire_pool *pool = quire_session_pool(cache->session);
    const quire_layer *layers = quire_session_layers(cache->session);
    quire_model_info info;
    quire_model_get_info(quire_session_model(cache->session), &info);
    quire_pool_stats pool_stats;
    quire_pool_get_stats(pool, &pool_stats);

    uint64_t bf16_token_bytes = 0, page_bytes = 0;
    json_t *list = json_array();
    for (int32_t i = 0; i < info.n_layers; i++) {
        quire_layer_stats stats;
        if (quire_layer_get_stats(pool, i, &stats) != QUIRE_OK)
            continue;
        if (layers[i].share < 0) { /* others have no cache of their own */
            const uint64_t dims = (uint64_t)layers[i].k_dim + (uint64_t)layers[i].v_dim;
            bf16_token_bytes += 2 * dims * (uint64_t)layers[i].n_kv_heads;
            page_bytes += stats.record_bytes * (uint64_t)layers[i].n_kv_heads;
        }
        json_array_append_new(list, layer_json(i, &layers[i], &stats));
    }
    return json_pack("{s:s, s:s, s:I, s:i, s:o, s:o, s:o, s:o}", "kv", cache->kv, "isa",
                     quire_pool_isa(pool), "tokens", (json_int_t)pool_stats.tokens, "sequences",
                     (int)pool_stats.n_seqs, "bytes", bytes_json(&pool_stats), "bf16_token_bytes",
                     whole(bf16_token_bytes), "page_bytes", whole(page_bytes), "layers", list);
}

static json_t *caches_json(const srv_options *options) {
    json_t *list = json_array();
    for (int32_t i = 0; i < options->n_caches; i++)
        json_array_append_new(list, cache_json(&options->caches[i]));
    return list;
}

/* ------------------------------------------------------------------ sequences, store */

static const char *state_name(char state) {
    switch (state) {
    case 'w':
        return "waiting";
    case 'p':
        return "prefill";
    case 'd':
        return "decoding";
    case 's':
        return "swapped";
    default:
        return "cached";
    }
}

static json_t *sequences_json(srv_sched *sched) {
    json_t *list = json_array();
    int32_t capacity = srv_sched_view(sched, NULL, 0) + 16; /* some may come meanwhile */
    srv_seq_view *views = calloc((size_t)capacity, sizeof *views);
    if (!views)
        return list;
    int32_t n = srv_sched_view(sched, views, capacity);
    if (n > capacity)
        n = capacity;
    for (int32_t i = 0; i < n; i++) {
        const srv_seq_view *v = &views[i];
        json_array_append_new(
            list, json_pack("{s:I, s:i, s:i, s:s, s:i, s:i, s:i, s:i}", "job", (json_int_t)v->job,
                            "cache", v->cache, "choice", v->choice, "state", state_name(v->state),
                            "prompt_tokens", v->prompt_tokens, "cached_tokens", v->cached_tokens,
                            "length", v->length, "max_tokens", v->max_tokens));
    }
    free(views);
    return list;
}

#ifdef QUIRE_STORE
/* Null for what only a Redis server knows: asking it would mean to look at every key. */
static json_t *whole_if(bool known, uint64_t number) { return known ? whole(number) : json_null(); }
#endif

static json_t *store_json(struct quire_store *store) {
#ifdef QUIRE_STORE
    quire_store_stats s;
    if (store && quire_store_get_stats(store, &s) == QUIRE_OK) {
        const bool known = s.max_bytes > 0;
        return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "pages",
                         whole_if(known, (uint64_t)s.pages), "bytes", whole_if(known, s.bytes),
                         "file_bytes", whole_if(known, s.file_bytes), "max_bytes",
                         whole_if(known, s.max_bytes), "hit_pages", whole(s.hit_pages),
                         "missed_pages", whole(s.missed_pages), "added_pages", whole(s.added_pages),
                         "evicted_pages", whole_if(known, s.evicted_pages));
    }
#else
    (void)store;
#endif
    return json_null();
}

#ifdef QUIRE_STORE
/* A path, or a message with one, need not be UTF-8. */
static json_t *text_json(const char *text) {
    json_t *made = json_string(text);
    return made ? made : json_string("(not UTF-8)");
}
#endif

/* Empty without a store. A single directory is one entry, with nothing but its place. */
static json_t *tiers_json(struct quire_store *store) {
    json_t *list = json_array();
#ifdef QUIRE_STORE
    quire_store_tier t;
    for (size_t i = 0; store && quire_store_get_tier(store, i, &t) == QUIRE_OK; i++)
        json_array_append_new(
            list,
            json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:b, s:o}", "place", text_json(t.place),
                      "hit_records", whole(t.hit_records), "written_records",
                      whole(t.written_records), "dropped_records", whole(t.dropped_records),
                      "queued_bytes", whole(t.queued_bytes), "errors", whole(t.errors), "failing",
                      (int)t.is_failing, "error", text_json(t.is_failing ? t.error : "")));
#else
    (void)store;
#endif
    return list;
}

/* ------------------------------------------------------------------ all of it */

char *srv_stats_json(srv_http *server) {
    const srv_options *options = server->options;
    srv_counts c = {0};
    srv_sched_counts(server->sched, &c);
    json_t *jobs = json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "running", (json_int_t)c.running, "waiting",
        (json_int_t)c.waiting, "swapped", (json_int_t)c.swapped, "submitted",
        (json_int_t)c.submitted, "finished", (json_int_t)c.finished, "failed", (json_int_t)c.failed,
        "cancelled", (json_int_t)c.cancelled, "refused", (json_int_t)c.refused);
    json_t *tokens = json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:f, s:f}", "prompt", (json_int_t)c.prompt_tokens, "generated",
        (json_int_t)c.generated_tokens, "cached_ram", (json_int_t)c.cached_ram_tokens,
        "cached_store", (json_int_t)c.cached_store_tokens, "computed",
        (json_int_t)c.computed_tokens, "prefill_per_second", c.prefill_per_second,
        "decode_per_second", c.decode_per_second);
    json_t *steps = json_pack("{s:I, s:I, s:f}", "count", (json_int_t)c.steps, "rows",
                              (json_int_t)c.rows, "seconds", c.step_seconds);
    json_t *swaps =
        json_pack("{s:I, s:I}", "out", (json_int_t)c.swaps_out, "in", (json_int_t)c.swaps_in);
    json_t *root = json_pack(
        "{s:s, s:f, s:b, s:o, s:o, s:o, s:o, s:o, s:I, s:o, s:o, s:o, s:o}", "version",
        quire_version(), "uptime_seconds", srv_monotonic() - server->started_monotonic, "exact",
        (int)options->exact, "model", model_json(options), "jobs", jobs, "tokens", tokens, "steps",
        steps, "swaps", swaps, "store_errors", (json_int_t)c.store_errors, "caches",
        caches_json(options), "sequences", sequences_json(server->sched), "store",
        store_json(options->store), "tiers", tiers_json(options->store));
    char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    return text;
}
