#define PRODUCTS "kern/avx2/products.h"
#include "kern/x86/attend.h"

const quire_attend_kernel NAME(quire__attend_avx2) = {attend, workspace_bytes, serves, LEVEL("avx2")};
