/* cache_budget.c: counts pages and rows. */
#include "bench/cache_budget.h"

#include <math.h>

static const double BOOKKEEPING_BYTES = 4.0 * 1024 * 1024;
static const double BYTES_PER_WORKER = 1024.0 * 1024;

static double page_bytes(const cli_cache_options *options, quire_pair pair, quire_status *status) {
    quire_page_shape shape = {.pair = pair,
                              .k_dim = options->shape.k_dim,
                              .v_dim = options->shape.v_dim,
                              .raw = options->raw};
    size_t bytes = 0;
    quire_status result = quire_page_bytes(&shape, &bytes);
    if (*status == QUIRE_OK)
        *status = result;
    return (double)bytes;
}

/* In double: 53 bits hold any size that memory can, and an absurd request ends in a refusal
 * instead of a wrap. */
quire_status cli_cache_budget(const cli_cache_options *options, int32_t batch_rows, size_t *bytes) {
    const cli_shape *shape = &options->shape;
    quire_status status = QUIRE_OK;
    double packed = page_bytes(options, options->policy.pair, &status);
    double raw = page_bytes(options, (quire_pair){QUIRE_CODEC_RAW, QUIRE_CODEC_RAW}, &status);
    if (status != QUIRE_OK)
        return status;

    double held_tokens = options->max_tokens;
    if (options->window > 0) {
        double seen = (double)options->window + options->keep + batch_rows + QUIRE_PAGE_TOKENS;
        if (seen < held_tokens)
            held_tokens = seen;
    }
    double sealed_pages = ceil(held_tokens / QUIRE_PAGE_TOKENS) + 2;
    /* Open page, page sealed last, sinks, and the rows of the batch in flight. */
    double raw_pages = 3 + ceil((double)batch_rows / QUIRE_PAGE_TOKENS) + 1;
    double cache =
        (double)options->n_layers * shape->n_kv_heads * (sealed_pages * packed + raw_pages * raw);

    /* Attention: the queries and a few partial outputs of each row and head, in f32. */
    double row_floats = (double)shape->n_heads * (shape->k_dim + 4.0 * shape->v_dim + 8);
    double work = (double)options->attend_rows * row_floats * sizeof(float) +
                  options->n_workers * BYTES_PER_WORKER;

    /* A quarter more: packed leaves settle in holes that raw ones leave, and what is over there
     * is lost to both. */
    double total = 1.25 * (cache + work) + BOOKKEEPING_BYTES;
    if (total > 9e15 || total > (double)(SIZE_MAX / 2))
        return QUIRE_E_TOO_BIG;
    *bytes = (size_t)total;
    return QUIRE_OK;
}
