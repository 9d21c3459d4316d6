/* Row and page functions with AVX2. */
#define QUIRE_ROWS_NAME quire__rows_avx2
#include "kern/rows/rows_tmpl.h"
