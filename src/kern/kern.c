#include "kern/kern.h"

const quire_kernels *quire__kernels(void) { return &quire__kernels_ref; }
