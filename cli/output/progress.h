/* progress.h: a progress bar on stderr; silent if stderr is not a terminal. */
#ifndef CLI_OUTPUT_PROGRESS_H
#define CLI_OUTPUT_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct cli_progress {
    const char *label; /* borrowed */
    double started, drawn;
    bool visible;
} cli_progress;

double cli_seconds(void); /* monotonic */

void cli_progress_start(cli_progress *progress, const char *label);
void cli_progress_update(cli_progress *progress, int64_t done, int64_t total);
void cli_progress_end(cli_progress *progress); /* erases the bar */

#endif
