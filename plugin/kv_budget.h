/* kv_budget.h: QUIRE_KV_BYTES, a limit for the pages of all caches of the process. */
#ifndef QUIRE_PLUGIN_KV_BUDGET_H
#define QUIRE_PLUGIN_KV_BUDGET_H

#include <quire_cells.h>

enum kv_budget {
    BUDGET_TAKEN,
    BUDGET_EXCEEDED, /* nothing fits, which is said on stderr */
    BUDGET_NO_PRICE, /* there can be no such pages: quire_last_error */
};

/* Sets options->policy: that of QUIRE_KV or, if it is "auto", the most exact preset whose pages fit
 * into what is left. Takes their *bytes from the budget. */
enum kv_budget kv_budget_take(quire_cells_options *options, size_t *bytes);
void kv_budget_return(size_t bytes);

#endif
