#define QUIRE_ROWS_NAME quire__rows_neon
#include "kern/vec/rows.h"
