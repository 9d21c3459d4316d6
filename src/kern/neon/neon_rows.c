/* Row and page functions with NEON. */
#define QUIRE_ROWS_NAME quire__rows_neon
#include "kern/rows/rows_tmpl.h"
