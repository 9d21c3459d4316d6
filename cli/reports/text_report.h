/* text_report.h: reports the speed and the cache of a generated text on stderr. */
#ifndef CLI_REPORTS_TEXT_REPORT_H
#define CLI_REPORTS_TEXT_REPORT_H

#include "quire_engine.h"
#include "text/text_store.h"

typedef struct cli_text_report {
    const char *kv; /* as typed */
    const quire_session *session;
    const quire_seq *seq;
    const quire_generate_result *result;
    int32_t n_restored;          /* prompt tokens from a file or a store */
    const char *saved;           /* the file that the text was saved to, or NULL */
    const cli_text_store *store; /* or NULL */
} cli_text_report;

int cli_text_report_print(const cli_text_report *report); /* exit status */
int cli_text_report_json(const cli_text_report *report);

#endif
