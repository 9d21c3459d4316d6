#define QUIRE_ROWS_NAME quire__rows_avx2
#include "kern/vec/rows.h"
