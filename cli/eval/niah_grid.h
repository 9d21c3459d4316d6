/* niah_grid.h: the needle-in-a-haystack grid of text lengths and places of the fact: which texts
 * share a prefix, and maps of the results. */
#ifndef CLI_EVAL_NIAH_GRID_H
#define CLI_EVAL_NIAH_GRID_H

#include "eval/niah_text.h"

#include <stdint.h>
#include <stdio.h>

typedef struct cli_niah_cell {
    int32_t length, place; /* the column and row of the map */
    int32_t fact_at;       /* tokens of hay before the fact */
    int32_t fact;          /* the number of the fact: one per fact_at */
    int32_t end;           /* tokens of hay before the question */
} cli_niah_cell;

typedef struct cli_niah_grid {
    int32_t context, n_lengths, n_places,
        reserved;         /* reserved: tokens of every text that are not hay */
    cli_niah_cell *cells; /* (n_cells) sorted by fact_at, then end: neighbours share prefixes */
    int32_t n_cells, n_facts;
} cli_niah_grid;

/* Tokens of hay that are computed for one cache; every shared prefix counts once. */
int64_t cli_niah_tokens(const cli_niah_grid *grid, bool together);

/* False, with a message: out of memory, or the shortest text is too short. */
bool cli_niah_grid_make(cli_niah_grid *grid, const cli_hay *hay);
void cli_niah_grid_free(cli_niah_grid *grid);
int32_t cli_niah_length(const cli_niah_grid *grid, int32_t i);
double cli_niah_depth(const cli_niah_grid *grid, int32_t i); /* 0: first, 1: last */

/* The results of one cache: (n_lengths, n_places). */
typedef struct cli_niah_map {
    const char *kv;
    bool *found;
    double *p;               /* probability of the right answer */
    int32_t n_found, n_lost; /* lost: the raw cache finds it */
} cli_niah_map;

static inline int32_t cli_niah_index(const cli_niah_grid *grid, const cli_niah_cell *cell) {
    return cell->length * grid->n_places + cell->place;
}

double cli_niah_mean_p(const cli_niah_grid *grid, const cli_niah_map *map);
void cli_niah_print(const cli_niah_grid *grid, const cli_niah_map *map, const cli_niah_map *raw,
                    FILE *file);
/* Plots all maps side by side with gnuplot. cli_niah_plot_check checks before the maps exist
 * whether that will be possible. Exit status. */
int cli_niah_plot_check(const char *path);
int cli_niah_plot(const cli_niah_grid *grid, const cli_niah_map *maps, size_t n_maps,
                  const char *path);

#endif
