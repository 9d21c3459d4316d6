/* niah_grid.c: plans the texts, and prints and plots the maps. */
#include "eval/niah_grid.h"

#include "command.h"
#include "output/output.h"
#include "output/report.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = 4096 };

int32_t cli_niah_length(const cli_niah_grid *grid, int32_t i) {
    return (int32_t)((int64_t)grid->context * (i + 1) / grid->n_lengths);
}

double cli_niah_depth(const cli_niah_grid *grid, int32_t i) {
    return grid->n_places > 1 ? (double)i / (grid->n_places - 1) : 0.5;
}

/* ------------------------------------------------------------------ plan */

static int by_beginning(const void *a, const void *b) {
    const cli_niah_cell *x = a, *y = b;
    return x->fact_at != y->fact_at ? (x->fact_at > y->fact_at) - (x->fact_at < y->fact_at)
                                    : (x->end > y->end) - (x->end < y->end);
}

int64_t cli_niah_tokens(const cli_niah_grid *grid, bool together) {
    const cli_niah_cell *cells = grid->cells;
    int64_t n = cells[grid->n_cells - 1].fact_at; /* the hay that facts branch off from */
    if (together) {
        for (int32_t i = 0; i < grid->n_cells; i++)
            n = cells[i].end > n ? cells[i].end : n;
        return n;
    }
    for (int32_t i = 0; i < grid->n_cells; i++) {
        const bool branches = i == 0 || cells[i].fact_at != cells[i - 1].fact_at;
        n += cells[i].end - (branches ? cells[i].fact_at : cells[i - 1].end);
    }
    return n;
}

/* A place is a share of the length, so that texts of different lengths have facts at the same
 * token. */
bool cli_niah_grid_make(cli_niah_grid *grid, const cli_hay *hay) {
    grid->cells = calloc((size_t)(grid->n_lengths * grid->n_places), sizeof *grid->cells);
    grid->n_cells = grid->n_facts = 0;
    if (!grid->cells) {
        cli_error("out of memory");
        return false;
    }
    for (int32_t i = 0; i < grid->n_lengths; i++) {
        const int32_t length = cli_niah_length(grid, i),
                      end = cli_hay_end_before(hay, length - grid->reserved);
        if (end <= hay->ends[0]) {
            cli_error("a text of %d tokens is too short for a sentence, a fact and a question; "
                      "give a larger --ctx or fewer --lengths",
                      (int)length);
            cli_niah_grid_free(grid);
            return false;
        }
        for (int32_t p = 0; p < grid->n_places; p++) {
            int32_t at = cli_hay_end_before(hay, (int32_t)(cli_niah_depth(grid, p) * length));
            at = at < hay->ends[0] ? hay->ends[0] : at > end ? end : at;
            grid->cells[grid->n_cells++] =
                (cli_niah_cell){.length = i, .place = p, .fact_at = at, .end = end};
        }
    }
    qsort(grid->cells, (size_t)grid->n_cells, sizeof *grid->cells, by_beginning);
    for (int32_t i = 0; i < grid->n_cells; i++) {
        if (i == 0 || grid->cells[i].fact_at != grid->cells[i - 1].fact_at)
            grid->n_facts++;
        grid->cells[i].fact = grid->n_facts - 1;
    }
    return true;
}

void cli_niah_grid_free(cli_niah_grid *grid) {
    free(grid->cells);
    grid->cells = NULL;
}

/* ------------------------------------------------------------------ maps */

double cli_niah_mean_p(const cli_niah_grid *grid, const cli_niah_map *map) {
    double sum = 0;
    for (int32_t i = 0; i < grid->n_cells; i++)
        sum += map->p[i];
    return sum / grid->n_cells;
}

/* Prints how sure the model was of each lost fact: with even odds, the cache is not to blame. */
static void print_lost(const cli_niah_grid *grid, const cli_niah_map *map, const cli_niah_map *raw,
                       FILE *file) {
    for (int32_t i = 0; i < grid->n_cells; i++)
        if (raw->found[i] && !map->found[i])
            fprintf(file, "  lost at %.0f %% of %d: probability of the answer %.2f, with %s %.2f\n",
                    100 * cli_niah_depth(grid, i % grid->n_places),
                    (int)cli_niah_length(grid, i / grid->n_places), map->p[i], raw->kv, raw->p[i]);
}

void cli_niah_print(const cli_niah_grid *grid, const cli_niah_map *map, const cli_niah_map *raw,
                    FILE *file) {
    fprintf(file,
            "%s: %d of %d found, %d lost compared with none; mean probability of the answer %.3f\n "
            " depth ",
            map->kv, (int)map->n_found, (int)grid->n_cells, (int)map->n_lost,
            cli_niah_mean_p(grid, map));
    for (int32_t i = 0; i < grid->n_lengths; i++)
        fprintf(file, " %7d", (int)cli_niah_length(grid, i));
    fputc('\n', file);
    for (int32_t p = 0; p < grid->n_places; p++) {
        fprintf(file, "  %4.0f %%", 100 * cli_niah_depth(grid, p));
        for (int32_t i = 0; i < grid->n_lengths; i++)
            fprintf(file, " %7s", map->found[i * grid->n_places + p] ? "######" : ".");
        fputc('\n', file);
    }
    print_lost(grid, map, raw, file);
    fputc('\n', file);
}

int cli_niah_plot_check(const char *path) {
    const int status = cli_output_check(path);
    if (status == CLI_OK && system("command -v gnuplot >/dev/null 2>&1") != 0) {
        cli_error("--plot needs gnuplot, which is not installed; install it, or leave out --plot");
        return CLI_FAILURE;
    }
    return status;
}

/* A string of gnuplot: quotes in it are doubled. */
static void put_quoted(const char *text, FILE *file) {
    fputc('\'', file);
    for (; *text; text++) {
        fputc(*text, file);
        if (*text == '\'')
            fputc(*text, file);
    }
    fputc('\'', file);
}

int cli_niah_plot(const cli_niah_grid *grid, const cli_niah_map *maps, size_t n_maps,
                  const char *path) {
    char part[PATH_BYTES];
    snprintf(part, sizeof part, "%s.part", path);
    FILE *gnuplot = popen("gnuplot", "w");
    if (!gnuplot) {
        cli_error("cannot run gnuplot for --plot: %s", strerror(errno));
        return CLI_FAILURE;
    }
    void (*before)(int) = signal(SIGPIPE, SIG_IGN); /* if gnuplot dies, its exit status tells */
    fprintf(gnuplot, "set terminal pngcairo size %zu,420\nset output ", 260 * n_maps + 80);
    put_quoted(part, gnuplot);
    fprintf(gnuplot, "\nset multiplot layout 1,%zu\n", n_maps);
    fputs("set palette defined (0 '#c0392b', 1 '#27ae60')\nset cbrange [0:1]\nunset "
          "colorbox\nunset key\n"
          "set xlabel 'tokens'\nset ylabel 'depth, %'\nset tics nomirror out\nset xtics rotate by "
          "-45\n",
          gnuplot);
    for (size_t m = 0; m < n_maps; m++) {
        fprintf(gnuplot,
                "set title '%s: %d of %d' noenhanced\nset yrange [%g:-%g]\n"
                "plot '-' matrix rowheaders columnheaders with image\n",
                maps[m].kv, (int)maps[m].n_found, (int)grid->n_cells, grid->n_places - 0.5, 0.5);
        fprintf(gnuplot, "%d", (int)grid->n_lengths);
        for (int32_t i = 0; i < grid->n_lengths; i++)
            fprintf(gnuplot, " %d", (int)cli_niah_length(grid, i));
        for (int32_t p = 0; p < grid->n_places; p++) {
            fprintf(gnuplot, "\n%.0f", 100 * cli_niah_depth(grid, p));
            for (int32_t i = 0; i < grid->n_lengths; i++)
                fprintf(gnuplot, " %d", (int)maps[m].found[i * grid->n_places + p]);
        }
        fputs("\ne\n", gnuplot);
    }
    const bool drawn = pclose(gnuplot) == 0;
    signal(SIGPIPE, before);
    if (drawn && rename(part, path) == 0)
        return CLI_OK;
    unlink(part);
    cli_error("gnuplot could not draw '%s'", path);
    return CLI_FAILURE;
}
