/* Row and page functions with AVX-512. */
#define QUIRE_ROWS_NAME quire__rows_avx512
#include "kern/rows/rows_tmpl.h"
