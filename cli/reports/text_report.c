/* text_report.c: reports the speed and the cache of a generated text. */
#include "reports/text_report.h"

#include "command.h"
#include "output/report.h"
#include "output/text_table.h"
#include "reports/cache_report.h"
#include "text/continuation.h"

#include <stdio.h>

static double rate(double n, double seconds) { return seconds > 0 ? n / seconds : 0; }

static cli_cache_report read_cache(const cli_text_report *report) {
    int32_t n_tokens = quire_seq_length(report->seq);
    cli_cache_report cache;
    cli_cache_report_read(report->session, &n_tokens, 1, &cache);
    return cache;
}

int cli_text_report_json(const cli_text_report *report) {
    const quire_generate_result *r = report->result;
    const cli_cache_report cache = read_cache(report);
    json_t *root = json_pack(
        "{s:s, s:i, s:i, s:i, s:o, s:o, s:i, s:i, s:b, s:s}", "kv", report->kv, "n_restored",
        (int)report->n_restored, "n_prompt", (int)r->n_prompt, "n_generated", (int)r->n_generated,
        "pp_tps", cli_json_number(rate(r->n_prompt, r->prefill_seconds)), "tg_tps",
        cli_json_number(rate(r->n_decoded, r->decode_seconds)), "n_drafted", (int)r->n_drafted,
        "n_accepted", (int)r->n_accepted, "ended", (int)r->ended, "isa",
        quire_pool_isa(quire_session_pool(report->session)));
    if (root)
        json_object_set_new(root, "context_full",
                            json_boolean(cli_context_full(report->session, report->seq)));
    if (root && report->store && report->store->directory) {
        const cli_text_store *store = report->store;
        json_object_set_new(root, "n_from_store", json_integer(store->n_found));
        json_object_set_new(root, "store_added_pages", json_integer(store->n_pages));
        json_object_set_new(root, "store_added_bytes", json_integer((json_int_t)store->n_bytes));
    }
    json_t *more = cli_cache_report_json(&cache);
    bool good = root && more && json_object_update(root, more) == 0 &&
                json_dumpf(root, stderr, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) == 0;
    fputc('\n', stderr);
    json_decref(more);
    json_decref(root);
    return good ? CLI_OK : CLI_FAILURE;
}

int cli_text_report_print(const cli_text_report *report) {
    const quire_generate_result *r = report->result;
    const cli_cache_report cache = read_cache(report);
    if (report->n_restored > 0)
        fprintf(stderr, "\nrestored %d tokens", (int)report->n_restored);
    fprintf(stderr, "\nprefill  %d tokens, %.2f s, %.1f tokens/s\n", (int)r->n_prompt,
            r->prefill_seconds, rate(r->n_prompt, r->prefill_seconds));
    fprintf(stderr, "decode   %d tokens, %.2f s, %.1f tokens/s", (int)r->n_generated,
            r->decode_seconds, rate(r->n_decoded, r->decode_seconds));
    if (r->n_drafted > 0)
        fprintf(stderr, "; %d of %d drafted tokens accepted", (int)r->n_accepted,
                (int)r->n_drafted);
    fprintf(stderr,
            "\ncache    %s, %d tokens: %s resident (full pages %s, open page %s, other raw rows "
            "%s), %s "
            "in bf16 (%.2fx)\n",
            report->kv, (int)quire_seq_length(report->seq), cli_bytes(cache.kv_bytes).text,
            cli_bytes(cache.packed_bytes).text, cli_bytes(cache.open_bytes).text,
            cli_bytes(cache.last_raw_bytes + cache.sink_bytes).text,
            cli_bytes(cache.kv_bytes_bf16).text,
            rate((double)cache.kv_bytes_bf16, (double)cache.kv_bytes));
    if (report->store && report->store->directory)
        fprintf(stderr, "store    %s: %d tokens came from it, %d pages (%s) were added\n",
                report->store->name, (int)report->store->n_found, (int)report->store->n_pages,
                cli_bytes(report->store->n_bytes).text);
    if (report->saved)
        fprintf(stderr, "saved    %s\n", report->saved);
    fprintf(stderr, "kernels  %s; fallbacks %llu, shadow bytes %llu\n\n",
            quire_pool_isa(quire_session_pool(report->session)),
            (unsigned long long)cache.fallbacks, (unsigned long long)cache.shadow_bytes);
    return cli_cache_report_layers(report->session, stderr);
}
