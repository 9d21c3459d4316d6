/* The source of the row kernels in plain C, as wide as on AVX2: for test_seal on machines
 * without it. */
#define VEC_PLAIN
#define VEC_LANES 8
#define QUIRE_ROWS_NAME test_rows_8_lanes
#include "kern/rows/rows_tmpl.h"
