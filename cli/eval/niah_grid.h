/* niah_grid.h: lengths of a text and places in it: which texts have a beginning in common, and
 * maps of what was found. */
#ifndef CLI_EVAL_NIAH_GRID_H
#define CLI_EVAL_NIAH_GRID_H

#include "eval/niah_text.h"

#include <stdint.h>
#include <stdio.h>

typedef struct cli_niah_cell {
    int32_t length, place; /* the column and row of the map */
    int32_t fact_at;       /* tokens of hay before the fact */
    int32_t fact;          /* its number: one for each fact_at */
    int32_t end;           /* tokens of hay before the question */
} cli_niah_cell;

typedef struct cli_niah_grid {
    int32_t context, n_lengths, n_places,
        reserved;         /* reserved: tokens of every text that are not hay */
    cli_niah_cell *cells; /* (n_cells) by fact_at, then by end: neighbours share most */
    int32_t n_cells, n_facts;
} cli_niah_grid;

/* Tokens of hay that one cache computes: with each fact in a text of its own, every beginning
 * once. */
int64_t cli_niah_tokens(const cli_niah_grid *grid, bool together);

/* False, with a message: no memory, or the shortest text is too short. */
bool cli_niah_grid_make(cli_niah_grid *grid, const cli_hay *hay);
void cli_niah_grid_free(cli_niah_grid *grid);
int32_t cli_niah_length(const cli_niah_grid *grid, int32_t i);
double cli_niah_depth(const cli_niah_grid *grid, int32_t i); /* 0: first, 1: last */

/* What one cache found: (n_lengths, n_places). */
typedef struct cli_niah_map {
    const char *kv;
    bool *found;
    double *p;               /* of the right answer, whatever was answered */
    int32_t n_found, n_lost; /* lost: the raw cache finds it */
} cli_niah_map;

static inline int32_t cli_niah_index(const cli_niah_grid *grid, const cli_niah_cell *cell) {
    return cell->length * grid->n_places + cell->place;
}

double cli_niah_mean_p(const cli_niah_grid *grid, const cli_niah_map *map);
void cli_niah_print(const cli_niah_grid *grid, const cli_niah_map *map, const cli_niah_map *raw,
                    FILE *file);
/* A picture of all maps side by side, with gnuplot. Exit status. The check is for before there
 * are maps. */
int cli_niah_plot_check(const char *path);
int cli_niah_plot(const cli_niah_grid *grid, const cli_niah_map *maps, size_t n_maps,
                  const char *path);

#endif
