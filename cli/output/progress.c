/* progress.c: draws the progress bar. */
#include "output/progress.h"

#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { BAR_WIDTH = 30 };
static const double REDRAW_SECONDS = 0.1;

double cli_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void cli_progress_start(cli_progress *progress, const char *label) {
    double now = cli_seconds();
    *progress = (cli_progress){
        .label = label, .started = now, .drawn = now, .visible = isatty(STDERR_FILENO) != 0};
}

void cli_progress_update(cli_progress *progress, int64_t done, int64_t total) {
    double now = cli_seconds();
    if (!progress->visible || total <= 0 || now - progress->drawn < REDRAW_SECONDS)
        return;
    static const char marks[] = "##############################",
                      blanks[] = "..............................";
    int filled = (int)(BAR_WIDTH * done / total);
    fprintf(stderr, "\r%s [%.*s%.*s] %3d%%  %.1f s ", progress->label, filled, marks,
            BAR_WIDTH - filled, blanks, (int)(100 * done / total), now - progress->started);
    fflush(stderr);
    progress->drawn = now;
}

void cli_progress_end(cli_progress *progress) {
    if (!progress->visible || progress->drawn == progress->started)
        return;
    fputs("\r\033[K", stderr);
    fflush(stderr);
}
