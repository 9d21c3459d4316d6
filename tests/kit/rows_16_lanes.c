/* The same, as wide as on AVX-512. */
#define VEC_PLAIN
#define VEC_LANES 16
#define QUIRE_ROWS_NAME test_rows_16_lanes
#include "kern/rows/rows_tmpl.h"
