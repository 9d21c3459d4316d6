/* Attention over packed pages with NEON and i8mm. */
#include "kern/neon/packed_tmpl.h"

const quire_attend_kernel quire__attend_neon_i8mm = {attend, workspace_bytes, serves, "neon_i8mm",
                                                     NULL};
