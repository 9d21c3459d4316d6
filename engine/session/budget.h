/* budget.h: how many bytes a pool needs. */
#ifndef ENGINE_SESSION_BUDGET_H
#define ENGINE_SESSION_BUDGET_H

#include "quire.h"

/* For o->max_seqs sequences of o->max_tokens tokens each: an estimate from above.
 * o->budget_bytes is not read. E_TOO_BIG, E_UNSUPPORTED (a codec cannot serve a layer). */
quire_status quire__pool_budget(const quire_pool_options *o, size_t *bytes);

#endif
