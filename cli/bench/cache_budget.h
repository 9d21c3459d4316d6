/* cache_budget.h: how many bytes a pool needs for one sequence. */
#ifndef CLI_BENCH_CACHE_BUDGET_H
#define CLI_BENCH_CACHE_BUDGET_H

#include "bench/synth_cache.h"

#include "quire.h"

/* An estimate from above. The pool knows its own bookkeeping best: it may still answer
 * QUIRE_E_BUDGET. */
quire_status cli_cache_budget(const cli_cache_options *options, int32_t batch_rows, size_t *bytes);

#endif
