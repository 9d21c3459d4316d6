/* cache_report.h: the size of a session's cache, compared with bf16. */
#ifndef CLI_REPORTS_CACHE_REPORT_H
#define CLI_REPORTS_CACHE_REPORT_H

#include "quire_engine.h"

#include <jansson.h>
#include <stdio.h>

typedef struct cli_cache_report {
    uint64_t kv_bytes, kv_bytes_bf16; /* resident; the same tokens in bf16 */
    /* parts of kv_bytes: full pages; raw rows of the open page, of the page sealed last (for exact
     * trims), and of sinks */
    uint64_t packed_bytes, open_bytes, last_raw_bytes, sink_bytes;
    uint64_t fallbacks, shadow_bytes;
    double bits; /* per element of sealed pages, over layers without a sliding window, or over all
                    layers if each has one */
} cli_cache_report;

/* n_tokens: (n_seqs) lengths of all live sequences, for the size in bf16. */
void cli_cache_report_read(const quire_session *session, const int32_t *n_tokens, size_t n_seqs,
                           cli_cache_report *report);
/* Prints a table with a line per kind of layers: same codecs and kernel. Exit status. */
int cli_cache_report_layers(const quire_session *session, FILE *file);
json_t *cli_cache_report_json(const cli_cache_report *report); /* keys as the fields */
/* An array with an object for each layer: kv, window, kernel, sealed_bytes, raw_bytes,
 * packed_read, raw_read. */
json_t *cli_cache_layers_json(const quire_session *session);

#endif
