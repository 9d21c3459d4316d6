/* row_padding.c: ggml's way of cutting a product, and numbers of rows that it leaves whole. */
#include "graph/row_padding.h"

#include <ggml-cpu.h>

enum { PIECE = 16, PIECES_PER_THREAD = 4, ROWS_AT_ONCE = 2, ROWS_AT_ONCE_REPACKED = 4 };

/* With few rows, another routine may multiply: K-quants below 8 on x86-64; f16 below 8 and f32
 * below 4 on aarch64. */
enum { LEAST_ROWS = 2, ENOUGH_ROWS = 8 };
#if defined(__x86_64__)
static bool needs_min_rows(const struct ggml_tensor *t) {
    (void)t;
    return true;
}
#else
static bool needs_min_rows(const struct ggml_tensor *t) {
    return (t->type == GGML_TYPE_F16 || t->type == GGML_TYPE_F32) && t->ne[1] > 1;
}
#endif

/* Whether ggml has a routine for two rows of such weights at all; for others it cuts at will. */
static bool goes_by_pairs(const struct ggml_tensor *t) {
    return t->ne[1] > 1 && ggml_get_type_traits_cpu(t->type)->nrows > 1;
}

static int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* Whether all rows of a product take the same routine as in any other good number of rows. */
static bool pairs_up(int64_t n_columns, int64_t n_rows, int32_t n_threads) {
    int64_t pieces0 = divide_up(n_columns, PIECE), pieces1 = divide_up(n_rows, PIECE);
    const bool usual_is_even = divide_up(n_columns, pieces0) % 2 == 0;
    if (pieces0 * pieces1 <
        (int64_t)n_threads * PIECES_PER_THREAD) { /* a piece for each thread instead */
        const bool by_columns = n_columns > n_rows;
        pieces0 = by_columns ? n_threads : 1;
        pieces1 = by_columns ? 1 : n_threads;
        if (!usual_is_even || divide_up(n_columns, pieces0) % 2 != 0)
            return false;
    }
    return n_rows % 2 == 0 && divide_up(n_rows, pieces1) % 2 == 0;
}

static bool good(const quire__row_padding *padding, int32_t n_rows) {
    if (n_rows % padding->step != 0)
        return false;
    for (int32_t i = 0; i < padding->n_widths; i++)
        if (!pairs_up(padding->widths[i], n_rows, padding->n_threads))
            return false;
    return true;
}

int32_t quire__row_padding_rows(const quire__row_padding *padding, int32_t n_rows,
                                int32_t max_rows) {
    for (int32_t n = n_rows < padding->least ? padding->least : n_rows;
         n < max_rows && !padding->many; n++)
        if (good(padding, n))
            return n;
    return max_rows;
}

void quire__row_padding_init(quire__row_padding *padding, const quire_model *model,
                             int32_t n_threads) {
    *padding =
        (quire__row_padding){.n_threads = n_threads,
                             .least = LEAST_ROWS,
                             .step = model->repacked.buffer ? ROWS_AT_ONCE_REPACKED : ROWS_AT_ONCE};
    for (struct ggml_tensor *t = ggml_get_first_tensor(model->file.tensors); t;
         t = ggml_get_next_tensor(model->file.tensors, t)) {
        int32_t i = 0;
        if (needs_min_rows(t))
            padding->least = ENOUGH_ROWS;
        while (i < padding->n_widths && padding->widths[i] != t->ne[1])
            i++;
        if (i < padding->n_widths || !goes_by_pairs(t))
            continue;
        padding->many = i == QUIRE__WIDTHS;
        if (padding->many)
            break;
        padding->widths[padding->n_widths++] = t->ne[1];
    }
}
