/* Failure with a reason, as src/base/status.h has it: this library stands alone, so it keeps its
 * own sentence. */
#ifndef QUIRE_CUDA_FAIL_H
#define QUIRE_CUDA_FAIL_H

#include <cuda_runtime.h>

#include "quire_cuda.h"

namespace quire_cuda {

/* Remembers the sentence for quire_cuda_last_error() in this thread and returns `status`. */
quire_status fail(quire_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* QUIRE_OK, or E_DEVICE with CUDA's own words; `what` says what was tried. */
quire_status check(cudaError_t error, const char *what);

#define QUIRE_CUDA_TRY(call)                                                                       \
    do {                                                                                           \
        const quire_status status_ = (call);                                                       \
        if (status_ != QUIRE_OK)                                                                   \
            return status_;                                                                        \
    } while (0)

} // namespace quire_cuda

#endif
