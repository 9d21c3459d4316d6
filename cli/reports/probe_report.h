/* probe_report.h: prints the results of 'quire probe' as text and as JSON. */
#ifndef CLI_REPORTS_PROBE_REPORT_H
#define CLI_REPORTS_PROBE_REPORT_H

#include "options/auto_kv.h"

#include <jansson.h>

/* A budget, and the codecs chosen for it. */
typedef struct cli_probe_choice {
    const char *budget; /* as typed */
    quire_pair *pairs;  /* (n_layers) */
    quire_choice choice;
    cli_chosen chosen;
} cli_probe_choice;

typedef struct cli_probe {
    const quire_model *model;
    quire_model_info info;
    const quire_sensitivity *report;
    const char *path; /* as typed */
    int32_t context;
    const char *predicted_for; /* cli_predicted_for */
    cli_probe_choice *choices; /* (n_choices) */
    size_t n_choices;
} cli_probe;

int cli_probe_print(const cli_probe *probe); /* exit status */
int cli_probe_print_json(const cli_probe *probe);

/* In probe_words.c: a sentence for each conspicuous property. NULL: out of memory. */
json_t *cli_probe_words(const cli_probe *probe);

#endif
