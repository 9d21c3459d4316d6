/* kv_budget.h: QUIRE_KV_BYTES, a limit for the pages of all caches of the process. */
#ifndef QUIRE_PLUGIN_KV_BUDGET_H
#define QUIRE_PLUGIN_KV_BUDGET_H

#include <quire_cells.h>

enum kv_budget {
    BUDGET_TAKEN,
    BUDGET_EXCEEDED, /* nothing fits, which is said on stderr */
    BUDGET_NO_PRICE, /* there can be no such pages: quire_last_error */
};

/* Sets the policy of n caches that come together: that of QUIRE_KV or, if it is "auto", the most
 * exact preset with which the pages of all of them fit into what is left. Takes their bytes, (n),
 * from the budget, or nothing. */
enum kv_budget kv_budget_take(quire_cells_options *options, int n, size_t *bytes);
void kv_budget_return(size_t bytes);

/* What pages take of the bytes of the same cache in f16, by QUIRE_KV: 1 at most. For `auto` the
 * smallest preset counts. */
double kv_budget_share(void);

#endif
