#define PRODUCTS "kern/avx512/products.h"
#include "kern/x86/attend.h"

const quire_attend_kernel NAME(quire__attend_avx512_vnni) = {attend, workspace_bytes, serves, LEVEL("avx512_vnni")};
