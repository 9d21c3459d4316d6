/* suggest.h: "did you mean ...?": the known name that is closest to a misspelt one. */
#ifndef CLI_OPTIONS_SUGGEST_H
#define CLI_OPTIONS_SUGGEST_H

#include <stddef.h>

typedef struct cli_suggestion {
    const char *typed; /* borrowed */
    const char *best;  /* borrowed from the offers */
    size_t distance;
} cli_suggestion;

void cli_suggest_start(cli_suggestion *suggestion, const char *typed);
void cli_suggest_offer(cli_suggestion *suggestion, const char *name);
/* The closest of the offered names, or NULL if none is close enough. */
const char *cli_suggest_result(const cli_suggestion *suggestion);

#endif
