/* row_padding.h: how many rows a step is padded to, so that no row's bits depend on how many
 * others came with it.
 *
 * ggml multiplies by one of two routines: two rows by two columns of the result at a time where
 * it can, else one by one, and the two round differently. Which one runs depends on whether the
 * pieces that it cuts a product into have an even number of rows and columns; that in turn
 * depends on the number of rows, of columns and of threads. This file knows ggml's rule and
 * finds a number of rows for which every product of the model takes the first routine
 * throughout. Only some types have the first routine, on aarch64 alone: without it, any piece is
 * right. Rearranged weights (weight_repack.h) are multiplied four rows at a time, and what
 * is left over by another routine. tests/engine/invariance.c would tell if the rule changed. */
#ifndef ENGINE_GRAPH_ROW_PADDING_H
#define ENGINE_GRAPH_ROW_PADDING_H

#include "model/model.h"

enum { QUIRE__WIDTHS = 16 };

typedef struct quire__row_padding {
    int64_t widths[QUIRE__WIDTHS]; /* columns of the results of the model's products that go by
                                      pairs: each number once */
    int32_t n_widths, n_threads;
    bool many; /* more of them than there is room for: every step is padded to the most rows */
    int32_t least, step; /* so many rows at least, in multiples of this */
} quire__row_padding;

void quire__row_padding_init(quire__row_padding *padding, const quire_model *model,
                             int32_t n_threads);
/* The least number of rows from n_rows (at least 1) on that is good, or max_rows (a multiple of
 * 16) if none is. */
int32_t quire__row_padding_rows(const quire__row_padding *padding, int32_t n_rows,
                                int32_t max_rows);

#endif
