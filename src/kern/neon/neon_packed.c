/* Attention over packed pages with NEON. */
#include "kern/neon/packed_tmpl.h"

const quire_attend_kernel quire__attend_neon = {attend, workspace_bytes, serves, "neon", NULL};
