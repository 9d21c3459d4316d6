/* Attention over packed pages with NEON and dot products. */
#include "kern/neon/packed_tmpl.h"

const quire_attend_kernel quire__attend_neon_dotprod = {attend, workspace_bytes, serves,
                                                        "neon_dotprod", NULL};
